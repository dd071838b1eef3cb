"""Made-up scores and identities for tests of the gate."""

from typing import Any

from promotion.config import GateConfig
from promotion.gate import GateIdentity, GateReport, judge
from promotion.slices import SuiteScores

OLD, NEW, BASE = ("sha256:" + digit * 64 for digit in "abc")
CONFIG = GateConfig(margins={"skill": 0.05})


def identity_of(
    champion: str | None = OLD, challenger: str = NEW, attempt: int = 1
) -> GateIdentity:
    return GateIdentity(
        slot="L2",
        champion_digest=champion,
        challenger_digest=challenger,
        base_digest=BASE,
        suites_digest="sha256:" + "d" * 64,
        primary_suite="functions",
        seed=7,
        manifest_digest="sha256:" + "e" * 64,
        code_version="1",
        sealed_set="L2/0",
        attempt=attempt,
    )


def scores_of(
    suite: str = "functions",
    slot: str = "L2",
    n: int = 120,
    gains: int = 0,
    losses: int = 0,
    identical: bool = False,
    unchanged: bool = False,
    **more: Any,
) -> SuiteScores:
    """Half the items right in both arms, the others but for gains and losses wrong in both."""
    both = (n - gains - losses) // 2
    champion = [1.0] * losses + [0.0] * gains + [1.0] * both
    challenger = [0.0] * losses + [1.0] * gains + [1.0] * both
    rest = [0.0] * (n - len(champion))
    return SuiteScores(
        suite=suite,
        slot=slot,
        item_ids=tuple(f"{suite}-{i}" for i in range(n)),
        clusters=tuple(str(i) for i in range(n)),
        champion=tuple(champion + rest),
        challenger=tuple(challenger + rest),
        identical=identical,
        unchanged=unchanged,
        **more,
    )


BETTER = scores_of(gains=20, losses=2)
UNTOUCHED = scores_of("household", "L1", n=20, identical=True, unchanged=True)


def judged(
    primary: SuiteScores = BETTER, *guards: SuiteScores, config: GateConfig = CONFIG
) -> GateReport:
    return judge(primary, guards or (UNTOUCHED,), config, identity_of())
