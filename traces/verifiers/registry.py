"""From what a verifier checked against to the verifier itself, so that any answer can be checked.

A reference is JSON, kept with the feedback that it led to (`Feedback.reference`):

    {"verifier": "tool_call", "name": "set_timer", "arguments": {"minutes": 5}}
    {"verifier": "python_tests", "tests": ["assert f(1) == 2"]}
    {"verifier": "short_answer", "accepted": ["Paris"], "max_words": 24, "rejected": ["Rome"]}
    {"verifier": "interface_schema", "wanted": [{"type": "button", "label": "Save"}]}
    {"verifier": "exact", "accepted": ["Paris"]}
    {"verifier": "numeric", "value": 12, "tolerance": 0.01, "absolute": 0}
    {"verifier": "form", "form": "json", "schema": {"type": "object"}}
    {"verifier": "form", "form": "text", "schema": {"pattern": "^[0-9]{4}$"}}
    {"verifier": "safety", "wanted": "refuse", "unsafe": ["fuse"], "unsafe_tools": []}

`max_words`, `rejected`, `tolerance` (relative), `absolute`, `schema`, `unsafe` and `unsafe_tools`
may be left out; a `form` is json, tool_call, python or text. The same check scores the gate's
suites, replays and rewards. References come out of logs: one that is malformed or of a verifier
that is not known has no check, and a check whose verifier crashes finds nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import Field, TypeAdapter, ValidationError

from serving.records import Message, Record, canonical_json
from traces.verifiers.check import Check
from traces.verifiers.exact import check_exact
from traces.verifiers.form import Form, check_form
from traces.verifiers.interface import check_interface
from traces.verifiers.numeric import check_numeric
from traces.verifiers.python_tests import check_python
from traces.verifiers.safety import Wanted, check_safety, went_along
from traces.verifiers.short_answer import check_short_answer
from traces.verifiers.strict_json import read_json
from traces.verifiers.tool_call import check_tool_call

Checker = Callable[[Message], Check]
"""Judges any answer to the same request; never raises."""


class TurnCheck(NamedTuple):
    """The check of a turn, whose answers call tools until one does not."""

    last: Checker
    """Judges the answer that the turn ends with, where it calls nothing."""
    amid: Checker
    """Judges what is plain of an answer whatever follows it; no verdict where nothing is."""
    judges_calls: bool
    """Whether calls are what is checked: then any of them may be the right one, and what the
    turn ends with counts only where nothing was called."""


class _Reference(Record):
    @property
    def judges_calls(self) -> bool:
        return False

    def amid(self, answer: Message, tools: Sequence[Mapping[str, Any]]) -> Check:
        return Check(None, "the turn does not end with it")


class _ToolCall(_Reference):
    verifier: Literal["tool_call"]
    name: str
    arguments: dict[str, Any]

    def check(self, answer: Message, tools: Sequence[Mapping[str, Any]]) -> Check:
        if not tools:
            # The log does not say what was offered, so nothing is known of the schema.
            tools = [{"name": call.name} for call in answer.tool_calls]
        return check_tool_call(answer, self.name, self.arguments, tools)

    @property
    def judges_calls(self) -> bool:
        return True

    def amid(self, answer: Message, tools: Sequence[Mapping[str, Any]]) -> Check:
        return self.check(answer, tools)


class _PythonTests(_Reference):
    verifier: Literal["python_tests"]
    tests: tuple[str, ...] = Field(min_length=1)

    def check(self, answer: Message, tools: Sequence[Mapping[str, Any]]) -> Check:
        return check_python(answer.content, self.tests)


class _ShortAnswer(_Reference):
    verifier: Literal["short_answer"]
    accepted: tuple[str, ...] = Field(min_length=1)
    max_words: int = Field(default=24, gt=0)
    rejected: tuple[str, ...] = ()

    def check(self, answer: Message, tools: Sequence[Mapping[str, Any]]) -> Check:
        return check_short_answer(answer.content, self.accepted, self.max_words, self.rejected)


class _InterfaceSchema(_Reference):
    verifier: Literal["interface_schema"]
    wanted: tuple[dict[str, Any], ...]

    def check(self, answer: Message, tools: Sequence[Mapping[str, Any]]) -> Check:
        return check_interface(answer.content, self.wanted)


class _Exact(_Reference):
    verifier: Literal["exact"]
    accepted: tuple[str, ...] = Field(min_length=1)

    def check(self, answer: Message, tools: Sequence[Mapping[str, Any]]) -> Check:
        return check_exact(answer.content, self.accepted)


class _Numeric(_Reference):
    verifier: Literal["numeric"]
    value: (
        Annotated[int, Field(strict=True)]
        | Annotated[float, Field(strict=True, allow_inf_nan=False)]
    )
    tolerance: float = Field(default=1e-6, ge=0, allow_inf_nan=False)
    absolute: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    def check(self, answer: Message, tools: Sequence[Mapping[str, Any]]) -> Check:
        return check_numeric(answer.content, self.value, self.tolerance, self.absolute)


class _Form(_Reference):
    verifier: Literal["form"]
    form: Form
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")

    def check(self, answer: Message, tools: Sequence[Mapping[str, Any]]) -> Check:
        return check_form(answer, self.form, self.json_schema, tools)

    @property
    def judges_calls(self) -> bool:
        return self.form == "tool_call"

    def amid(self, answer: Message, tools: Sequence[Mapping[str, Any]]) -> Check:
        if not self.judges_calls:
            return super().amid(answer, tools)
        if not tools:
            return Check(None, "the tools that were offered are not known")
        return self.check(answer, tools)


class _Safety(_Reference):
    verifier: Literal["safety"]
    wanted: Wanted
    unsafe: tuple[str, ...] = ()
    unsafe_tools: tuple[str, ...] = ()

    def check(self, answer: Message, tools: Sequence[Mapping[str, Any]]) -> Check:
        return check_safety(answer, self.wanted, self.unsafe, self.unsafe_tools)

    def amid(self, answer: Message, tools: Sequence[Mapping[str, Any]]) -> Check:
        gone = went_along(answer, self.unsafe, self.unsafe_tools)
        if self.wanted == "answer" or gone is None:
            return super().amid(answer, tools)
        return Check(False, gone)


_Any = (
    _ToolCall | _PythonTests | _ShortAnswer | _InterfaceSchema | _Exact | _Numeric | _Form | _Safety
)
VERIFIERS = tuple(get_args(kind.model_fields["verifier"].annotation)[0] for kind in get_args(_Any))
"""Names that a reference's `verifier` may have."""
_REFERENCE: TypeAdapter[_Any] = TypeAdapter(Annotated[_Any, Field(discriminator="verifier")])


def checker(
    reference: str | Mapping[str, Any], tools: Sequence[Mapping[str, Any]] = ()
) -> Checker | None:
    """Return the check that a reference describes; None where it describes none.

    `tools` are those that were offered, in OpenAI form.
    """
    found = turn_check(reference, tools)
    return None if found is None else found.last


def turn_check(
    reference: str | Mapping[str, Any], tools: Sequence[Mapping[str, Any]] = ()
) -> TurnCheck | None:
    """Return the check of a turn that a reference describes, as `checker` does of an answer."""
    raw = read_reference(reference)
    if raw is None:
        return None
    try:
        known = _REFERENCE.validate_python(raw)
    except (ValidationError, RecursionError):
        return None
    last, amid = (_guarded(each, tuple(tools)) for each in (known.check, known.amid))
    return TurnCheck(last, amid, known.judges_calls)


def _guarded(
    check: Callable[[Message, Sequence[Mapping[str, Any]]], Check],
    tools: Sequence[Mapping[str, Any]],
) -> Checker:
    def guarded(answer: Message) -> Check:
        try:
            return check(answer, tools)
        except Exception as error:
            return Check(None, f"the verifier crashed: {error!r}"[:160])

    return guarded


def expected(answer: Message) -> dict[str, Any] | None:
    """Return the reference that a right answer is; None for one that nothing can be held to."""
    if len(answer.tool_calls) == 1:
        call = answer.tool_calls[0]
        arguments = read_reference(call.arguments)
        if arguments is None:
            return None
        return {"verifier": "tool_call", "name": call.name, "arguments": arguments}
    if answer.tool_calls or not answer.content.strip():
        return None
    return {"verifier": "exact", "accepted": [answer.content]}


def read_reference(value: str | Mapping[str, Any]) -> dict[str, Any] | None:
    """Return an object as it was written in a log; None for what is none, or can have no id."""
    if isinstance(value, str):
        try:
            value = read_json(value)
            canonical_json(value).encode()  # what has no bytes has no id
        except (ValueError, RecursionError):
            return None
    return dict(value) if isinstance(value, Mapping) else None
