"""Literals of an answer: the words and numbers that a summary must not lose.

In: the answer a user wanted. Out: its literals, the telling ones.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from serving.records import Message

_WORD = re.compile(r"[^\W_][\w'-]*|\d+(?:[.:]\d+)*", re.UNICODE)
_MIN_CHARS = 4
_SHORT_ANSWER_WORDS = 12
_COMMON = frozenset(
    word
    for line in (
        "about after again also answer because been before being could does done from have here",
        "into just like made make more most need only other over please same shall should some",
        "such sure take than that their them then there these they this those time used using",
        "very want well were what when where which while will with would your yours",
    )
    for word in line.split()
)


@dataclass(frozen=True, slots=True)
class Literal:
    """One literal; a strong one is a name, a number or an argument, not just a word."""

    text: str
    strong: bool


def literals_of(answer: Message) -> list[Literal]:
    """Return the literals of an answer, without repeats.

    Arguments of tool calls, numbers of two digits or more, and words of four
    letters or more that carry a capital or a digit are strong. Plain words count
    only in a short answer without strong ones: elsewhere they are too common to
    prove a loss.
    """
    found: dict[str, bool] = {}
    for call in answer.tool_calls:
        for value in _values(call.arguments):
            found[value] = True
    words = _WORD.findall(answer.content)
    opening = re.match(r"\W*(\w+)", answer.content)
    for word in words:
        if word.isdecimal() and len(word) > 1:
            found[word] = True
        elif len(word) >= _MIN_CHARS and any(c.isupper() or c.isdigit() for c in word):
            if opening is None or word != opening[1]:
                found[word] = True
        elif (
            len(word) >= _MIN_CHARS
            and len(words) <= _SHORT_ANSWER_WORDS
            and word.casefold() not in _COMMON
        ):
            found.setdefault(word, False)
    strong = [text for text, is_strong in found.items() if is_strong]
    return [Literal(text, bool(strong)) for text in strong or found]


def occurs(literal: str, text: str) -> bool:
    """Whether a literal stands in a text as a whole word, whatever its case."""
    pattern = rf"(?<!\w){re.escape(literal.casefold())}(?!\w)"
    return re.search(pattern, text.casefold()) is not None


def _values(arguments: str) -> list[str]:
    try:
        value = json.loads(arguments)
    except ValueError:
        return []
    return list(dict.fromkeys(_leaves(value)))


def _leaves(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in _leaves(item)]
    if isinstance(value, bool) or value is None:
        return []
    text = str(value).strip()
    number = isinstance(value, int | float)
    return [text] if number or len(text) >= _MIN_CHARS else []
