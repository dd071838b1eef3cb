"""Streamed answers in a file: the chunks of one response are one item.

Lines are chunks as JSON (`chat.completion.chunk`) or server-sent events (`data: {...}`); streams
may be interleaved. Any other line is an item of its own. In: lines. Out: for every line the
items that it completed, and whether a reader may begin at this line the next time.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from traces.importers.rows import LineRefused
from traces.sources.items import Item, decode, is_json
from traces.sources.source import MAX_LINE_BYTES, Piece

_PATIENCE_LINES = 1000
"""Among interleaved streams, one without a chunk for so many lines has ended or broken off."""
_FIELDS = (b"event:", b"id:", b"retry:", b":")
"""Fields of an event stream beside its data, and comments."""
_DONE = b"[DONE]"
_LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed")


class Step(NamedTuple):
    """A line, the items that were complete when it came, and whether nothing was open then."""

    piece: Piece | None
    """None at the end of the file."""
    items: list[Item]
    settled: bool


@dataclass(slots=True)
class _Stream:
    position: int
    last_line: int = 0
    finished: bool = False
    raw: list[bytes] = field(default_factory=list)
    chunks: list[Any] = field(default_factory=list)
    size: int = 0

    def item(self) -> Item:
        """Return the streamed answer as one item."""
        raw = b"".join(self.raw)
        if self.size > MAX_LINE_BYTES:
            refusal = LineRefused("too_long", f"a stream of more than {MAX_LINE_BYTES} bytes")
            return Item(self.position, raw, refusal=refusal)
        return Item(self.position, raw, self.chunks)


class ChunkReader:
    """Puts the lines of streamed answers together."""

    def __init__(self) -> None:
        self._open: dict[str, _Stream] = {}
        self._last: str | None = None
        self._interleaved = False
        self._lines = 0

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of streams whose end has not been seen."""
        return sum(stream.size for stream in self._open.values())

    def steps(self, pieces: Iterable[Piece]) -> Iterator[Step]:
        """Yield a step for every line and one for the end."""
        for piece in pieces:
            self._lines += 1
            yield self._step(piece)
        ended = [key for key, stream in self._open.items() if stream.finished]
        yield Step(None, [self._open.pop(key).item() for key in ended], not self._open)

    def rest(self) -> list[Item]:
        """Return the streams whose end has not been seen, as if they had ended."""
        ended, self._open = self._open, {}
        return [stream.item() for stream in ended.values()]

    def _step(self, piece: Piece) -> Step:
        settled = not self._open
        if piece.refusal is not None:
            return Step(piece, [Item(piece.start, piece.raw, refusal=piece.refusal)], settled)
        data = event_data(piece.raw)
        if data is None or data == _DONE:
            return Step(piece, self._pass_over(piece, done=data is not None), settled)
        try:
            value = decode(data)
        except LineRefused as refusal:
            return Step(piece, [Item(piece.start, piece.raw, refusal=refusal)], settled)
        key = _key(value, event=data is not piece.raw)
        if key is None and data is not piece.raw and self._last in self._open:
            key = self._last
        if key is None:
            return Step(piece, [Item(piece.start, piece.raw, value)], settled)
        items = self._end_others(key)
        settled = not self._open
        if key not in self._open and value.get("usage") and not value.get("choices"):
            late = LineRefused("late_chunk", "the usage of a stream that had ended before")
            return Step(piece, [*items, Item(piece.start, piece.raw, refusal=late)], settled)
        self._add(key, piece, value)
        return Step(piece, items, settled)

    def _pass_over(self, piece: Piece, done: bool) -> list[Item]:
        """Take a line without a chunk; the mark of the end ends the last stream."""
        stream = self._open.get(self._last or "")
        if stream is None:
            return []
        stream.raw.append(piece.raw)
        stream.size += len(piece.raw)
        if not done:
            return []
        del self._open[str(self._last)]
        return [stream.item()]

    def _add(self, key: str, piece: Piece, value: Any) -> None:
        stream = self._open.setdefault(key, _Stream(piece.start))
        stream.size += len(piece.raw)
        if stream.size <= MAX_LINE_BYTES:
            stream.raw.append(piece.raw)
            stream.chunks.append(value)
        stream.finished = stream.finished or _is_last(value)
        stream.last_line = self._lines
        self._last = key

    def _end_others(self, key: str) -> list[Item]:
        """Return the streams that have ended, now that a chunk of `key` came."""
        if key == self._last and not self._interleaved:
            return []
        others = {k: s for k, s in self._open.items() if k != key}
        self._interleaved |= any(not s.finished for s in others.values())
        since = self._lines - _PATIENCE_LINES if self._interleaved else self._lines
        ended = [k for k, s in others.items() if s.last_line < since]
        return [self._open.pop(k).item() for k in ended]


def event_data(raw: bytes) -> bytes | None:
    """Return a line's JSON, without the prefix of an event stream; None if it has none."""
    line = raw.strip()
    if not line or line.startswith(_FIELDS):
        return None
    if line.startswith(b"data:"):
        return line[5:].strip() or None
    return raw


def is_whole(raw: bytes) -> bool:
    """Return whether a line without its newline is whole."""
    data = event_data(raw)
    return data is not None and (data == _DONE or is_json(data))


def begins_stream(line: bytes) -> bool:
    """Return whether a line is a streamed answer's chunk."""
    if is_event(line):
        return True
    try:
        return _key(decode(line), event=False) is not None
    except LineRefused:
        return False


def streamed(raw: bytes) -> Item:
    """Return the only item of the lines of one streamed answer.

    Raises:
        LineRefused: if they are not one.
    """
    lines = (Piece(0, line) for line in raw.splitlines(keepends=True))
    reader = ChunkReader()
    items = [item for step in reader.steps(lines) for item in step.items] + reader.rest()
    if len(items) != 1:
        raise LineRefused("not_json", f"{len(items)} items where one was")
    return items[0]


def is_event(line: bytes) -> bool:
    """Return whether a line is one of an event stream."""
    return line.startswith((b"data:", *_FIELDS))


def _key(value: Any, event: bool) -> str | None:
    """Return the id of the response that a chunk belongs to; None if it is no chunk.

    Of legacy completions only events are chunks: a line might be a whole response.
    """
    if not isinstance(value, dict):
        return None
    kinds = ("chat.completion.chunk", "text_completion") if event else ("chat.completion.chunk",)
    if value.get("object") in kinds:
        return str(value.get("id"))
    if str(value.get("type")).startswith("response.") and isinstance(value.get("response"), dict):
        return str(value["response"].get("id"))
    return None


def _is_last(value: Any) -> bool:
    if value.get("type") in _LAST_EVENTS:
        return True
    choices = value.get("choices")
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and choice.get("finish_reason") for choice in choices
    )
