"""Literals of an answer: the words and numbers that a summary must not lose.

In: the answer a user wanted, or what a verifier checked against. Out: its literals, the
telling ones; and whether a text has them.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from serving.records import Message

_WORD = re.compile(r"\d+(?:[.:]\d+)+|[^\W_][\w'-]*", re.UNICODE)
IDEOGRAPH = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_IDEOGRAPHS = re.compile(f"{IDEOGRAPH.pattern}+")
"""Scripts written without spaces between words; a pair of characters is the least word."""
_MIN_CHARS = 4
_SHORT_ANSWER_WORDS = 12
_LONG_SHARE = 0.6
"""Share of a longer literal's words that must stand in a text for it to be there in substance."""
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
    letters or more that carry a capital or a digit are strong, but for the capital that opens
    the answer. Plain words, and pairs of ideographs, count only in a short answer without
    strong ones: elsewhere they are too common to prove a loss.
    """
    found: dict[str, bool] = {}
    for call in answer.tool_calls:
        for value in _values(call.arguments):
            found[value] = True
    words = _WORD.findall(answer.content)
    opening = re.match(r"\W*(\w+)", answer.content)
    for word in words:
        if _IDEOGRAPHS.search(word):
            if len(answer.content) <= 2 * _SHORT_ANSWER_WORDS:
                found |= {pair: found.get(pair, False) for pair in _pairs(word)}
        elif (word.isdecimal() and len(word) > 1) or (
            len(word) >= _MIN_CHARS
            and any(c.isupper() or c.isdigit() for c in word)
            and (opening is None or word != opening[1])
        ):
            found[word] = True
        elif (
            len(word) >= _MIN_CHARS
            and len(words) <= _SHORT_ANSWER_WORDS
            and word.casefold() not in _COMMON
        ):
            found.setdefault(word, False)
    strong = [text for text, is_strong in found.items() if is_strong]
    return [Literal(text, bool(strong)) for text in strong or found]


def numbers_of(text: str) -> list[str]:
    """Return the numbers and times in a text, short ones as well."""
    return [word for word in _WORD.findall(text) if word[0].isdecimal()]


def _pairs(word: str) -> Iterator[str]:
    for run in _IDEOGRAPHS.findall(word):
        yield from (run[i : i + 2] for i in range(max(1, len(run) - 1)))


def leaves(value: Any) -> Iterator[str]:
    """Yield the strings and numbers in a JSON value as text; true, false and null say little."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from leaves(item)
    elif not isinstance(value, bool) and value is not None:
        text = str(value).strip()
        if text:
            yield text


def _values(arguments: str) -> list[str]:
    try:
        value = json.loads(arguments)
        return list(dict.fromkeys(t for t in leaves(value) if _tells(t)))
    except (ValueError, RecursionError):
        return []


def _tells(text: str) -> bool:
    return len(text) >= _MIN_CHARS or is_number(text) or _IDEOGRAPHS.search(text) is not None


def is_number(text: str) -> bool:
    """Whether a text is a plain number."""
    return text.lstrip("-").replace(".", "", 1).replace(",", "").isdecimal()


def folded(text: str) -> str:
    """Return a text as `stands_in` compares it: no case, and one form of each character."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", text).casefold()


def occurs(literal: str, text: str) -> bool:
    """Whether a literal stands in a text as a whole word, whatever its case."""
    return stands_in(folded(literal), folded(text))


def stands_in(literal: str, text: str) -> bool:
    """As `occurs`, of folded texts. Ideographs have no word boundaries."""
    start = text.find(literal) if literal else -1
    while start >= 0:
        end = start + len(literal)
        if not (
            (start and _joined(text[start - 1], literal[0]))
            or (end < len(text) and _joined(literal[-1], text[end]))
        ):
            return True
        start = text.find(literal, start + 1)
    return False


def _joined(left: str, right: str) -> bool:
    """Whether two neighbouring characters belong to one word."""
    one, other = (c.isalnum() or c == "_" for c in (left, right))
    return one and other and not (_IDEOGRAPHS.match(left) or _IDEOGRAPHS.match(right))


def in_substance(literal: str, text: str) -> bool:
    """Whether a literal stands in a text, or most of a longer one's words; both are folded.

    A number may be written with separators or as a decimal.
    """
    if stands_in(literal, text):
        return True
    if is_number(literal):
        plain = literal.replace(",", "").removesuffix(".0")
        return any(stands_in(form, text) for form in (plain, plain + ".0", _grouped(plain)))
    words = _WORD.findall(literal)
    if len(words) < 2:
        return False
    return sum(stands_in(word, text) for word in words) >= _LONG_SHARE * len(words)


def _grouped(number: str) -> str:
    return f"{int(number):,}" if number.isdecimal() and len(number) < 19 else number


def unseen(literals: Iterable[Literal], text: str) -> list[Literal]:
    """Return the literals that a folded text does not have in substance."""
    return [each for each in literals if not in_substance(folded(each.text), text)]


def is_common(word: str) -> bool:
    """Whether a word is too common to tell anything."""
    return word.casefold() in _COMMON


def strong_ones(literals: Sequence[Literal]) -> list[Literal]:
    """Return the strong ones."""
    return [each for each in literals if each.strong]
