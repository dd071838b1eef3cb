"""How well each rule's confidence fits: claims of labelled failures, by rule, in two halves.

In: one `Claimed` a failure, as `benchmarks.faults` has them. Out: for each rule the claims and how
many were right in the half to tune on and in the half to report, with Wilson's interval, beside
the confidence that was claimed. Which half a failure is in follows from its id alone.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from traces.attribution.pooled_rules import Tally

PRIOR_TURNS = 4
"""Weight of the claimed confidence in the suggested one: a rule with few claims keeps its own."""
CEILING = 0.97


class Claimed(NamedTuple):
    """A verdict on a failure of known class."""

    turn_id: str
    rule: str
    confidence: float
    right: bool


class Fit(NamedTuple):
    """A rule against the truth."""

    rule: str
    claimed: float
    """Mean confidence."""
    tuned: Tally
    reported: Tally
    suggested: float
    """From the half to tune on."""


def is_tuned_on(turn_id: str) -> bool:
    """Whether a failure is in the half to tune on."""
    return hashlib.sha256(turn_id.encode()).digest()[0] % 2 == 0


def fits(claims: Iterable[Claimed]) -> list[Fit]:
    """Return one row a rule, the most frequent first; what abstains claims nothing."""
    by_rule: dict[str, list[Claimed]] = defaultdict(list)
    for claim in claims:
        if claim.confidence > 0:
            by_rule[claim.rule].append(claim)
    found = [_fit(rule, rows) for rule, rows in by_rule.items()]
    return sorted(found, key=lambda fit: (-fit.tuned.turns - fit.reported.turns, fit.rule))


def _fit(rule: str, rows: list[Claimed]) -> Fit:
    tuned, reported = Tally(), Tally()
    for row in rows:
        (tuned if is_tuned_on(row.turn_id) else reported).add(row.right)
    claimed = sum(row.confidence for row in rows) / len(rows)
    shrunk = (tuned.successes + PRIOR_TURNS * claimed) / (tuned.turns + PRIOR_TURNS)
    return Fit(rule, round(claimed, 3), tuned, reported, round(min(shrunk, CEILING), 2))
