"""Versions of one call: some sources tell of a call again when they know more.

An observation is exported while it runs and again when it has ended, was priced or was corrected;
exports overlap on purpose, so that late ones are not missed. Of the versions of one `span_id` the
lake keeps the latest alone: by the source's `updated_at`, else by how far the call had come, and
of equal ones the greater content hash. So the order of ingests does not matter.
In: a connection inside a commit, and rows of `hops` to be stored. Out: those to store.
"""

# Table and column names come from our own declarations; values are bound.

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa

from traces.ending import ended_at

UPDATING = frozenset({"langfuse", "langsmith", "mlflow", "openinference", "otlp"})
"""Sources whose `span_id` names a call that they tell of again."""

_A_DAY = timedelta(days=1)


def keep_latest(
    connection: duckdb.DuckDBPyConnection, rows: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Take out of the lake what these rows bring up to date; return those nothing is later than."""
    kept: list[dict[str, Any]] = []
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        if row["source"] not in UPDATING or row["span_id"] is None:
            kept.append(row)
            continue
        call = (row["source"], row["span_id"])
        if call not in best or version(row) > version(best[call]):
            best[call] = row
    if not best:
        return kept
    replaced: list[dict[str, Any]] = []
    for stored in _stored(connection, best):
        call = (stored["source"], stored["span_id"])
        if call not in best or stored["hop_id"] == best[call]["hop_id"]:
            continue
        if version(stored) > version(best[call]):
            del best[call]
        else:
            replaced.append(stored)
    _remove(connection, [row for row in replaced if (row["source"], row["span_id"]) in best])
    return [*kept, *best.values()]


def version(row: Mapping[str, Any]) -> tuple[str, bool, datetime, str]:
    """Return what versions of one call are ordered by."""
    told = json.loads(row["params"]).get(row["source"])
    updated_at = told.get("updated_at") if isinstance(told, dict) else None
    ended = ended_at(row["started_at"], row["duration_s"])
    return str(updated_at or ""), row["completion"] is not None, ended, row["hop_id"]


def _stored(
    connection: duckdb.DuckDBPyConnection, best: Mapping[tuple[str, str], Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the stored versions of these calls; a call's day hardly changes, so few are read."""
    days = [row["day"] for row in best.values()]
    connection.register("incoming_calls", pa.table({"span_id": [call[1] for call in best]}))
    cursor = connection.execute(
        "SELECT hop_id, source, span_id, day, params, completion, started_at, duration_s"
        " FROM hops SEMI JOIN incoming_calls USING (span_id)"
        " WHERE day BETWEEN $low AND $high AND list_contains($sources, source)",
        {"low": min(days) - _A_DAY, "high": max(days) + _A_DAY, "sources": sorted(UPDATING)},
    )
    names = [column[0] for column in cursor.description]
    found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    connection.unregister("incoming_calls")
    return found


def _remove(connection: duckdb.DuckDBPyConnection, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(
            "DELETE FROM hops WHERE list_contains($days, day) AND hop_id IN (SELECT unnest($ids))",
            {"days": [row["day"] for row in rows], "ids": [row["hop_id"] for row in rows]},
        )
