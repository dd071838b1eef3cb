"""Retention by age: whole days leave the lake, and what left is not taken in again.

A record's age is that of its own time. Records of sources without times lie under `UNDATED` and
stay; set-aside ones have no time at all, and are as old as the upkeep that first saw them.
In: a connection inside a commit. Out: what was deleted, by table; rows that are still wanted.
"""

# Table and column names come from our own declarations; values are literals made here.
# ruff: noqa: S608

from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from serving.records import UNDATED
from traces.storage.tables import day_of

_UNDATED = day_of(UNDATED)

_DAY_COLUMNS = {
    "turns": "day",
    "hops": "day",
    "messages": "day",
    "feedback": "day",
    "span_events": "day",
    "requests": "started_at",
}
"""Tables whose rows have a time, and the column that tells their day."""


def old_rows(connection: duckdb.DuckDBPyConnection, before: date) -> dict[str, int]:
    """Count what `delete_old` would delete, by table; tables without such rows are left out."""
    counts = {}
    for table, where in _conditions(connection, before).items():
        row = connection.execute(f"SELECT count(*) FROM {table} WHERE {where}").fetchone()
        counts[table] = int(row[0]) if row else 0
    return {table: n for table, n in counts.items() if n}


def delete_old(connection: duckdb.DuckDBPyConnection, before: date) -> dict[str, int]:
    """Delete the rows of days before `before`; return how many, by table."""
    counts = {}
    for table, where in _conditions(connection, before).items():
        row = connection.execute(f"DELETE FROM {table} WHERE {where}").fetchone()
        counts[table] = int(row[0]) if row else 0
    return {table: n for table, n in counts.items() if n}


def kept_since(connection: duckdb.DuckDBPyConnection) -> date | None:
    """Return the day before which records were deleted; None if none ever were."""
    row = connection.execute("SELECT max(kept_since) FROM upkeep").fetchone()
    return row[0] if row else None


def still_kept(rows: list[dict[str, Any]], table: str, since: date) -> list[dict[str, Any]]:
    """Return the rows that retention has not passed over."""
    column = _DAY_COLUMNS.get(table)
    if column is None:
        return rows
    return [row for row in rows if _is_kept(_day(row, column), since)]


def still_kept_days(rows: pa.Table, since: date) -> pa.Table:
    """Return the rows of an Arrow table with a `day` that retention has not passed over."""
    days = rows["day"]
    return rows.filter(pc.or_(pc.greater_equal(days, since), pc.equal(days, _UNDATED)))


def _day(row: Mapping[str, Any], column: str) -> date:
    value = row[column]
    return value if column == "day" else day_of(value)


def _is_kept(day: date, since: date) -> bool:
    return day >= since or day == _UNDATED


def _conditions(connection: duckdb.DuckDBPyConnection, before: date) -> dict[str, str]:
    """Return which rows are too old, by table, in the order in which they can be deleted."""
    old = f"(day < DATE '{before}' AND day <> DATE '{_UNDATED}')"
    old_turns = f"SELECT turn_id FROM turns WHERE {old}"
    # A turn that began before midnight takes its last hops along.
    next_day = before + timedelta(days=1)
    late_hops = (
        f"(day BETWEEN DATE '{before}' AND DATE '{next_day}' AND hop_id IN"
        f" (SELECT unnest(hop_ids) FROM turns WHERE {old}))"
    )
    requests = f"started_at < DATE '{before}' AND started_at::DATE <> DATE '{_UNDATED}'"
    return {
        "outcomes": f"turn_id IN ({old_turns})",
        "blame": f"turn_id IN ({old_turns})",
        "replays": f"turn_id IN ({old_turns})",
        "preferences": f"turn_id IN ({old_turns})",
        "hops": f"{old} OR {late_hops}",
        "turns": old,
        "messages": old,
        "feedback": old,
        "span_events": old,
        "requests": requests,
        "quarantine": f"snapshot_id <= {_last_snapshot(connection, before)}",
    }


def _last_snapshot(connection: duckdb.DuckDBPyConnection, before: date) -> int:
    """Return the newest snapshot that an upkeep before this day saw."""
    row = connection.execute(
        f"SELECT coalesce(max(snapshot_id), -1) FROM upkeep WHERE day < DATE '{before}'"
    ).fetchone()
    return int(row[0]) if row else -1
