"""Session files: JSON lines that are one item, because they refer to one another.

The first line is `{"type": "session", "id": ...}`; every other one names the line it follows. A
session still grows, and then is read again as a whole: ids make that harmless.
In: a stream. Out: one item whose value is the list of lines, and one for each line that is no
JSON.
"""

from typing import BinaryIO

from traces.importers.rows import LineRefused
from traces.sources.items import Item, decode, is_json
from traces.sources.source import MAX_LINE_BYTES, read_lines


def begins_session(line: bytes) -> bool:
    """Return whether a file with this first line holds a session."""
    if not is_json(line):
        return False
    value = decode(line)
    return isinstance(value, dict) and value.get("type") == "session" and "id" in value


def session_items(stream: BinaryIO) -> tuple[list[Item], int]:
    """Return the session, broken lines after it, and the bytes of a torn last line."""
    lines = []
    broken: list[Item] = []
    size = torn = 0
    for piece in read_lines(stream):
        size += len(piece.raw)
        if size > MAX_LINE_BYTES:
            refusal = LineRefused("too_long", f"a session of more than {MAX_LINE_BYTES} bytes")
            return [Item(0, b"", refusal=refusal)], 0
        if piece.refusal is not None:
            broken.append(Item(piece.start, piece.raw, refusal=piece.refusal))
        elif not piece.closed and not is_json(piece.raw):
            torn = len(piece.raw)
        elif piece.raw.strip():
            try:
                lines.append(decode(piece.raw))
            except LineRefused as refusal:
                broken.append(Item(piece.start, piece.raw, refusal=refusal))
    return [Item(0, value=lines), *broken], torn
