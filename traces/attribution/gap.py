"""The gap rule of counterfactual replay: the route, the adapter, chance, or nobody here.

A turn that failed is answered afresh, m times by every slot. Other slots that do better than the
one that answered speak against the route, but the best of several is better by luck alone, so
that the gap has to exceed what equally good slots show. Pure: counts in, a verdict out.

Two forms of the same null, both exact:

- `gap_needed` is the rule of the notes (1.4): the smallest gap which the best of k - 1 equally
  good arms exceeds with probability at most alpha, where all succeed with probability p. Without
  p it holds for every p. It is what sizes a replay beforehand, as `power` does.
- `p_value` is what decides. Given how many of all samples succeeded, equally good arms share the
  successes at random, whatever p is; so no p has to be guessed, arms may have different numbers
  of samples, and blame of the router where all are equally good stays at alpha or below for every
  p. It finds more than `gap_needed` without p, never less than that in the notes' cases.

Several turns alike are judged turn by turn (`judge_alike`): a sum over turns would take a slot that
was judged on the hard ones only for a worse one.

Both speak of the requests at hand: slots that are equally good on the whole, but each with its own
chance at each request, differ at most single requests.

The failed answer is never among the samples: it was chosen because it failed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from traces.attribution.blame import Verdict

SOLVED_SHARE = 0.125
"""An arm that succeeds less often than this might as well never: nobody here solves the turn."""
MATERIAL_GAP = 0.3
"""A difference of success rates that would change who is to blame; smaller ones need pooling."""
_GRID = 999
"""Values of p at which a supremum over p is looked for; the functions are smooth."""
_QUANTILES = 400


@dataclass(frozen=True, slots=True)
class Arm:
    """Fresh answers of one slot to one turn, or to several alike; only those that were judged."""

    slot: str
    samples: int
    successes: int

    @property
    def share(self) -> float:
        """Successes of samples."""
        return self.successes / self.samples if self.samples else 0.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What the arms say about a failed turn."""

    verdict: Verdict
    right_slot: str | None
    """For `router`: who should have answered; None where several are equally good."""
    confidence: float
    words: str
    p_value: float
    """Chance of such a gap where all arms are equally good."""


def judge(
    answered: Arm, others: Sequence[Arm], false_router: float, *, solvable: bool = False
) -> Finding | None:
    """Return the verdict of a replay, None where the slot that answered has no judged sample.

    The first that holds:

    1. `router`: the best other arm is better by more than equally good arms are.
    2. `stochastic`: the arm that answered succeeds in more than half of its samples.
    3. `adapter`: it does not, and somebody solves the turn: one of the arms now and then, or
       `solvable` says that a right answer is known.
    4. `unsolvable`: no arm solves it; the request, the environment or the check is at fault.

    Confidences: for `router` the smallest posterior of the alternative that the p-value allows
    at even odds (Sellke, Bayarri and Berger 2001); for the others the posterior of what they
    claim, from uniform-ish (Jeffreys) priors. A success rate near one half has neither.
    """
    sampled = [arm for arm in others if arm.samples]
    if not answered.samples:
        return None
    chance = p_value(answered, sampled)
    counts = _counts(answered, sampled)
    if chance <= false_router:
        best = max(arm.share for arm in sampled)
        right = [arm.slot for arm in sampled if arm.share == best]
        words = f"{counts}: more than chance among equally good slots (p={chance:.2g})"
        sure = sureness(chance)
        return Finding("router", right[0] if len(right) == 1 else None, sure, words, chance)
    low = _posterior_below(answered, 0.5)
    if answered.share > 0.5:
        words = f"{counts}: it usually succeeds, this failure was chance"
        return Finding("stochastic", None, _rounded(1 - low), words, chance)
    if solvable or any(arm.share >= SOLVED_SHARE for arm in (answered, *sampled)):
        sure = low * _no_material_gap(answered, sampled)
        words = f"{counts}: it usually fails, and no other slot is shown to be better"
        return Finding("adapter", None, _rounded(sure), words, chance)
    sure = math.prod(_posterior_below(arm, 2 * SOLVED_SHARE) for arm in (answered, *sampled))
    words = f"{counts}: no slot solves it, and no right answer is known"
    return Finding("unsolvable", None, _rounded(sure), words, chance)


def judge_alike(turns: Sequence[tuple[Arm, Sequence[Arm]]], false_router: float) -> Finding | None:
    """Return `router` where turns alike together show a better slot; None where they do not.

    In: of each turn the arm that answered, which is the same in all, and the others. The test of
    each other slot is the exact one for stratified 2 x 2 tables (Birch 1964): in a turn two slots
    that are equally good there share their successes at random, whatever the turn's difficulty and
    however many samples of each were judged; the sum over turns has the convolution of these laws.
    The smallest of k p-values counts k-fold (Bonferroni).
    """
    slots = sorted({arm.slot for _, others in turns for arm in others if arm.samples})
    pairs = {
        slot: [(own, arm) for own, others in turns for arm in others if arm.slot == slot]
        for slot in slots
    }
    chances = {slot: _stratified(pairs[slot]) for slot in slots}
    least = min(chances.values(), default=1.0)
    chance = min(1.0, least * len(slots))
    if chance > false_router:
        return None
    right = [slot for slot in slots if chances[slot] == least]
    own = _sum([own for own, _ in turns])
    counts = _counts(own, [_sum([arm for _, arm in pairs[slot]]) for slot in slots])
    words = f"{counts}: turn by turn more than chance among equally good slots (p={chance:.2g})"
    sure = sureness(chance)
    return Finding("router", right[0] if len(right) == 1 else None, sure, words, chance)


def _stratified(pairs: Sequence[tuple[Arm, Arm]]) -> float:
    """Return the chance that the second arms have as many successes where each pair is alike."""
    import numpy as np

    law = np.ones(1)
    more = 0
    for own, other in pairs:
        total = own.successes + other.successes
        all_ways = math.comb(own.samples + other.samples, total)
        low, high = max(0, total - own.samples), min(other.samples, total)
        ways = [
            math.comb(other.samples, n) * math.comb(own.samples, total - n) / all_ways
            for n in range(low, high + 1)
        ]
        law = np.convolve(law, ways)
        more += other.successes - low
    return min(1.0, float(law[more:].sum()))


def _sum(arms: Sequence[Arm]) -> Arm:
    return Arm(arms[0].slot, sum(a.samples for a in arms), sum(a.successes for a in arms))


def material_gap(answered: Arm, other: Arm) -> float:
    """Return how many times likelier the counts are if the other arm is better by `MATERIAL_GAP`.

    A Bayes factor against anything less, from Jeffreys priors: 1 where nothing was sampled.
    """
    none = _no_material_gap(answered, [other])
    before = _no_material_gap(Arm(answered.slot, 0, 0), [Arm(other.slot, 0, 0)])
    return (1 - none) / max(none, 1e-9) * before / (1 - before)


def p_value(answered: Arm, others: Sequence[Arm]) -> float:
    """Return the chance of a gap like this one or greater where all arms are equally good.

    The gap is the best other arm's share of successes less that of the arm that answered. Given
    the sum of successes, equally good arms have them by a multivariate hypergeometric law.
    """
    sampled = [arm for arm in others if arm.samples]
    if not sampled or not answered.samples:
        return 1.0
    total = answered.successes + sum(arm.successes for arm in sampled)
    # As integers over a common denominator: shares as floats would compare unequal by rounding.
    scale = math.lcm(answered.samples, *(arm.samples for arm in sampled))
    best = max(arm.successes * (scale // arm.samples) for arm in sampled)
    gap = best - answered.successes * (scale // answered.samples)
    if gap <= 0:
        return 1.0
    return _exceedance(answered.samples, tuple(sorted(arm.samples for arm in sampled)), total, gap)


@lru_cache(maxsize=4096)
def _exceedance(own: int, others: tuple[int, ...], total: int, gap: int) -> float:
    """Count the ways to share `total` successes that give a gap of `gap` (scaled) or more."""
    scale = math.lcm(own, *others)
    below = 0
    for mine in range(min(own, total) + 1):
        most = mine * (scale // own) + gap - 1
        ways = [1]
        for samples in others:
            at_most = min(samples, most // (scale // samples))
            ways = _product(ways, [math.comb(samples, n) for n in range(at_most + 1)], total - mine)
        if total - mine < len(ways):
            below += math.comb(own, mine) * ways[total - mine]
    everything = math.comb(own + sum(others), total)
    return (everything - below) / everything


def _product(left: list[int], right: list[int], degree: int) -> list[int]:
    """Multiply two polynomials, up to a degree."""
    result = [0] * min(len(left) + len(right) - 1, degree + 1)
    for i, a in enumerate(left[: len(result)]):
        for j, b in enumerate(right[: len(result) - i]):
            result[i + j] += a * b
    return result


def gap_needed(
    samples: int, arms: int, false_router: float = 0.05, p: float | None = None
) -> int | None:
    """Return the smallest gap that blames the router; None where no gap of so few samples does.

    `arms` counts the one that answered too. With `p` it is the notes' g at that chance of success;
    without, it holds for every p.
    """
    chances = [p] if p is not None else [n / (_GRID + 1) for n in range(1, _GRID + 1)]
    for gap in range(1, samples + 1):
        if max(false_blame(samples, arms, gap, chances)) <= false_router:
            return gap
    return None


def false_blame(samples: int, arms: int, gap: int, chances: Sequence[float]) -> list[float]:
    """Return, for each chance of success, how often equally good arms show this gap or more."""
    import numpy as np
    from scipy.stats import binom

    p_P1 = np.asarray(chances, dtype=np.float64)[:, None]
    own_M = np.arange(samples + 1)
    below_PM = binom.cdf(own_M + gap - 1, samples, p_P1) ** (arms - 1)
    rates_P = (binom.pmf(own_M, samples, p_P1) * (1 - below_PM)).sum(axis=1)
    return [float(rate) for rate in rates_P]


def power(samples: int, gap: int, own: float, others: Sequence[float]) -> float:
    """Return how often arms of these chances of success show this gap or more."""
    import numpy as np
    from scipy.stats import binom

    own_M = np.arange(samples + 1)
    below_M = np.prod([binom.cdf(own_M + gap - 1, samples, p) for p in others], axis=0)
    return float((binom.pmf(own_M, samples, own) * (1 - below_M)).sum())


def sureness(chance: float) -> float:
    """Return how sure a better slot is by its p-value."""
    bound = -math.e * chance * math.log(chance) if 0 < chance < 1 / math.e else 1.0
    return _rounded(1 / (1 + bound) if chance > 0 else 1.0)


def _posterior_below(arm: Arm, limit: float) -> float:
    """Return the probability that an arm's chance of success is below a limit."""
    from scipy.special import betainc

    return float(betainc(arm.successes + 0.5, arm.samples - arm.successes + 0.5, limit))


def _no_material_gap(answered: Arm, others: Sequence[Arm]) -> float:
    """Return the probability that no other arm is better by `MATERIAL_GAP` or more."""
    import numpy as np
    from scipy.special import betainc, betaincinv

    u_Q = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    own_Q = betaincinv(answered.successes + 0.5, answered.samples - answered.successes + 0.5, u_Q)
    limit_Q = np.minimum(own_Q + MATERIAL_GAP, 1.0)
    none_Q = np.ones(_QUANTILES)
    for arm in others:
        none_Q *= betainc(arm.successes + 0.5, arm.samples - arm.successes + 0.5, limit_Q)
    return float(none_Q.mean())


def _rounded(confidence: float) -> float:
    return round(max(0.0, min(0.99, confidence)), 3)


def _counts(answered: Arm, others: Sequence[Arm]) -> str:
    told = [f"{arm.slot} {arm.successes} of {arm.samples}" for arm in others]
    own = f"asked again, {answered.slot} succeeded in {answered.successes} of {answered.samples}"
    return f"{own}, {', '.join(told)}" if told else own
