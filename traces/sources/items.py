"""Items: what importers see, whatever kind of file they came from.

An item is a line of a JSON-lines file, an element of a JSON document, a streamed answer's
chunks, or a row of a Parquet or CSV file; its value is always plain JSON. A batch is what one
commit takes. In: bytes or values. Out: `Item`, `Batch`.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from serving.records import canonical_json
from traces.importers.rows import MALFORMED, LineRefused
from traces.sources.source import Offset

_UNREAD: Any = object()


class Item:
    """One thing to parse; `position` is its byte in the file, or its number in a table."""

    __slots__ = ("_raw", "_value", "position", "refusal")

    def __init__(
        self,
        position: int,
        raw: bytes | None = None,
        value: Any = _UNREAD,
        refusal: LineRefused | None = None,
    ) -> None:
        self.position = position
        self.refusal = refusal
        self._raw = raw
        self._value = value

    @property
    def raw(self) -> bytes:
        """The item's own bytes; canonical JSON where a table's row has none."""
        if self._raw is None:
            self._raw = canonical_json(self._value).encode("utf-8", "surrogatepass")
        return self._raw

    @property
    def value(self) -> Any:
        """The decoded value.

        Raises:
            LineRefused: if it is not one whole JSON value, or the file is broken here.
        """
        if self.refusal is not None:
            raise self.refusal
        if self._value is _UNREAD:
            self._value = decode(self.raw)
        return self._value


@dataclass(frozen=True, slots=True)
class Batch:
    """Items of one commit, and how the source's offset moves with them."""

    items: list[Item]
    before: Offset
    after: Offset
    done_bytes: int
    """Bytes of the file read so far, as they are on the disk."""
    size_bytes: int = 0
    """About so much memory the items take before they are decoded."""


@dataclass(frozen=True, slots=True)
class Context:
    """What parsing an item needs beside the item."""

    format: str
    name: str = ""
    """Name of the source, as quarantine shows it."""
    source_id: str = ""
    summary_prompt: str | None = None
    """Text that asks for a summary in a harness capture, if its profile is at hand."""


@dataclass(slots=True)
class Filling:
    """A batch being filled."""

    max_items: int
    max_bytes: int
    items: list[Item] = field(default_factory=list)
    size: int = 0

    @property
    def room(self) -> int:
        """How many items it still takes."""
        return self.max_items - len(self.items)

    def add(self, items: Iterable[Item], size: int) -> bool:
        """Add items that took `size` bytes; return whether the batch is full."""
        self.items.extend(items)
        self.size += size
        return len(self.items) >= self.max_items or self.size >= self.max_bytes

    def take(self, before: Offset, after: Offset, done_bytes: int) -> Batch:
        """Return the batch and begin anew."""
        taken, size = self.items, self.size
        self.items, self.size = [], 0
        return Batch(taken, before, after, done_bytes, size)


_quick = msgspec.json.Decoder()


def decode(raw: bytes) -> Any:
    """Decode one JSON value.

    Raises:
        LineRefused: if it is none.
    """
    try:
        return _quick.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        pass  # It is not JSON, or has what only the slower reader takes or can explain.
    try:
        text = raw.decode("utf-8-sig")
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=finite)
        if has_surrogate(raw):
            canonical_json(value).encode()
        return value
    except UnicodeEncodeError as error:
        raise LineRefused("not_json", f"half a surrogate pair: {error.reason}") from error
    except MALFORMED as error:
        raise LineRefused("not_json", str(error)) from error


def is_json(raw: bytes) -> bool:
    """Return whether the bytes are one whole JSON value."""
    try:
        decode(raw)
    except LineRefused:
        return False
    return True


def has_surrogate(raw: bytes) -> bool:
    """Return whether JSON text may hold half of a surrogate pair, which no text can store."""
    return b"\\ud" in raw or b"\\uD" in raw


def finite(text: str) -> float:
    """Return a JSON number.

    Raises:
        ValueError: if it is larger than any float.
    """
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is larger than any number of the lake")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
