"""Facts of later stages in the lake: adapter versions, when they served, what they learned.

The registry and the datasets stay the authority; these tables are copies that SQL can
join with turns. In: rows by table. Out: one commit, or none if the lake says so already.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb

from traces.storage.lake import Lake
from traces.storage.tables import TABLES, arrow_table

Rows = list[dict[str, Any]]


def known_datasets(home: Path) -> frozenset[str]:
    """Return the digests of the datasets whose rows are in the lake.

    Raises:
        LakeNotFound: if nothing was ingested yet.
    """
    with Lake.open(home, read_only=True) as lake:
        found = lake.connection.execute("SELECT DISTINCT manifest_digest FROM lessons").fetchall()
        return frozenset(row[0] for row in found)


def publish(home: Path, whole: Mapping[str, Rows], added: Mapping[str, Rows]) -> int:
    """Bring tables to what is given, in one commit; return the rows written or removed.

    Tables in `whole` hold exactly their rows afterwards; those in `added` keep what they have.
    A row is named by its table's first column.

    Raises:
        LakeNotFound: if nothing was ingested yet.
        LakeUnavailable: if the lake cannot be written; it is as it was.
    """
    with Lake.open(home, read_only=True) as lake:
        same = all(_changes(lake, table, rows) == ([], []) for table, rows in whole.items())
    if same and not any(added.values()):
        return 0
    with Lake.open(home) as lake:

        def work(connection: duckdb.DuckDBPyConnection) -> int:
            changed = 0
            for table, rows in whole.items():
                stale, fresh = _changes(lake, table, rows)
                if stale:
                    connection.execute(
                        f"DELETE FROM {table} WHERE {_key(table)} IN (SELECT unnest($ids))",
                        {"ids": stale},
                    )
                lake.insert(table, arrow_table(table, fresh))
                changed += len({*stale, *(row[_key(table)] for row in fresh)})
            return changed + sum(len(lake.insert_new(t, rows)) for t, rows in added.items())

        return lake.commit(work)


def _changes(lake: Lake, table: str, rows: Rows) -> tuple[list[str], Rows]:
    """Return ids to remove and rows to write, so that the table holds just `rows`."""
    key = _key(table)
    wanted = {row[key]: row for row in arrow_table(table, rows).to_pylist()}
    names = ", ".join(f'"{column.name}"' for column in TABLES[table])
    relation = lake.connection.sql(f"SELECT {names} FROM {table}")
    stored = {row[key]: row for row in relation.to_arrow_table().to_pylist()}
    stale = [name for name, row in stored.items() if wanted.get(name) != row]
    fresh = [row for name, row in wanted.items() if stored.get(name) != row]
    return stale, fresh


def _key(table: str) -> str:
    return TABLES[table][0].name
