"""Source files as lines with positions: plain or gzip, whole or still growing.

A file is known by its content, not its path: `source_id` is the hash of its
first line, and an offset row holds the length and hash of the prefix already
consumed. A renamed, moved or compressed copy is therefore not read twice.
In: a path. Out: lines, each with its start, its end and the prefix hash.
"""

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

MAX_LINE_BYTES = 64 * 1024 * 1024
"""A longer line is cut there and quarantined, so that memory stays bounded."""

_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """One line with its newline; positions count uncompressed bytes."""

    start: int
    raw: bytes
    closed: bool = True
    """Whether a newline ended it. An open line may still be being written."""
    corrupt: str | None = None
    """Why nothing after this point can be read."""


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a source was consumed."""

    consumed_bytes: int = 0
    consumed_digest: str = ""


def open_source(path: Path) -> BinaryIO:
    """Open a file, unpacking gzip; recognised by content, not by name."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path, "rb")) if packed else path.open("rb")


def read_lines(stream: BinaryIO, start: int = 0) -> Iterator[Line]:
    """Yield lines from the stream's current position, which is byte `start`.

    A truncated gzip ends like a file still being written; a corrupt one ends with
    a line that says so.
    """
    position = start
    while True:
        try:
            raw = stream.readline(MAX_LINE_BYTES)
        except EOFError:
            return
        except (zlib.error, gzip.BadGzipFile) as error:
            yield Line(position, b"", corrupt=str(error))
            return
        if not raw:
            return
        closed = raw.endswith(b"\n") or len(raw) >= MAX_LINE_BYTES
        yield Line(position, raw, closed)
        position += len(raw)


def source_id(first_line: bytes) -> str:
    """Return the id of the source that begins with this line."""
    return "sha256:" + hashlib.sha256(first_line.strip()).hexdigest()


class PrefixHash:
    """SHA-256 of a stream's first bytes, advanced as they are consumed."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.length = 0

    def update(self, data: bytes) -> None:
        """Append consumed bytes."""
        self._hash.update(data)
        self.length += len(data)

    def offset(self) -> Offset:
        """Return the offset at the present length."""
        return Offset(self.length, "sha256:" + self._hash.hexdigest())

    def copy(self) -> "PrefixHash":
        """Return an independent copy."""
        other = PrefixHash()
        other._hash, other.length = self._hash.copy(), self.length
        return other


def resume(path: Path, known: list[Offset]) -> PrefixHash:
    """Return the hash of the longest prefix of `path` that `known` holds; empty if none."""
    best = running = PrefixHash()
    with open_source(path) as stream:
        for offset in sorted(known, key=lambda o: o.consumed_bytes):
            try:
                while running.length < offset.consumed_bytes:
                    missing = offset.consumed_bytes - running.length
                    chunk = stream.read(min(missing, _CHUNK_BYTES))
                    if not chunk:
                        return best
                    running = running.copy() if running is best else running
                    running.update(chunk)
            except (EOFError, zlib.error, gzip.BadGzipFile):
                return best
            if running.offset() == offset:
                best = running
    return best
