"""Facts of later stages in the lake: adapter versions, when they served, what they learned.

The registry and the datasets stay the authority; these tables are copies that SQL can
join with turns. In: rows by table. Out: one commit, or none if the lake says so already.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb

from traces.storage.lake import Lake
from traces.storage.tables import TABLES, arrow_table

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Published:
    """What the lake says already."""

    datasets: frozenset[str]
    """Digests of the datasets whose rows are there."""
    adapters: int
    newest: datetime | None
    """When the newest adapter was made."""
    at_newest: int
    """How many adapters were made then."""
    generations: Mapping[str, int]
    """Slot to the generation in which its newest tenure began."""
    running: tuple[dict[str, Any], ...]
    """Tenures that have not ended."""
    reports: frozenset[str]
    """Gate reports on whose word a tenure began."""


def published(home: Path) -> Published:
    """Return what the lake says already, from a few totals.

    Raises:
        LakeNotFound: if nothing was ingested yet.
    """
    with Lake.open(home, read_only=True) as lake:

        def rows(sql: str) -> list[Any]:
            return lake.connection.execute(sql).fetchall()

        adapters, newest = rows("SELECT count(*), max(created_at) FROM adapters")[0]
        names = [column.name for column in TABLES["tenures"]]
        quoted = ", ".join(f'"{name}"' for name in names)
        running = rows(f"SELECT {quoted} FROM tenures WHERE until IS NULL")
        last = "created_at = (SELECT max(created_at) FROM adapters)"
        return Published(
            datasets=frozenset(r[0] for r in rows("SELECT DISTINCT manifest_digest FROM lessons")),
            adapters=adapters,
            newest=newest,
            at_newest=rows(f"SELECT count(*) FROM adapters WHERE {last}")[0][0],
            generations=dict(rows("SELECT slot, max(generation) FROM tenures GROUP BY slot")),
            running=tuple(dict(zip(names, row, strict=True)) for row in running),
            reports=frozenset(
                r[0] for r in rows("SELECT DISTINCT gate_report FROM tenures") if r[0] is not None
            ),
        )


def publish(
    home: Path,
    whole: Mapping[str, Rows],
    added: Mapping[str, Rows],
    changed: Mapping[str, Rows] | None = None,
) -> int:
    """Bring tables to what is given, in one commit; return the rows written or removed.

    Tables in `whole` hold exactly their rows afterwards; those in `added` and `changed` keep
    what they have, and rows in `changed` replace those of their name. A row is named by its
    table's first column.

    Raises:
        LakeNotFound: if nothing was ingested yet.
        LakeUnavailable: if the lake cannot be written; it is as it was.
    """
    given = [(table, rows, True) for table, rows in whole.items()]
    given += [(table, rows, False) for table, rows in (changed or {}).items()]
    with Lake.open(home, read_only=True) as lake:
        same = all(_changes(lake, *these) == ([], []) for these in given)
    if same and not any(added.values()):
        return 0
    with Lake.open(home) as lake:

        def work(connection: duckdb.DuckDBPyConnection) -> int:
            written = 0
            for table, rows, only in given:
                stale, fresh = _changes(lake, table, rows, only)
                if stale:
                    connection.execute(
                        f"DELETE FROM {table} WHERE {_key(table)} IN (SELECT unnest($ids))",
                        {"ids": stale},
                    )
                lake.insert(table, arrow_table(table, fresh))
                written += len({*stale, *(row[_key(table)] for row in fresh)})
            return written + sum(len(lake.insert_new(t, rows)) for t, rows in added.items())

        return lake.commit(work)


def _changes(lake: Lake, table: str, rows: Rows, only: bool) -> tuple[list[str], Rows]:
    """Return ids to remove and rows to write; if `only`, so that the table holds just `rows`."""
    key = _key(table)
    wanted = {row[key]: row for row in arrow_table(table, rows).to_pylist()}
    names = ", ".join(f'"{column.name}"' for column in TABLES[table])
    where = "" if only else f" WHERE {key} IN (SELECT unnest($ids))"
    found = lake.connection.execute(
        f"SELECT {names} FROM {table}{where}", {} if only else {"ids": list(wanted)}
    )
    stored = {row[key]: row for row in found.to_arrow_table().to_pylist()}
    stale = [name for name, row in stored.items() if wanted.get(name) != row]
    fresh = [row for name, row in wanted.items() if stored.get(name) != row]
    return stale, fresh


def _key(table: str) -> str:
    return TABLES[table][0].name
