"""The DuckDB connections of this process, so that an interrupt ends what they are asked.

At Ctrl-C DuckDB's client returns from a query and leaves its other threads at work on it; who
then closes the connection, or asks it anything, waits until they are through, which may be for
ever, and no other thread can end them then. So the signal's handler does, before it raises.
In: a connection, a handler. Out: a cursor, the end of every query.
"""

import contextlib
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    import duckdb

_opened: "WeakSet[duckdb.DuckDBPyConnection]" = WeakSet()


def remember(connection: "duckdb.DuckDBPyConnection") -> "duckdb.DuckDBPyConnection":
    """Return the connection, whose queries an interrupt ends from now on."""
    _opened.add(connection)
    return connection


def lake_cursor(connection: "duckdb.DuckDBPyConnection") -> "duckdb.DuckDBPyConnection":
    """Return a connection of its own to the same lake; it reads on while the other one writes."""
    cursor = remember(connection.cursor())
    cursor.execute("USE lake")
    return cursor


def interrupt_on_signals() -> None:
    """Let Ctrl-C and SIGTERM raise `KeyboardInterrupt`, so that what was made is removed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ending_queries(signal.default_int_handler))


def ending_queries(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return a signal's handler that ends every query that is running, then does what it did."""

    def handle(*signal_and_frame: Any) -> Any:
        for connection in list(_opened):
            with contextlib.suppress(Exception):  # closed meanwhile
                connection.interrupt()
        return handler(*signal_and_frame)

    return handle
