"""Signals that attribution derives itself: a table of this process, stored only in outcomes.

`judged.derived` has rows like those of `feedback`: what the course of a conversation implies
(`traces.attribution.implying`) and what verifiers find (`traces.attribution.verifying`).
"""

from collections.abc import Iterable
from typing import Any

import duckdb

from serving.records import Feedback
from traces.storage.tables import arrow_table

_BATCH_ROWS = 5000


def make_table(connection: duckdb.DuckDBPyConnection) -> None:
    """Make `judged.derived`, without rows."""
    connection.execute("CREATE TABLE judged.derived AS SELECT * FROM feedback WHERE false")


def keep(connection: duckdb.DuckDBPyConnection, signals: Iterable[Feedback]) -> None:
    """Add signals to `judged.derived`."""
    rows: list[dict[str, Any]] = []
    for signal in signals:
        rows.append(signal.model_dump(mode="json") | {"feedback_id": signal.feedback_id})
        if len(rows) >= _BATCH_ROWS:
            _append(connection, rows)
            rows = []
    _append(connection, rows)


def _append(connection: duckdb.DuckDBPyConnection, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.register("derived_rows", arrow_table("feedback", rows))
        connection.execute("INSERT INTO judged.derived BY NAME SELECT * FROM derived_rows")
        connection.unregister("derived_rows")
