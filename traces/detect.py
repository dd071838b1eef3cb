"""What a path holds, judged by content: files, their format, and lines to rows.

In: a file or folder. Out: the files to read, or `InputRefused` with one line
that says why not.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from traces.errors import InputRefused
from traces.importers import mindlab, native
from traces.importers.rows import LineRefused, Row
from traces.source import open_source, read_lines, source_id

Format = Literal["native", "mindlab"]

_SUFFIXES = {".jsonl", ".ndjson", ".json", ".gz"}
_PROBE_LINES = 50
_MALFORMED = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError, RecursionError,
)  # fmt: skip
"""What pydantic, datetime and plain indexing raise on values of the wrong shape."""


@dataclass(frozen=True, slots=True)
class Context:
    """What parsing a line needs beside the line."""

    format: Format
    summary_prompt: str | None = None
    """Text that asks for a summary in a harness capture, if its profile is at hand."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to ingest."""

    path: Path
    format: Format
    source_id: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Sources:
    """All files of a path."""

    files: tuple[SourceFile, ...]
    format: Format
    context: Context
    skipped: dict[str, str]


def find_sources(path: Path, format: str | None = None) -> Sources:
    """Find the files to ingest under `path` and their format.

    Raises:
        InputRefused: if the path is missing or holds nothing of a known format.
    """
    if format not in (None, "native", "mindlab"):
        raise InputRefused(f"Unknown trace format {format!r}; known are 'native' and 'mindlab'.")
    files: list[SourceFile] = []
    skipped: dict[str, str] = {}
    for candidate in _candidates(path):
        found = _probe(candidate)
        if isinstance(found, str):
            skipped[candidate.name] = found
        elif format is not None and found.format != format:
            skipped[candidate.name] = f"is {found.format}, not {format}"
        else:
            files.append(found)
    if not files:
        name, reason = next(iter(skipped.items()))
        raise InputRefused(
            f"Cannot ingest {str(path)!r}: {name!r} {reason}. Give a .jsonl or .jsonl.gz file of "
            "this project's spool, a Mind Lab harness capture, or a folder of them."
        )
    formats = sorted({file.format for file in files})
    if len(formats) > 1:
        raise InputRefused(
            f"{str(path)!r} mixes the formats {' and '.join(formats)}. Ingest the files one by one."
        )
    context = Context(files[0].format, mindlab.summary_prompt(files[0].path.parent))
    return Sources(tuple(files), files[0].format, context, skipped)


def is_json(raw: bytes) -> bool:
    """Return whether the bytes are one whole JSON value."""
    try:
        _decode(raw)
    except _MALFORMED:
        return False
    return True


def parse_line(raw: bytes, context: Context) -> Row:
    """Turn one line into a row.

    Raises:
        LineRefused: with the reason, if it is not a record of the format.
    """
    try:
        record = _decode(raw)
    except _MALFORMED as error:
        raise LineRefused("not_json", str(error)) from error
    if not isinstance(record, dict):
        raise LineRefused("not_an_object", f"a JSON {type(record).__name__}, not an object")
    try:
        if context.format == "native":
            return native.parse(record)
        return mindlab.parse(record, context.summary_prompt)
    except LineRefused:
        raise
    except _MALFORMED as error:
        detail = f"{type(error).__name__}: {error}"
        raise LineRefused("bad_record", detail) from error


def _candidates(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputRefused(f"No such file or folder: {str(path)!r}. Check the path.")
    found = sorted(p for p in path.rglob("*") if p.is_file() and p.suffix in _SUFFIXES)
    if not found:
        raise InputRefused(
            f"The folder {str(path)!r} holds no .jsonl or .jsonl.gz file. "
            "Point at a spool or a harness capture."
        )
    return found


def _probe(path: Path) -> SourceFile | str:
    """Return the file as a source, or why it is none."""
    head = b""
    reason = "has no complete line yet"
    try:
        with open_source(path) as stream:
            for number, line in enumerate(read_lines(stream)):
                if number >= _PROBE_LINES:
                    break
                if line.corrupt is not None:
                    return f"is a corrupt gzip file ({line.corrupt})"
                if b"\0" in line.raw:
                    return "is binary, not JSON lines"
                if not line.raw.strip():
                    continue
                if not line.closed and not is_json(line.raw):
                    break
                head = head or line.raw
                format = _format_of(line.raw)
                if format is not None:
                    return SourceFile(path, format, source_id(head), path.stat().st_size)
                reason = (
                    "is JSON of an unknown format" if is_json(line.raw) else "is not JSON lines"
                )
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return "is empty" if path.stat().st_size == 0 else reason


def _format_of(raw: bytes) -> Format | None:
    try:
        record = _decode(raw)
    except _MALFORMED:
        return None
    if not isinstance(record, dict):
        return None
    if native.recognises(record):
        return "native"
    return "mindlab" if mindlab.recognises(record) else None


def _decode(raw: bytes) -> Any:
    return json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
