"""A load: what one commit takes, gathered from batches of one format.

    load.add(file, batch)      # until it is full
    sealed = load.seal()       # Arrow tables: Python's share of the work ends here
    sealed.store(lake)         # one transaction: DuckDB's share

In: items. Out: rows and offsets in the lake, and how many of them were new.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import duckdb

from traces.importers import native
from traces.importers.rows import Row
from traces.importers.spool_lines import SpoolLines
from traces.sources.detect import parse_item
from traces.sources.items import Batch
from traces.sources.source import Offset
from traces.sources.source_file import SourceFile
from traces.storage.lake import Lake
from traces.storage.store import Rows, store_rows
from traces.storage.tables import Quick, arrow_table

LOAD_ITEMS = 65_536
"""About so many items are stored in one commit."""
LOAD_BYTES = 64 << 20
"""Or so many bytes of input. Memory holds two loads: one is read while the other is stored."""


class Move(NamedTuple):
    """A source's offset before and after a load."""

    source_id: str
    name: str
    format: str
    before: Offset
    after: Offset


@dataclass(frozen=True, slots=True)
class Added:
    """What a commit added."""

    counts: dict[str, int]
    """New rows by table; `hops_updated` are hops that were there and are told of at last."""
    quarantined: Counter[str]
    """New rows of `quarantine`, by reason."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A load ready to be stored."""

    format: str
    rows: Rows
    quick: Quick
    moves: list[Move]
    skipped: Counter[str]
    """Parts of the input that are no record and nothing to mend, by reason."""

    @property
    def counts(self) -> dict[str, int]:
        """Rows that came in, by table."""
        found = {table: len(rows) for table, rows in self.rows.items()}
        for table, rows in (("hops", self.quick.hops), ("turns", self.quick.turns)):
            found[table] = found.get(table, 0) + rows.num_rows
        return found

    def store(self, lake: Lake) -> Added:
        """Store rows and offsets in one transaction.

        Raises:
            LakeUnavailable: if that cannot be done; nothing of the load is stored.
        """
        if not (self.moves or any(self.counts.values())):
            return Added({}, Counter())

        def work(_connection: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
            added = store_rows(lake, self.rows, self.quick)
            _move_offsets(lake, self.moves)
            return added

        added = lake.commit(work)
        reasons = {row["quarantine_id"]: row["reason"] for row in self.rows.get("quarantine", ())}
        quarantined = Counter(reasons[key] for key in added.get("quarantine", ()))
        return Added({table: len(ids) for table, ids in added.items()}, quarantined)


class Load:
    """Gathers the rows of one commit after the other."""

    def __init__(self, max_items: int = LOAD_ITEMS, max_bytes: int = LOAD_BYTES) -> None:
        self.max_items = max_items
        self.max_bytes = max_bytes
        self.format = ""
        self._lines = SpoolLines()
        self._begin()

    def _begin(self) -> None:
        self._rows: Rows = defaultdict(list)
        self._moves: list[Move] = []
        self._items = 0
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether it should be sealed before more is added."""
        return self._items >= self.max_items or self._bytes >= self.max_bytes

    def add(self, file: SourceFile, batch: Batch) -> None:
        """Parse a batch; all batches of a load are of one format."""
        self.format = file.format
        quick = file.format == native.NAME
        for item in batch.items:
            rows: Iterable[Row] | None = None
            if quick and item.refusal is None:
                rows = self._lines.take(item.raw)
            for row in parse_item(item, file.context) if rows is None else rows:
                self._rows[row.table].append(row.values)
        self._items += len(batch.items)
        self._bytes += batch.size_bytes
        if batch.before != batch.after:
            move = Move(file.source_id, file.name, file.format, batch.before, batch.after)
            self._moves.append(move)

    def seal(self) -> Sealed:
        """Return what was gathered, and begin anew."""
        quick, rows, moves = self._lines.hand_out(), self._rows, self._moves
        self._begin()
        skipped = Counter(str(row["reason"]) for row in rows.pop("skipped", ()))
        return Sealed(self.format, rows, quick, moves, skipped)


def _move_offsets(lake: Lake, moves: list[Move]) -> None:
    """Replace the offsets of sources; of a source moved twice the last move stands."""
    if not moves:
        return
    # Those after, too: another process may have read the same source meanwhile.
    gone = [(m.source_id, o.consumed_digest) for m in moves for o in (m.before, m.after)]
    lake.connection.execute(
        "DELETE FROM offsets WHERE (source_id, consumed_digest) IN"
        " (SELECT unnest($ids), unnest($digests))",
        {"ids": [key for key, _ in gone], "digests": [digest for _, digest in gone]},
    )
    rows = [
        {
            "source_id": move.source_id,
            "name": move.name,
            "consumed_bytes": move.after.consumed_bytes,
            "consumed_digest": move.after.consumed_digest,
            "format": move.format,
        }
        for move in {(move.source_id, move.name): move for move in moves}.values()
    ]
    lake.insert("offsets", arrow_table("offsets", rows))
