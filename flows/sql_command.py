"""The command `flows sql`: ask the lake, see what can be asked."""

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from flows.config import load_settings
from flows.console import print_json_rows, print_table, say
from flows.options import MOST_ROWS
from serving.errors import MolError

_TABLE_ROWS = 200
"""Rows that a table shows unless told otherwise; more are for `--csv` and `--json`."""


class QueryMissing(MolError, OSError):
    """The file with the query cannot be read."""


def sql(
    query: Annotated[
        str | None,
        typer.Argument(help="One SELECT, or '-' to read it from stdin; none lists the views."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read the query from a file.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0, max=MOST_ROWS, help=f"Rows at most, 0 for all; a table shows {_TABLE_ROWS}."
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV on stdout.")] = False,
    attach: Annotated[
        bool, typer.Option("--attach", help="Print what to paste into any DuckDB client.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="TOML file with settings.")] = None,
    home: Annotated[Path | None, typer.Option(help="Folder of the loop's state [.mol].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Ask the lake with DuckDB SQL, read-only."""
    if sum([query is not None, file is not None, attach]) > 1 or (as_csv and as_json):
        raise typer.BadParameter(
            "Give one of a query (words or '-'), --file and --attach, and one of --csv and --json."
        )
    from traces.analytics.views import attach_statements, describe, reading

    if attach:
        print(attach_statements(load_settings(config, overrides={"home": home}).home))
        return
    text = _text(query, file)
    if text is None:
        columns = ["name", "one row is"]
        _print(columns, iter(describe()), None, as_csv, as_json)
        return
    if limit is None and not (as_csv or as_json):
        limit = _TABLE_ROWS
    with reading(load_settings(config, overrides={"home": home}).home, text) as answer:
        _print(answer.columns, answer.rows, limit or None, as_csv, as_json)


def _text(query: str | None, file: Path | None) -> str | None:
    if query == "-":
        return sys.stdin.read()
    if file is None:
        return query
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise QueryMissing(
            f"Cannot read the query in {str(file)!r}: {reason}. Give a file with one SELECT, or "
            "the query itself: flows sql 'FROM v_turns LIMIT 5'."
        ) from error


def _print(
    columns: Sequence[str],
    rows: Iterator[Sequence[Any]],
    limit: int | None,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Print rows as they come; only a table holds them all, to know its widths."""
    shown = islice(rows, limit)
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_plain(value) for value in row] for row in shown)
    elif as_json:
        print_json_rows(_named(columns, shown))
    else:
        print_table(list(_named(columns, shown)), "No rows.")
    if limit is not None and next(rows, None) is not None:
        say(f"Only the first {limit:,} rows are shown; '--limit 0' shows all.")


def _named(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[dict[str, Any]]:
    # A query may name two columns alike, as `SELECT *` of a join does.
    names = [
        name if name not in columns[:place] else f"{name}_{columns[:place].count(name) + 1}"
        for place, name in enumerate(columns)
    ]
    for row in rows:
        yield {name: _plain(value) for name, value in zip(names, row, strict=True)}


def _plain(value: Any) -> Any:
    """Return a value of DuckDB as JSON and CSV have it."""
    match value:
        case datetime() | date():
            return value.isoformat()
        case bytes():
            return value.decode("utf-8", errors="backslashreplace")
        case Decimal():
            return float(value)
        case UUID():
            return str(value)
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case _:
            return value
