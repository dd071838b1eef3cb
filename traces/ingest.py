"""Ingest a file or folder of traces into the lake, exactly once.

    for every file: detect the format by content, skip what was consumed before,
    and gather its items into loads; each load's rows and the new offsets are one
    transaction, stored while the next load is read. Then join hops into turns.

Killed anywhere and run again, the tables end the same: ids are content hashes,
and an offset never runs ahead of its rows. In: `<home>` and a path. Out: an
`IngestReport` with the funnel. By hand: `flows run ingest PATH`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from serving.records import Record
from traces.joins.turns import refresh_turns
from traces.load import LOAD_ITEMS, Added, Load, Sealed
from traces.sources.detect import Sources, find_sources
from traces.sources.items import Batch
from traces.sources.locations import fetched, shown
from traces.sources.notice import KnownOffset, notice
from traces.sources.source import Offset
from traces.sources.source_file import SourceFile
from traces.storage.lake import Lake

_BATCH_ITEMS = 4096
_BATCH_BYTES = 4 << 20
"""Read at once; a load takes many, but what was just read is parsed faster."""

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


class IngestReport(Record):
    """What one ingest found and what it changed."""

    source: str
    format: str
    files: int
    funnel: dict[str, int]
    """`hops_in`, `hops_added`, `hops_known`, the same for `feedback`, `requests` and
    recorded `turns`; `turns_joined`, `turns_updated`; `quarantined`; `skipped_<what>`, parts
    that are no record, such as `skipped_span_tool`; `<table>_expired`, records that are too old:
    retention has taken their days away."""
    formats: dict[str, dict[str, int]]
    """The funnel of each format by itself, its `files`, and `files_known`: ingested before, as
    far as they went then."""
    noticed: dict[str, list[str]]
    """Files that were rotated, renamed, truncated or rewritten since they were read last."""
    quarantined: dict[str, int]
    """Lines set aside by this ingest, by reason."""
    skipped: dict[str, str]
    """Files of the folder that hold nothing of the format, with the reason."""
    waiting_bytes: int
    """Bytes of torn last lines left for the next ingest."""
    snapshot_id: int

    @property
    def all_known(self) -> bool:
        """Whether every file had been ingested before, to its very end."""
        known = sum(funnel["files_known"] for funnel in self.formats.values())
        return not self.added and known == self.files > 0 and not self.waiting_bytes

    @property
    def added(self) -> bool:
        """Whether the lake holds anything it did not hold before."""
        return any(
            n for step, n in self.funnel.items() if step.endswith(("_added", "_joined", "_updated"))
        ) or bool(self.quarantined)


def ingest(
    home: Path,
    source: Path | str,
    format: str | None = None,
    *,
    only: Collection[Path] | None = None,
    progress: Progress | None = None,
    batch_lines: int = LOAD_ITEMS,
) -> IngestReport:
    """Bring a trace file, folder or URL into the lake of `home`.

    `format` is detected from the content; if given, other content is refused. `only` names the
    files of a folder to look at; None means all.

    Raises:
        InputRefused: if there is nothing to ingest; the lake is untouched.
        LakeUnavailable: if the lake cannot be written; whole batches remain.
    """
    with fetched(source) as path:
        sources = find_sources(path, format, only)
        return _ingest_all(home, shown(source), sources, progress, batch_lines)


def _ingest_all(
    home: Path, source: str, sources: Sources, progress: Progress | None, batch_lines: int
) -> IngestReport:
    counts = _Counts()
    total = sum(file.size_bytes for file in sources.files)

    def tell(done: int) -> None:
        if progress is not None:
            progress(min(done, total), total)

    with Lake.open(home) as lake:
        # The other core reads the next load; two threads would mostly wait for each other.
        lake.connection.execute("SET threads = 1")
        with _Writer(lake, counts, tell) as writer:
            _read(sources, _KnownOffsets(lake), Load(batch_lines), writer, counts)
        lake.connection.execute("RESET threads")
        joined, updated = refresh_turns(lake)
        counts.funnel.update(turns_joined=joined, turns_updated=updated)
        snapshot_id = lake.snapshot_id()
    return IngestReport(
        source=source,
        format=sources.format,
        files=len(sources.files),
        funnel=counts.as_funnel(),
        formats={name: _with_known(funnel) for name, funnel in sorted(counts.formats.items())},
        noticed=counts.noticed,
        quarantined=dict(sorted(counts.quarantined.items())),
        skipped=sources.skipped,
        waiting_bytes=counts.waiting_bytes,
        snapshot_id=snapshot_id,
    )


@dataclass(slots=True)
class _Counts:
    funnel: Counter[str] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)
    formats: dict[str, Counter[str]] = field(default_factory=dict)
    noticed: dict[str, list[str]] = field(default_factory=dict)
    waiting_bytes: int = 0

    def count(self, load: Sealed, added: Added) -> None:
        """Count what a commit took and what of it was new."""
        if not load.format:
            return  # nothing was left for the last load
        funnel = self.formats.setdefault(load.format, Counter())
        funnel.update({f"skipped_{why}": n for why, n in load.skipped.items()})
        for table, rows in load.counts.items():
            if table != "quarantine":
                funnel[f"{table}_in"] += rows
                funnel[f"{table}_added"] += added.counts.get(table, 0)
        for step in ("hops_updated", *(f"{table}_expired" for table in load.counts)):
            if n := added.counts.get(step):
                funnel[step] += n
        funnel["quarantined"] += added.quarantined.total()
        self.quarantined += added.quarantined

    def note(self, file: SourceFile, known: list[KnownOffset]) -> None:
        """Note what was seen of a file that has been read; `known` is from before that."""
        funnel = self.formats.setdefault(file.format, Counter())
        funnel["files"] += 1
        funnel["files_known"] += any(k.source_id == file.source_id for k in known)
        self.waiting_bytes += file.waiting_bytes
        if sentences := notice(file, known):
            self.noticed[file.name] = sentences

    def as_funnel(self) -> dict[str, int]:
        """Return the funnel of all formats together."""
        whole = self.funnel.copy()
        for funnel in self.formats.values():
            whole.update(funnel)
        return _with_known(whole) | {"quarantined": whole["quarantined"]}


def _with_known(funnel: Counter[str]) -> dict[str, int]:
    counts = dict(funnel)
    for table in ("hops", "turns", "feedback", "requests"):
        counts[f"{table}_in"] = funnel[f"{table}_in"]
        counts[f"{table}_added"] = funnel[f"{table}_added"]
        new = funnel[f"{table}_added"] + funnel[f"{table}_expired"]
        counts[f"{table}_known"] = funnel[f"{table}_in"] - new
    return dict(sorted(counts.items()))


def _read(
    sources: Sources, known: "_KnownOffsets", load: Load, writer: "_Writer", counts: _Counts
) -> None:
    """Read all files into loads; a load may hold several small ones, of one format."""
    done = 0
    for file in sources.files:
        if load.format not in ("", file.format):
            writer.put(load.seal(), done)
        before = known.of(file)
        own = [k.offset for k in before if k.source_id == file.source_id]
        for batch in _ahead(file.batches(own, min(load.max_items, _BATCH_ITEMS), _BATCH_BYTES)):
            load.add(file, batch)
            known.add(KnownOffset(file.source_id, file.name, batch.after))
            if load.is_full:
                writer.put(load.seal(), done + batch.done_bytes)
        done += file.size_bytes
        counts.note(file, before)
    writer.put(load.seal(), done)
    writer.settle()


def _ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Have the next batch read, unpacked and hashed by a thread while this one is parsed."""
    with ThreadPoolExecutor(1, thread_name_prefix="source-reader") as thread:
        coming = thread.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = thread.submit(next, batches, None)
            yield batch


class _KnownOffsets:
    """What the lake held of all sources before, and what this ingest added to it."""

    def __init__(self, lake: Lake) -> None:
        rows = lake.connection.execute(
            "SELECT source_id, name, consumed_bytes, consumed_digest FROM offsets"
        ).fetchall()
        self._by_source: dict[str, list[KnownOffset]] = defaultdict(list)
        self._by_name: dict[str, list[KnownOffset]] = defaultdict(list)
        for source_id, name, size, digest in rows:
            self.add(KnownOffset(source_id, name, Offset(int(size), digest)))

    def add(self, known: KnownOffset) -> None:
        """Take up one more."""
        self._by_source[known.source_id].append(known)
        self._by_name[known.name].append(known)

    def of(self, file: SourceFile) -> list[KnownOffset]:
        """Return the offsets of a file's source, and those of its name."""
        own = self._by_source.get(file.source_id, [])
        namesakes = self._by_name.get(file.name, [])
        return own + [k for k in namesakes if k.source_id != file.source_id]


class _Writer:
    """Stores one load while the next one is read; in order, and never more than one ahead."""

    def __init__(self, lake: Lake, counts: _Counts, progress: Callable[[int], None]) -> None:
        self._lake = lake
        self._counts = counts
        self._progress = progress
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lake-writer")
        self._pending: tuple[Sealed, Future[Added], int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def put(self, load: Sealed, done_bytes: int) -> None:
        """Store a load once the one before is stored; `done_bytes` of the input end with it."""
        self.settle()
        self._pending = load, self._thread.submit(load.store, self._lake), done_bytes

    def settle(self) -> None:
        """Wait for what is being stored, and count it.

        Raises:
            LakeUnavailable: if it cannot be stored.
        """
        if self._pending is not None:
            load, future, done_bytes = self._pending
            self._pending = None
            self._counts.count(load, future.result())
            self._progress(done_bytes)
