"""Messages of spool lines, each read once although every call repeats those before it.

A message is known by its bytes. So is a history: a call's messages mostly are those of the call
before in its conversation and a few more, and then only these are read.
In: JSON bytes as the recorder writes them. Out: bodies for the store, and the canonical JSON
that a hop's id is made of.
"""

from collections.abc import Hashable
from datetime import date
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from pydantic import AwareDatetime

from serving.records import LATER_FIELDS, SCHEMA_VERSION, Message, Record, ToolCall
from traces.bodies import Body, body_of_text

_MEMORY_BYTES = 32 << 20
"""What was read is remembered up to so many bytes of it."""
_LATER = LATER_FIELDS | {"tail"}
_Int = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

# What stands for a field's type. Messages stay bytes.
_TYPES: dict[Any, Any] = {
    int: _Int,
    int | None: _Int | None,
    AwareDatetime: str,
    tuple[str, ...]: list[str],
    tuple[int, ...] | None: list[int] | None,
    tuple[Message, ...]: Raw,
    Message | None: Raw,
}


class NotOurs(ValueError):
    """What was read is for pydantic."""


def struct_of(record: type[Record]) -> Any:
    """Return a struct with the fields of a record, in the order in which they are written."""
    fields: list[Any] = []
    for name, field in record.model_fields.items():
        kind = _TYPES.get(field.annotation, field.annotation)
        if name == "schema_version":
            kind = Annotated[int, Meta(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]
        fields.append((name, kind | UnsetType, UNSET) if name in _LATER else (name, kind))
    return msgspec.defstruct(record.__name__, fields, forbid_unknown_fields=True, gc=False)


_TYPES[tuple[ToolCall, ...]] = list[struct_of(ToolCall)]  # type: ignore[misc]
_read_message = msgspec.json.Decoder(struct_of(Message)).decode
_read_list = msgspec.json.Decoder(list[Raw]).decode
write = msgspec.json.Encoder().encode
write_sorted = msgspec.json.Encoder(order="sorted").encode


def same(record: Any, data: bytes) -> Any:
    """Return what was read of bytes if it is written as the same bytes.

    Raises:
        NotOurs: if not.
    """
    if write(record) != data:
        raise NotOurs
    return record


class Known(Struct, frozen=True, gc=False):
    """A message that was read."""

    body: Body
    canonical: bytes


class History(Struct, gc=False):
    """A list of messages that was read."""

    text: bytes
    """As it was written, without the bracket that closes it."""
    canonical: bytes
    """In canonical JSON, without that bracket."""
    ids: bytes
    """Message ids, one after the other."""
    bodies: list[Body]
    listed: tuple[int, date] | None = None
    """Where the first `listed_count` bodies are listed already."""
    listed_count: int = 0


_NOTHING = History(b"[", b"[", b"", [])


class Messages:
    """Reads messages and lists of them."""

    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}
        self._known_bytes = 0
        self._histories: dict[Hashable, History] = {}
        self._histories_bytes = 0

    def one(self, data: bytes) -> Known:
        """Read a message.

        Raises:
            ValueError: if it is not as the recorder writes it.
        """
        known = self._known.get(data)
        if known is None:
            message = same(_read_message(data), data)
            canonical = write_sorted(message)
            known = Known(body_of_text(message.role, canonical), canonical)
            if self._known_bytes > _MEMORY_BYTES:
                self._known, self._known_bytes = {}, 0
            self._known[data] = known
            self._known_bytes += len(data)
        return known

    def history(self, key: Hashable, data: bytes) -> History:
        """Read a list of messages; of one `key` each mostly continues the one before.

        Raises:
            ValueError: if it is not as the recorder writes it.
        """
        before = self._histories.get(key, _NOTHING)
        length = len(before.text)
        if not data.startswith(before.text) or data[length : length + 1] not in (b",", b"]"):
            before, length = _NOTHING, 0
        rest = b"[" + data[length + 1 :]
        if rest == b"[":
            return before
        added = [self.one(bytes(raw)) for raw in same(_read_list(rest), rest)]
        between = b"," if before.bodies and added else b""
        history = History(
            data[:-1],
            before.canonical + between + b",".join([known.canonical for known in added]),
            before.ids + b"".join([known.body.message_id for known in added]),
            before.bodies + [known.body for known in added],
            before.listed,
            before.listed_count,
        )
        self._remember(key, history)
        return history

    def _remember(self, key: Hashable, history: History) -> None:
        if self._histories_bytes > _MEMORY_BYTES:
            self._histories, self._histories_bytes = {}, 0
        replaced = self._histories.get(key, _NOTHING)
        self._histories[key] = history
        self._histories_bytes += len(history.text) - len(replaced.text)
