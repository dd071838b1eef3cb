"""Feedback of clients: `POST /v1/feedback`, by response, turn or conversation, late by days.

    records = parse(body).records(datetime.now(UTC))

In: the body. Out: `Feedback` records, one a signal, in the words that
`traces.attribution.outcomes` settles:

    thumb, score  `thumb` of +1 or -1; a score below one half points down
    correction    `edit` with the answer that the user wanted
    comment       `comment`, which decides nothing
    outcome       `verifier` under the test's name, 1.0 where it passed

The target need not be known (yet): feedback may name a turn whose record is still
in the queue, or one that another server recorded.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from serving.protocols.chat import AssistantMessage
from serving.protocols.fields import Body
from serving.protocols.refusals import read, refused, shown
from serving.records import Feedback, FeedbackKind, Message, TargetKind

SOURCE = "mol"
MAX_TEXT = 10_000
"""Characters of a comment or a detail."""
MAX_CORRECTION = 200_000
"""Characters of a corrected answer with its tool calls."""

_TARGETS: dict[str, TargetKind] = {
    "response_id": "response", "turn_id": "turn", "conversation_id": "conversation",
}  # fmt: skip
_SIGNALS = ("thumb", "score", "correction", "comment", "outcome")

TargetId = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEXT)]
Score = Annotated[float, Field(ge=0, le=1)]


def _choices(schema: dict[str, Any]) -> None:
    """Tell the schema what types cannot: one target, a signal or more."""
    _without_null(schema)
    schema["oneOf"] = [{"required": [name]} for name in _TARGETS]
    schema["anyOf"] = [{"required": [name]} for name in _SIGNALS]


def _verdict(schema: dict[str, Any]) -> None:
    _without_null(schema)
    schema["oneOf"] = [{"required": ["passed"]}, {"required": ["value"]}]


def _without_null(schema: dict[str, Any]) -> None:
    """Leave null out of the schema, where it would count as given; it is read as absent."""
    for field in schema["properties"].values():
        field.pop("default", None)
        forms = [form for form in field.pop("anyOf", ()) if form != {"type": "null"}]
        field |= forms[0] if len(forms) == 1 else {"anyOf": forms} if forms else {}


class TestOutcome(Body, json_schema_extra=_verdict):
    """What a test said about an answer."""

    __test__ = False  # pytest: this is none of its classes

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,63}$")]
    """Of the test, such as `python_tests`; a slot's own verifiers say whose fault a failure is."""
    passed: bool | None = None
    value: Score | None = None
    """Share that passed; anything below 1 is a failure."""
    detail: Text | None = None


class FeedbackRequest(Body, json_schema_extra=_choices):
    """Signals about one response, turn or conversation; a conversation stands for its last turn."""

    response_id: TargetId | None = None
    turn_id: TargetId | None = None
    conversation_id: TargetId | None = None
    thumb: Literal["up", "down"] | None = None
    score: Score | None = None
    """The user's rating; one half says neither."""
    correction: (
        Annotated[str, StringConstraints(min_length=1, max_length=MAX_CORRECTION)]
        | AssistantMessage
        | None
    ) = None
    """The answer that the user wanted: its text, or a message with tool calls."""
    comment: Text | None = None
    outcome: TestOutcome | None = None
    user: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = None
    """Whose opinion it is; of each user the latest counts."""

    @property
    def target(self) -> tuple[TargetKind, str]:
        """What it is about."""
        return next(
            (kind, getattr(self, name))
            for name, kind in _TARGETS.items()
            if getattr(self, name) is not None
        )

    @property
    def correction_message(self) -> Message | None:
        """The corrected answer as a record has it."""
        match self.correction:
            case None:
                return None
            case str(text):
                return Message(role="assistant", content=text)
            case message:
                return Message.from_openai(message.model_dump(exclude_none=True))

    def records(self, now: datetime) -> tuple[Feedback, ...]:
        """Return one record a signal, dated `now`."""
        found: list[Feedback] = []
        kind, target_id = self.target

        def add(signal: FeedbackKind, name: str, **fields: Any) -> None:
            found.append(
                Feedback(
                    source=SOURCE, target_kind=kind, target_id=target_id, kind=signal, name=name,
                    user=self.user, created_at=now, **fields,
                )
            )  # fmt: skip

        if self.thumb is not None:
            add("thumb", "thumb", value=1.0 if self.thumb == "up" else -1.0)
        elif self.score is not None:
            add("thumb", "score", value=_sign(self.score), detail=f"score {self.score:g}")
        if self.correction_message is not None:
            add("edit", "edit", correction=self.correction_message)
        if self.outcome is not None:
            value = self.outcome.value if self.outcome.passed is None else self.outcome.passed
            assert value is not None
            add("verifier", self.outcome.name, value=float(value), detail=self.outcome.detail)
        if self.comment is not None:
            add("comment", "comment", detail=self.comment)
        return tuple(found)


def parse(raw: Any) -> FeedbackRequest:
    """Read the body of a feedback call.

    Raises:
        RequestInvalid: in one line, if a field is wrong, the target is not one, or nothing is said.
    """
    request = read(FeedbackRequest, raw)
    targets = [name for name in _TARGETS if getattr(request, name) is not None]
    if len(targets) != 1:
        given = " and ".join(targets) or "none"
        allowed = "'response_id', 'turn_id' and 'conversation_id'"
        field = targets[-1] if targets else "response_id"
        raise refused(field, f"must be the only one of {allowed}; given: {given}.")
    if all(getattr(request, name) is None for name in _SIGNALS):
        raise refused("thumb", "or 'score', 'correction', 'comment' or 'outcome' is required.")
    _check(request)
    return request


def _check(request: FeedbackRequest) -> None:
    score, outcome, correction = request.score, request.outcome, request.correction_message
    against = {"up": -1.0, "down": 1.0, None: None}[request.thumb]
    if score is not None and against is not None and _sign(score) == against:
        raise refused("score", f"is {score:g}, but contradicts the thumb {request.thumb!r}.")
    if outcome is not None and (outcome.passed is None) == (outcome.value is None):
        raise refused("outcome", "needs 'passed' or 'value', and not both.")
    if correction is None:
        return
    arguments = "".join(call.arguments for call in correction.tool_calls)
    size = len(correction.content) + len(arguments)
    if size > MAX_CORRECTION:
        raise refused(
            "correction", f"has {size} characters, but must have {MAX_CORRECTION} at most."
        )
    if not correction.content.strip() and not correction.tool_calls:
        text = shown(correction.content)
        raise refused("correction", f"is {text}, but must have text or tool calls.")


def _sign(score: float) -> float | None:
    return None if score == 0.5 else (1.0 if score > 0.5 else -1.0)
