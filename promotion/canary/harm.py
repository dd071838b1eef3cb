"""Is the canary doing harm? A betting e-process that may be looked at after every pair.

In: for each guard the paired differences D in [-1, 1], canary's badness minus champion's, in
the order in which they became final. Out: how much evidence of harm there is, and whether it
is enough. Pure.

Somebody who holds that the canary is no worse (E[D] <= 0, whatever came before) offers fair
bets on D; who stakes a share b of what they have multiplies it by 1 + b D. Their wealth K is
then a nonnegative supermartingale that starts at 1, so by Ville's inequality it ever reaches
1/alpha with probability at most alpha, however often one looks (Waudby-Smith and Ramdas 2024,
"Estimating means of bounded random variables by betting"). Where we differ: not one share
tuned as the data come (aGRAPA), but a few that are fixed, played side by side. What such a
mixture has does not depend on the order of the pairs, has nothing to tune, and in simulation
stops sooner (`python -m benchmarks.gate_canary`).

The guards share one alarm: their wealth is summed with weights that add to 1, which is again
such a supermartingale if no guard is harmed. So alpha holds for all of them together, and no
guard waits longer than with its own alpha times its weight.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from serving.records import Record

Guard = Literal["failures", "tool_calls", "refusals", "latency"]
Floats = npt.NDArray[np.float64]

BETS = (0.05, 0.2, 0.33, 0.5, 0.75)
"""Shares of the wealth that are staked. The best one is about harm / share of pairs that differ:
the first is for harms of one or two points, the last for a version that is plainly broken."""
BET_WEIGHTS = (0.04, 0.24, 0.24, 0.24, 0.24)
GUARD_WEIGHTS: dict[Guard, float] = {
    "failures": 0.76,
    "tool_calls": 0.08,
    "refusals": 0.08,
    "latency": 0.08,
}
"""Failures get most: their usual rate is high, and harm stands out least. A guard with a weight
w stops as one of its own at alpha w would, or sooner."""


class GuardState(Record):
    """What one guard has seen."""

    guard: Guard
    pairs: int
    harm: float
    """Mean difference, canary's badness minus champion's; 0 without pairs."""
    wealth: float
    """Evidence of harm: how many times the stake was made; below 1 it speaks against harm."""


class Verdict(Record):
    """What all guards say together, at the alarm or else at the end."""

    harmful: bool
    evidence: float
    """Weighted sum of the guards' wealth; harm is shown at 1 / alpha."""
    threshold: float
    guards: tuple[GuardState, ...]

    @property
    def worst(self) -> GuardState:
        """The guard that speaks loudest."""
        return max(self.guards, key=lambda guard: GUARD_WEIGHTS[guard.guard] * guard.wealth)

    def pairs(self, guard: Guard) -> int:
        """Return how many pairs a guard has seen."""
        return next((state.pairs for state in self.guards if state.guard == guard), 0)


def log_wealth(harm_N: Floats) -> Floats:
    """Return the logarithm of the mixture's wealth after each pair.

    `harm_N` may have further axes in front, one run each; the last one is time.
    """
    bets_B = np.array(BETS)
    steps = np.log1p(harm_N[..., None, :] * bets_B[:, None])
    paths = np.cumsum(steps, axis=-1) + np.log(BET_WEIGHTS)[:, None]
    return np.asarray(np.logaddexp.reduce(paths, axis=-2))


def beyond(harm: float, tolerance: float) -> float:
    """Return a difference as one of harm beyond what is tolerated, still in [-1, 1]."""
    return (harm - tolerance) / (1.0 + tolerance)


def look(
    harms: Mapping[Guard, Sequence[float]], times: Mapping[Guard, Sequence[float]], alpha: float
) -> Verdict:
    """Play all pairs in order of time and say whether the alarm went off, and with what.

    Args:
        harms: each guard's differences in [-1, 1], in order.
        times: when each of them became final, in seconds, ascending.
        alpha: chance of ever calling a canary harmful that is none.
    """
    ahead = [(guard, np.array(harms[guard], dtype=np.float64)) for guard in harms if harms[guard]]
    order = np.argsort(np.concatenate([[], *(times[guard] for guard, _ in ahead)]), kind="stable")
    which = np.concatenate([[], *(np.full(len(harm), i) for i, (_, harm) in enumerate(ahead))])
    turn_M = which[order].astype(int)
    threshold = 1.0 / alpha
    evidence_M = np.full(len(turn_M), sum(GUARD_WEIGHTS.values()))
    counts: list[npt.NDArray[np.int64]] = []
    for i, (guard, harm_N) in enumerate(ahead):
        count_M = np.cumsum(turn_M == i)
        wealth_N = np.exp(np.minimum(np.concatenate([[0.0], log_wealth(harm_N)]), 700.0))
        evidence_M += GUARD_WEIGHTS[guard] * (wealth_N[count_M] - 1.0)
        counts.append(count_M)
    alarms = np.flatnonzero(evidence_M >= threshold)
    at = int(alarms[0]) if len(alarms) else len(turn_M) - 1
    seen = {guard: harm_N[: counts[i][at]] for i, (guard, harm_N) in enumerate(ahead)}
    return Verdict(
        harmful=len(alarms) > 0,
        evidence=float(evidence_M[at]) if len(turn_M) else 1.0,
        threshold=threshold,
        guards=tuple(_state(guard, seen.get(guard, np.array([]))) for guard in harms),
    )


def _state(guard: Guard, harm_N: Floats) -> GuardState:
    if not len(harm_N):
        return GuardState(guard=guard, pairs=0, harm=0.0, wealth=1.0)
    return GuardState(
        guard=guard,
        pairs=len(harm_N),
        harm=float(harm_N.mean()),
        wealth=float(np.exp(min(log_wealth(harm_N)[-1], 700.0))),
    )
