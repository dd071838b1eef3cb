"""The `turns` table: recorded turns as they come, the others joined from hops.

A turn row is `recorded` (a recorder or a trajectory told it) or `joined` (see
`traces.joined_turns`). Recorded wins: a hop that names a recorded turn is never joined.
Rows are a function of what the lake holds, so order and number of ingests do not matter.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

from typing import Any

import duckdb
import pyarrow as pa

from serving.records import Turn, canonical_json, content_id
from traces.changes import MARK, find_changes
from traces.frugality import little_memory
from traces.joined_turns import remake
from traces.lake import Lake
from traces.tables import TABLES, arrow_table, record_of

_COLUMNS = [f'"{c.name}"' for c in TABLES["turns"]]


def store_recorded(lake: Lake, rows: list[dict[str, Any]]) -> list[str]:
    """Store recorded turns, inside a commit; return the ids of new or better ones.

    Of two records of one turn the one with more hops stands (a turn goes on after
    tool results), then the one that knows more of its end, then the one with the greater
    content hash.
    """
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        known = best.setdefault(row["turn_id"], row)
        if known is not row and _rank(row) > _rank(known):
            best[row["turn_id"]] = row
    if not best:
        return []
    same, others = _stored(lake.connection, arrow_table("turns", list(best.values())))
    fresh = {
        turn_id: row
        for turn_id, row in best.items()
        if turn_id not in same
        and (
            turn_id not in others
            or others[turn_id]["origin"] == "joined"
            or _rank(row) > _rank(others[turn_id])
        )
    }
    replaced = [turn_id for turn_id in fresh if turn_id in others]
    if replaced:
        lake.connection.execute(
            "DELETE FROM turns WHERE turn_id IN (SELECT unnest($ids))", {"ids": replaced}
        )
    lake.insert("turns", arrow_table("turns", list(fresh.values())))
    return list(fresh)


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
    texts = {name: _text(row.get(name)) for name in ("answer", "tail")}
    turn = record_of(Turn, "turns", {**row, **texts})
    ended = turn.status != "abandoned"
    return len(turn.hop_ids), ended, len(turn.tail), content_id(turn.model_dump(mode="json"))


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else canonical_json(value)


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
