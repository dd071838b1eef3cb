"""The stored schema against the declared one: what a lake lacks, and how it gets it.

A lake holds its version in `lake_version`; a lake without that table is of version 1.
`upgrade` runs in one commit: killed anywhere, the lake is as it was, and the next command
that opens it begins again. New columns and views need no version; anything else does.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from datetime import date
from typing import NamedTuple

import duckdb
import orjson
import pyarrow as pa

from serving.records import Message
from traces.analytics.view_definitions import MACROS, VIEWS
from traces.storage.bodies import Body, add_bodies, body_of
from traces.storage.connections import lake_cursor
from traces.storage.lake_address import quoted
from traces.storage.tables import (
    IN_CATALOG,
    PARTITIONED,
    TABLES,
    add_column,
    arrow_array,
    arrow_table,
    ddl,
    partition,
)

SCHEMA_VERSION = 2
"""Version of the tables that this program declares."""

_FETCH_ROWS = 1000
_OPTION = "data_inlining_row_limit"
_INLINED_ROWS = 100
"""Rows of one commit that go to the catalog, for tables of `IN_CATALOG`."""


class Standing(NamedTuple):
    """How an attached lake stands to what this program declares."""

    version: int
    """0 if it has no tables yet."""
    is_current: bool
    """Whether it is exactly as declared."""


def compare(connection: duckdb.DuckDBPyConnection) -> Standing:
    """Compare the attached lake with what is declared."""
    columns = _columns(connection)
    version = _version(connection, columns)
    return Standing(version, version == SCHEMA_VERSION and not _missing(connection, columns))


def _version(connection: duckdb.DuckDBPyConnection, tables: Collection[str]) -> int:
    if "lake_version" in tables:
        row = connection.execute("SELECT max(version) FROM lake_version").fetchone()
        if row is not None and row[0] is not None:
            return int(row[0])
    return 1 if "hops" in tables else 0


def upgrade(connection: duckdb.DuckDBPyConnection) -> None:
    """Bring an older or empty lake nearer to the declared schema, inside a commit.

    A new table's options can only be set by a later commit: `compare` tells when all is done.
    """
    columns = _columns(connection)
    version = _version(connection, columns)
    if 0 < version < SCHEMA_VERSION:
        for step in _STEPS[version - 1 :]:
            step(connection)
        columns = _columns(connection)
    for statement in _missing(connection, columns):
        connection.execute(statement)
    if version != SCHEMA_VERSION:
        connection.execute("DELETE FROM lake_version")
        connection.execute("INSERT INTO lake_version VALUES (?)", [SCHEMA_VERSION])


def _columns(connection: duckdb.DuckDBPyConnection) -> dict[str, set[str]]:
    columns: dict[str, set[str]] = defaultdict(set)
    for table, column in connection.execute(
        "SELECT table_name, column_name FROM duckdb_columns() WHERE database_name = 'lake'"
    ).fetchall():
        columns[table].add(column)
    return columns


def _missing(
    connection: duckdb.DuckDBPyConnection, columns: Mapping[str, Collection[str]]
) -> list[str]:
    """Return the statements that bring the lake to the declared tables and views."""
    comments = dict(
        connection.execute(
            "SELECT view_name, comment FROM duckdb_views() WHERE database_name = 'lake'"
        ).fetchall()
    )
    missing = [table for table in TABLES if table not in columns]
    statements = [ddl(table) for table in missing]
    statements += [partition(table) for table in missing if table in PARTITIONED]
    statements += [
        add_column(table, column.name)
        for table in TABLES.keys() & columns.keys()
        for column in TABLES[table]
        if column.name not in columns[table]
    ]
    macros = connection.execute(
        "SELECT function_name FROM duckdb_functions() WHERE database_name = 'lake'"
    ).fetchall()
    statements += [
        f"CREATE MACRO {macro.name} {macro.sql}" for macro in MACROS if (macro.name,) not in macros
    ]
    with_option = _with_option(connection)
    statements += [
        f"CALL ducklake_set_option('lake', '{_OPTION}', {_INLINED_ROWS}, table_name => '{table}')"
        for table in IN_CATALOG
        if table in columns and table not in with_option
    ]
    # Snappy, the default, takes half as much again.
    if not connection.execute(
        "SELECT 1 FROM ducklake_options('lake') WHERE option_name = 'parquet_compression'"
    ).fetchone():
        statements.append("CALL ducklake_set_option('lake', 'parquet_compression', 'zstd')")
    for view in VIEWS:
        if comments.get(view.name) != view.comment:
            statements.append(f"CREATE OR REPLACE VIEW {view.name} AS {view.sql}")
            statements.append(f"COMMENT ON VIEW {view.name} IS {quoted(view.comment)}")
    return statements


def _with_option(connection: duckdb.DuckDBPyConnection) -> set[str]:
    rows = connection.execute(
        "SELECT scope_entry FROM ducklake_options('lake') WHERE option_name = ?", [_OPTION]
    ).fetchall()
    return {str(row[0]).rpartition(".")[2] for row in rows}


def _to_2(connection: duckdb.DuckDBPyConnection) -> None:
    """Messages out of the hops into a table of their own; a day for each row; partitions."""
    for table, time in (("turns", "started_at"), ("feedback", "created_at")):
        old = _replace(connection, table)
        connection.execute(
            f"INSERT INTO {table} BY NAME SELECT *, {time}::DATE AS day FROM {old} ORDER BY {time}"
        )
        connection.execute(f"DROP TABLE {old}")
    # A cursor is a connection of its own: it goes on reading the table as it was committed.
    cursor = lake_cursor(connection)
    cursor.execute("SELECT hop_id, messages, started_at::DATE FROM hops ORDER BY started_at")
    old = _replace(connection, "hops")
    connection.execute(ddl("messages"))
    connection.execute(partition("messages"))
    connection.execute("CREATE TEMP TABLE moved (hop_id VARCHAR, message_ids UUID[], day DATE)")
    while rows := cursor.fetchmany(_FETCH_ROWS):
        _move_messages(connection, rows)
    cursor.close()
    connection.execute(
        "INSERT INTO hops BY NAME SELECT h.* EXCLUDE (messages), m.message_ids, m.day"
        f" FROM {old} h JOIN temp.moved m USING (hop_id) ORDER BY h.started_at"
    )
    connection.execute("DROP TABLE temp.moved")
    connection.execute(f"DROP TABLE {old}")


def _replace(connection: duckdb.DuckDBPyConnection, table: str) -> str:
    """Make the declared table anew, empty, and return the name of the one with the rows."""
    old = f"{table}_1"
    connection.execute(f"ALTER TABLE {table} RENAME TO {old}")
    connection.execute(ddl(table))
    connection.execute(partition(table))
    return old


def _move_messages(
    connection: duckdb.DuckDBPyConnection, rows: list[tuple[str, str, date]]
) -> None:
    """Store the messages of these hops (id, messages, day), and note their ids in `moved`."""
    bodies = [[_body(raw) for raw in orjson.loads(messages)] for _, messages, _ in rows]
    distinct: dict[tuple[date, bytes], Body] = {
        (day, body.message_id): body
        for (_, _, day), found in zip(rows, bodies, strict=True)
        for body in found
    }
    stored = [
        {"day": day, "message_id": key, "role": body.role, "body": body.text}
        for (day, key), body in distinct.items()
    ]
    add_bodies(connection, arrow_table("messages", stored))
    ids = [[body.message_id for body in found] for found in bodies]
    noted = pa.table(
        {
            "hop_id": pa.array([row[0] for row in rows], pa.string()),
            "message_ids": arrow_array("ids", ids),
            "day": pa.array([row[2] for row in rows], pa.date32()),
        }
    )
    connection.register("noted", noted)
    connection.execute("INSERT INTO temp.moved BY NAME SELECT * FROM noted")
    connection.unregister("noted")


def _body(raw: dict[str, object]) -> Body:
    # Through the record, so that the store holds the same text as after an ingest.
    return body_of(Message.model_validate(raw).model_dump(mode="json"))


_STEPS: tuple[Callable[[duckdb.DuckDBPyConnection], None], ...] = (_to_2,)
"""The step at place i brings version i + 1 to i + 2."""
