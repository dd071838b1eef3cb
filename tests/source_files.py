"""Makes source files of every form, and reads them as the ingest does."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trace_records import line, traffic

from traces.sources.items import Context, Item
from traces.sources.source import Offset
from traces.sources.source_file import Form, SourceFile

SPOOL = [json.loads(line(record)) for record in traffic(4)]
"""Items of the native format."""


def source(path: Path, form: Form, format: str = "native") -> SourceFile:
    return SourceFile(path, form, Context(format, path.name, "id"), path.stat().st_size)


def items(path: Path, form: Form, known: Iterable[Offset] = (), **limits: int) -> list[Item]:
    return [i for batch in source(path, form).batches(list(known), **limits) for i in batch.items]


def values(found: Sequence[Item]) -> list[Any]:
    return [item.value for item in found]


def chunk(id: str, text: str, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return {"id": id, "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


def json_lines(values: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)
