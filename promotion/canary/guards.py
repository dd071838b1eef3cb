"""What each guard looks at, and how conversations of the two versions are paired. Pure.

Pairs are made in the order in which conversations became final: a block of them closes as soon
as both versions are in it, and its harm is the canary's mean badness minus the champion's, in
[-1, 1]. With 5 % of the traffic that is one canary against the mean of about 19 champions just
before it, with 50 % one or two against one or two. Each conversation counts once.

Why that is fair: serving draws the version by a hash of the conversation, so which version a
conversation has says nothing of how hard it is, and neither does where a block ends, which only
the versions decide. So if the canary is no worse, the expected harm of the next block is at most
0 whatever came before it, which is all that the bets ask for. Traffic that changes in the course
of a day does not disturb this, since both sides of a block are of the same minutes.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from promotion.canary.config import CanaryConfig
from promotion.canary.harm import Guard, Verdict, beyond, look
from promotion.canary.units import Judged, Unit
from traces.attribution.intervals import wilson

U = TypeVar("U", Unit, Judged)

MOST_DURATIONS = 1000
"""Calls of the champion that its 95th percentile is taken from: the newest ones."""
LEAST_DURATIONS = 20
"""With fewer there is no such percentile, and latency waits."""
_ONE_SIDED_99 = 2.3263478740408408


@dataclass(frozen=True, slots=True)
class Pair:
    """A block of conversations of both versions."""

    at: datetime
    """When its last conversation became final."""
    harm: float
    """Canary's mean badness minus champion's."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What all guards have seen of a version so far."""

    verdict: Verdict
    times: tuple[datetime, ...]
    """When the pairs that tell of failures became final."""
    nameless_turns: int = 0
    """Turns whose callers named neither conversation nor user."""
    openings: int = 0
    """Ways in which those began; each is one conversation here."""

    def pairs_since(self, moment: datetime) -> int:
        """Return how many pairs that tell of failures came after a moment."""
        return sum(at > moment for at in self.times)


def paired_evidence(
    units: Sequence[Unit],
    judged: Sequence[Judged],
    config: CanaryConfig,
    earlier_s: Iterable[float] = (),
) -> Evidence:
    """Return what the guards say of a canary beside its champion.

    `earlier_s` are call times of champion turns from before the canary, oldest first.
    """
    pairs: dict[Guard, list[Pair]] = {
        "failures": [
            Pair(block[-1].final_at, _difference(block, [unit.failures for unit in block]))
            for block in blocks(judged)
        ],
        "tool_calls": [
            Pair(block[-1].final_at, _difference(block, [unit.broken_calls for unit in block]))
            for block in blocks(units)
        ],
        "refusals": [
            Pair(block[-1].final_at, _difference(block, [unit.refusals for unit in block]))
            for block in blocks(units)
        ],
        "latency": list(_slower(units, config.latency_tolerance, earlier_s)),
    }
    return _evidence(pairs, config.alpha)


def evidence_against(
    before: tuple[Sequence[Unit], Sequence[Judged]],
    now: tuple[Sequence[Unit], Sequence[Judged]],
    config: CanaryConfig,
) -> Evidence:
    """Return what the guards say of a champion that has all traffic, against the one before it.

    There is nothing beside it to compare with, so each unit is held to the upper 99 % limit of
    the earlier champion's mean: a weaker guard than a canary's, which the traffic itself can
    set off by becoming harder.
    """
    (units_before, judged_before), (units, judged) = before, now
    slow_s = percentile_95([turn.latency_s for unit in units_before for turn in unit.turns])
    fails = limit([unit.failures for unit in judged_before])
    breaks = limit([unit.broken_calls for unit in units_before])
    refuses = limit([unit.refusals for unit in units_before])
    pairs: dict[Guard, list[Pair]] = {
        "failures": [Pair(unit.final_at, unit.failures - fails) for unit in judged],
        "tool_calls": [Pair(unit.final_at, unit.broken_calls - breaks) for unit in units],
        "refusals": [Pair(unit.final_at, unit.refusals - refuses) for unit in units],
        "latency": [],
    }
    if slow_s is not None:
        slow = limit([unit.slower_than(slow_s) for unit in units_before])
        tolerated = config.latency_tolerance
        pairs["latency"] = [
            Pair(unit.final_at, beyond(max(-1.0, unit.slower_than(slow_s) - slow), tolerated))
            for unit in units
        ]
    return _evidence(pairs, config.alpha)


def blocks(units: Iterable[U]) -> Iterator[list[U]]:
    """Yield conversations in order, each list the shortest with both versions in it."""
    block: list[U] = []
    for unit in units:
        block.append(unit)
        if block[0].canary != unit.canary:
            yield block
            block = []


def percentile_95(durations_s: Sequence[float]) -> float | None:
    """Return the 95th percentile by nearest rank; None of too few."""
    if len(durations_s) < LEAST_DURATIONS:
        return None
    return sorted(durations_s)[math.ceil(0.95 * len(durations_s)) - 1]


def limit(values: Sequence[float]) -> float:
    """Return the upper 99 % limit of the mean of values in [0, 1]; 1 of none.

    Wilson's for a share, which no distribution in [0, 1] with this mean varies more than.
    """
    return wilson(sum(values), len(values), _ONE_SIDED_99)[1]


def _evidence(pairs: dict[Guard, list[Pair]], alpha: float) -> Evidence:
    verdict = look(
        {guard: [pair.harm for pair in found] for guard, found in pairs.items()},
        {guard: [pair.at.timestamp() for pair in found] for guard, found in pairs.items()},
        alpha,
    )
    return Evidence(verdict, tuple(pair.at for pair in pairs["failures"]))


def _slower(units: Sequence[Unit], tolerance: float, earlier_s: Iterable[float]) -> Iterator[Pair]:
    """Yield how much more often the canary was slow, by a limit that was known beforehand.

    The limit is the champion's 95th percentile before the block began.
    """
    known = deque(earlier_s, maxlen=MOST_DURATIONS)
    for block in blocks(units):
        limit_s = percentile_95(known)
        if limit_s is not None:
            slow = [unit.slower_than(limit_s) for unit in block]
            yield Pair(block[-1].final_at, beyond(_difference(block, slow), tolerance))
        known += [turn.latency_s for unit in block if not unit.canary for turn in unit.turns]


def _difference(block: Sequence[U], badness: Sequence[float]) -> float:
    """Return the canary's mean badness minus the champion's."""
    canary = [bad for unit, bad in zip(block, badness, strict=True) if unit.canary]
    champion = [bad for unit, bad in zip(block, badness, strict=True) if not unit.canary]
    return sum(canary) / len(canary) - sum(champion) / len(champion)
