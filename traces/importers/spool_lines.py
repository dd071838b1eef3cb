"""The spool's lines, read several times as fast as through pydantic.

Only lines exactly as the recorder writes them: one is taken if writing what was read gives
its bytes again and no value needs pydantic's leniency. Any other line is for
`traces.importers.native`, which gives the same row for every line that is taken here.

In: lines, one by one. Out: rows of turns and feedback; hops and their messages are kept
back and handed out as Arrow columns.
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

from serving.records import LATER_FIELDS, Feedback, Hop, Turn
from traces.bodies import Bodies
from traces.call_versions import UPDATING
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
from traces.tables import TABLES, arrow_array, arrow_schema, id_lists, utc_times

_TIME = re.compile(r"T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{6})?Z")
_MOST_DAYS = 10_000

_read_hop, _read_turn, _read_feedback = (
    msgspec.json.Decoder(struct_of(record)).decode for record in (Hop, Turn, Feedback)
)
_LATER_OF_HOP = tuple(name for name in Hop.model_fields if name in LATER_FIELDS)
_WORKED_OUT = ("hop_id", "day", "completion")
_later_of = attrgetter(*_LATER_OF_HOP)
_NOT_SET = (UNSET,) * len(_LATER_OF_HOP)


class _KeptHop(Struct, frozen=True, gc=False):
    """A hop with what was worked out of it."""

    hop_id: str
    record: Any
    day: date
    message_ids: bytes
    completion: bytes | None


class SpoolLines:
    """Reads lines for one load after the other."""

    def __init__(self) -> None:
        self._messages = Messages()
        self._days: dict[str, date] = {}
        self._load = 0
        self._begin()

    def _begin(self) -> None:
        self._load += 1
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
        self._begin()
        return _table(hops), bodies

    def _take_hop(self, data: bytes) -> None:
        hop = same(_read_hop(data), data)
        if hop.source in UPDATING:
            raise NotOurs
        _plain(hop.duration_s, hop.ttft_s, hop.confidence, hop.propensity)
        day = self._day(hop.started_at)
        completion = bytes(hop.completion)
        if completion != b"null":
            hop.completion = Raw(self._messages.one(completion).canonical)
        key = (hop.conversation_id, hop.role, hop.model)
        history = self._messages.history(key, bytes(hop.messages))
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
        self._hops.append(_KeptHop(hop_id, hop, day, history.ids, answer))

    def _list_bodies(self, history: History, day: date) -> None:
        """Note the bodies that this load has not noted under this day."""
        place = (self._load, day)
        known = history.listed_count if history.listed == place else 0
        bodies = self._bodies[day]
        for body in history.bodies[known:]:
            bodies[body.message_id] = body
        history.listed, history.listed_count = place, len(history.bodies)

    def _turn(self, data: bytes) -> Row:
        turn = same(_read_turn(data), data)
        tail = "[]" if turn.tail is UNSET else self._list_text(bytes(turn.tail))
        values = _fields(turn)
        values |= {"answer": self._text(turn.answer), "tail": tail, "origin": "recorded"}
        values |= {"day": self._day(turn.started_at), "started_at": _time(turn.started_at)}
        return Row("turns", values)

    def _feedback(self, data: bytes) -> Row:
        feedback = same(_read_feedback(data), data)
        _plain(feedback.value)
        correction = self._text(feedback.correction)
        if correction is not None:
            feedback.correction = Raw(correction.encode())
        if feedback.annotator is None:
            feedback.annotator = UNSET
        values = _fields(feedback)
        values |= {"feedback_id": _content_id(feedback), "correction": correction}
        values |= {"day": self._day(feedback.created_at), "created_at": _time(feedback.created_at)}
        return Row("feedback", values)

    def _text(self, raw: Raw) -> str | None:
        data = bytes(raw)
        return None if data == b"null" else self._messages.one(data).body.text

    def _list_text(self, data: bytes) -> str:
        # No conversation has this key, so that no history is displaced.
        return (self._messages.history(None, data).canonical + b"]").decode()

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


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


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


def _table(hops: list[_KeptHop]) -> pa.Table:
    """Build the `hops` table column by column."""
    records = [hop.record for hop in hops]

    def column(name: str) -> list[Any]:
        return list(map(attrgetter(name), hops if name in _WORKED_OUT else records))

    arrays: list[pa.Array] = []
    for declared in TABLES["hops"]:
        name = declared.name
        if name == "message_ids":
            arrays.append(id_lists([hop.message_ids for hop in hops]))
        elif name == "started_at":
            arrays.append(utc_times([record.started_at for record in records]))
        elif name in ("prompt_token_ids", "completion_token_ids"):
            texts = [None if ids is None else write(ids).decode() for ids in column(name)]
            arrays.append(pa.array(texts, pa.string()))
        elif name in ("completion", "tools", "params"):
            arrays.append(pa.array(column(name), pa.string()))
        elif name in LATER_FIELDS:
            values = [None if value is UNSET else value for value in column(name)]
            arrays.append(arrow_array(declared.kind, values))
        else:
            arrays.append(arrow_array(declared.kind, column(name)))
    return pa.Table.from_arrays(arrays, schema=arrow_schema("hops"))
