"""Rows of importers into the lake's tables, inside one transaction.

In: rows by table. Out: the ids of those that are new.
"""

from typing import Any

from traces.bodies import store_bodies
from traces.call_versions import keep_latest
from traces.lake import Lake
from traces.span_events import completed
from traces.turns import store_recorded

_TIMES = {
    "hops": "started_at",
    "feedback": "created_at",
    "requests": "started_at",
    "span_events": "occurred_at",
}


def store_rows(lake: Lake, rows: dict[str, list[dict[str, Any]]]) -> dict[str, list[str]]:
    """Add rows, inside `Lake.commit`; return the ids of the new ones by table.

    Under `hops_updated` are hops that were there and are told of at last.
    """
    hops, late = completed(lake.connection, rows)
    hops = keep_latest(lake.connection, hops)
    added = {
        table: lake.insert_new(table, values, _TIMES.get(table))
        for table, values in {**rows, "hops": hops}.items()
        if table != "turns"
    }
    fresh = set(added["hops"])
    store_bodies(lake.connection, [hop for hop in hops if hop["hop_id"] in fresh])
    known = {hop["hop_id"] for hop in late}
    added["hops_updated"] = [hop_id for hop_id in added["hops"] if hop_id in known]
    added["hops"] = [hop_id for hop_id in added["hops"] if hop_id not in known]
    added["turns"] = store_recorded(lake, rows.get("turns", []))
    return added
