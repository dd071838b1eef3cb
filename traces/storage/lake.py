"""The trace lake: DuckLake tables under `<home>/lake`, or where the home's address says.

Gives ACID commits, snapshots, and one writer at a time: commits queue on a lock, and one
that another writer got ahead of is tried again. In: a home folder. Out: a DuckDB connection
with the lake as its default schema.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import duckdb
import pyarrow as pa
import tenacity

from serving.errors import MolError
from traces.errors import LakeNotFound, LakeUnavailable
from traces.sources.source import Offset
from traces.storage import migrations
from traces.storage.additions import add_new, key_of
from traces.storage.lake_address import Address, attach, is_missing, read_address
from traces.storage.tables import arrow_table
from traces.storage.writer_lock import WriterLock

T = TypeVar("T")

_CONFLICTS = (
    "conflict",
    "database is locked",
    "has been altered by another",
    "unique constraint",
    "could not serialize",
)
"""Words of DuckLake, SQLite and PostgreSQL for a commit that another one got ahead of."""


class Lake:
    """An open lake; use as a context manager.

    DuckDB's own errors leave the `with` block as `LakeUnavailable`, an interrupt of its queries
    as what the signal's handler raised.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, root: Path, lock: WriterLock) -> None:
        self.connection = connection
        self._root = root
        self._lock = lock

    @classmethod
    def open(cls, home: Path, *, read_only: bool = False, create: bool = True) -> Self:
        """Open the lake of `home`, making it first unless `read_only` or not to `create` it.

        Raises:
            LakeNotFound: if there is none and none is made.
            LakeUnavailable: if the catalog is corrupt, foreign, newer than this program, or
                cannot be written.
        """
        root = home / "lake"
        address = read_address(home)
        create = create and not read_only
        if not create and address.catalog is None and not (root / "catalog.sqlite").exists():
            raise _not_found(home)
        lock = WriterLock(root, address)
        try:
            lake = cls(_connect(home, address, lock, read_only, create), root, lock)
        except BaseException:
            lock.close()
            raise
        with contextlib.ExitStack() as unless_current:
            unless_current.push(lake)
            while True:
                found = migrations.compare(lake.connection)
                if found.version > migrations.SCHEMA_VERSION:
                    raise _newer(root, found.version)
                if found.is_current:
                    unless_current.pop_all()
                    return lake
                if read_only:
                    break
                lake.commit(migrations.upgrade)
        # Made by an older version: readers need the new columns and views too.
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
        # Within a query DuckDB raises an error of its own in its place.
        cause = value.__cause__ if isinstance(value, RuntimeError) else None
        if cause is not None and not isinstance(cause, Exception):
            raise cause

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()
        self._lock.close()

    def snapshot_id(self) -> int:
        """Return the id of the newest snapshot; it moves only when something was committed."""
        row = self.connection.execute("SELECT id FROM current_snapshot()").fetchone()
        assert row is not None
        return int(row[0])

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other writers waiting while the block makes several commits."""
        with self._lock.held():
            yield

    def commit(self, work: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        """Run `work` in one transaction, alone among the lake's writers.

        `work` is called again after a conflict, so it must take all it knows from
        its arguments and the lake. If it changes nothing, no snapshot is made.

        Raises:
            LakeUnavailable: if the rows cannot be stored; nothing of them is.
        """
        try:
            with self._lock.held():
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

    def insert_new(self, table: str, rows: list[dict[str, Any]]) -> list[str]:
        """Append the rows whose id is not there yet, inside `commit`; return their ids."""
        added = add_new(self.connection, table, arrow_table(table, rows))
        return list(added.column(key_of(table)[0]).to_pylist())

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


def _connect(
    home: Path, address: Address, lock: WriterLock, read_only: bool, create: bool
) -> duckdb.DuckDBPyConnection:
    root = home / "lake"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if (lake := _attach_present(root, address, read_only)) is not None:
            return lake
        if not create:
            raise _not_found(home)
        with lock.held():
            # Another machine may have made it while this one waited.
            lake = _attach_present(root, address)
            return lake if lake is not None else _attach(root, address, create=True)
    except (duckdb.Error, OSError) as error:
        if isinstance(error, MolError):
            raise
        _refuse_foreign_catalog(root / "catalog.sqlite")
        raise _unavailable(root, error) from error


def _attach_present(
    root: Path, address: Address, read_only: bool = False
) -> duckdb.DuckDBPyConnection | None:
    """Return a connection with the lake, None if there is none yet."""
    # In PostgreSQL, to try costs as much as to make one.
    if address.catalog is None and not (root / "catalog.sqlite").exists():
        return None
    try:
        return _attach(root, address, read_only=read_only)
    except duckdb.Error as error:
        if is_missing(error):
            return None
        raise


def _attach(root: Path, address: Address, **options: bool) -> duckdb.DuckDBPyConnection:
    for attempt in _retry():
        with attempt:
            connection = attach(root, address, **options)
    return connection


def _not_found(home: Path) -> LakeNotFound:
    return LakeNotFound(
        f"No lake under {str(home)!r}: nothing was ingested yet. Run 'flows run ingest PATH' first."
    )


def _newer(root: Path, version: int) -> LakeUnavailable:
    return LakeUnavailable(
        f"The lake {str(root)!r} is of version {version}, and this program knows lakes up to "
        f"{migrations.SCHEMA_VERSION}. Update the program; nothing was changed."
    )


def _refuse_foreign_catalog(catalog: Path) -> None:
    """Say plainly that a file is not a SQLite database; called when it could not be attached.

    Not before: in a process that has the catalog open, closing it anew would drop its locks.
    """
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
