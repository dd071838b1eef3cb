"""Promoters that race for one slot: of each race exactly one wins, on SQLite and on PostgreSQL.

    python -m benchmarks.gate_races [--quick]

In each race four processes, each with a connection of its own, have a passed report against the
same champion for a challenger of their own, and promote at once. The next race is against the
winner. 1,000 races on a SQLite file and 1,000 on a real PostgreSQL on the loopback (100 each with
`--quick`); where PostgreSQL is not installed, stderr says so and its figures are null. Prints one
JSON object last: `races` and `winners` over both databases, and each database's own with
milliseconds a race, from the start signal until all four know, at the median and the 99th
percentile. The log is verified at the end, and an error ends the measurement.
"""

import argparse
import contextlib
import functools
import importlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from benchmarks.areas import tried
from benchmarks.gate_attempts import as_attempted
from promotion.gate import GateReport
from promotion.registry import Registry
from promotion.slot_rows import PromotionRefused
from promotion.state import RegisteredVersion
from promotion.tables import Database, versions_table
from promotion.version_rows import version_row
from traces.storage.connections import interrupt_on_signals

PROMOTERS = 4
SLOT = "L2"
BASE = "sha256:" + "0" * 64
_LIMIT_S = 120.0


def measure(quick: bool) -> dict[str, Any]:
    """Race on both databases."""
    races = 100 if quick else 1000
    found = {"sqlite": _on_sqlite(races), "postgresql": tried("postgresql", lambda: _on_pg(races))}
    done = [figures for figures in found.values() if figures]
    totals = {name: sum(figures[name] for figures in done) for name in ("races", "winners")}
    return {**totals, "promoters": PROMOTERS, **found}


def race(where: Path | str, races: int) -> dict[str, Any]:
    """Run races in a registry and return how many there were and how many were won.

    Raises:
        CorruptRegistry: if the log does not verify afterwards.
    """
    with Registry.open(where, [SLOT]):
        _add_versions(where, races * PROMOTERS)
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(PROMOTERS), context.Queue()
    workers = [
        context.Process(target=_promoter, args=(where, number, races, barrier, results))
        for number in range(PROMOTERS)
    ]
    for worker in workers:
        worker.start()
    try:
        outcomes = [results.get(timeout=_LIMIT_S) for _ in workers]
    finally:
        for worker in workers:
            worker.join(_LIMIT_S)
    wins = [sum(won for won, _ in attempts) for attempts in zip(*outcomes, strict=True)]
    times = sorted(max(took for _, took in attempts) for attempts in zip(*outcomes, strict=True))
    with Registry.open(where) as registry:
        moves, generation = registry.verify_chain(), registry.slot(SLOT).generation
    return {
        "races": races,
        "winners": sum(wins),
        "races_with_one_winner": wins.count(1),
        "events": moves,
        "generation": generation,
        "race_ms_p50": round(1000 * times[races // 2], 1),
        "race_ms_p99": round(1000 * times[races * 99 // 100], 1),
    }


def _promoter(where: Path | str, number: int, races: int, barrier: Barrier, results: Any) -> None:
    """Promote in every race as soon as all are ready; tell whether it won and the seconds."""
    attempts, database = [], Database(where)
    with Registry.open(where) as registry:
        for turn in range(races):
            barrier.wait(_LIMIT_S)  # nobody promotes while others still look
            state = registry.slot(SLOT)
            digest = _digest(turn * PROMOTERS + number)
            report = as_attempted(database, _passed(state.champion, digest))
            barrier.wait(_LIMIT_S)
            began, won = time.perf_counter(), True
            try:
                registry.promote(SLOT, digest, state.generation, report)
            except PromotionRefused:
                won = False
            attempts.append((won, time.perf_counter() - began))
    database.close()
    results.put(attempts)


def _on_sqlite(races: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="races-") as folder:
        return race(Path(folder), races)


def _on_pg(races: int) -> dict[str, Any]:
    with _postgres() as url:
        return race(url, races)


@contextlib.contextmanager
def _postgres() -> Iterator[str]:
    """Run the PostgreSQL of the tests and yield the address of an empty database.

    Raises:
        FileNotFoundError: if it is not installed.
    """
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    server = importlib.import_module("postgres_server")
    if server.postgres_folder() is None:
        raise FileNotFoundError("PostgreSQL is not installed.")
    with server.postgres_server() as running:
        before = os.environ.get("PGPASSWORD")
        os.environ["PGPASSWORD"] = server.PASSWORD
        try:
            yield running.make_database("races").replace("postgresql:", "postgresql+psycopg:")
        finally:
            del os.environ["PGPASSWORD"]
            if before is not None:
                os.environ["PGPASSWORD"] = before


def _add_versions(where: Path | str, many: int) -> None:
    database, start = Database(where), datetime(2026, 1, 1, tzinfo=UTC)
    with database.writing() as connection:
        rows = [
            version_row(
                RegisteredVersion(
                    slot=SLOT,
                    digest=_digest(number),
                    base_digest=BASE,
                    path=f"adapters/{number:064x}",
                    created_at=start + timedelta(seconds=number),
                )
            )
            for number in range(many)
        ]
        connection.execute(versions_table.insert(), rows)
    database.close()


def _digest(number: int) -> str:
    return f"sha256:{number:064x}"


def _passed(champion: str | None, challenger: str) -> GateReport:
    """Return a report that passed; the registry asks for its verdict, its digests and its key."""
    return _template().model_copy(
        update={"champion_digest": champion, "challenger_digest": challenger}
    )


@functools.cache
def _template() -> GateReport:
    from promotion.config import GateConfig
    from promotion.gate import GateIdentity, judge
    from promotion.slices import SuiteScores

    items = tuple(map(str, range(60)))
    scores = SuiteScores(
        suite="races", slot=SLOT, item_ids=items, clusters=items, champion=(0.0,) * 60,
        challenger=(1.0,) * 30 + (0.0,) * 30, identical=False, unchanged=False,
    )  # fmt: skip
    identity = GateIdentity(
        slot=SLOT, champion_digest=None, challenger_digest=_digest(0), base_digest=BASE,
        suites_digest=_digest(0), primary_suite=scores.suite, seed=0, code_version="0",
    )  # fmt: skip
    return judge(scores, (), GateConfig(), identity)


def main() -> int:
    """Measure and print."""
    interrupt_on_signals()
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="100 races instead of 1,000")
    print(json.dumps(measure(parser.parse_args().quick)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
