"""Sessions of MetaClaw and OpenClaw: a tree of lines, read along the path of every answer.

In: the head and the lines of a session. Out: rows. An engine call is a line with an answer. It
saw the messages on its path to the root, but no answer that broke off, and after a compaction the
summary in place of what went before. A turn is a user's line with the answers below it, up to the
next user's line. A user's line beside an earlier one replaces it, and so does an answer beside an
earlier one or after one that broke off. Source: the sessions of MetaClaw's benchmark; the session
manager of pi, on which OpenClaw builds, for what a model is shown of a session.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from serving.records import UNDATED, Message, utc_from_timestamp
from traces.importers.messages import finish_reason, read_answer, read_messages
from traces.importers.rows import MALFORMED, LineRefused, Row, refused
from traces.importers.trajectory import AGENT, Call, Exchange, Fields, Trajectory, rows, utc

_BROKEN = {"error": "engine_error", "aborted": "abandoned"}
"""Why an answer stopped that later calls are not shown, and the status of its hop."""
_SUMMARIES = ("compaction", "branch_summary")


@dataclass(slots=True, eq=False)
class _Line:
    """A line of the session that others may follow."""

    place: int
    raw: dict[str, Any]
    name: str
    parent: "_Line | None"
    message: Message | None = None
    """What a model is shown of it."""

    @property
    def inner(self) -> dict[str, Any]:
        """The message with what is known of it; empty where the line is none."""
        inner = self.raw.get("message")
        return inner if isinstance(inner, dict) and self.raw.get("type") == "message" else {}

    @property
    def asks(self) -> bool:
        return self.inner.get("role") == "user"

    @property
    def answers(self) -> bool:
        return self.inner.get("role") == "assistant"

    @property
    def shown(self) -> bool:
        return self.message is not None and self.inner.get("stopReason") not in _BROKEN

    def above(self) -> Iterator["_Line"]:
        """Yield the lines on the path to the root, the nearest first."""
        line = self.parent
        while line is not None:
            yield line
            line = line.parent

    @property
    def anchor(self) -> "_Line | None":
        """The line that a model saw last before this one."""
        return next((line for line in self.above() if line.shown), None)


def session_rows(source: str, head: dict[str, Any], raws: Sequence[Any]) -> Iterator[Row]:
    """Yield the rows of a session; of lines that cannot be read, why.

    Raises:
        LineRefused: if the session has no id.
    """
    if not isinstance(head.get("id"), str) or not head["id"]:
        raise LineRefused("bad_record", f"the session's id {head.get('id')!r} is no text")
    lines: dict[str, _Line] = {}
    last: _Line | None = None
    for place, raw in enumerate(raws):
        try:
            last = _line(place, raw, lines, last)
            lines[last.name] = last
        except LineRefused as refusal:
            yield refused(refusal.reason, str(refusal), [head, raw])
        except MALFORMED as error:
            yield refused("bad_record", f"{type(error).__name__}: {error}", [head, raw])
    if not any(line.asks or line.answers for line in lines.values()):
        yield Row("skipped", {"reason": "session_without_messages"})
    trajectory = Trajectory(
        source=source,
        conversation_id=head["id"],
        messages=(),
        exchanges=_exchanges(list(lines.values()), head["id"]),
        started_at=utc(head["timestamp"]) if head.get("timestamp") else UNDATED,
    )
    yield from rows(trajectory)


def _line(place: int, raw: Any, lines: dict[str, _Line], last: _Line | None) -> _Line:
    if not isinstance(raw, dict):
        raise LineRefused("bad_record", f"a line is no object but {raw!r}"[:200])
    # Sessions of the first version have no ids: every line follows the one before.
    name = raw.get("id") if "id" in raw or "parentId" in raw else str(place)
    if not isinstance(name, str) or name in lines:
        raise LineRefused("bad_record", f"the line's id {name!r} is no text or was there before")
    parent = last
    if "parentId" in raw:
        above = raw["parentId"]
        if above is not None and above not in lines:
            raise LineRefused("missing_parent", f"there is no line {above!r} that it could follow")
        parent = None if above is None else lines[above]
    line = _Line(place, raw, name, parent)
    _time(line)
    line.message = _message(line)
    if line.answers:
        _fields(line, None)
    return line


def _message(line: _Line) -> Message | None:
    """Return what a model is shown of a line; None where it is shown nothing."""
    kind, inner = line.raw.get("type"), line.inner
    if kind in _SUMMARIES:
        return Message(role="user", content=str(line.raw.get("summary") or ""))
    if kind == "custom_message":
        inner = {"role": "user", "content": line.raw.get("content")}
    elif kind != "message" or inner.get("excludeFromContext"):
        return None
    elif inner.get("role") == "bashExecution":
        ran = f"Ran `{inner.get('command')}`\n{inner.get('output') or ''}"
        return Message(role="user", content=ran)
    if "role" not in inner:
        raise LineRefused("bad_record", "a message without a role")
    found = read_messages([inner])
    if len(found) != 1:
        raise LineRefused("bad_record", "a line holds more than one message")
    message = found[0]
    if message.role == "tool" and message.tool_call_id is None:
        return message.model_copy(update={"tool_call_id": _call_id(line)})
    return message


def _call_id(result: _Line) -> str | None:
    """Return the call that a result without an id answers: the next one still open."""
    earlier = 0
    for line in result.above():
        if line.answers and line.message is not None:
            calls = line.message.tool_calls
            return calls[earlier].id if earlier < len(calls) else None
        earlier += line.message is not None and line.message.role == "tool"
    return None


def _exchanges(lines: list[_Line], session: str) -> list[Exchange]:
    calls: dict[_Line | None, list[_Line]] = {}
    for line in lines:
        if line.answers:
            asked = next((one for one in line.above() if one.asks), None)
            calls.setdefault(asked, []).append(line)
    seen = _seen_by_any([line for group in calls.values() for line in group])
    # A request that only later ones were answered after is part of what they asked.
    asked_lines = [line for line in lines if line.asks and (line in calls or line not in seen)]
    starts: list[_Line | None] = [None] if None in calls else []
    replaced = _replaced([line for line in lines if line.asks])
    before = _replaced([line for line in lines if line.answers])
    found = []
    for asked in [*starts, *asked_lines]:
        group = calls.get(asked, [])
        earlier = replaced.get(asked) if asked else None
        found.append(
            Exchange(
                place=asked.place if asked else 0,
                request=asked.message.content if asked and asked.message else "",
                calls=[_call(line, session, before.get(line)) for line in group],
                tail=_tail(lines, group[-1], seen) if group else (),
                name=asked.name if asked else "start",
                supersedes=earlier.name if earlier else None,
                started_at=_time(asked) if asked else None,
            )
        )
    return found


def _seen_by_any(answers: list[_Line]) -> set[_Line]:
    seen: set[_Line] = set()
    for answer in answers:
        for line in answer.above():
            if line in seen:
                break
            seen.add(line)
    return seen


def _replaced(lines: list[_Line]) -> dict[_Line, _Line]:
    """Return for each line the earlier one that stood where it stands."""
    latest: dict[_Line | None, _Line] = {}
    found: dict[_Line, _Line] = {}
    for line in lines:
        anchor = line.anchor
        if anchor in latest:
            found[line] = latest[anchor]
        latest[anchor] = line
    return found


def _tail(lines: list[_Line], call: _Line, seen: set[_Line]) -> list[Message]:
    """Return what followed a call and no later call saw."""
    return [
        line.message
        for line in lines[lines.index(call) + 1 :]
        if line.message and not line.asks and not line.answers and line not in seen
        and next((one for one in line.above() if one.asks or one.answers), None) is call
    ]  # fmt: skip


def _call(line: _Line, session: str, earlier: _Line | None) -> Call:
    shown = line.message
    empty = shown is None or not (shown.content or shown.tool_calls)
    return Call(
        place=line.place,
        said=None if empty and line.inner.get("stopReason") in _BROKEN else shown,
        fields=_fields(line, session),
        seen=_prompt(line),
        supersedes=earlier.place if earlier else None,
    )


def _prompt(line: _Line) -> list[Message]:
    path = list(line.above())[::-1]
    cut = next((n for n in reversed(range(len(path))) if _is_compaction(path[n])), None)
    if cut is not None:
        kept = path[cut].raw.get("firstKeptEntryId")
        start = next((n for n in range(cut) if path[n].name == kept), cut)
        path = [path[cut], *path[start:cut], *path[cut + 1 :]]
    return [one.message for one in path if one.shown and one.message is not None]


def _is_compaction(line: _Line) -> bool:
    return line.raw.get("type") == "compaction"


def _fields(line: _Line, session: str | None) -> Fields:
    inner = line.inner
    found = inner.get("usage")
    usage: dict[str, Any] = found if isinstance(found, dict) else {}
    counts = {
        name: _count(usage.get(name)) for name in ("input", "output", "cacheRead", "cacheWrite")
    }
    prompt = counts["input"] + counts["cacheRead"] + counts["cacheWrite"]
    counted = prompt + counts["output"] > 0
    stopped = inner.get("stopReason")
    ended, began = _time(line), _began(inner)
    took = (ended - began).total_seconds() if ended and began else 0.0
    changed = (one.raw.get("modelId") for one in line.above())
    name = inner.get("model") or next((model for model in changed if model), None)
    return {
        "model": str(name or AGENT),
        "span_id": f"{session}:{line.name}",
        "response_id": inner["responseId"] if isinstance(inner.get("responseId"), str) else None,
        "reasoning": read_answer(inner).reasoning,
        "finish_reason": finish_reason(stopped),
        "status": _BROKEN.get(str(stopped), "ok"),
        "error": str(inner.get("errorMessage") or stopped) if stopped in _BROKEN else None,
        "prompt_tokens": prompt if counted else None,
        "completion_tokens": counts["output"] if counted else None,
        "cached_tokens": counts["cacheRead"] if counted else None,
        "duration_s": max(0.0, took),
        **({"started_at": began or ended} if began or ended else {}),
    }


def _count(value: Any) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value < 2**53 else 0


def _time(line: _Line) -> datetime | None:
    """Return when a line was written."""
    written = line.raw.get("timestamp")
    return utc(written) if written else _began(line.inner)


def _began(inner: dict[str, Any]) -> datetime | None:
    """Return when a message began."""
    ms = inner.get("timestamp")
    return utc_from_timestamp(ms / 1000) if isinstance(ms, int | float) and ms > 0 else None
