"""Trajectories: an agent's whole conversation as hops, turns and verdicts.

    rows(Trajectory)          -> a hop for each engine call, a turn for each request
    verdict(trajectory, ...)  -> a score of the whole conversation
    exchanges(messages)       -> messages cut into requests, at the user's messages

The mapping is the same for every format. The trajectory is a conversation. Every message of the
assistant is an engine call that saw all messages before it, unless the source says what it saw.
A turn is a request with the calls that answered it: it begins at the last user message before its
first call. What follows the last call is the last turn's `tail`. A source without times begins at
`UNDATED`, and places count as microseconds; so records follow from the source's bytes alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from serving.records import (
    UNDATED,
    Annotator,
    Hop,
    Message,
    TargetKind,
    Turn,
)
from traces.ending import ended_at
from traces.importers.rows import LineRefused, Row, feedback_row, hop_row, turn_row
from traces.importers.signals import signal
from traces.storage.bodies import Body, body_of

AGENT = "agent"
"""Model and slot of a call whose source names none."""

Status = Literal["ok", "failed", "abandoned"]
Fields = Mapping[str, Any]
"""Fields of `Hop` that the source tells of one call: `model`, `started_at`, token counts."""


@dataclass(frozen=True, slots=True)
class Call:
    """One engine call."""

    place: int
    """Index of its message in the trajectory."""
    said: Message | None
    fields: Fields = field(default_factory=dict)
    seen: Sequence[Message] | None = None
    """What it saw; None stands for all messages before its place."""
    supersedes: int | None = None
    """Place of the earlier attempt at the same call that this one replaces."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request with the calls that answered it."""

    place: int
    """Index of the request's message."""
    request: str
    calls: Sequence[Call]
    tail: Sequence[Message] = ()
    name: str | None = None
    """What ends the turn's id, if not its position."""
    status: Status | None = None
    """None: as its calls show."""
    error: str | None = None
    supersedes: str | None = None
    """`name` of the exchange that this one replaces."""
    started_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A conversation and what the source says about all of it."""

    source: str
    conversation_id: str
    messages: Sequence[Message]
    exchanges: Sequence[Exchange]
    model: str = AGENT
    user: str | None = None
    task: str | None = None
    workload: str | None = None
    tools: str = "[]"
    params: str = "{}"
    started_at: datetime = UNDATED

    def at(self, place: int) -> datetime:
        """Return when the message at this place was made, where the source does not tell."""
        return self.started_at + timedelta(microseconds=place)


def exchanges(
    messages: Sequence[Message],
    calls: Mapping[int, Fields] | None = None,
    *,
    answers: Iterable[int] = (),
    status: Status | None = None,
    error: str | None = None,
) -> list[Exchange]:
    """Cut messages into requests, each with the calls that answered it.

    `calls` holds the place of every engine call with what is known of it; None takes every
    message of the assistant. `answers` are places of user messages that are no requests, such as
    a tool's output in the user's role. `status` and `error` are the last exchange's.
    """
    if calls is None:
        calls = {n: {} for n, message in enumerate(messages) if message.role == "assistant"}
    quiet = set(answers)
    groups: list[tuple[int, list[Call]]] = []
    opened = 0
    for place, message in enumerate(messages):
        if place in calls:
            if not groups or groups[-1][0] != opened:
                groups.append((opened, []))
            groups[-1][1].append(Call(place, message, calls[place]))
        elif message.role == "user" and place not in quiet:
            opened = place
    last = groups[-1][1][-1].place if groups else -1
    found = [Exchange(start, _text(messages, start), group) for start, group in groups[:-1]]
    start, group = groups[-1] if groups else (opened, [])
    tail = messages[last + 1 :]
    return [*found, Exchange(start, _text(messages, start), group, tail, None, status, error)]


def rows(trajectory: Trajectory) -> Iterator[Row]:
    """Yield the hops of every exchange, and after them its turn."""
    # Every hop repeats the messages of the one before: each is rendered once.
    known: dict[Message, Body] = {}
    bodies = [_body(message, known) for message in trajectory.messages]
    ids: dict[int, str] = {}
    for position, exchange in enumerate(trajectory.exchanges):
        name = exchange.name or str(position)
        hops: list[Hop] = []
        for call in exchange.calls:
            replaced = None if call.supersedes is None else ids.get(call.supersedes)
            hop = _hop(trajectory, turn_id(trajectory, name), call, replaced)
            if call.seen is None:
                row = hop_row(hop, bodies[: call.place])
            else:
                row = hop_row(hop, [_body(message, known) for message in call.seen])
            ids[call.place] = row.values["hop_id"]
            # The turn needs all of a hop but what it saw, which is most of its bytes.
            hops.append(hop.model_copy(update={"messages": ()}))
            yield row
        hop_ids = [ids[call.place] for call in exchange.calls]
        yield turn_row(_turn(trajectory, position, exchange, hops, hop_ids), "recorded")


def turn_id(trajectory: Trajectory, name: str) -> str:
    """Return the id of one of the trajectory's turns."""
    return f"{trajectory.source}:{trajectory.conversation_id}:{name}"


def verdict(
    trajectory: Trajectory,
    name: str,
    score: Any,
    *,
    text: str | None = None,
    annotator: Annotator | None = "code",
    at: datetime | None = None,
) -> Row:
    """Return a score of the whole conversation, which counts for its last turn.

    Raises:
        LineRefused: if it is no number.
    """
    if not isinstance(score, int | float):
        raise LineRefused("bad_score", f"the {name} {score!r} is no number")
    target: tuple[TargetKind, str] = ("conversation", trajectory.conversation_id)
    when = at or trajectory.at(len(trajectory.messages))
    return feedback_row(
        signal(
            trajectory.source, target, name, score=score, text=text, annotator=annotator, at=when
        )
    )


def comment(trajectory: Trajectory, name: str, text: str) -> Row:
    """Return a remark about the whole conversation that judges nothing."""
    at = trajectory.at(len(trajectory.messages))
    target: tuple[TargetKind, str] = ("conversation", trajectory.conversation_id)
    return feedback_row(signal(trajectory.source, target, name, text=text, annotator="code", at=at))


def utc(value: Any) -> datetime:
    """Return the time of ISO text; text without a zone is taken for UTC.

    Raises:
        ValueError: if it is no such text.
    """
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no time in ISO 8601")
    time = datetime.fromisoformat(value)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def objects(value: Any, what: str) -> list[dict[str, Any]]:
    """Return a list of objects as it is.

    Raises:
        LineRefused: if it is anything else; `what` says what it should have been.
    """
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        return value
    raise LineRefused("bad_record", f"{what} is no list of objects but {_kind(value)}")


def _kind(value: Any) -> str:
    if not isinstance(value, list):
        return f"{type(value).__name__} {value!r}"[:80]
    return "a list with " + repr(next(one for one in value if not isinstance(one, dict)))[:60]


def _text(messages: Sequence[Message], place: int) -> str:
    fits = place < len(messages) and messages[place].role == "user"
    return messages[place].content if fits else ""


def _body(message: Message, known: dict[Message, Body]) -> Body:
    if message not in known:
        known[message] = body_of(message.model_dump(mode="json"))
    return known[message]


def _hop(trajectory: Trajectory, turn: str, call: Call, supersedes: str | None) -> Hop:
    known: dict[str, Any] = {
        "model": trajectory.model,
        "tools": trajectory.tools,
        "params": trajectory.params,
        "status": "ok",
        "started_at": trajectory.at(call.place),
        "duration_s": 0.0,
    }
    seen = trajectory.messages[: call.place] if call.seen is None else call.seen
    return Hop(
        source=trajectory.source,
        conversation_id=trajectory.conversation_id,
        turn_id=turn,
        user=trajectory.user,
        task=trajectory.task,
        workload=trajectory.workload,
        seq=call.place,
        role="answer",
        messages=tuple(seen),
        completion=call.said,
        supersedes=supersedes,
        **{**known, **call.fields},
    )


def _turn(
    trajectory: Trajectory, position: int, exchange: Exchange, hops: list[Hop], hop_ids: list[str]
) -> Turn:
    last = hops[-1] if hops else None
    answered = last is not None and last.status == "ok"
    status, error = _status(exchange, last)
    started_at = exchange.started_at or trajectory.at(exchange.place)
    ended = max([ended_at(h.started_at, h.duration_s) for h in hops], default=started_at)
    ids = [one for h in hops for one in (h.response_id, h.span_id) if one]
    replaced = exchange.supersedes
    return Turn(
        turn_id=turn_id(trajectory, exchange.name or str(position)),
        source=trajectory.source,
        conversation_id=trajectory.conversation_id,
        user=trajectory.user,
        position=position,
        request=exchange.request,
        answer=last.completion if last else None,
        slot=last.slot if last and answered else None,
        digest=last.digest if last and answered else None,
        decision="direct",
        status=status,
        error=error,
        hop_ids=tuple(hop_ids),
        response_ids=tuple(dict.fromkeys(ids)),
        started_at=started_at,
        duration_s=max(0.0, (ended - started_at).total_seconds()),
        supersedes=None if replaced is None else turn_id(trajectory, replaced),
        workload=trajectory.workload,
        task=trajectory.task,
        tail=tuple(exchange.tail),
    )


def _status(exchange: Exchange, last: Hop | None) -> tuple[Status, str | None]:
    if exchange.status is not None:
        return exchange.status, exchange.error
    if last is None:
        return "abandoned", exchange.error or "no answer"
    if last.status in ("engine_error", "broken_stream"):
        return "failed", last.error or last.status
    return ("abandoned" if last.status == "abandoned" else "ok"), last.error
