"""What happened to a source since it was read last: rotated, renamed, truncated, rewritten.

Nothing is lost or doubled by any of these, for ids are content hashes; they are told because
a person may not expect them. In: a file that has been read, and the offsets known before.
Out: plain sentences.
"""

from collections.abc import Sequence
from typing import NamedTuple

from traces.sources.source import Offset
from traces.sources.source_file import SourceFile


class KnownOffset(NamedTuple):
    """An offset as the lake holds it."""

    source_id: str
    name: str
    offset: Offset


def notice(file: SourceFile, known: Sequence[KnownOffset]) -> list[str]:
    """Say what happened to a file; `known` are the offsets of its source and of its name."""
    if file.went_away:
        return ["went away before it was read; what has become of it is read the next time"]
    same = [k for k in known if k.source_id == file.source_id]
    if not same:
        before = max((k.offset.consumed_bytes for k in known), default=0)
        if not before:
            return []
        return [
            f"begins otherwise than the file of this name of which {before:,} bytes were read "
            "before: rotated, replaced or another file; read from its start"
        ]
    at = file.resumed
    matching = [k.name for k in same if k.offset == at]
    if not at.consumed_bytes:
        longest = max(k.offset.consumed_bytes for k in same)
        return [_changed(file, longest)]
    if matching and file.name not in matching:
        return [f"is {matching[0]!r}, renamed or copied; read on from byte {at.consumed_bytes:,}"]
    return []


def _changed(file: SourceFile, longest: int) -> str:
    if file.form in ("parquet", "csv", "session", "object"):
        return "has changed since it was read; read again as a whole"
    if file.read_bytes < longest:
        return (
            f"was truncated: {longest:,} bytes of it were read before, {file.read_bytes:,} are "
            "left; read again"
        )
    return "was rewritten after its first item since it was read; read from its start"
