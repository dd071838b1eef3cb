"""A look at the beginning of a file: its form, and the format of its first items.

In: a path and the function that knows the formats. Out: the file as a source, or a few words
on why it is none.
"""

import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

from traces.importers.mindlab import summary_prompt
from traces.importers.rows import LineRefused
from traces.sources.chunks import begins_stream
from traces.sources.items import Context, Item, is_json
from traces.sources.session_lines import begins_session
from traces.sources.source import MAX_LINE_BYTES, Corrupt, open_source, read_some, source_id
from traces.sources.source_file import Form, SourceFile, file_items
from traces.sources.tabular import partition_columns

PROBED_ITEMS = 50
"""So many first items may be broken before a file counts as one of another kind."""

STREAMED_FORMAT = "openai"
"""Files of single responses may hold the chunks of streamed ones too."""

FormatOf = Callable[[Any], str | None]

_UNKNOWN = "of an unknown format"
_NOTHING_KNOWN = "not JSON lines, a JSON document, Parquet or CSV"
_HEAD_BYTES = 64 * 1024
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_SECRET = re.compile(r"[\w+/=-]{12,}")


def probe(path: Path, name: PurePath, format_of: FormatOf) -> SourceFile | str:
    """Return the file as a source, or why it is none; `name` is its path within the folder."""
    try:
        with open_source(path) as stream:
            head = read_some(stream, _HEAD_BYTES)
        if path.stat().st_size == 0:
            return "is empty"
        forms = _forms(head)
        if isinstance(forms, str):
            return forms
        reasons: list[str] = []
        for form in forms:
            found = _probe_as(form, path, name, head, format_of)
            if isinstance(found, SourceFile):
                return found
            reasons += [found] if found else []
        # What was decoded at all says more than what was not.
        waiting = f"has no complete line yet; {_begins(head)}"
        return max(reasons, key=lambda reason: _UNKNOWN in reason, default=waiting)
    except Corrupt as error:
        return f"is a corrupt compressed file ({error})"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"


def _forms(head: bytes) -> tuple[Form, ...] | str:
    """Return the forms to try, the likeliest first, or why there is none."""
    if head.startswith(b"PAR1"):
        return ("parquet",)
    if head.startswith(_UTF16):
        return "is UTF-16 text; convert it to UTF-8"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    line, newline, _ = text.partition(b"\n")
    if b"\0" in (line if text.startswith((b"{", b"[")) else head):
        return "is binary, not JSON lines"
    if newline and begins_session(line):
        return ("session", "lines")
    if begins_stream(line):
        return ("chunks", "lines")
    if text.startswith(b"["):
        return ("document", "lines")
    if text.startswith(b"{"):
        whole = not newline or is_json(line)
        return ("lines", "document") if whole else ("document", "lines")
    return ("lines", "csv")


def _probe_as(
    form: Form, path: Path, name: PurePath, head: bytes, format_of: FormatOf
) -> SourceFile | str | None:
    """Return the file if its first items have a format, else why not; None if it has no item."""
    columns = partition_columns(name)
    items = islice(file_items(path, form, columns), PROBED_ITEMS)
    first: Item | None = None
    reason: str | None = None
    for item in items:
        first = first or item
        try:
            value = item.value
        except LineRefused as refusal:
            if refusal.reason == "corrupt_file":
                return f"is a corrupt file ({refusal})"
            if refusal.reason == "too_long" and form == "document" and item is first:
                return _probe_as("object", path, name, head, format_of)
            if form == "lines" and len(item.raw) >= MAX_LINE_BYTES:
                return f"is one line of more than {MAX_LINE_BYTES:,} bytes"
            reason = reason or f"is {_NOTHING_KNOWN}; {_begins(head)}"
            continue
        format = format_of(value)
        if format is not None:
            if form == "lines" and format == STREAMED_FORMAT:
                form = "chunks"
            known = head.partition(b"\n")[0] if form == "session" else first.raw
            context = Context(format, str(name), source_id(known), summary_prompt(path.parent))
            return SourceFile(path, form, context, path.stat().st_size, columns)
        if form != "csv" or len(value) > 1:
            reason = reason or f"is {_KINDS[form]} {_UNKNOWN}; {_shape(value)}"
    return reason


_KINDS: dict[Form, str] = {
    "lines": "JSON",
    "chunks": "a stream of events",
    "session": "a session",
    "document": "JSON",
    "object": "JSON",
    "parquet": "a Parquet table",
    "csv": "a CSV table",
}


def _shape(value: Any) -> str:
    """Describe a value by its keys only: values may be secret."""
    if not isinstance(value, dict):
        return f"its first item is a JSON {type(value).__name__}"
    names = [repr(name[:40]) for name in islice(value, 12)]
    more = ", ..." if len(value) > len(names) else ""
    return f"its first item has the keys {', '.join(names)}{more}"


def _begins(head: bytes) -> str:
    """Quote the first line, cut, without what may be a key or a token."""
    line = head.lstrip().partition(b"\n")[0][:200].decode("utf-8", "replace")
    return f"it begins {_SECRET.sub('...', line)[:40]!r}"
