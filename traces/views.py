"""Analytics over the lake: read-only SQL on its tables and documented views.

In: a home folder and a query. Out: column names and rows. By hand: `flows sql`.
"""

from pathlib import Path
from typing import Any

import duckdb

from traces.errors import QueryRefused
from traces.lake import Lake
from traces.tables import TABLES
from traces.view_definitions import VIEWS

_READING = {
    duckdb.StatementType.SELECT,
    duckdb.StatementType.EXPLAIN,
    duckdb.StatementType.RELATION,
}


def query(home: Path, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run one reading statement on the lake.

    Raises:
        QueryRefused: if it would write, is more than one statement, or is not SQL.
        LakeNotFound: if nothing was ingested yet.
    """
    with Lake.open(home, read_only=True) as lake:
        try:
            statements = lake.connection.extract_statements(sql)
            if len(statements) != 1 or statements[0].type not in _READING:
                kinds = ", ".join(s.type.name for s in statements) or "none"
                raise QueryRefused(
                    f"The lake answers one SELECT at a time; this is {kinds}: {sql[:80]!r}. "
                    "'flows sql' only reads; data comes in with 'flows run ingest'."
                )
            cursor = lake.connection.execute(statements[0])
            return [column[0] for column in cursor.description or ()], cursor.fetchall()
        except duckdb.Error as error:
            reason = str(error).strip().splitlines()[0]
            raise QueryRefused(
                f"The query failed: {reason} Tables: {', '.join(TABLES)}. "
                f"Views: {', '.join(view.name for view in VIEWS)}."
            ) from error


def describe() -> list[tuple[str, str]]:
    """Return each view's name and what one of its rows is."""
    return [(view.name, view.doc) for view in VIEWS]
