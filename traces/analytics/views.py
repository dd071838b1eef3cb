"""Analytics over the lake: read-only SQL on its tables and documented views.

In: a home folder and a query. Out: column names and rows. By hand: `flows sql`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb

from traces.analytics.view_definitions import MACROS, VIEWS
from traces.errors import QueryRefused
from traces.storage.lake import Lake
from traces.storage.lake_address import quoted, read_address
from traces.storage.tables import TABLES

_FETCH_ROWS = 1000
_READING = {
    duckdb.StatementType.SELECT,
    duckdb.StatementType.EXPLAIN,
    duckdb.StatementType.RELATION,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """A query's result, read as it is used."""

    columns: list[str]
    rows: Iterator[tuple[Any, ...]]


@contextmanager
def reading(home: Path, sql: str) -> Iterator[Answer]:
    """Run one reading statement on the lake; its rows are there inside the `with` block.

    Raises:
        QueryRefused: if it would write, is more than one statement, or is not SQL.
        LakeNotFound: if nothing was ingested yet.
    """
    with Lake.open(home, read_only=True) as lake, _refusing():
        statements = lake.connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type not in _READING:
            kinds = ", ".join(s.type.name for s in statements) or "none"
            raise QueryRefused(
                f"The lake answers one SELECT at a time; this is {kinds}: {sql[:80]!r}. "
                "'flows sql' only reads; data comes in with 'flows run ingest'."
            )
        cursor = lake.connection.execute(statements[0])
        columns = [column[0] for column in cursor.description or ()]
        yield Answer(columns, _rows(cursor))


def query(home: Path, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and all rows of one reading statement; see `reading`."""
    with reading(home, sql) as answer:
        return answer.columns, list(answer.rows)


def describe() -> list[tuple[str, str]]:
    """Return each view's and macro's name and what one of its rows is."""
    macros = [(f"{macro.name}(successes, of)", macro.doc) for macro in MACROS]
    return [(view.name, view.doc) for view in VIEWS] + macros


def attach_statements(home: Path) -> str:
    """Return what to paste into any DuckDB client to have the lake there, read-only.

    It holds no secret: DuckDB's extensions read PGPASSWORD, AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY and AWS_REGION from the client's own environment.

    Raises:
        LakeNotFound: if nothing was ingested yet.
    """
    Lake.open(home, read_only=True).close()  # so that it is there, and has all views
    address = read_address(home)
    root = (home / "lake").resolve()
    if address.catalog is None:
        needs, target = "sqlite", f"sqlite:{root / 'catalog.sqlite'}"
    else:
        needs, target = "postgres", f"postgres:{address.catalog}"
    extensions = ["ducklake", needs, *(["httpfs"] if address.data is not None else [])]
    lines = [f"INSTALL {name}; LOAD {name};" for name in extensions]
    if address.data is not None and (endpoint := os.environ.get("AWS_ENDPOINT_URL")):
        url = urlsplit(endpoint)
        place = quoted(url.netloc + url.path.rstrip("/"))
        lines.append(f"SET s3_endpoint = {place}; SET s3_url_style = 'path';")
        lines.append(f"SET s3_use_ssl = {str(url.scheme != 'http').lower()};")
    data = f"{address.data}/" if address.data is not None else f"{root / 'data'}/"
    options = f"DATA_PATH {quoted(data)}, OVERRIDE_DATA_PATH true, READ_ONLY"
    lines.append(f"ATTACH {quoted(f'ducklake:{target}')} AS lake ({options});")
    return "\n".join([*lines, "USE lake;", "SET TimeZone = 'UTC';"])


def _rows(cursor: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    while rows := cursor.fetchmany(_FETCH_ROWS):
        yield from rows


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn DuckDB's errors into one line that says what there is to ask."""
    try:
        yield
    except duckdb.Error as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # The line after the first often says what was meant; the others draw the query.
        hints = [line for line in lines[1:] if line.startswith(("Candidate", "Did you mean"))]
        raise QueryRefused(
            f"The query failed: {' '.join(lines[:1] + hints)} Tables: {', '.join(TABLES)}. "
            f"Views: {', '.join(view.name for view in VIEWS)}."
        ) from error
