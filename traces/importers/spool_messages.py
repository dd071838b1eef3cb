"""Messages of spool lines, each read once although every call repeats those before it.

A message is known by its bytes. So is a history: a call's messages mostly are those of the call
before in its conversation and a few more, and then only these are read.
In: JSON bytes as the recorder writes them. Out: bodies for the store, and the canonical JSON
that a hop's id is made of.
"""

from collections.abc import Hashable
from datetime import date
from typing import Annotated, Any, get_args

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from pydantic import AwareDatetime

from serving.records import LATER_FIELDS, SCHEMA_VERSION, Message, Record, Role, ToolCall
from traces.storage.bodies import Body, body_of_text

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
_read_text = msgspec.json.Decoder(str).decode
_read_message = msgspec.json.Decoder(struct_of(Message)).decode
_OPENS = b'{"role":'
_BETWEEN = b"}," + _OPENS
# Most messages are a text and nothing else.
_CONTENT = b'"content":'
_PLAIN = b',"tool_calls":[],"tool_call_id":null'
_PLAIN_SORTED = b',"tool_call_id":null,"tool_calls":[]}'
_ROLES = {b'"%b"' % role.encode(): role for role in get_args(Role)}

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
        if not (data.startswith(_OPENS) and data.endswith(b"}")):
            raise NotOurs
        inside = data[len(_OPENS) : -1]
        return self._known.get(inside) or self._learn(inside)

    def history(self, key: Hashable, data: bytes) -> History:
        """Read a list of messages; of one `key` each mostly continues the one before.

        Raises:
            ValueError: if it is not as the recorder writes it.
        """
        before = self._histories.get(key, _NOTHING)
        at = len(before.text)
        if not data.startswith(before.text) or not data.startswith((b",", b"]"), at):
            before, at = _NOTHING, 0
        if len(data) == at + 1:
            return before
        if not data.startswith(_OPENS, at + 1) or not data.endswith(b"}]"):
            raise NotOurs
        # No text holds the separator: its quotes would be written with backslashes.
        known = self._known
        added = [
            known.get(inside) or self._learn(inside)
            for inside in data[at + 1 + len(_OPENS) : -2].split(_BETWEEN)
        ]
        texts = b",".join([each.canonical for each in added])
        between = b"," if before.bodies else b""
        history = History(
            data[:-1],
            b"".join((before.canonical, between, texts)),
            before.ids + b"".join([each.body.message_id for each in added]),
            before.bodies + [each.body for each in added],
            before.listed,
            before.listed_count,
        )
        if self._histories_bytes > _MEMORY_BYTES:
            self._histories.clear()
            self._histories_bytes = 0
        self._histories[key] = history
        self._histories_bytes += len(data) - at
        return history

    def _learn(self, inside: bytes) -> Known:
        """Read a message without what all of them begin and end with."""
        role, _, rest = inside.partition(b",")
        if role in _ROLES and rest.startswith(_CONTENT) and rest.endswith(_PLAIN):
            content = rest[len(_CONTENT) : -len(_PLAIN)]
            same(_read_text(content), content)
            name = _ROLES[role]
            canonical = b"".join((b'{"content":', content, b',"role":', role, _PLAIN_SORTED))
        else:
            data = _OPENS + inside + b"}"
            message = same(_read_message(data), data)
            name = message.role
            canonical = write_sorted(message)
        known = Known(body_of_text(name, canonical), canonical)
        if self._known_bytes > _MEMORY_BYTES:
            self._known.clear()
            self._known_bytes = 0
        self._known[inside] = known
        self._known_bytes += len(inside)
        return known
