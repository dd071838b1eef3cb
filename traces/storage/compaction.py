"""Compaction: many small files become few, and deleted rows leave their files.

DuckLake merges only files without deleted rows, so that files with deleted rows are rewritten
first. What is worth doing is read from the catalog: an idle lake is not touched.
In: a connection inside a commit. Out: a `Plan`, or how many files went in.
"""

# Names come from our own declarations; values are numbers made here.
# ruff: noqa: S608

from collections import defaultdict
from dataclasses import dataclass, field

import duckdb

from traces.storage.tables import TABLES

INLINED_ROWS = 1000
"""So many rows of a table may lie in the catalog before they are written to a file."""
_AT_ONCE = 20
"""Files made in one commit of merging, so that other writers wait for no more than that."""
_AGED_BY_SNAPSHOT = frozenset({"quarantine"})
"""Rewriting gives rows a new snapshot, which here tells their age."""
_ROW_GROUP_BYTES = 32 * 1024 * 1024
"""About so much of a file is held in memory while it is written."""
_ROW_GROUPS = (2048, 122_880)
"""Rows of the smallest and the largest row group; DuckDB makes the latter by default."""
_ROW_GROUP_OPTION = "parquet_row_group_size"
_SAMPLE_FILES = 8
_META = "__ducklake_metadata_lake"


@dataclass(slots=True)
class Plan:
    """What is worth doing."""

    flush: list[str] = field(default_factory=list)
    """Tables with many rows in the catalog."""
    rewrite: dict[str, float] = field(default_factory=dict)
    """Table to the share of deleted rows from which on its files are rewritten."""
    merge: list[str] = field(default_factory=list)
    """Tables with several small files of one day."""
    files: int = 0
    """About how many files there are afterwards."""

    def tables(self) -> list[str]:
        """Return the tables to work on, in the declared order."""
        wanted = {*self.flush, *self.rewrite, *self.merge}
        return [table for table in TABLES if table in wanted]


@dataclass(frozen=True, slots=True)
class _File:
    table: str
    part: str | None
    size_bytes: int
    deleted: float
    """Share of its rows."""


def plan(connection: duckdb.DuckDBPyConnection, target_bytes: int, share: float) -> Plan:
    """Find what is worth doing.

    Files that are small, or of which more than `share` is deleted, are rewritten; those of one
    table and day that are smaller than `target_bytes` are merged.
    """
    found = Plan(flush=_inlined(connection))
    small: dict[tuple[str, str | None], int] = defaultdict(int)
    sizes: dict[tuple[str, str | None], int] = defaultdict(int)
    for file in _files(connection):
        rewritten = file.deleted > share or (file.deleted > 0 and file.size_bytes < target_bytes)
        if rewritten and file.table not in _AGED_BY_SNAPSHOT:
            # One threshold for a table: large files with fewer deleted rows are spared.
            known = found.rewrite.get(file.table, 1.0)
            found.rewrite[file.table] = min(known, file.deleted * 0.999)
        if file.size_bytes < target_bytes and (rewritten or not file.deleted):
            small[file.table, file.part] += 1
            sizes[file.table, file.part] += file.size_bytes
        else:
            found.files += 1
    found.merge = sorted({table for (table, _), n in small.items() if n > 1})
    found.files += sum(-(-size // target_bytes) for size in sizes.values())
    return found


def totals(connection: duckdb.DuckDBPyConnection) -> tuple[int, int]:
    """Return files and bytes of all tables, those that say which rows are deleted included."""
    row = connection.execute(
        "SELECT coalesce(sum(file_count + delete_file_count), 0),"
        " coalesce(sum(file_size_bytes + delete_file_size_bytes), 0)"
        " FROM ducklake_table_info('lake')"
    ).fetchone()
    return (int(row[0]), int(row[1])) if row else (0, 0)


def flush(connection: duckdb.DuckDBPyConnection, table: str) -> int:
    """Write a table's rows that lie in the catalog into files; return how many times."""
    return len(
        connection.execute(
            f"FROM ducklake_flush_inlined_data('lake', table_name => '{table}')"
        ).fetchall()
    )


def fit_row_groups(connection: duckdb.DuckDBPyConnection, table: str) -> None:
    """Let the table's files have row groups that memory holds, however long its rows are."""
    files = connection.execute(
        f"SELECT data_file FROM ducklake_list_files('lake', '{table}')"
        f" ORDER BY data_file_size_bytes DESC LIMIT {_SAMPLE_FILES}"
    ).fetchall()
    if not files:
        return
    row = connection.execute(
        "SELECT sum(total_uncompressed_size) / greatest(sum(num_values) FILTER (column_id = 0), 1)"
        " FROM parquet_metadata($files)",
        {"files": [name for (name,) in files]},
    ).fetchone()
    smallest, largest = _ROW_GROUPS
    fitting = int(_ROW_GROUP_BYTES / max(row[0] or 1, 1)) if row else largest
    # A power of two, so that it does not change with every file.
    rows = min(max(1 << fitting.bit_length() - 1, smallest), largest)
    known = connection.execute(
        "SELECT value FROM ducklake_options('lake') WHERE option_name = ? AND scope_entry = ?",
        [_ROW_GROUP_OPTION, f"main.{table}"],
    ).fetchone()
    if rows != (int(known[0]) if known else largest):
        connection.execute(
            f"CALL ducklake_set_option('lake', '{_ROW_GROUP_OPTION}', {rows},"
            f" table_name => '{table}')"
        )


def rewrite(connection: duckdb.DuckDBPyConnection, table: str, threshold: float) -> int:
    """Rewrite the files of which more than `threshold` is deleted; return how many."""
    return _processed(
        connection,
        f"ducklake_rewrite_data_files('lake', '{table}', delete_threshold => {threshold})",
    )


def merge(connection: duckdb.DuckDBPyConnection, table: str, target_bytes: int) -> int:
    """Merge small files of a table; return how many went in, 0 if nothing is left to merge."""
    connection.execute(f"SET ducklake_target_file_size = '{target_bytes}B'")
    return _processed(
        connection,
        f"ducklake_merge_adjacent_files('lake', '{table}', max_compacted_files => {_AT_ONCE})",
    )


def _processed(connection: duckdb.DuckDBPyConnection, call: str) -> int:
    # Each thread would hold a row group of each file it reads.
    connection.execute("SET threads = 1")
    return sum(n for (n,) in connection.execute(f"SELECT files_processed FROM {call}").fetchall())


def _files(connection: duckdb.DuckDBPyConnection) -> list[_File]:
    rows = connection.execute(
        f"""
        SELECT t.table_name, p.part, f.file_size_bytes,
               coalesce(d.deleted / greatest(f.record_count, 1), 0)
        FROM {_META}.ducklake_data_file f
        JOIN {_META}.ducklake_table t ON t.table_id = f.table_id
        LEFT JOIN (SELECT data_file_id, string_agg(partition_value, '/') AS part
                   FROM {_META}.ducklake_file_partition_value GROUP BY data_file_id) p
          ON p.data_file_id = f.data_file_id
        LEFT JOIN (SELECT data_file_id, max(delete_count) AS deleted
                   FROM {_META}.ducklake_delete_file WHERE end_snapshot IS NULL
                   GROUP BY data_file_id) d ON d.data_file_id = f.data_file_id
        WHERE f.end_snapshot IS NULL AND t.end_snapshot IS NULL
        """
    ).fetchall()
    return [_File(*row) for row in rows if row[0] in TABLES]


def _inlined(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Return the tables with more than `INLINED_ROWS` rows in the catalog, deleted ones too."""
    stores = connection.execute(
        f"SELECT t.table_name, i.table_name FROM {_META}.ducklake_inlined_data_tables i"
        f" JOIN {_META}.ducklake_table t USING (table_id) WHERE t.end_snapshot IS NULL"
    ).fetchall()
    counts: dict[str, int] = defaultdict(int)
    for table, store in stores:
        row = connection.execute(f'SELECT count(*) FROM {_META}."{store}"').fetchone()
        counts[table] += int(row[0]) if row else 0
    return sorted(table for table, n in counts.items() if n > INLINED_ROWS and table in TABLES)
