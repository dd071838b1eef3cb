"""Rows of importers into the lake's tables, inside one transaction.

In: rows by table. Out: the ids of those that are new.
"""

from typing import Any

from traces.bodies import store_bodies
from traces.call_versions import keep_latest
from traces.lake import Lake
from traces.turns import store_recorded

_TIMES = {"hops": "started_at", "feedback": "created_at", "requests": "started_at"}


def store_rows(lake: Lake, rows: dict[str, list[dict[str, Any]]]) -> dict[str, list[str]]:
    """Add rows, inside `Lake.commit`; return the ids of the new ones by table."""
    hops = keep_latest(lake.connection, rows.get("hops", ()))
    added = {
        table: lake.insert_new(table, hops if table == "hops" else values, _TIMES.get(table))
        for table, values in rows.items()
        if table != "turns"
    }
    fresh = set(added.get("hops", ()))
    store_bodies(lake.connection, [hop for hop in hops if hop["hop_id"] in fresh])
    added["turns"] = store_recorded(lake, rows.get("turns", []))
    return added
