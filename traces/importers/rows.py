"""Rows that importers make of records, and the reason a line is not one."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import orjson

from serving.records import (
    SCHEMA_VERSION,
    Feedback,
    Hop,
    Turn,
    canonical_json,
    hop_id_fast,
    hop_id_of,
)
from traces.ending import MAX_DURATION_S
from traces.storage.bodies import Body, body_of
from traces.storage.tables import TABLES, day_of

MALFORMED = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError, RecursionError,
)  # fmt: skip
"""What pydantic, datetime and plain indexing raise on values of the wrong shape."""

_INT64 = 2**63
_INT_COLUMNS = {
    table: tuple(c.name for c in columns if c.kind == "int") for table, columns in TABLES.items()
}


class Row(NamedTuple):
    """One row of one table."""

    table: str
    values: dict[str, Any]


class LineRefused(ValueError):
    """A line that is not a record; `reason` is a short code, the text says more."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def hop_row(hop: Hop, bodies: list[Body] | None = None) -> Row:
    """Return the `hops` row of a hop; under `bodies` it brings its messages along.

    Who makes many hops of the same messages hands over their `bodies`, which are then shared.
    """
    if bodies is None:
        values = hop.model_dump(mode="json")
        bodies = [body_of(message) for message in values.pop("messages")]
    else:
        values = hop.model_dump(mode="json", exclude={"messages"})
    values["hop_id"] = _hop_id(values, bodies)
    values["bodies"] = bodies
    values["message_ids"] = [body.message_id for body in bodies]
    values["completion"] = hop.completion.model_dump_json() if hop.completion else None
    return _checked("hops", hop, values, "started_at")


def turn_row(turn: Turn, origin: str) -> Row:
    """Return the `turns` row of a turn; `origin` is `recorded` or `joined`."""
    values = turn.model_dump(mode="json")
    # Half of a surrogate pair is no text that a file could hold; hops are hashed and fail so too.
    canonical_json(values).encode()
    return _checked("turns", turn, {**values, "origin": origin}, "started_at")


def feedback_row(feedback: Feedback) -> Row:
    """Return the `feedback` row of a signal."""
    values = feedback.model_dump(mode="json")
    key = hop_id_fast(values) or hop_id_of(values)
    return _checked("feedback", feedback, {**values, "feedback_id": key}, "created_at")


def refused(reason: str, detail: str, part: Any) -> Row:
    """Return the quarantine row of a part of an item whose other parts are fine.

    `part` is the smallest item of the same format that holds what is wrong, so that it can be
    mended and replayed alone.
    """
    raw = canonical_json(part).encode()
    return Row("quarantine", {"reason": reason, "detail": detail, "raw": raw})


def whole_or_refused(make: Callable[[], Iterable[Row]], part: Any) -> list[Row]:
    """Return all rows of one part among several of an item, or why there are none.

    `part` is as in `refused`. All or none, for a hop whose turn is refused would be joined to
    others.
    """
    try:
        return list(make())
    except LineRefused as refusal:
        return [refused(refusal.reason, str(refusal), part)]
    except MALFORMED as error:
        return [refused("bad_record", f"{type(error).__name__}: {error}", part)]


def checked_duration(name: str, seconds: Any) -> float:
    """Return a duration that the field `name` of a record gives.

    Raises:
        LineRefused: if it is no number, or longer than `MAX_DURATION_S`.
    """
    if not isinstance(seconds, int | float):
        raise LineRefused("bad_record", f"{name} is no number: {seconds!r}"[:160])
    if not -MAX_DURATION_S <= seconds <= MAX_DURATION_S:  # nor is one that is not a number
        raise LineRefused("bad_record", f"{name} is out of range: {seconds!r}"[:160])
    return float(seconds)


def _hop_id(values: dict[str, Any], bodies: list[Body]) -> str:
    """Return the hop's id, its messages taken as the JSON text that they already are."""
    quick = hop_id_fast({**values, "messages": [orjson.Fragment(b.text) for b in bodies]})
    return quick or hop_id_of({**values, "messages": [orjson.loads(b.text) for b in bodies]})


def _checked(table: str, record: Hop | Turn | Feedback, values: dict[str, Any], time: str) -> Row:
    if record.schema_version != SCHEMA_VERSION:
        raise LineRefused(
            "schema_version",
            f"schema_version {record.schema_version} is not {SCHEMA_VERSION}; update this program",
        )
    for name in _INT_COLUMNS[table]:
        value = values[name]
        if value is not None and not -_INT64 <= value < _INT64:
            raise LineRefused("bad_record", f"{name} is out of range: {value}")
    if not isinstance(record, Feedback):
        checked_duration("duration_s", record.duration_s)
    values[time] = getattr(record, time)
    values["day"] = day_of(values[time])
    return Row(table, values)
