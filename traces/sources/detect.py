"""What a path holds, judged by content: files, their form and format, and items to rows.

In: a file or folder. Out: the files to read, or `InputRefused` with one line that says why not;
for every item of them, its rows.
"""

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from pydantic import ValidationError

from traces.errors import InputRefused
from traces.importers import (
    eval_protocol,
    langfuse_export,
    langsmith_runs,
    litellm_log,
    metaclaw,
    mindlab,
    mlflow_traces,
    native,
    openai_log,
    openinference,
    otlp,
    swe_agent,
    tau_bench,
    tensorzero_tables,
    who_and_when,
)
from traces.importers.rows import MALFORMED, LineRefused, Row
from traces.sources.items import Context, Item
from traces.sources.probe import probe
from traces.sources.source_file import SourceFile


class Importer(Protocol):
    """A module of `traces.importers`."""

    NAME: str

    def recognises(self, value: Any) -> bool:
        """Return whether a decoded item is one of the format."""

    def parse(self, value: Any) -> Iterable[Row]:
        """Turn a decoded item into rows."""


FORMATS = cast(
    tuple[Importer, ...],
    (
        native,
        mindlab,
        metaclaw,
        tau_bench,
        who_and_when,
        swe_agent,
        eval_protocol,
        mlflow_traces,
        openinference,
        otlp,
        langfuse_export,
        langsmith_runs,
        tensorzero_tables,
        litellm_log,
        openai_log,
    ),
)
"""Importers, the strictest first: the first one that recognises an item has it."""


@dataclass(frozen=True, slots=True)
class Sources:
    """All files of a path."""

    files: tuple[SourceFile, ...]
    skipped: dict[str, str]

    @property
    def format(self) -> str:
        """The format, or the formats of a mixed folder."""
        return ", ".join(sorted({file.format for file in self.files}))


def find_sources(
    path: Path, format: str | None = None, only: Collection[Path] | None = None
) -> Sources:
    """Find the files to ingest under `path` and their formats.

    `only` names the files of a folder to look at; None means all.

    Raises:
        InputRefused: if the path is missing or holds nothing of a known format.
    """
    check_format(format)
    files: list[SourceFile] = []
    skipped: dict[str, str] = {}
    for candidate in candidates(path):
        if only is not None and candidate not in only:
            continue
        inner = candidate.relative_to(path) if candidate != path else Path(path.name)
        found = probe(candidate, inner, format_of)
        name = str(inner)
        if isinstance(found, str):
            skipped[name] = found
        elif format is not None and found.format != format:
            skipped[name] = f"is {found.format}, not {format}"
        else:
            files.append(found)
    if not files and skipped:
        # Of a folder the file that holds traces of another format says most.
        foreign = (item for item in skipped.items() if item[1].endswith(f", not {format}"))
        name, reason = next(foreign, next(iter(skipped.items())))
        raise InputRefused(
            f"Cannot ingest {str(path)!r}: {name!r} {reason}. Looked for JSON lines, JSON "
            f"documents, Parquet and CSV of the formats {', '.join(i.NAME for i in FORMATS)}."
        )
    return Sources(tuple(files), skipped)


def check_format(format: str | None) -> None:
    """Refuse the name of no format.

    Raises:
        InputRefused: naming the known ones.
    """
    known = [importer.NAME for importer in FORMATS]
    if format is not None and format not in known:
        raise InputRefused(f"Unknown trace format {format!r}; known are {', '.join(known)}.")


def format_of(value: Any) -> str | None:
    """Return the format of a decoded item, None if no importer recognises it."""
    for importer in FORMATS:
        try:
            if importer.recognises(value):
                return importer.NAME
        except MALFORMED:
            continue
    return None


def recognised_as(format: str | None, value: Any) -> bool:
    """Return whether a decoded item is one of this format."""
    importer = next((i for i in FORMATS if format == i.NAME), None)
    try:
        return importer is not None and importer.recognises(value)
    except MALFORMED:
        return False


def parse_item(item: Item, context: Context) -> list[Row]:
    """Turn an item into rows; what is wrong with it becomes quarantine rows, never an error."""
    try:
        rows = list(_parse(item.value, context))
    except LineRefused as refusal:
        return [refused_row(item, context, refusal)]
    except MALFORMED as error:
        return [refused_row(item, context, LineRefused("bad_record", _why(error)))]
    return [
        row if row.table != "quarantine" else _quarantine_row(item, context, **row.values)
        for row in rows
    ]


def refused_row(item: Item, context: Context, refusal: LineRefused) -> Row:
    """Return the quarantine row of a whole item."""
    return _quarantine_row(item, context, refusal.reason, str(refusal), item.raw)


def _parse(value: Any, context: Context) -> Iterable[Row]:
    importer = next(i for i in FORMATS if context.format == i.NAME)
    # The chunks of a streamed answer are a list.
    chunks = isinstance(value, list) and importer.recognises(value[:1])
    if not isinstance(value, dict) and not chunks:
        raise LineRefused("not_an_object", f"a JSON {type(value).__name__}, not an object")
    if context.format == mindlab.NAME:
        return mindlab.parse(value, context.summary_prompt)
    return importer.parse(value)


def _why(error: Exception) -> str:
    """Say what is wrong in one line, without the record's values: they may be secret."""
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {error}"
    wrong = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in wrong)


def _quarantine_row(item: Item, context: Context, reason: str, detail: str, raw: bytes) -> Row:
    content = raw.strip() or context.source_id.encode()
    key = hashlib.sha256(reason.encode() + b"\n" + content).hexdigest()
    values = {
        "quarantine_id": f"sha256:{key}",
        "source": context.name,
        "position": item.position,
        "reason": reason,
        "detail": detail[:2000].encode("utf-8", "replace").decode(),
        "raw": raw,
        "format": context.format,
    }
    return Row("quarantine", values)


def candidates(path: Path) -> list[Path]:
    """Return the files under `path`, without hidden ones.

    Raises:
        InputRefused: if there is none.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputRefused(f"No such file or folder: {str(path)!r}. Check the path.")
    found = sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path)))
    if not found:
        raise InputRefused(
            f"The folder {str(path)!r} holds no file to ingest. Point at a folder of traces, such "
            "as a spool or a harness capture."
        )
    return found


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
