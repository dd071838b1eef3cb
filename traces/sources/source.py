"""Source files as bytes with positions: plain or compressed, whole or still growing.

A file is known by its content, not its path: `source_id` is the hash of its
first item, and an offset row holds the length and hash of the prefix already
consumed. A renamed, moved or compressed copy is therefore not read twice.
In: a path. Out: lines, each with its start, and the hash of what was consumed.
"""

import bz2
import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from traces.importers.rows import LineRefused

MAX_LINE_BYTES = 64 * 1024 * 1024
"""A longer line is cut there and quarantined, so that memory stays bounded."""

_CHUNK_BYTES = 1024 * 1024
_ENDS_EARLY = (
    "Truncated compressed stream",  # Arrow's zstd
    "Compressed file ended before",
)


class Corrupt(ValueError):
    """A compressed file cannot be unpacked from here on."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One item's bytes with what stands around it; positions count unpacked bytes."""

    start: int
    raw: bytes
    closed: bool = True
    """Whether a newline ended it. An open line may still be being written."""
    lead: int = 0
    """Bytes before the item itself."""
    refusal: LineRefused | None = None
    """Why it cannot be read, if that is known already."""
    value: Any = None
    decoded: bool = False
    """Whether `value` is the item's."""


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a source was consumed."""

    consumed_bytes: int = 0
    consumed_digest: str = ""


def open_source(path: Path) -> BinaryIO:
    """Open a file, unpacking gzip, zstd, bzip2 and xz; recognised by content, not by name."""
    with path.open("rb") as file:
        head = file.read(6)
    if head.startswith(b"\x1f\x8b"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    if head.startswith(b"BZh"):
        return cast(BinaryIO, bz2.open(path, "rb"))
    if head.startswith(b"\xfd7zXZ\x00"):
        return cast(BinaryIO, lzma.open(path, "rb"))
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return cast(BinaryIO, io.BufferedReader(_Zstd(path), _CHUNK_BYTES))
    return path.open("rb")


def read_lines(stream: BinaryIO, start: int = 0) -> Iterator[Piece]:
    """Yield lines from the stream's current position, which is byte `start`.

    A truncated compressed file ends like one still being written; a corrupt one ends with
    a line that says so.
    """
    position = start
    while True:
        try:
            raw = _guarded(stream, "readline", MAX_LINE_BYTES)
        except Corrupt as error:
            yield Piece(position, b"", refusal=LineRefused("corrupt_file", str(error)))
            return
        if not raw:
            return
        closed = raw.endswith(b"\n") or len(raw) >= MAX_LINE_BYTES
        yield Piece(position, raw, closed)
        position += len(raw)


class LineBlocks:
    """The lines of a stream, about a megabyte at a time: one by one they cost twice as much.

    `read_lines` says what a line is. The last one, if open, is left in `rest`.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.rest = b""
        self.refusal: LineRefused | None = None
        """Why nothing after the last line can be read."""

    def __iter__(self) -> Iterator[list[bytes]]:
        """Yield the lines of one block after the other."""
        parts: list[bytes] = []
        try:
            while chunk := _guarded(self._stream, "read1", _CHUNK_BYTES):
                end = chunk.rfind(b"\n") + 1
                if end:
                    yield _split(b"".join([*parts, chunk[:end]]))
                    parts = []
                parts.append(chunk[end:])
                if sum(map(len, parts)) >= MAX_LINE_BYTES:
                    whole = b"".join(parts)
                    yield [whole[:MAX_LINE_BYTES]]
                    parts = [whole[MAX_LINE_BYTES:]]
            self.rest = b"".join(parts)
        except Corrupt as error:
            self.refusal = LineRefused("corrupt_file", str(error))


def _split(block: bytes) -> list[bytes]:
    lines = io.BytesIO(block).readlines()
    if len(lines[0]) > MAX_LINE_BYTES:
        lines[:1] = [lines[0][:MAX_LINE_BYTES], lines[0][MAX_LINE_BYTES:]]
    return lines


def read_some(stream: BinaryIO, size: int) -> bytes:
    """Read up to `size` bytes; none at the end, also of a truncated compressed file.

    Raises:
        Corrupt: if the compressed file is broken here.
    """
    return _guarded(stream, "read", size)


class _Zstd(io.RawIOBase):
    """A zstd file, unpacked; it seeks by beginning again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin()

    def _begin(self) -> None:
        # Loaded here: `flows --help` imports this package and must stay fast.
        import pyarrow as pa

        self._packed = pa.CompressedInputStream(pa.OSFile(str(self._path)), "zstd")
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._packed.read(len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset += self._at
        if offset < self._at:
            self._packed.close()
            self._begin()
        while self._at < offset and self.readinto(bytearray(min(offset - self._at, _CHUNK_BYTES))):
            pass
        return self._at

    def close(self) -> None:
        self._packed.close()
        super().close()


class Unpacked(io.RawIOBase):
    """A stream for readers that know nothing of compressed files which end early."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as there is something to read."""
        data = read_some(self._stream, len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _guarded(stream: BinaryIO, call: str, size: int) -> bytes:
    try:
        return cast(bytes, getattr(stream, call)(size))
    except EOFError:
        return b""
    except (zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise Corrupt(f"{_packing(stream)}: {error}") from error
    except OSError as error:
        # bz2 and Arrow's zstd say so with a bare OSError; one of the disk has a number.
        if error.errno is not None:
            raise
        if str(error).startswith(_ENDS_EARLY):
            return b""
        raise Corrupt(f"{_packing(stream)}: {error}") from error


def _packing(stream: BinaryIO) -> str:
    names = {"GzipFile": "gzip", "BZ2File": "bzip2", "LZMAFile": "xz"}
    return names.get(type(stream).__name__, "zstd")


def source_id(first_item: bytes) -> str:
    """Return the id of the source that begins with this item."""
    return "sha256:" + hashlib.sha256(first_item.strip()).hexdigest()


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


def file_offset(path: Path) -> Offset:
    """Return the offset after a whole file, as its bytes are on the disk."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Offset(file.tell(), "sha256:" + digest)


def resume(stream: BinaryIO, known: list[Offset]) -> PrefixHash:
    """Return the hash of the longest prefix that `known` holds, and leave the stream at its end."""
    best, running = PrefixHash(), PrefixHash()
    for offset in sorted(known, key=lambda o: o.consumed_bytes):
        if not _advance(stream, running, offset.consumed_bytes):
            break
        if running.offset() == offset:
            best = running.copy()
    if running.length != best.length:
        stream.seek(best.length)
    return best


def _advance(stream: BinaryIO, prefix: PrefixHash, length: int) -> bool:
    """Hash on to `length`; return False if the stream ends or breaks before."""
    try:
        while prefix.length < length:
            chunk = read_some(stream, min(length - prefix.length, _CHUNK_BYTES))
            if not chunk:
                return False
            prefix.update(chunk)
    except Corrupt:
        return False
    return True
