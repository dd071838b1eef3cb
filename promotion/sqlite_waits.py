"""SQLite's transactions as the registry needs them: SQLAlchemy's own, and waited for.

In: an engine. Out: the same, whose writers wait for each other and whose readers for nobody.
"""

import sqlite3
import time
from typing import Any

import sqlalchemy as sa

BUSY_TIMEOUT_S = 30


def prepare_sqlite(engine: sa.Engine) -> None:
    """Let SQLAlchemy's transactions be SQLite's: the driver's own come too late for a CAS."""

    def connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_S * 1000}")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=FULL")
        _use_wal(connection)

    def begun(connection: sa.Connection) -> None:
        immediate = connection.get_execution_options().get("immediate", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    sa.event.listen(engine, "connect", connected)
    sa.event.listen(engine, "begin", begun)


def _use_wal(connection: Any) -> None:
    """Switch to write-ahead logging, which stays on; SQLite does not wait for locks here."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
