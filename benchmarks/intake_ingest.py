"""One file into a new lake, beside DuckDB's bare `read_json` to Parquet of the same bytes.

Each run is a process of its own, so that memory and caches are its own; the two take turns.
"""

import multiprocessing
import random
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import duckdb

from benchmarks.intake_data import write_spool
from traces.ingest import ingest
from traces.storage.lake import Lake

_SPLITS = 7
"""Parts that the second ingest gets the same lines in."""
_SPLIT_LIMIT_BYTES = 256 * 1024 * 1024
"""A larger file is ingested again as it is: its lines are shuffled in memory."""


def write(folder: Path, hops: int) -> tuple[Path, int]:
    """Write a spool of at least so many hops; return it and the number of its hops."""
    path = folder / "spool.jsonl"
    return path, write_spool(path, hops)


def measure(folder: Path, source: Path, hops: int | None, rounds: int) -> dict[str, Any]:
    """Ingest `source` into new lakes and read it bare, in turns; then ingest it again.

    `hops` is how many the source holds, None if only the ingest knows.
    """
    ours: list[dict[str, Any]] = []
    bare: list[float] = []
    for number in range(rounds):
        bare.append(_apart(read_bare, source, folder / "bare.parquet"))
        ours.append(_apart(ingest_once, folder / f"home-{number}", source))
    home = folder / "home-0"
    stored = sum(p.stat().st_size for p in (home / "lake" / "data").rglob("*.parquet"))
    took = statistics.median(each["seconds"] for each in ours)
    found = ours[0]["hops"]
    return {
        "hops": found,
        "source_bytes": source.stat().st_size,
        "hops_per_s": round(found / took, 1),
        "read_json_s": round(statistics.median(bare), 3),
        "ingest_s": round(took, 3),
        "vs_read_json": round(statistics.median(bare) / took, 3),
        "bytes_per_hop": round(stored / found, 1),
        "inline_bytes_per_hop": round(inline_bytes(home) / found, 1),
        "peak_rss_mb": max(each["peak_rss_mb"] for each in ours),
        "lost": ours[0]["quarantined"] if hops is None else hops - found,
        "reingest_added": again(folder, home, source),
    }


def ingest_once(home: Path, source: Path) -> dict[str, Any]:
    """Ingest a file in this process and say how long it took and what is there."""
    started = time.perf_counter()
    report = ingest(home, source)
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "hops": report.funnel["hops_added"],
        "quarantined": report.funnel["quarantined"],
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def read_bare(source: Path, out: Path) -> float:
    """Return the seconds that DuckDB needs to bring the JSON to Parquet, as it sees fit."""
    connection = duckdb.connect()
    connection.execute("SET enable_progress_bar = false")
    started = time.perf_counter()
    connection.execute(
        "COPY (SELECT * FROM read_json($source, maximum_object_size = 67108864))"
        " TO $out (FORMAT parquet, COMPRESSION zstd)",
        {"source": str(source), "out": str(out)},
    )
    return time.perf_counter() - started


def again(folder: Path, home: Path, source: Path) -> int:
    """Return how many rows a second ingest adds: of the same file, then of its lines split anew."""
    before = rows(home)
    ingest(home, source)
    if source.suffix == ".jsonl" and source.stat().st_size < _SPLIT_LIMIT_BYTES:
        lines = source.read_bytes().splitlines(keepends=True)
        random.Random(0).shuffle(lines)
        parts = folder / "parts"
        parts.mkdir()
        for number in range(_SPLITS):
            (parts / f"{number}.jsonl").write_bytes(b"".join(lines[number::_SPLITS]))
        ingest(home, parts)
    return rows(home) - before


def rows(home: Path) -> int:
    """Return the number of rows that traces brought into the lake."""
    tables = ("hops", "turns", "feedback", "requests", "messages", "quarantine")
    with Lake.open(home, read_only=True) as lake:
        return sum(len(lake.connection.table(table)) for table in tables)


def inline_bytes(home: Path) -> int:
    """Return the bytes of all hops' messages as JSON text, were each hop to hold its own."""
    with Lake.open(home, read_only=True) as lake:
        # Each body with its comma or bracket, and the other bracket of each hop.
        found = lake.connection.execute(
            "SELECT sum(m.bytes + 1) + (SELECT count(*) FROM hops)"
            " FROM (SELECT day, unnest(message_ids) AS message_id FROM hops)"
            " JOIN (SELECT day, message_id, strlen(body) AS bytes FROM messages) m"
            " USING (day, message_id)"
        ).fetchone()
    assert found is not None
    return int(found[0] or 0)


def _apart(work: Callable[..., Any], *given: Any) -> Any:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(work, *given).result()
