"""Proves that lines read by the block are those read one by one, wherever reads end."""

import gzip
import io
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from traces.sources.source import LineBlocks, open_source, read_lines


class Dribble(io.RawIOBase):
    """A stream that gives few bytes at a time, as a slow disk or a decompressor may."""

    def __init__(self, data: bytes, step: int) -> None:
        self._rest = data
        self._step = step

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = min(self._step, len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


@given(st.lists(st.sampled_from([b"\n", b"\r", b"a", b"\xff\x00", b'{"a": 1}']), max_size=40),
       st.integers(1, 9))  # fmt: skip
def test_blocks_hold_the_lines(parts: list[bytes], step: int) -> None:
    data = b"".join(parts)

    blocks = LineBlocks(io.BufferedReader(Dribble(data, step), 16))
    lines = [line for block in blocks for line in block]

    pieces = list(read_lines(io.BytesIO(data)))
    assert lines == [piece.raw for piece in pieces if piece.closed]
    assert blocks.rest == b"".join(piece.raw for piece in pieces if not piece.closed)


def test_lines_before_the_corrupt_place_are_there(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b"one\ntwo\nthree", mtime=0))
    packed[-6] ^= 0xFF  # the checksum at the end
    (tmp_path / "a.gz").write_bytes(packed)

    with open_source(tmp_path / "a.gz") as stream:
        blocks = LineBlocks(stream)
        lines = [line for block in blocks for line in block]

    assert lines == [b"one\n", b"two\n"]
    assert blocks.refusal is not None
    assert blocks.rest == b""
