"""The trace lake: DuckLake tables over one SQLite catalog under `<home>/lake`.

Gives ACID commits, snapshots, and one writer at a time: commits of this machine
queue on a file lock, and a conflict with any other writer is retried. In: a
home folder. Out: a DuckDB connection with the lake as its default schema.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

import fcntl
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import duckdb
import pyarrow as pa
import tenacity

from traces.errors import LakeNotFound, LakeUnavailable
from traces.source import Offset
from traces.tables import TABLES, add_column, arrow_table, ddl
from traces.view_definitions import VIEWS

T = TypeVar("T")

_MEMORY_LIMIT = "1GB"
_CONFLICTS = ("conflict", "database is locked", "has been altered by another")


class Lake:
    """An open lake; use as a context manager.

    DuckDB's own errors leave the `with` block as `LakeUnavailable`.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, root: Path) -> None:
        self.connection = connection
        self._root = root

    @classmethod
    def open(cls, home: Path, *, read_only: bool = False) -> Self:
        """Open the lake of `home`, making it first unless `read_only`.

        Raises:
            LakeNotFound: if `read_only` and there is none.
            LakeUnavailable: if the catalog is corrupt, foreign, or cannot be written.
        """
        root = home / "lake"
        catalog = root / "catalog.sqlite"
        if read_only and not catalog.exists():
            raise LakeNotFound(
                f"No lake under {str(home)!r}: nothing was ingested yet. "
                "Run 'flows run ingest PATH' first."
            )
        try:
            root.mkdir(parents=True, exist_ok=True)
            _refuse_foreign_catalog(catalog)
            for attempt in _retry():
                with attempt:
                    lake = cls(_attach(root, read_only), root)
        except (duckdb.Error, OSError) as error:
            if isinstance(error, LakeUnavailable):
                raise
            raise _unavailable(root, error) from error
        try:
            if not read_only:
                lake._create_missing()
                return lake
            if not lake._missing():
                return lake
        except BaseException:
            lake.connection.close()
            raise
        # Made by an older version: readers need the new columns and views too.
        lake.close()
        cls.open(home).close()
        return cls.open(home, read_only=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        if isinstance(value, duckdb.Error):
            raise _unavailable(self._root, value) from value

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def snapshot_id(self) -> int:
        """Return the id of the newest snapshot; it moves only when something was committed."""
        row = self.connection.execute("SELECT id FROM current_snapshot()").fetchone()
        assert row is not None
        return int(row[0])

    def commit(self, work: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        """Run `work` in one transaction, alone among this machine's writers.

        `work` is called again after a conflict, so it must take all it knows from
        its arguments and the lake. If it changes nothing, no snapshot is made.

        Raises:
            LakeUnavailable: if the rows cannot be stored; nothing of them is.
        """
        try:
            with _locked(self._root / "writer.lock"):
                for attempt in _retry():
                    with attempt:
                        result = self._transaction(work)
                return result
        except (duckdb.Error, OSError) as error:
            if isinstance(error, LakeUnavailable):
                raise
            raise _unavailable(self._root, error) from error

    def insert(self, table: str, rows: pa.Table) -> None:
        """Append Arrow rows to a table, inside `commit`."""
        if rows.num_rows:
            self.connection.register("incoming", rows)
            self.connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")
            self.connection.unregister("incoming")

    def insert_new(
        self, table: str, rows: list[dict[str, Any]], time: str | None = None
    ) -> list[str]:
        """Append the rows whose id is not there yet, inside `commit`; return their ids.

        The id is the table's first column. `time` names a column that is a function
        of the id: Parquet statistics on it keep the look-up short.
        """
        key = TABLES[table][0].name
        unique = {row[key]: row for row in rows}
        if not unique:
            return []
        incoming = arrow_table(table, list(unique.values()))
        self.connection.register("incoming", incoming)
        window = f"WHERE {time} BETWEEN $low AND $high" if time else ""
        times = [v for v in incoming[time].to_pylist()] if time else []
        parameters = {"low": min(times), "high": max(times)} if time else {}
        known = {
            row[0]
            for row in self.connection.execute(
                f"SELECT {key} FROM (SELECT {key} FROM {table} {window}) "
                f"SEMI JOIN incoming USING ({key})",
                parameters,
            ).fetchall()
        }
        self.connection.unregister("incoming")
        if known:
            fresh = pa.array([k not in known for k in incoming[key].to_pylist()])
            incoming = incoming.filter(fresh)
        self.insert(table, incoming)
        return list(incoming[key].to_pylist())

    def move_offset(
        self, source_id: str, name: str, before: Offset, after: Offset, format: str
    ) -> None:
        """Replace a source's offset, inside `commit`; `before` may be absent."""
        self.connection.execute(
            "DELETE FROM offsets WHERE source_id = $id AND consumed_digest = $digest",
            {"id": source_id, "digest": before.consumed_digest},
        )
        row = {
            "source_id": source_id,
            "name": name,
            "consumed_bytes": after.consumed_bytes,
            "consumed_digest": after.consumed_digest,
            "format": format,
        }
        self.insert("offsets", arrow_table("offsets", [row]))

    def _transaction(self, work: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        self.connection.execute("BEGIN")
        try:
            result = work(self.connection)
            self.connection.execute("COMMIT")
        except BaseException:
            # A failed COMMIT has ended the transaction already.
            if _in_transaction(self.connection):
                self.connection.execute("ROLLBACK")
            raise
        return result

    def _create_missing(self) -> None:
        if not self._missing():
            return

        def create(connection: duckdb.DuckDBPyConnection) -> None:
            for statement in self._missing():
                connection.execute(statement)

        self.commit(create)

    def _missing(self) -> list[str]:
        """Statements that bring the catalog to the declared tables and views."""
        columns: dict[str, set[str]] = defaultdict(set)
        for table, column in self.connection.execute(
            "SELECT table_name, column_name FROM duckdb_columns() WHERE database_name = 'lake'"
        ).fetchall():
            columns[table].add(column)
        comments = dict(
            self.connection.execute(
                "SELECT view_name, comment FROM duckdb_views() WHERE database_name = 'lake'"
            ).fetchall()
        )
        statements = [ddl(table) for table in TABLES if table not in columns]
        statements += [
            add_column(table, column.name)
            for table in TABLES.keys() & columns.keys()
            for column in TABLES[table]
            if column.name not in columns[table]
        ]
        for view in VIEWS:
            if comments.get(view.name) != view.comment:
                statements.append(f"CREATE OR REPLACE VIEW {view.name} AS {view.sql}")
                statements.append(f"COMMENT ON VIEW {view.name} IS {_quoted(view.comment)}")
        return statements


def _attach(root: Path, read_only: bool) -> duckdb.DuckDBPyConnection:
    # Loaded here: `flows --help` imports this package and must stay fast.
    from duckdb_extensions import import_extension

    import_extension("ducklake")
    import_extension("sqlite_scanner")
    connection = duckdb.connect(config={"memory_limit": _MEMORY_LIMIT})
    try:
        connection.execute(f"SET temp_directory = {_quoted(str(root / 'tmp'))}")
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("LOAD ducklake")
        connection.execute("LOAD sqlite_scanner")
        mode = ", READ_ONLY" if read_only else ""
        target = _quoted(f"ducklake:sqlite:{root / 'catalog.sqlite'}")
        connection.execute(
            f"ATTACH {target} AS lake (DATA_PATH {_quoted(str(root / 'data') + '/')}"
            f", OVERRIDE_DATA_PATH true{mode})"
        )
        connection.execute("USE lake")
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_foreign_catalog(catalog: Path) -> None:
    """Refuse a file that is not a SQLite database; DuckDB would say so less plainly."""
    if not catalog.exists() or catalog.stat().st_size == 0:
        return
    with catalog.open("rb") as file:
        if file.read(15) != b"SQLite format 3":
            raise LakeUnavailable(
                f"{str(catalog)!r} is not a lake catalog (not a SQLite database). Restore it from "
                "a backup, or move the lake folder away and ingest the traces again."
            )


def _unavailable(root: Path, error: Exception) -> LakeUnavailable:
    reason = _message(error).strip().splitlines()[0]
    return LakeUnavailable(
        f"The lake {str(root)!r} cannot be used: {reason}. Nothing was changed; check that the "
        "disk has space and the catalog is whole, then run the command again."
    )


def _message(error: Exception) -> str:
    """DuckLake wraps some errors as JSON; take the text out."""
    text = str(error)
    if text.startswith("{"):
        try:
            return str(json.loads(text)["exception_message"])
        except (ValueError, KeyError):
            return text
    return text


def _is_conflict(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, duckdb.Error) and any(word in text for word in _CONFLICTS)


def _retry() -> tenacity.Retrying:
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(_is_conflict),
        wait=tenacity.wait_random_exponential(multiplier=0.02, max=1.0),
        stop=tenacity.stop_after_attempt(20),
        reraise=True,
    )


def _in_transaction(connection: duckdb.DuckDBPyConnection) -> bool:
    try:
        connection.execute("BEGIN")
    except duckdb.TransactionException:
        return True
    connection.execute("ROLLBACK")
    return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock; the system releases it if the process dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
