"""The right answer of a failed turn, as far as anyone said what it is.

In: the user's edit and what verifiers checked against (`Feedback.reference`). Out: its form,
and the literals it needs, with which the turn's view is compared.
"""

import ast
import builtins
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from serving.records import Feedback, Message
from traces.attribution.literals import Literal as Word
from traces.attribution.literals import leaves, literals_of, numbers_of
from traces.attribution.outcomes import tier_of, verifier_failed

Form = Literal["call", "code", "json", "text"]
"""What an answer is by its looks; anything may be text."""

FORM_OF_VERIFIER: Mapping[str, Form] = {
    "tool_call": "call",
    "python_tests": "code",
    "interface_schema": "json",
    "short_answer": "text",
    "numeric": "text",
}
"""What each verifier judges; `exact` may be about any form."""

_FENCED = re.compile(r"```\w*+(.*?)```", re.DOTALL)
_CODE_HINT = re.compile(r"\b(?:def|class|import|return|print|lambda)\b|=|\w\(")
_CALLED = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\s*\(")
_STATEMENTS = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign,
    ast.AugAssign, ast.For, ast.While, ast.If, ast.With, ast.Return,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RightAnswer:
    """What a right answer of a turn has to be."""

    form: Form | None
    """None: not known."""
    copied: tuple[Word, ...] = ()
    """Literals that answers of this form take from what they are given: a call's arguments,
    a wanted component's words, the name of a function."""
    literals: tuple[Word, ...] = ()
    """All telling literals, those that may be known or computed as well."""
    call: tuple[str, Mapping[str, Any]] | None = None
    """Name and arguments of the expected tool call."""
    chars: int | None = None
    """Its length, where the whole answer is known."""


def right_answer(correction: Message | None, signals: Sequence[Feedback]) -> RightAnswer | None:
    """Return what is known of the right answer: the last failed check's reference, else the edit.

    None where nobody said. A reference that cannot be read says nothing; what a model checked
    against counts where nobody else said anything.
    """
    failed = [f for f in signals if f.kind == "verifier" and verifier_failed(f)]
    told = _told([f for f in failed if tier_of(f) == "A"])
    if told is None and correction is not None:
        return _corrected(correction)
    return told or _told(failed)


def _told(failed: Sequence[Feedback]) -> RightAnswer | None:
    references = (signal.reference for signal in reversed(failed) if signal.reference)
    return next((found for ref in references if (found := _referred(ref)) is not None), None)


def form_of(message: Message) -> Form:
    """Return what an answer is by its looks."""
    if message.tool_calls:
        return "call"
    fenced = _FENCED.search(message.content)
    text = (fenced.group(1) if fenced else message.content).strip()
    if text[:1] in ("{", "[") and _is_json(text):
        return "json"
    return "code" if _is_code(text) else "text"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_code(text: str) -> bool:
    if not _CODE_HINT.search(text):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(
        isinstance(node, _STATEMENTS)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and "(" in text)
        for node in body
    ) and not re.match(r"\w+ \(", text)


def _corrected(answer: Message) -> RightAnswer:
    form = form_of(answer)
    literals = tuple(literals_of(answer))
    call = None
    chars = len(answer.content)
    if len(answer.tool_calls) == 1:
        arguments = _object(answer.tool_calls[0].arguments)
        call = None if arguments is None else (answer.tool_calls[0].name, arguments)
        chars = len(answer.tool_calls[0].name) + len(answer.tool_calls[0].arguments)
    copied: tuple[Word, ...] = ()
    if call is not None:
        copied = _words(call[1])
    elif form == "json":
        copied = _words(json.loads(_bare(answer.content)))
    elif form == "code":
        copied = tuple(Word(name, True) for name in _defined(answer.content))
    return RightAnswer(form, copied, literals, call, chars)


def _referred(reference: str) -> RightAnswer | None:
    wanted = _object(reference)
    if wanted is None:
        return None
    form = FORM_OF_VERIFIER.get(str(wanted.get("verifier")))
    match wanted:
        case {"verifier": "tool_call", "name": str(name), "arguments": dict(arguments)}:
            words = _words(arguments)
            chars = len(name) + len(json.dumps(arguments, ensure_ascii=False))
            return RightAnswer(form, words, words, (name, arguments), chars)
        case {"verifier": "python_tests", "tests": list(tests)}:
            names = tuple(Word(name, True) for name in _tested(tests))
            return RightAnswer(form, names, names)
        case {"verifier": "interface_schema", "wanted": list(components)}:
            words = _words(components)
            return RightAnswer(form, words, words)
        case {"accepted": list(accepted)} if accepted and all(isinstance(a, str) for a in accepted):
            message = Message(role="assistant", content=accepted[0])
            longest = max(len(answer) for answer in accepted)
            words = tuple(Word(number, True) for number in numbers_of(accepted[0]))
            words = words or tuple(literals_of(message)) or (Word(accepted[0].strip(), False),)
            return RightAnswer(form or form_of(message), (), words, None, longest)
        case {"verifier": "numeric", "value": int() | float() as value}:
            return RightAnswer(form, (), (Word(f"{value:g}", True),))
        case _:
            return None


def _shown(component: Any) -> Any:
    """Leave out what a component is; how it is called is part of the language, not of the wish."""
    if isinstance(component, dict):
        return {key: _shown(value) for key, value in component.items() if key != "type"}
    return [_shown(each) for each in component] if isinstance(component, list) else component


def _words(value: Any) -> tuple[Word, ...]:
    return tuple(Word(text, len(text) > 1) for text in dict.fromkeys(leaves(_shown(value))))


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _bare(text: str) -> str:
    fenced = _FENCED.search(text)
    return (fenced.group(1) if fenced else text).strip()


def _defined(code: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"\b(?:def|class)\s+([A-Za-z_]\w*)", code)))


def _tested(tests: Sequence[Any]) -> list[str]:
    """Return the names that tests call and that Python itself does not have, the first of all."""
    called = [n for test in tests if isinstance(test, str) for n in _CALLED.findall(test)]
    own = [n for n in dict.fromkeys(called) if not hasattr(builtins, n) and n not in _KEYWORDS]
    return own[:1]


_KEYWORDS = frozenset({"assert", "not", "and", "or", "in", "is", "if", "return", "lambda"})
