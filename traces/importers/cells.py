"""Cells of exports: one meaning under several names, and values that tables flatten.

An export calls a field `trace_id` or `traceId`, holds a map as an object, as pairs (Parquet) or
as JSON text (CSV), and a time as a number of one of four units or as text in one of several
forms. In: a decoded row. Out: plain values; None where a cell is empty.
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from serving.records import UNDATED
from traces.importers.messages import decoded
from traces.importers.rows import LineRefused

_UNITS = ((10**11, 1), (10**14, 10**3), (10**17, 10**6), (math.inf, 10**9))
"""A count since 1970 below the first number is one of seconds, milliseconds and so on: each
reaches past the year 5000 and begins before 1974 of the next."""


def cell(row: Mapping[str, Any], *names: str) -> Any:
    """Return the first value under these names that is not empty."""
    for name in names:
        value = row.get(name)
        if value is not None and value != "":
            return value
    return None


def text_cell(row: Mapping[str, Any], *names: str) -> str | None:
    """Return the first value that is not empty, as text."""
    value = cell(row, *names)
    return None if value is None else str(value)


def required(row: Mapping[str, Any], name: str) -> str:
    """Return a value as text.

    Raises:
        LineRefused: if it is empty.
    """
    found = text_cell(row, name)
    if found is None:
        raise LineRefused("bad_record", f"{name} is empty")
    return found


def mapping(value: Any) -> dict[str, Any]:
    """Return an object given as such, as pairs, or as JSON text; empty for anything else."""
    value = decoded(value)
    if isinstance(value, dict):
        return value
    if not isinstance(value, list):
        return {}
    pairs: dict[str, Any] = {}
    for pair in value:
        if isinstance(pair, dict) and "key" in pair:
            pairs[str(pair["key"])] = pair.get("value")
        elif isinstance(pair, list | tuple) and len(pair) == 2:
            pairs[str(pair[0])] = pair[1]
    return pairs


def items(value: Any) -> list[Any]:
    """Return a list given as such or as JSON text, each element decoded; empty for others."""
    value = decoded(value)
    return [decoded(item) for item in value] if isinstance(value, list | tuple) else []


def number(value: Any) -> float | None:
    """Return a finite number given as such, as a boolean or as text; None for others."""
    if isinstance(value, str):
        word = value.strip().lower()
        if word in ("true", "false"):
            return float(word == "true")
        try:
            value = float(word)
        except ValueError:
            return None
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def moment(value: Any) -> datetime | None:
    """Return a time given as seconds, milli-, micro- or nanoseconds since 1970, or as text.

    Text without a zone is UTC. Exact to the microsecond.

    Raises:
        ValueError: if the value is no time.
    """
    if value is None or value == "":
        return None
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is no time")
    count = value if isinstance(value, int | float) else _count(value)
    if count is None:
        return moment(datetime.fromisoformat(str(value).strip().removesuffix(" UTC")))
    unit = next(per_second for below, per_second in _UNITS if abs(count) < below)
    whole = isinstance(count, int)
    exact = count * 10**6 // unit if whole else round(count * (10**6 / unit))
    return UNDATED + timedelta(microseconds=int(exact))


def seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    """Return how long it took; None where one of both is missing or they are the wrong way."""
    if start is None or end is None or end < start:
        return None
    return (end - start).total_seconds()


def micros(time: datetime) -> int:
    """Return microseconds since 1970, which order the records of a source."""
    return (time - UNDATED) // timedelta(microseconds=1)


def _count(text: str) -> int | float | None:
    try:
        return int(text)
    except ValueError:
        return number(text)
