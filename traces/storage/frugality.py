"""Leave memory to Python: DuckDB goes to disk early while a stage holds much itself."""

from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

_MEMORY = "600MB"
_THREADS = 4
"""Each reads with buffers of its own."""
_SETTINGS = ("memory_limit", "threads", "allocator_bulk_deallocation_flush_threshold")


@contextmanager
def little_memory(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Let DuckDB take little memory for a while; not to be entered or left in a transaction."""
    before = {
        name: connection.execute(f"SELECT current_setting('{name}')").fetchall()[0][0]
        for name in _SETTINGS
    }
    connection.execute(f"SET memory_limit = '{_MEMORY}'")
    # What it frees is to go back to the system at once.
    connection.execute("SET allocator_bulk_deallocation_flush_threshold = '16MB'")
    connection.execute(f"SET threads = {min(_THREADS, int(before['threads']))}")
    try:
        yield
    finally:
        for name, value in before.items():
            connection.execute(f"SET {name} = '{value}'")
