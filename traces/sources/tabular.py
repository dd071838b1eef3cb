"""Rows of Parquet and CSV files as plain JSON values.

In: a path. Out: one item a row, its position the row's number from 0. Parquet values without
a JSON type become text as ISO 8601 or base64; an empty CSV cell is null. Folders named
`column=value` above a file, as partitioned writers make them, add that column.
"""

import base64
import csv
import io
import math
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from traces.importers.rows import LineRefused
from traces.sources.items import Item
from traces.sources.source import MAX_LINE_BYTES, Corrupt, Unpacked, open_source

_ROWS = 256
"""Rows decoded at a time: a row may hold a whole conversation."""


class TableRow(NamedTuple):
    """A row as an item, its rough size, and the file's bytes done with it."""

    item: Item
    size_bytes: int
    done_bytes: int


def corrupt_row(position: int, why: str, done_bytes: int = 0) -> TableRow:
    """Return the row that says why there are no more."""
    refusal = LineRefused("corrupt_file", why)
    return TableRow(Item(position, b"", refusal=refusal), 0, done_bytes)


def parquet_rows(path: Path, columns: Mapping[str, str]) -> Iterator[TableRow]:
    """Yield the rows of a Parquet file; `columns` are those of its folders.

    A file that breaks in the middle ends with an item that says so.
    """
    position = 0
    size = path.stat().st_size
    try:
        with pq.ParquetFile(path) as file:
            total = max(file.metadata.num_rows, 1)
            for batch in file.iter_batches(batch_size=_ROWS):
                each = batch.nbytes // max(batch.num_rows, 1)
                for row in batch.to_pylist():
                    value = {**columns, **plain(row)}
                    done = size * (position + 1) // total
                    yield TableRow(Item(position, value=value), each, done)
                    position += 1
    except (pa.ArrowException, OSError, ValueError) as error:
        yield corrupt_row(position, str(error).splitlines()[0], size)


class CsvFile:
    """The rows of a CSV file with a header; `columns` are those of its folders."""

    def __init__(self, path: Path, columns: Mapping[str, str]) -> None:
        self._path = path
        self._columns = columns
        self.unfinished_bytes = 0
        """Bytes of a last row whose end is not written yet, once all rows were taken."""

    def rows(self) -> Iterator[TableRow]:
        """Yield the rows; an odd one with its text as it is, and the reason."""
        csv.field_size_limit(MAX_LINE_BYTES)
        with open_source(self._path) as stream:
            text = io.TextIOWrapper(
                io.BufferedReader(Unpacked(stream)),
                encoding="utf-8-sig",
                errors="surrogateescape",
                newline="",
            )
            lines = _Lines(text)
            position = 0
            try:
                first = next(lines, "")
                delimiter = max(",;\t", key=first.count)
                reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
                header = self._header(reader)
                while (row := self._row(reader, lines, header, position)) is not None:
                    if row.item.refusal is not None and not lines.closed:
                        self.unfinished_bytes = row.size_bytes
                        return
                    yield row
                    position += 1
            except Corrupt as error:
                yield corrupt_row(position, str(error))

    def _header(self, reader: Iterator[list[str]]) -> list[str]:
        try:
            return next(reader, [])
        except csv.Error:
            return []

    def _row(
        self, reader: Iterator[list[str]], lines: "_Lines", header: list[str], position: int
    ) -> TableRow | None:
        refusal = None
        cells: list[str] = []
        while not cells and refusal is None:
            lines.seen.clear()
            try:
                cells = next(reader)
            except StopIteration:
                return None
            except csv.Error as error:
                lines.closed = lines.closed and "end of data" not in str(error)
                refusal = LineRefused("not_csv", str(error))
        raw = "".join(lines.seen).encode("utf-8", "surrogateescape")
        refusal = refusal or _odd(cells, header, raw)
        if refusal is not None:
            return TableRow(Item(position, raw, refusal=refusal), len(raw), 0)
        named = zip(header, [cell or None for cell in cells], strict=True)
        item = Item(position, value={**self._columns, **dict(named)})
        return TableRow(item, len(raw), 0)


class _Lines:
    """Lines of a text, and those that the row being read is made of."""

    def __init__(self, text: io.TextIOBase) -> None:
        self._text = text
        self.seen: list[str] = []
        self.closed = True
        """Whether a newline ended the last line."""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(MAX_LINE_BYTES)
        if not line:
            raise StopIteration
        self.closed = line.endswith(("\n", "\r")) or len(line) >= MAX_LINE_BYTES
        self.seen.append(line)
        return line


def _odd(cells: list[str], header: list[str], raw: bytes) -> LineRefused | None:
    """Return why a row is none of the table's."""
    if len(cells) != len(header):
        return LineRefused("not_csv", f"{len(cells)} cells where the header has {len(header)}")
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return LineRefused("not_csv", str(error))
    return None


def partition_columns(path: PurePath) -> dict[str, str]:
    """Return the columns that the folders in a path name, as in `day=2026-01-31/part.parquet`."""
    pairs = [part.partition("=") for part in path.parts[:-1] if "=" in part]
    return {unquote(name): unquote(value) for name, _, value in pairs if name}


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {str(name): plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
        case datetime():
            return value.isoformat(timespec="microseconds")
        case date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return float(value)
        case bytes():
            return _text(value)
        case _:
            return str(value)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
