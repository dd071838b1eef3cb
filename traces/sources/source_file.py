"""One file to ingest, batch by batch, whatever its form.

Lines and JSON documents keep their place: an offset is the length and hash of the prefix
consumed, so that a growing file is read on, and a renamed or compressed copy is known. Parquet
and CSV files are known as a whole and otherwise read from their start; ids make that harmless.
In: a path and the offsets known of its source. Out: `Batch`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

from serving.errors import MolError
from traces.sources.chunks import ChunkReader, is_whole
from traces.sources.documents import Document
from traces.sources.items import Batch, Context, Filling, Item, is_json
from traces.sources.members import member_rows
from traces.sources.session_lines import session_items
from traces.sources.source import (
    LineBlocks,
    Offset,
    Piece,
    PrefixHash,
    file_offset,
    open_source,
    read_lines,
    resume,
)
from traces.sources.tabular import CsvFile, parquet_rows

Form = Literal["lines", "chunks", "session", "document", "object", "parquet", "csv"]
"""How a file holds its items."""

BATCH_ITEMS = 4096
BATCH_BYTES = 32 * 1024 * 1024


class SourceUnreadable(MolError, OSError):
    """The system cannot read a source any further."""


@dataclass(slots=True)
class SourceFile:
    """One file to ingest."""

    path: Path
    form: Form
    context: Context
    size_bytes: int
    columns: Mapping[str, str] = field(default_factory=dict)
    """Columns of a table that its folders name."""
    waiting_bytes: int = 0
    """Bytes of a torn last item that were left for the next time, once it was read."""
    resumed: Offset = field(default_factory=Offset)
    """What of it was known already, once it was read."""
    read_bytes: int = 0
    """Unpacked bytes of it that are consumed now."""
    went_away: bool = False
    """Whether there was no such file any more when it was to be read."""

    @property
    def format(self) -> str:
        """Name of the importer."""
        return self.context.format

    @property
    def source_id(self) -> str:
        """Hash of the first item."""
        return self.context.source_id

    @property
    def name(self) -> str:
        """Name of the file, without its folder."""
        return self.context.name

    def batches(
        self,
        known: list[Offset],
        max_items: int = BATCH_ITEMS,
        max_bytes: int = BATCH_BYTES,
    ) -> Iterator[Batch]:
        """Yield what was not consumed before.

        `known` are the offsets that the lake holds of this source.

        Raises:
            SourceUnreadable: if the system cannot read it.
        """
        self.waiting_bytes = 0
        filling = Filling(max_items, max_bytes)
        try:
            yield from self._batches(known, filling)
        except FileNotFoundError:
            # It was renamed or removed since the folder was listed: the next ingest finds it.
            self.went_away = True
        except OSError as error:
            raise SourceUnreadable(
                f"Cannot read {str(self.path)!r} any further: {error.strerror or error}. What was "
                "read of it is kept; run the command again once it can be read."
            ) from error

    def _batches(self, known: list[Offset], filling: Filling) -> Iterator[Batch]:
        if self.form in ("parquet", "csv", "object"):
            return self._tabular(known, filling)
        if self.form == "session":
            return self._session(known)
        if self.form == "chunks":
            return self._chunks(known, filling)
        if self.form == "lines":
            return self._lines(known, filling)
        return self._document(known, filling)

    def _lines(self, known: list[Offset], filling: Filling) -> Iterator[Batch]:
        with open_source(self.path) as stream:
            prefix = self._resume(stream, known)
            before = prefix.offset()
            blocks = LineBlocks(stream)
            for lines in blocks:
                while lines:
                    # A batch takes as many lines as it has room for.
                    taken, lines = lines[: filling.room], lines[filling.room :]
                    start = prefix.length
                    prefix.update(b"".join(taken))
                    if filling.add(_line_items(taken, start), prefix.length - start):
                        yield filling.take(before, prefix.offset(), prefix.length)
                        before = prefix.offset()
            # An open last line may still be being written.
            if is_json(blocks.rest):
                filling.add(_line_items([blocks.rest], prefix.length), len(blocks.rest))
                prefix.update(blocks.rest)
            else:
                self.waiting_bytes = len(blocks.rest)
            if blocks.refusal is not None:
                filling.add([Item(prefix.length, b"", refusal=blocks.refusal)], 0)
            if before != prefix.offset() or filling.items:
                yield filling.take(before, prefix.offset(), prefix.length)
        self.read_bytes = prefix.length

    def _document(self, known: list[Offset], filling: Filling) -> Iterator[Batch]:
        with open_source(self.path) as stream:
            prefix = self._resume(stream, known)
            before = prefix.offset()
            document = Document(stream, prefix.length)
            for piece in document.pieces():
                prefix.update(piece.raw)
                if filling.add(_items(piece), len(piece.raw)):
                    yield filling.take(before, prefix.offset(), prefix.length)
                    before = prefix.offset()
            self.waiting_bytes = document.unfinished_bytes
            if before != prefix.offset() or filling.items:
                yield filling.take(before, prefix.offset(), prefix.length)
        self.read_bytes = prefix.length

    def _resume(self, stream: BinaryIO, known: list[Offset]) -> PrefixHash:
        """Go to the end of what is known of the file."""
        prefix = resume(stream, known)
        self.resumed = prefix.offset() if prefix.length else Offset()
        return prefix

    def _chunks(self, known: list[Offset], filling: Filling) -> Iterator[Batch]:
        reader = ChunkReader()
        with open_source(self.path) as stream:
            prefix = self._resume(stream, known)
            before = settled = prefix.offset()
            for step in reader.steps(self._chunk_lines(stream, prefix.length)):
                # While a stream is open the offset stays where it began.
                settled = prefix.offset() if step.settled else settled
                raw = step.piece.raw if step.piece else b""
                prefix.update(raw)
                if filling.add(step.items, len(raw)):
                    yield filling.take(before, settled, prefix.length)
                    before = settled
        self.waiting_bytes += reader.unfinished_bytes
        self.read_bytes = prefix.length
        if before != settled or filling.items:
            yield filling.take(before, settled, prefix.length)

    def _chunk_lines(self, stream: BinaryIO, start: int) -> Iterator[Piece]:
        for piece in read_lines(stream, start):
            # An open last line may still be being written.
            if not piece.closed and not is_whole(piece.raw):
                self.waiting_bytes = len(piece.raw)
                return
            yield piece

    def _tabular(self, known: list[Offset], filling: Filling) -> Iterator[Batch]:
        whole = file_offset(self.path)
        if whole in known:
            self.resumed = whole
            return
        table = CsvFile(self.path, self.columns)
        match self.form:
            case "parquet":
                rows = parquet_rows(self.path, self.columns)
            case "object":
                rows = member_rows(self.path)
            case _:
                rows = table.rows()
        nothing = Offset()
        for row in rows:
            if filling.add([row.item], row.size_bytes):
                yield filling.take(nothing, nothing, row.done_bytes)
        self.waiting_bytes = table.unfinished_bytes
        # The offset comes last: a killed ingest begins the file again.
        yield filling.take(nothing, whole, whole.consumed_bytes)

    def _session(self, known: list[Offset]) -> Iterator[Batch]:
        whole = file_offset(self.path)
        if whole in known:
            self.resumed = whole
            return
        with open_source(self.path) as stream:
            items, self.waiting_bytes = session_items(stream)
        yield Batch(items, Offset(), whole, whole.consumed_bytes)


def file_items(path: Path, form: Form, columns: Mapping[str, str]) -> Iterator[Item]:
    """Yield a file's items from its start."""
    file = SourceFile(path, form, Context(""), 0, columns)
    for batch in file.batches([], max_items=1):
        yield from batch.items


def _line_items(lines: list[bytes], start: int) -> list[Item]:
    """Return the items of lines, the first of which begins at byte `start`; blank ones are none."""
    items = []
    for line in lines:
        if not line.isspace():
            items.append(Item(start, line))
        start += len(line)
    return items


def _items(piece: Piece) -> list[Item]:
    content = piece.raw[piece.lead :]
    at = piece.start + piece.lead
    if piece.refusal is not None:
        return [Item(at, content, refusal=piece.refusal)]
    if not content.strip():
        return []
    return [Item(at, content, piece.value)] if piece.decoded else [Item(at, content)]
