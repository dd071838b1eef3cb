"""The SQLite file under `serving.documents`: made, claimed, checked, read and written.

One table of documents by key with the time they were last put, in write-ahead mode:
a transaction that has ended outlives the process. In: a path. Out: connections.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from serving.errors import MolError

SCHEMA_VERSION = 1
CHECKED_BYTES = 256 << 20
"""Up to this size a file is checked as a whole when it is opened."""

_SCHEMA = (
    "CREATE TABLE schema_version (version INTEGER NOT NULL)",
    "CREATE TABLE documents (key BLOB PRIMARY KEY, touched_us INTEGER NOT NULL,"
    " document BLOB NOT NULL)",
    "CREATE INDEX documents_touched ON documents (touched_us)",
    f"INSERT INTO schema_version VALUES ({SCHEMA_VERSION})",  # noqa: S608
)
_STORE = "INSERT OR REPLACE INTO documents (key, touched_us, document) VALUES (?, ?, ?)"
_READ = "SELECT document FROM documents WHERE key = ? AND touched_us >= ?"
_DELETE = "DELETE FROM documents WHERE key = ?"
_FORGET = (
    "DELETE FROM documents WHERE key IN"
    " (SELECT key FROM documents WHERE touched_us < ? ORDER BY touched_us LIMIT 1000)"
)

DocumentRow = tuple[str, int, bytes | None]
"""Key, time in microseconds, document or None where it is deleted."""


class DocumentsUnavailable(MolError, OSError):
    """The file of documents cannot be opened or read."""


def unavailable(path: Path, error: Exception) -> DocumentsUnavailable:
    """Return the error that says why a file cannot be used."""
    return DocumentsUnavailable(
        f"Cannot use {str(path)!r} as the store of conversations: {error}. "
        "Move it away to begin with an empty one, or choose another --home."
    )


def claim(path: Path) -> int:
    """Lock the file for this process until the returned handle is closed.

    Raises:
        DocumentsUnavailable: if another process has it, or the lock cannot be made.
    """
    # Beside the file: SQLite's own locks end when any handle on the file itself is closed.
    lock = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise unavailable(path, error) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise DocumentsUnavailable(
            f"{str(path)!r} is in use by another server. Stop that one first, or choose "
            "another --home."
        ) from error
    return handle


def prepare(path: Path) -> None:
    """Make the file, or see that it is one of ours and whole; a foreign one is not touched.

    Raises:
        DocumentsUnavailable: if it is corrupt, foreign or of another version.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
            if not tables:
                with _transaction(connection):
                    for statement in _SCHEMA:
                        connection.execute(statement)
            else:
                _check(connection, tables, path.stat().st_size)
    except (sqlite3.Error, OSError) as error:
        raise unavailable(path, error) from error


def _check(connection: sqlite3.Connection, tables: set[str], size_bytes: int) -> None:
    if not tables >= {"schema_version", "documents"}:
        raise sqlite3.DatabaseError("it is another program's database")
    versions = connection.execute("SELECT version FROM schema_version").fetchall()
    if versions != [(SCHEMA_VERSION,)]:
        found = ", ".join(repr(row[0]) for row in versions) or "missing"
        raise sqlite3.DatabaseError(f"its version is {found}, this program's {SCHEMA_VERSION}")
    if size_bytes <= CHECKED_BYTES:
        (problem,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if problem != "ok":
            raise sqlite3.DatabaseError(" ".join(str(problem).split()))


def connect(path: Path) -> sqlite3.Connection:
    """Open a prepared file in write-ahead mode; the connection may move between threads."""
    connection = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def read(connection: sqlite3.Connection, key: str, since_us: int) -> bytes | None:
    """Return the document of a key, if it was put at `since_us` or later."""
    row = connection.execute(_READ, (_bytes(key), since_us)).fetchone()
    return None if row is None else bytes(row[0])


def write(connection: sqlite3.Connection, rows: Sequence[DocumentRow]) -> None:
    """Store and delete documents in one transaction."""
    with _transaction(connection):
        connection.executemany(_STORE, [(_bytes(k), t, d) for k, t, d in rows if d is not None])
        connection.executemany(_DELETE, [(_bytes(k),) for k, _, d in rows if d is None])


def delete_older(connection: sqlite3.Connection, before_us: int) -> None:
    """Delete what was last put before a time, in steps, so that the log stays small."""
    while connection.execute(_FORGET, (before_us,)).rowcount:
        pass


def _bytes(key: str) -> bytes:
    # Keys come from clients: half a surrogate or a zero is no text to SQLite.
    return key.encode("utf-8", "surrogatepass")


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
