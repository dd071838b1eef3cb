"""The `turns` table: recorded turns as they come, the others joined from hops.

A turn row is `recorded` (a recorder or a trajectory told it) or `joined` (see
`traces.joins.joined_turns`). Recorded wins: a hop that names a recorded turn is never joined.
Rows are a function of what the lake holds, so order and number of ingests do not matter.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

from typing import Any

import duckdb
import pyarrow as pa

from serving.records import Turn, content_id
from traces.joins.changes import MARK, find_changes
from traces.joins.joined_turns import remake
from traces.storage.frugality import little_memory
from traces.storage.lake import Lake
from traces.storage.row_records import record_of
from traces.storage.tables import TABLES

_COLUMNS = [f'"{c.name}"' for c in TABLES["turns"]]


def store_recorded(lake: Lake, incoming: pa.Table) -> list[str]:
    """Store recorded turns, inside a commit; return the ids of new or better ones.

    Of two records of one turn the one with more hops stands (a turn goes on after
    tool results), then the one that knows more of its end, then the one with the greater
    content hash.
    """
    if not incoming.num_rows:
        return []
    incoming = _best(incoming)
    ids = incoming["turn_id"].to_pylist()
    same, others = _stored(lake.connection, incoming)
    fresh = [
        place
        for place, turn_id in enumerate(ids)
        if turn_id not in same
        and (
            turn_id not in others
            or others[turn_id]["origin"] == "joined"
            or _rank(_row(incoming, place)) > _rank(others[turn_id])
        )
    ]
    replaced = [ids[place] for place in fresh if ids[place] in others]
    if replaced:
        lake.connection.execute(
            "DELETE FROM turns WHERE turn_id IN (SELECT unnest($ids))", {"ids": replaced}
        )
    lake.insert("turns", incoming.take(pa.array(fresh, pa.int64())))
    return [ids[place] for place in fresh]


def _best(incoming: pa.Table) -> pa.Table:
    """Leave one row of each turn."""
    best: dict[str, int] = {}
    for place, turn_id in enumerate(incoming["turn_id"].to_pylist()):
        known = best.setdefault(turn_id, place)
        if known != place and _rank(_row(incoming, place)) > _rank(_row(incoming, known)):
            best[turn_id] = place
    return incoming.take(pa.array(best.values(), pa.int64()))


def _row(table: pa.Table, place: int) -> dict[str, Any]:
    (row,) = table.slice(place, 1).to_pylist()
    return dict(row)


def _stored(
    connection: duckdb.DuckDBPyConnection, incoming: pa.Table
) -> tuple[set[str], dict[str, dict[str, Any]]]:
    """Return the ids of turns that are stored just so, and the rows of those stored otherwise."""
    connection.register("incoming_turns", incoming)
    days = connection.execute(
        "SELECT DISTINCT day FROM turns SEMI JOIN incoming_turns USING (turn_id)"
    ).fetchall()
    same: set[str] = set()
    others: dict[str, dict[str, Any]] = {}
    if days:
        which = ", ".join(f"DATE '{day}'" for (day,) in days)
        hashes = [f"hash({', '.join(f'{alias}.{c}' for c in _COLUMNS)})" for alias in "ti"]
        cursor = connection.execute(
            f"SELECT t.*, {' = '.join(hashes)} AS same FROM turns t"
            " JOIN incoming_turns i USING (turn_id)"
            f" WHERE t.day IN ({which})"
        )
        names = [column[0] for column in cursor.description]
        for values in cursor.fetchall():
            row = dict(zip(names, values, strict=True))
            if row.pop("same"):
                same.add(row["turn_id"])
            else:
                others[row["turn_id"]] = row
    connection.unregister("incoming_turns")
    return same, others


def _rank(row: dict[str, Any]) -> tuple[int, bool, int, str]:
    turn = record_of(Turn, "turns", row)
    ended = turn.status != "abandoned"
    return len(turn.hop_ids), ended, len(turn.tail), content_id(turn.model_dump(mode="json"))


def refresh_turns(lake: Lake) -> tuple[int, int]:
    """Join hops into turns as far as anything came in since the last join.

    Returns:
        Turns that are new, and turns that changed or went away.
    """

    def work(connection: duckdb.DuckDBPyConnection) -> tuple[int, int]:
        changes = find_changes(connection)
        if not changes.news:
            return 0, 0
        counts = remake(connection, changes)
        lake.move_offset(MARK, "hops and requests", changes.before, changes.after, "join")
        return counts

    with little_memory(lake.connection):
        return lake.commit(work)
