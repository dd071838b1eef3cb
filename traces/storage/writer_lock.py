"""One writer at a time: a file lock on one machine, PostgreSQL's advisory lock on several.

Both are gone when their process is. They queue writers; that no two commits can have begun
on one snapshot is seen to by the catalog (`lake_address.attach`), so that even a lock lost
with its connection doubles nothing. In: a lake's root and address. Out: a context manager.
"""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traces.errors import LakeUnavailable
from traces.storage.lake_address import Address

if TYPE_CHECKING:
    import psycopg

_KEY = 0x6D6F6C6C616B65
"""`mollake`; one lake in a database, so one key is enough."""

_KEEPALIVE: Any = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""A machine that vanishes loses the lock within a minute."""


class WriterLock:
    """The lock of one open lake."""

    def __init__(self, root: Path, address: Address) -> None:
        self._file = root / "writer.lock"
        self._catalog = address.catalog
        self._connection: psycopg.Connection | None = None
        self._depth = 0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock while the block runs; wait for it as long as it takes.

        Blocks may be inside one another.

        Raises:
            LakeUnavailable: if PostgreSQL does not answer.
        """
        self._depth += 1
        try:
            with self._taken() if self._depth == 1 else contextlib.nullcontext():
                yield
        finally:
            self._depth -= 1

    def close(self) -> None:
        """Give up the connection that the lock is taken on."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextlib.contextmanager
    def _taken(self) -> Iterator[None]:
        if self._catalog is None:
            with self._file.open("a") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                try:
                    yield
                finally:
                    fcntl.flock(file, fcntl.LOCK_UN)
            return
        connection = self._acquire(self._catalog)
        try:
            yield
        finally:
            self._release(connection)

    def _acquire(self, catalog: str) -> "psycopg.Connection":
        import psycopg

        for last in (False, True):
            try:
                if self._connection is None:
                    self._connection = psycopg.connect(catalog, autocommit=True, **_KEEPALIVE)
                self._connection.execute("SELECT pg_advisory_lock(%s)", (_KEY,))
                return self._connection
            except psycopg.Error as error:
                # The one kept from the last commit may have been idle for too long.
                self.close()
                if last:
                    reason = str(error).strip().splitlines()[0]
                    raise LakeUnavailable(
                        f"The lake's catalog in PostgreSQL cannot be locked: {reason}. Nothing "
                        "was changed; check the server and PGPASSWORD, then run it again."
                    ) from error
        raise AssertionError("unreachable")

    def _release(self, connection: "psycopg.Connection") -> None:
        import psycopg

        try:
            connection.execute("SELECT pg_advisory_unlock(%s)", (_KEY,))
        except psycopg.Error:
            # Gone with its session.
            self.close()
