"""The spool's lines, read several times as fast as through pydantic.

Only lines exactly as the recorder writes them: one is taken if writing what was read gives
its bytes again and no value needs pydantic's leniency. Any other line is for
`traces.importers.native`, which gives the same row for every line that is taken here.

In: lines, one by one. Out: rows of turns and feedback; hops and their messages are kept
back and handed out as Arrow columns.
"""

import hashlib
from collections import defaultdict
from datetime import date, datetime
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from pydantic import AwareDatetime

from serving.records import (
    LATER_FIELDS,
    SCHEMA_VERSION,
    Feedback,
    Hop,
    Message,
    Record,
    ToolCall,
    Turn,
)
from traces.bodies import Bodies, Body, body_of_text
from traces.call_versions import UPDATING
from traces.importers.rows import Row
from traces.tables import TABLES, arrow_array, arrow_schema

_CACHE_BYTES = 64 << 20
"""Messages read before are remembered up to so many bytes of them."""
_LATER = LATER_FIELDS | {"tail"}
_Int = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

# What stands for a field's type. Messages stay bytes: most of them were read a line before.
_TYPES: dict[Any, Any] = {
    int: _Int,
    int | None: _Int | None,
    AwareDatetime: str,
    tuple[str, ...]: list[str],
    tuple[int, ...] | None: list[int] | None,
    tuple[Message, ...]: list[Raw],
    Message | None: Raw,
}


def _struct_of(record: type[Record]) -> Any:
    """Return a struct with the fields of a record, in the order in which they are written."""
    fields: list[Any] = []
    for name, field in record.model_fields.items():
        kind = _TYPES.get(field.annotation, field.annotation)
        if name == "schema_version":
            kind = Annotated[int, Meta(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]
        fields.append((name, kind | UnsetType, UNSET) if name in _LATER else (name, kind))
    return msgspec.defstruct(record.__name__, fields, forbid_unknown_fields=True, gc=False)


_TYPES[tuple[ToolCall, ...]] = list[_struct_of(ToolCall)]  # type: ignore[misc]
_read_message = msgspec.json.Decoder(_struct_of(Message)).decode
_read_hop, _read_turn, _read_feedback = (
    msgspec.json.Decoder(_struct_of(record)).decode for record in (Hop, Turn, Feedback)
)
_write = msgspec.json.Encoder().encode
_write_sorted = msgspec.json.Encoder(order="sorted").encode

_LATER_OF_HOP = tuple(name for name in Hop.model_fields if name in _LATER)
_PLAIN_OF_HOP = tuple(
    c for c in TABLES["hops"] if c.name in Hop.model_fields and c.kind not in ("time", "json")
)


class _NotOurs(ValueError):
    """The line is one for pydantic."""


class _Known(Struct, frozen=True, gc=False):
    """A message that was read before."""

    body: Body
    canonical: Raw


class _KeptHop(Struct, frozen=True, gc=False):
    """A hop with what was worked out of it."""

    hop_id: str
    record: Any
    started_at: datetime
    day: date
    message_ids: list[bytes]
    completion: str | None


class SpoolLines:
    """Reads lines for one load after the other."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Known] = {}
        self._known_bytes = 0
        self._hops: list[_KeptHop] = []
        self._bodies: Bodies = defaultdict(dict)

    def take(self, line: bytes) -> list[Row] | None:
        """Read a line: its rows, none if it is a hop that was kept; None if it is not for us."""
        end = -2 if line.endswith(b"}}\n") else -1
        try:
            if line.startswith(b'{"kind":"hop","record":{'):
                self._take_hop(line[23:end])
                return []
            if line.startswith(b'{"kind":"turn","record":{'):
                return [self._turn(line[24:end])]
            if line.startswith(b'{"kind":"feedback","record":{'):
                return [self._feedback(line[28:end])]
        except ValueError:
            return None
        return None

    def hand_out(self) -> tuple[pa.Table, Bodies]:
        """Return the hops kept so far as a table, with their messages by day; begin anew."""
        hops, bodies = self._hops, self._bodies
        self._hops, self._bodies = [], defaultdict(dict)
        return _table(hops), bodies

    def _take_hop(self, data: bytes) -> None:
        hop = _same(_read_hop(data), data)
        if hop.source in UPDATING:
            raise _NotOurs
        started_at = _time(hop.started_at)
        _plain(hop.duration_s, hop.ttft_s, hop.confidence, hop.propensity)
        known = self._known
        seen = [known.get(data) or self._message(data) for data in map(bytes, hop.messages)]
        completion = bytes(hop.completion)
        if completion != b"null":
            hop.completion = self._message(completion).canonical
        hop.messages = [message.canonical for message in seen]
        for name in _LATER_OF_HOP:
            if getattr(hop, name) is None:
                setattr(hop, name, UNSET)
        hop_id = _content_id(hop)
        # What refers to the line would keep all of it in memory.
        hop.messages = hop.completion = None
        day = started_at.date()
        bodies = self._bodies[day]
        ids = []
        for message in seen:
            ids.append(message.body.message_id)
            bodies[message.body.message_id] = message.body
        answer = None if completion == b"null" else completion.decode()
        self._hops.append(_KeptHop(hop_id, hop, started_at, day, ids, answer))

    def _turn(self, data: bytes) -> Row:
        turn = _same(_read_turn(data), data)
        started_at = _time(turn.started_at)
        values = {name: None if v is UNSET else v for name, v in _fields(turn)}
        values["answer"] = self._text(turn.answer)
        tail = [] if turn.tail is UNSET else turn.tail
        values["tail"] = "[" + ",".join(self._message(bytes(m)).body.text for m in tail) + "]"
        values |= {"started_at": started_at, "day": started_at.date(), "origin": "recorded"}
        return Row("turns", values)

    def _feedback(self, data: bytes) -> Row:
        feedback = _same(_read_feedback(data), data)
        created_at = _time(feedback.created_at)
        _plain(feedback.value)
        correction = self._text(feedback.correction)
        if correction is not None:
            feedback.correction = Raw(correction.encode())
        if feedback.annotator is None:
            feedback.annotator = UNSET
        values = {name: None if v is UNSET else v for name, v in _fields(feedback)}
        values |= {"feedback_id": _content_id(feedback), "correction": correction}
        values |= {"created_at": created_at, "day": created_at.date()}
        return Row("feedback", values)

    def _text(self, raw: Raw) -> str | None:
        data = bytes(raw)
        return None if data == b"null" else self._message(data).body.text

    def _message(self, data: bytes) -> _Known:
        known = self._known.get(data)
        if known is None:
            canonical = _write_sorted(_same(message := _read_message(data), data))
            known = _Known(body_of_text(message.role, canonical), Raw(canonical))
            if self._known_bytes > _CACHE_BYTES:
                self._known, self._known_bytes = {}, 0
            self._known[data] = known
            self._known_bytes += len(data)
        return known


def _same(record: Any, data: bytes) -> Any:
    if _write(record) != data:
        raise _NotOurs
    return record


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.replace(tzinfo=None).isoformat() + "Z" != text:
        raise _NotOurs
    return time


def _plain(*numbers: float | None) -> None:
    """Refuse numbers that Python and msgspec write differently."""
    for number in numbers:
        if number and not 1e-4 <= abs(number) < 1e16:
            raise _NotOurs


def _content_id(record: Any) -> str:
    return "sha256:" + hashlib.sha256(_write_sorted(record)).hexdigest()


def _fields(record: Any) -> list[tuple[str, Any]]:
    return [(name, getattr(record, name)) for name in record.__struct_fields__]


def _table(hops: list[_KeptHop]) -> pa.Table:
    """Build the `hops` table column by column."""
    records = [hop.record for hop in hops]
    columns: dict[str, list[Any]] = {}
    for column in _PLAIN_OF_HOP:
        values = list(map(attrgetter(column.name), records))
        if column.name in _LATER:
            values = [None if value is UNSET else value for value in values]
        columns[column.name] = values
    for name in ("tools", "params"):
        columns[name] = list(map(attrgetter(name), records))
    for name in ("prompt_token_ids", "completion_token_ids"):
        lists = map(attrgetter(name), records)
        columns[name] = [None if ids is None else _write(ids).decode() for ids in lists]
    for name in ("hop_id", "started_at", "day", "message_ids", "completion"):
        columns[name] = list(map(attrgetter(name), hops))
    arrays = [arrow_array(c.kind, columns[c.name]) for c in TABLES["hops"]]
    return pa.Table.from_arrays(arrays, schema=arrow_schema("hops"))
