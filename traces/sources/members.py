"""Elements of the lists in one JSON object that is too large for memory.

Exports of a whole project come as one object with a list of what is independent of one another,
such as `{"resourceSpans": [...]}`. Each element becomes an item of the same shape, with a list of
one. In: a path. Out: such items.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from traces.importers.rows import LineRefused
from traces.sources.documents import BLANK, Decoded, Document
from traces.sources.items import Item
from traces.sources.source import open_source
from traces.sources.tabular import TableRow

_LISTS = frozenset(
    {"resourceSpans", "resource_spans", "resourceLogs", "resource_logs", "spans", "traces"}
    | {"data", "observations", "scores", "runs", "feedback"}
)
"""Members whose elements can be read one by one. The steps of a trajectory cannot."""


def member_rows(path: Path) -> Iterator[TableRow]:
    """Yield an item for each element of the object's lists."""
    with open_source(path) as stream:
        members = _Members(stream)
        for piece in members.pieces():
            element = piece.raw[piece.lead :]
            name = json.dumps(members.name).encode()
            raw = b"{" + name + b":[" + element + b"]}"
            item = Item(piece.start + piece.lead, raw, refusal=piece.refusal)
            if piece.decoded:
                item = Item(item.position, raw, {members.name: [piece.value]})
            yield TableRow(item, len(raw), piece.start)
        if members.unfinished_bytes:
            why = f"the object ends within its last {members.unfinished_bytes:,} bytes"
            yield TableRow(Item(0, b"", refusal=LineRefused("corrupt_file", why)), 0, 0)


class _Members(Document):
    """A document whose elements are those of an object's lists; other members are passed over."""

    name = ""
    """The list that the last element is from."""

    def _skip(self) -> int | None:
        lead = 0
        while (mark := self._mark(lead)) is not None:
            if mark in BLANK or mark == ",":
                lead += 1
            elif self._inside:
                if mark != "]":
                    return lead
                self._inside = False
                lead += 1
            elif mark in "{}":
                lead += 1
            else:
                after = self._member(lead)
                if after is None:
                    return lead
                lead = after
        return None

    def _member(self, lead: int) -> int | None:
        """Return the lead after a member's name and colon, and its value unless it is a list."""
        name = self._value(lead)
        if not isinstance(name, Decoded) or not isinstance(name.value, str):
            return None
        lead = name.end - self._at
        while (mark := self._mark(lead)) is not None and (mark in BLANK or mark == ":"):
            lead += 1
        if mark == "[" and name.value in _LISTS:
            self.name = name.value
            self._inside = True
            return lead + 1
        value = self._value(lead)
        return value.end - self._at if isinstance(value, Decoded) else None
