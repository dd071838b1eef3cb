"""Rows of importers into the lake's tables, inside one transaction.

In: rows by table, some as Arrow tables already. Out: the ids of those that are new.
"""

from datetime import date
from typing import Any

import pyarrow as pa

from traces.joins.call_versions import keep_latest
from traces.joins.span_events import completed
from traces.joins.turns import store_recorded
from traces.storage.additions import add_new, key_of
from traces.storage.bodies import messages_table
from traces.storage.lake import Lake
from traces.storage.retention import kept_since, still_kept, still_kept_days
from traces.storage.tables import Quick, arrow_table

Rows = dict[str, list[dict[str, Any]]]


def store_rows(lake: Lake, rows: Rows, quick: Quick | None = None) -> dict[str, list[str]]:
    """Add rows, inside `Lake.commit`; return the ids of the new ones by table.

    Under `hops_updated` are hops that were there and are told of at last; under
    `<table>_expired`, rows of days that have left the lake, which are not taken in again.
    """
    since = kept_since(lake.connection)
    expired: dict[str, list[str]] = {}
    if since is not None:
        rows, quick, expired = _without_expired(rows, quick, since)
    hops, late = completed(lake.connection, rows)
    hops = keep_latest(lake.connection, hops)
    added = {
        table: lake.insert_new(table, values)
        for table, values in rows.items()
        if table not in ("hops", "turns")
    }
    fresh = _add_hops(lake, hops, quick)
    known = {hop["hop_id"] for hop in late}
    added["hops"] = [hop_id for hop_id in fresh if hop_id not in known]
    added["hops_updated"] = [hop_id for hop_id in fresh if hop_id in known]
    turns = arrow_table("turns", rows.get("turns", []))
    added["turns"] = store_recorded(
        lake, pa.concat_tables([quick.turns, turns]) if quick is not None else turns
    )
    return added | expired


def _without_expired(
    rows: Rows, quick: Quick | None, since: date
) -> tuple[Rows, Quick | None, dict[str, list[str]]]:
    """Leave out rows of days that retention took away; return the ids of those, too."""
    kept = {table: still_kept(values, table, since) for table, values in rows.items()}
    expired: dict[str, list[str]] = {}
    for table, values in rows.items():
        (key,) = key_of(table)
        ids = {row[key] for row in values} - {row[key] for row in kept[table]}
        expired[f"{table}_expired"] = sorted(ids)
    if quick is not None:
        old, quick = quick, Quick(*(still_kept_days(table, since) for table in quick))
        for table, before, after in zip(("hops", "messages", "turns"), old, quick, strict=True):
            if table != "messages":
                (key,) = key_of(table)
                ids = set(before[key].to_pylist()) - set(after[key].to_pylist())
                name = f"{table}_expired"
                expired[name] = sorted({*expired.get(name, ()), *ids})
    return kept, quick, {name: ids for name, ids in expired.items() if ids}


def _add_hops(lake: Lake, rows: list[dict[str, Any]], quick: Quick | None) -> list[str]:
    """Add the hops that are new, and their messages; return their ids."""
    bodies = {(row["day"], body.message_id): body for row in rows for body in row["bodies"]}
    hops = arrow_table("hops", rows)
    messages = messages_table([(day, body) for (day, _), body in bodies.items()])
    if quick is not None:
        hops = pa.concat_tables([quick.hops, hops])
        messages = pa.concat_tables([quick.messages, messages])
    ids = add_new(lake.connection, "hops", hops)[key_of("hops")[0]].to_pylist()
    if ids:
        # A hop that was there brought its messages when it came.
        add_new(lake.connection, "messages", messages)
    return list(ids)
