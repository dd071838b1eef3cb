"""Versions, digests and gate reports for the tests of the registry, from a number each."""

from datetime import UTC, datetime, timedelta
from typing import Any

from promotion.config import GateConfig
from promotion.gate import GateIdentity, GateReport, SuiteScores, judge
from promotion.state import RegisteredVersion

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
    n, losses = 60, 2
    both = n - gains - losses
    scores = SuiteScores(
        suite="functions",
        slot="L2",
        item_ids=tuple(map(str, range(n))),
        clusters=tuple(map(str, range(n))),
        champion=(0.0,) * gains + (1.0,) * losses + (1.0,) * both,
        challenger=(1.0,) * gains + (0.0,) * losses + (1.0,) * both,
        identical=False,
        unchanged=False,
    )
    fields = {
        "slot": "L2",
        "champion_digest": None if champion is None else digest_of(champion),
        "challenger_digest": digest_of(challenger),
        "base_digest": BASE_DIGEST,
        "suites_digest": "sha256:" + "d" * 64,
        "seed": 0,
        "code_version": "1",
    }
    report = judge(scores, [], GateConfig(), GateIdentity(**(fields | {"slot": "L2"})))
    return report.model_copy(update=changes)
