"""Ingest a file or folder of traces into the lake, exactly once.

    for every file: detect the format by content, skip what was consumed before,
    parse lines in batches, and commit each batch's rows with the new offset in
    one transaction; then join hops into turns.

Killed anywhere and run again, the tables end the same: ids are content hashes,
and an offset never runs ahead of its rows. In: `<home>` and a path. Out: an
`IngestReport` with the funnel. By hand: `flows run ingest PATH`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from serving.records import Record
from traces.detect import Sources, find_sources, parse_item
from traces.items import Batch
from traces.lake import Lake
from traces.locations import fetched, shown
from traces.notice import KnownOffset, notice
from traces.source import Offset
from traces.source_file import SourceFile
from traces.store import store_rows
from traces.turns import refresh_turns

BATCH_LINES = 4096
BATCH_BYTES = 32 * 1024 * 1024

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
    that are no record, such as `skipped_span_tool`."""
    formats: dict[str, dict[str, int]]
    """The funnel of each format by itself, and its `files`."""
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
    batch_lines: int = BATCH_LINES,
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
    done = 0
    with Lake.open(home) as lake:
        for file in sources.files:
            counts.formats.setdefault(file.format, Counter())["files"] += 1
            for consumed in _ingest_file(lake, file, counts, batch_lines):
                if progress is not None:
                    progress(min(done + consumed, total), total)
            done += file.size_bytes
            if progress is not None:
                progress(done, total)
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

    def as_funnel(self) -> dict[str, int]:
        """Return the funnel of all formats together."""
        whole = sum(self.formats.values(), self.funnel.copy())
        return _with_known(whole) | {"quarantined": whole["quarantined"]}


def _with_known(funnel: Counter[str]) -> dict[str, int]:
    counts = dict(funnel)
    for table in ("hops", "turns", "feedback", "requests"):
        counts[f"{table}_in"] = funnel[f"{table}_in"]
        counts[f"{table}_added"] = funnel[f"{table}_added"]
        counts[f"{table}_known"] = funnel[f"{table}_in"] - funnel[f"{table}_added"]
    return dict(sorted(counts.items()))


def _ingest_file(lake: Lake, file: SourceFile, counts: _Counts, batch_lines: int) -> Iterator[int]:
    """Commit a file batch by batch; yield the bytes consumed after each."""
    known = _known_offsets(lake, file)
    own = [k.offset for k in known if k.source_id == file.source_id]
    for batch in file.batches(own, batch_lines, BATCH_BYTES):
        _commit(lake, file, _parse(file, batch), batch.before, batch.after, counts)
        yield batch.done_bytes
    counts.waiting_bytes += file.waiting_bytes
    if sentences := notice(file, known):
        counts.noticed[file.name] = sentences


def _known_offsets(lake: Lake, file: SourceFile) -> list[KnownOffset]:
    rows = lake.connection.execute(
        "SELECT source_id, name, consumed_bytes, consumed_digest FROM offsets "
        "WHERE source_id = $id OR name = $name",
        {"id": file.source_id, "name": file.name},
    ).fetchall()
    return [KnownOffset(row[0], row[1], Offset(int(row[2]), row[3])) for row in rows]


def _parse(file: SourceFile, batch: Batch) -> dict[str, list[Any]]:
    """Parse items to rows by table; one that is not a record becomes a quarantine row."""
    rows: dict[str, list[Any]] = {}
    for item in batch.items:
        for row in parse_item(item, file.context):
            rows.setdefault(row.table, []).append(row.values)
    return rows


def _commit(
    lake: Lake,
    file: SourceFile,
    rows: dict[str, list[Any]],
    before: Offset,
    after: Offset,
    counts: _Counts,
) -> None:
    """Store rows and offset in one transaction, and count what was new."""
    # Parts of a source that are no record and nothing to mend, such as a tool's span.
    skipped = Counter(str(row["reason"]) for row in rows.pop("skipped", ()))
    counts.formats[file.format].update({f"skipped_{why}": n for why, n in skipped.items()})
    if before == after and not rows:
        return

    def work(_connection: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
        added = store_rows(lake, rows)
        if before != after:
            lake.move_offset(file.source_id, file.name, before, after, file.format)
        return added

    added = lake.commit(work)
    reasons = {row["quarantine_id"]: row["reason"] for row in rows.get("quarantine", ())}
    counts.quarantined.update(reasons[key] for key in added.get("quarantine", ()))
    funnel = counts.formats[file.format]
    funnel["quarantined"] += len(added.get("quarantine", ()))
    for table in rows.keys() - {"quarantine"}:
        funnel[f"{table}_in"] += len(rows[table])
        funnel[f"{table}_added"] += len(added[table])
    if added["hops_updated"]:
        funnel["hops_updated"] += len(added["hops_updated"])
