"""Rows of importers into the lake's tables, inside one transaction.

In: rows by table, or the Arrow tables made of them. Out: those that are new.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

<<<<<<< ours
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
=======
import pyarrow as pa

from traces.additions import add_new, key_of
from traces.bodies import Bodies, messages_table
from traces.lake import Lake
from traces.tables import arrow_table
from traces.turns import store_recorded

Rows = Mapping[str, list[dict[str, Any]]]

_PLAIN = ("feedback", "requests", "quarantine")


def store_rows(lake: Lake, rows: Rows) -> dict[str, list[str]]:
    """Add rows, inside `Lake.commit`; return the ids of the new ones by table."""
    added = store_tables(lake, tables_of(rows))
    ids = {name: list(table[key_of(name)[0]].to_pylist()) for name, table in added.items()}
    return ids | {"turns": store_recorded(lake, rows.get("turns", []))}


def tables_of(
    rows: Rows, hops: pa.Table | None = None, bodies: Bodies | None = None
) -> dict[str, pa.Table]:
    """Return the Arrow tables of rows but for turns; hops may bring columns and bodies along."""
    bodies = defaultdict(dict) if bodies is None else bodies
    for row in rows.get("hops", ()):
        bodies[row["day"]].update((body.message_id, body) for body in row["bodies"])
    tables = {name: arrow_table(name, rows[name]) for name in _PLAIN if rows.get(name)}
    parts = [part for part in (hops, arrow_table("hops", rows.get("hops", []))) if part]
    if parts:
        tables |= {"hops": pa.concat_tables(parts), "messages": messages_table(bodies)}
    return tables


def store_tables(lake: Lake, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Add what `tables_of` made, inside `Lake.commit`; return the new rows, without messages."""
    added = {
        name: add_new(lake.connection, name, rows)
        for name, rows in tables.items()
        if name != "messages"
    }
    # A hop's messages came with it.
    if "hops" in added and added["hops"].num_rows:
        add_new(lake.connection, "messages", tables["messages"])
>>>>>>> theirs
    return added
