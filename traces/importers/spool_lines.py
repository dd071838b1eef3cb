"""The spool's lines, read several times as fast as through pydantic.

Only lines exactly as the recorder writes them: one is taken if writing what was read gives
its bytes again and no value needs pydantic's leniency. Any other line is for
`traces.importers.native`, which gives the same row for every line that is taken here.

In: lines, one by one. Out: rows of feedback; hops, their messages and turns are kept back and
handed out as Arrow tables.
"""

import hashlib
import re
from collections import defaultdict
from datetime import date, datetime
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import UNSET, Raw, Struct

from serving.records import LATER_FIELDS, Feedback, Hop, Record, Turn
from traces.ending import MAX_DURATION_S
from traces.importers.rows import Row
from traces.importers.spool_messages import (
    History,
    Messages,
    NotOurs,
    same,
    struct_of,
    write,
    write_sorted,
)
from traces.joins.call_versions import UPDATING
from traces.storage.bodies import Body, messages_table
from traces.storage.tables import Quick, arrow_schema, id_lists, utc_times

_TIME = re.compile(r"T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{6})?Z")
_MOST_DAYS = 10_000
_CHUNK_ROWS = 1000

_read_hop, _read_turn, _read_feedback = (
    msgspec.json.Decoder(struct_of(record)).decode for record in (Hop, Turn, Feedback)
)
_LATER = LATER_FIELDS | {"tail"}
_LATER_OF_HOP = tuple(name for name in Hop.model_fields if name in LATER_FIELDS)
_LATER_OF_FEEDBACK = tuple(name for name in Feedback.model_fields if name in LATER_FIELDS)
_later_of = attrgetter(*_LATER_OF_HOP)
_NOT_SET = (UNSET,) * len(_LATER_OF_HOP)


class _Hop(Struct, frozen=True, gc=False):
    """What is kept of a hop."""

    hop_id: str
    values: tuple[Any, ...]
    """In the order of the record's fields, but for messages and completion."""
    day: date
    message_ids: bytes
    completion: bytes | None


class _Turn(Struct, frozen=True, gc=False):
    """What is kept of a turn."""

    values: tuple[Any, ...]
    """In the order of the record's fields, but for answer and tail."""
    day: date
    answer: bytes | None
    tail: bytes


class SpoolLines:
    """Reads lines for one load after the other."""

    def __init__(self) -> None:
        self._reader = Messages()
        self._days: dict[str, date] = {}
        self._load = 0
        self._begin()

    def _begin(self) -> None:
        self._load += 1
        self._hops: list[_Hop] = []
        self._turns: list[_Turn] = []
        self._messages: list[tuple[date, Body]] = []
        self._listed: dict[date, set[bytes]] = defaultdict(set)
        self._tables: dict[str, list[pa.Table]] = defaultdict(list)

    def take(self, line: bytes) -> list[Row] | None:
        """Read a line: its rows, none if it was kept; None if it is not for us."""
        if len(self._hops) + len(self._turns) >= _CHUNK_ROWS:
            self._make_tables()
        end = -2 if line.endswith(b"}}\n") else -1
        try:
            if line.startswith(b'{"kind":"hop","record":{'):
                self._take_hop(line[23:end])
                return []
            if line.startswith(b'{"kind":"turn","record":{'):
                self._take_turn(line[24:end])
                return []
            if line.startswith(b'{"kind":"feedback","record":{'):
                return [self._feedback(line[28:end])]
        except ValueError:
            return None
        return None

    def hand_out(self) -> Quick:
        """Return what was kept so far, and begin anew."""
        self._make_tables()
        tables = self._tables
        self._begin()
        return Quick(**{name: pa.concat_tables(parts) for name, parts in tables.items()})

    def _make_tables(self) -> None:
        """Turn what is kept into Arrow tables while it is still in the processor's caches."""
        self._tables["hops"].append(_hops_table(self._hops))
        self._tables["messages"].append(messages_table(self._messages))
        self._tables["turns"].append(_turns_table(self._turns))
        self._hops, self._turns, self._messages = [], [], []

    def _take_hop(self, data: bytes) -> None:
        hop = same(_read_hop(data), data)
        if hop.source in UPDATING:
            raise NotOurs
        _bounded(hop.duration_s)
        _plain(hop.duration_s, hop.ttft_s, hop.confidence, hop.propensity)
        day = self._day(hop.started_at)
        completion = bytes(hop.completion)
        if completion != b"null":
            hop.completion = Raw(self._reader.one(completion).canonical)
        key = (hop.conversation_id, hop.role, hop.model)
        history = self._reader.history(key, bytes(hop.messages))
        hop.messages = Raw(history.canonical + b"]")
        if _later_of(hop) != _NOT_SET:
            for name in _LATER_OF_HOP:
                if getattr(hop, name) is None:
                    setattr(hop, name, UNSET)
        hop_id = _content_id(hop)
        # What refers to the line would keep all of it in memory.
        hop.messages = hop.completion = None
        self._list_bodies(history, day)
        answer = None if completion == b"null" else completion
        values = msgspec.structs.astuple(hop)
        self._hops.append(_Hop(hop_id, values, day, history.ids, answer))

    def _list_bodies(self, history: History, day: date) -> None:
        """Keep the bodies that this load has not kept under this day."""
        place = (self._load, day)
        known = history.listed_count if history.listed == place else 0
        listed = self._listed[day]
        for body in history.bodies[known:]:
            if body.message_id not in listed:
                listed.add(body.message_id)
                self._messages.append((day, body))
        history.listed, history.listed_count = place, len(history.bodies)

    def _take_turn(self, data: bytes) -> None:
        turn = same(_read_turn(data), data)
        _bounded(turn.duration_s)
        day = self._day(turn.started_at)
        answer = self._canonical(turn.answer)
        tail = b"[]"
        if turn.tail is not UNSET:
            # No conversation has this key, so that no history is displaced.
            tail = self._reader.history(None, bytes(turn.tail)).canonical + b"]"
        turn.answer = turn.tail = None
        self._turns.append(_Turn(msgspec.structs.astuple(turn), day, answer, tail))

    def _feedback(self, data: bytes) -> Row:
        feedback = same(_read_feedback(data), data)
        _plain(feedback.value)
        correction = self._canonical(feedback.correction)
        if correction is not None:
            feedback.correction = Raw(correction)
        for name in _LATER_OF_FEEDBACK:
            if getattr(feedback, name) is None:
                setattr(feedback, name, UNSET)
        values = _fields(feedback)
        text = None if correction is None else correction.decode()
        values |= {"feedback_id": _content_id(feedback), "correction": text}
        created_at = datetime.fromisoformat(feedback.created_at)
        values |= {"day": self._day(feedback.created_at), "created_at": created_at}
        return Row("feedback", values)

    def _canonical(self, raw: Raw) -> bytes | None:
        data = bytes(raw)
        return None if data == b"null" else self._reader.one(data).canonical

    def _day(self, time: str) -> date:
        """Return the day of a time written as pydantic writes UTC."""
        if not _TIME.fullmatch(time, 10) or time.endswith(".000000Z"):
            raise NotOurs
        day = self._days.get(time[:10])
        if day is None:
            day = date.fromisoformat(time[:10])
            if day.isoformat() != time[:10]:
                raise NotOurs
            if len(self._days) > _MOST_DAYS:
                self._days.clear()
            self._days[time[:10]] = day
        return day


def _bounded(duration_s: float) -> None:
    """Leave a duration that is refused to where the reason is given."""
    if abs(duration_s) > MAX_DURATION_S:
        raise NotOurs


def _plain(*numbers: float | None) -> None:
    """Refuse numbers that Python and msgspec write differently."""
    for number in numbers:
        if number and not 1e-4 <= abs(number) < 1e16:
            raise NotOurs


def _content_id(record: Any) -> str:
    return "sha256:" + hashlib.sha256(write_sorted(record)).hexdigest()


def _fields(record: Any) -> dict[str, Any]:
    values = msgspec.structs.asdict(record)
    return {name: None if value is UNSET else value for name, value in values.items()}


def _hops_table(hops: list[_Hop]) -> pa.Table:
    columns = _columns(Hop, [hop.values for hop in hops])
    for name in ("prompt_token_ids", "completion_token_ids"):
        columns[name] = [ids if ids is None else write(ids).decode() for ids in columns[name]]
    columns["completion"] = [hop.completion for hop in hops]
    columns["hop_id"] = [hop.hop_id for hop in hops]
    columns["day"] = [hop.day for hop in hops]
    columns["message_ids"] = id_lists([hop.message_ids for hop in hops])
    columns["started_at"] = utc_times(columns["started_at"])
    return _table("hops", columns)


def _turns_table(turns: list[_Turn]) -> pa.Table:
    columns = _columns(Turn, [turn.values for turn in turns])
    columns["answer"] = [turn.answer for turn in turns]
    columns["tail"] = [turn.tail for turn in turns]
    columns["day"] = [turn.day for turn in turns]
    columns["started_at"] = utc_times(columns["started_at"])
    columns["origin"] = ["recorded"] * len(turns)
    return _table("turns", columns)


def _columns(record: type[Record], rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    """Turn rows, in the order of a record's fields, into columns."""
    names = list(record.model_fields)
    columns: dict[str, Any] = dict.fromkeys(names, ())
    columns.update(zip(names, zip(*rows, strict=True), strict=False))
    for name in _LATER.intersection(names):
        columns[name] = [None if value is UNSET else value for value in columns[name]]
    return columns


def _table(name: str, columns: dict[str, Any]) -> pa.Table:
    schema = arrow_schema(name)
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, field.type)
        for field in schema
        for column in (columns[field.name],)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
