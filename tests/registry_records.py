"""Versions, digests and gate reports for the tests of the registry, from a number each."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.gate_attempts import as_attempted
from promotion.config import GateConfig
from promotion.gate import GateIdentity, GateReport, judge
from promotion.registry import Registry
from promotion.slices import SuiteScores
from promotion.state import RegisteredVersion
from promotion.tables import Database

SLOTS = ("L0", "L1", "L2", "L3")
BASE_DIGEST = "sha256:" + "0" * 64
START = datetime(2026, 1, 1, tzinfo=UTC)


def digest_of(number: int) -> str:
    return f"sha256:{number:064x}"


def version_of(number: int, slot: str = "L2", **changes: Any) -> RegisteredVersion:
    fields = {
        "slot": slot,
        "digest": digest_of(number),
        "base_digest": BASE_DIGEST,
        "manifest_digest": "sha256:" + "e" * 64,
        "run_key": f"run-{number}",
        "metrics": {"train_loss": 0.5, "rows": 12},
        "path": f"adapters/{number:064x}",
        "created_at": START + timedelta(minutes=number),
    }
    return RegisteredVersion(**(fields | changes))


def report_of(champion: int | None, challenger: int, gains: int = 20, **changes: Any) -> GateReport:
    """A report of 60 items, of which `gains` were won and 2 lost."""
    before = None if champion is None else digest_of(champion)
    report = report_between(before, digest_of(challenger), gains=gains, losses=2)
    return report.model_copy(update=changes)


def report_between(
    champion: str | None,
    challenger: str,
    *,
    gains: int,
    losses: int = 0,
    slot: str = "L2",
    seed: int = 0,
) -> GateReport:
    """A report of 60 items between two digests."""
    n = 60
    rest = (0.0,) * (n - gains - losses)
    scores = SuiteScores(
        suite="functions",
        slot=slot,
        item_ids=tuple(map(str, range(n))),
        clusters=tuple(map(str, range(n))),
        champion=(0.0,) * gains + (1.0,) * losses + rest,
        challenger=(1.0,) * gains + (0.0,) * losses + rest,
        identical=False,
        unchanged=False,
    )
    identity = GateIdentity(
        slot=slot,
        champion_digest=champion,
        challenger_digest=challenger,
        base_digest=BASE_DIGEST,
        suites_digest="sha256:" + "d" * 64,
        primary_suite="functions",
        seed=seed,
        code_version="1",
    )
    return judge(scores, [], GateConfig(), identity)


def attempted(where: Registry | Path | str, report: GateReport) -> GateReport:
    """Enter a report as what an attempt ended in that was made just now; return it."""
    if isinstance(where, Registry):
        return as_attempted(where._database, report)
    database = Database(where)
    try:
        return as_attempted(database, report)
    finally:
        database.close()


def gated(
    where: Registry | Path | str, champion: int | None, challenger: int, **changes: Any
) -> GateReport:
    """A report as `report_of` makes it, of an attempt that was made when it is first asked for."""
    return attempted(where, report_of(champion, challenger, **changes))
