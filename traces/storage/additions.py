"""Adding rows that may be in the lake already: those whose key is there are left out.

Keys are content hashes, so that the same record is the same row, and a look-up need only see
files of the record's own day and time. In: Arrow rows, inside a commit. Out: the ones added.
"""

# Table and column names come from our own declarations; values are literals made here.
# ruff: noqa: S608

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from traces.storage.tables import PARTITIONED, TABLES

_TIMES = {
    "hops": "started_at",
    "feedback": "created_at",
    "requests": "started_at",
    "span_events": "occurred_at",
}
"""Columns that follow from the key; statistics on them tell which files can hold it."""


def key_of(table: str) -> tuple[str, ...]:
    """Return the columns that tell a table's rows apart."""
    return ("day", "message_id") if table == "messages" else (TABLES[table][0].name,)


def add_new(connection: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> pa.Table:
    """Append the rows whose key the table does not hold, inside a commit; return them."""
    if not rows.num_rows:
        return rows
    key = ", ".join(key_of(table))
    # Numbered, because a key may come twice in one load.
    keys = rows.select(key_of(table)).append_column("n", pa.array(range(rows.num_rows)))
    connection.register("incoming", keys)
    fresh = connection.execute(
        f"SELECT min(n) AS n FROM incoming"
        f" ANTI JOIN (SELECT {key} FROM {table} WHERE {_window(table, rows)}) USING ({key})"
        f" GROUP BY {key} ORDER BY n"
    ).to_arrow_table()
    if fresh.num_rows < rows.num_rows:
        rows = rows.take(fresh["n"])
    if rows.num_rows:
        connection.register("incoming", rows)
        connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")
    connection.unregister("incoming")
    return rows


def _window(table: str, rows: pa.Table) -> str:
    """Return the condition that rows of these keys fulfil; literals let DuckLake skip files."""
    conditions = ["true"]
    if table in PARTITIONED:
        days = ", ".join(f"DATE '{day}'" for day in sorted(pc.unique(rows["day"]).to_pylist()))
        conditions.append(f"day IN ({days})")
    if table in _TIMES:
        ends = pc.min_max(rows[_TIMES[table]]).as_py()
        conditions.append(
            f"{_TIMES[table]} BETWEEN TIMESTAMPTZ '{ends['min']}' AND TIMESTAMPTZ '{ends['max']}'"
        )
    return " AND ".join(conditions)
