"""Ingest a file or folder of traces into the lake, exactly once.

    for every file: detect the format by content, skip what was consumed before,
    parse lines in batches, and commit each batch's rows with the new offset in
    one transaction; then join hops into turns.

Killed anywhere and run again, the tables end the same: ids are content hashes,
and an offset never runs ahead of its rows. In: `<home>` and a path. Out: an
`IngestReport` with the funnel. By hand: `flows run ingest PATH`.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from serving.records import Record
from traces.bodies import store_bodies
from traces.detect import Context, SourceFile, find_sources, is_json, parse_line
from traces.importers.rows import LineRefused, Row
from traces.lake import Lake
from traces.source import Line, Offset, open_source, read_lines, resume
from traces.turns import refresh_turns, store_recorded

BATCH_LINES = 4096
BATCH_BYTES = 32 * 1024 * 1024

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""

_TIMES = {"hops": "started_at", "feedback": "created_at", "requests": "started_at"}


class IngestReport(Record):
    """What one ingest found and what it changed."""

    source: str
    format: str
    files: int
    funnel: dict[str, int]
    """`hops_in`, `hops_added`, `hops_known`, the same for `feedback`, `requests` and
    recorded `turns`; `turns_joined`, `turns_updated`; `quarantined`."""
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
    source: Path,
    format: str | None = None,
    *,
    progress: Progress | None = None,
    batch_lines: int = BATCH_LINES,
) -> IngestReport:
    """Bring a trace file or folder into the lake of `home`.

    `format` is detected from the content; if given, other content is refused.

    Raises:
        InputRefused: if there is nothing to ingest; the lake is untouched.
        LakeUnavailable: if the lake cannot be written; whole batches remain.
    """
    sources = find_sources(source, format)
    counts = _Counts()
    total = sum(file.size_bytes for file in sources.files)
    done = 0
    with Lake.open(home) as lake:
        for file in sources.files:
            for consumed in _ingest_file(lake, file, sources.context, counts, batch_lines):
                if progress is not None:
                    progress(min(done + consumed, total), total)
            done += file.size_bytes
            if progress is not None:
                progress(done, total)
        joined, updated = refresh_turns(lake)
        counts.funnel.update(turns_joined=joined, turns_updated=updated)
        snapshot_id = lake.snapshot_id()
    return IngestReport(
        source=str(source),
        format=sources.format,
        files=len(sources.files),
        funnel=counts.as_funnel(),
        quarantined=dict(sorted(counts.quarantined.items())),
        skipped=sources.skipped,
        waiting_bytes=counts.waiting_bytes,
        snapshot_id=snapshot_id,
    )


@dataclass(slots=True)
class _Counts:
    funnel: Counter[str] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)
    waiting_bytes: int = 0

    def as_funnel(self) -> dict[str, int]:
        for table in ("hops", "turns", "feedback", "requests"):
            known = self.funnel[f"{table}_in"] - self.funnel[f"{table}_added"]
            self.funnel[f"{table}_known"] = known
        self.funnel["quarantined"] = sum(self.quarantined.values())
        return dict(sorted(self.funnel.items()))


def _ingest_file(
    lake: Lake, file: SourceFile, context: Context, counts: _Counts, batch_lines: int
) -> Iterator[int]:
    """Commit a file batch by batch; yield the bytes consumed after each."""
    known = lake.connection.execute(
        "SELECT consumed_bytes, consumed_digest FROM offsets WHERE source_id = $id",
        {"id": file.source_id},
    ).fetchall()
    prefix = resume(file.path, [Offset(int(size), digest) for size, digest in known])
    with open_source(file.path) as stream:
        stream.seek(prefix.length)
        lines = _settled(read_lines(stream, prefix.length), counts)
        for batch in _batches(lines, batch_lines):
            before = prefix.offset()
            rows = _parse(file, context, batch)
            for line in batch:
                prefix.update(line.raw)
            _commit(lake, file, rows, before, prefix.offset(), counts)
            yield prefix.length


def _settled(lines: Iterator[Line], counts: _Counts) -> Iterator[Line]:
    """Leave out an open last line unless it is whole JSON: it may still be being written."""
    for line in lines:
        if not line.closed and not is_json(line.raw):
            counts.waiting_bytes += len(line.raw)
            return
        yield line


def _batches(lines: Iterator[Line], batch_lines: int) -> Iterator[list[Line]]:
    batch: list[Line] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line.raw)
        if len(batch) >= batch_lines or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _parse(file: SourceFile, context: Context, lines: list[Line]) -> dict[str, list[Any]]:
    """Parse lines to rows by table; a line that is not a record becomes a quarantine row."""
    rows: dict[str, list[Any]] = {}
    for line in lines:
        try:
            if line.corrupt is not None:
                raise LineRefused("corrupt_gzip", line.corrupt)
            if not line.raw.strip():
                continue
            row = parse_line(line.raw, context)
        except LineRefused as refusal:
            row = _quarantine_row(file, line, refusal)
        rows.setdefault(row.table, []).append(row.values)
    return rows


def _quarantine_row(file: SourceFile, line: Line, refusal: LineRefused) -> Row:
    content = line.raw.strip() or file.source_id.encode()
    key = hashlib.sha256(refusal.reason.encode() + b"\n" + content).hexdigest()
    values = {
        "quarantine_id": f"sha256:{key}",
        "source": file.path.name,
        "position": line.start,
        "reason": refusal.reason,
        "detail": str(refusal)[:2000],
        "raw": line.raw,
    }
    return Row("quarantine", values)


def _commit(
    lake: Lake,
    file: SourceFile,
    rows: dict[str, list[Any]],
    before: Offset,
    after: Offset,
    counts: _Counts,
) -> None:
    """Store rows and offset in one transaction, and count what was new."""
    if before == after and not rows:
        return

    def work(connection: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
        added = {
            table: lake.insert_new(table, values, _TIMES.get(table))
            for table, values in rows.items()
            if table != "turns"
        }
        fresh = set(added.get("hops", ()))
        store_bodies(connection, [row for row in rows.get("hops", ()) if row["hop_id"] in fresh])
        added["turns"] = store_recorded(lake, rows.get("turns", []))
        if before != after:
            lake.move_offset(file.source_id, file.path.name, before, after, file.format)
        return added

    added = lake.commit(work)
    reasons = {row["quarantine_id"]: row["reason"] for row in rows.get("quarantine", ())}
    counts.quarantined.update(reasons[key] for key in added.get("quarantine", ()))
    for table in rows.keys() - {"quarantine"}:
        counts.funnel[f"{table}_in"] += len(rows[table])
        counts.funnel[f"{table}_added"] += len(added[table])
