"""The canary's alarm, measured: how often it is false, and how many pairs harm takes.

    python -m benchmarks.gate_canary [--quick]

Monte Carlo over `promotion.canary.harm` itself: the champion answers 80 of 100 conversations
rightly, the canary as many or fewer, and every pair is looked at, up to 2,000 of them. The arms
are different conversations, independent, one against one: the hardest case. All four guards
bet together, three of them on what does not move; `alpha` is 0.01 for all. Beside it: the same
failures alone at alpha; arms of the same conversations; pairs as they come at 5 and 20 % of the
traffic, one canary against the mean of the champions before it; conversations of five turns that
resemble each other; and the naive rule, a z-test of the rates at every 100 pairs. The last line
is JSON.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from promotion.canary.harm import GUARD_WEIGHTS, log_wealth

Floats = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, float, int, int], Floats]
"""Differences of so many runs and pairs at a harm."""

ALPHA = 0.01
FAILS = 0.2
"""Champion's failure rate."""
CAP = 2_000
HARMS = (0.4, 0.2, 0.1)
_QUIET = {"tool_calls": 0.01, "refusals": 0.02, "latency": 0.05}
"""Rates of the other guards, the same in both arms."""
_BATCH = 250


def one_to_one(rng: np.random.Generator, harm: float, runs: int, pairs: int) -> Floats:
    """Two independent conversations a pair."""
    return _flips(rng, FAILS + harm, runs, pairs) - _flips(rng, FAILS, runs, pairs)


def same_items(rng: np.random.Generator, harm: float, runs: int, pairs: int) -> Floats:
    """Both arms on the same conversation: the canary fails where the champion does, and more."""
    u = rng.random((runs, pairs))
    return (u < FAILS + harm).astype(float) - (u < FAILS)


def against_mean_of(champions: int) -> Draw:
    """Return pairs of one canary and the mean of some champions, as their share has it."""

    def draw(rng: np.random.Generator, harm: float, runs: int, pairs: int) -> Floats:
        before = np.maximum(1, rng.geometric(1 / (champions + 1), (runs, pairs)) - 1)
        mean = rng.binomial(before, FAILS) / before
        return _flips(rng, FAILS + harm, runs, pairs) - mean

    return draw


def conversations(rng: np.random.Generator, harm: float, runs: int, pairs: int) -> Floats:
    """Five turns a conversation, intraclass correlation 0.3; a conversation is one unit."""
    return _talk(rng, FAILS + harm, runs, pairs) - _talk(rng, FAILS, runs, pairs)


def stops(draw: Draw, harm: float, runs: int, cap: int, *, guards: bool, seed: int) -> Floats:
    """Return after how many pairs each run ends in an alarm, infinity where it does not."""
    rng = np.random.default_rng(seed)
    found = [
        _first(_evidence(draw, rng, harm, min(_BATCH, runs - done), cap, guards) >= 1 / ALPHA)
        for done in range(0, runs, _BATCH)
    ]
    return np.concatenate(found)


def naive_stops(harm: float, runs: int, seed: int, every: int = 100) -> Floats:
    """The same by a one-sided z-test at 0.05 of the two rates, whenever 100 more pairs are in."""
    rng = np.random.default_rng(seed)
    difference = one_to_one(rng, harm, runs, CAP)
    total, square = difference.cumsum(axis=1), (difference**2).cumsum(axis=1)
    n = np.arange(1, CAP + 1)
    spread = np.sqrt(np.maximum(square / n - (total / n) ** 2, 1e-12))
    reached = total / n > 1.6449 * spread / np.sqrt(n)
    reached[:, n % every != 0] = False
    return _first(reached)


def _evidence(
    draw: Draw, rng: np.random.Generator, harm: float, runs: int, cap: int, guards: bool
) -> Floats:
    failures = np.exp(log_wealth(draw(rng, harm, runs, cap)))
    if not guards:
        return failures
    total = GUARD_WEIGHTS["failures"] * failures
    for guard, rate in _QUIET.items():
        quiet = _flips(rng, rate, runs, cap) - _flips(rng, rate, runs, cap)
        total += GUARD_WEIGHTS[guard] * np.exp(log_wealth(quiet))  # type: ignore[index]
    return np.asarray(total)


def _flips(rng: np.random.Generator, rate: float, runs: int, pairs: int) -> Floats:
    return (rng.random((runs, pairs)) < rate).astype(float)


def _talk(rng: np.random.Generator, rate: float, runs: int, pairs: int) -> Floats:
    icc, turns = 0.3, 5
    a, b = rate * (1 / icc - 1), (1 - rate) * (1 / icc - 1)
    return rng.binomial(turns, rng.beta(a, b, (runs, pairs))) / turns


def _first(reached: npt.NDArray[np.bool_]) -> Floats:
    return np.where(reached.any(axis=1), reached.argmax(axis=1) + 1.0, math.inf)


def measure(quick: bool) -> dict[str, Any]:
    """Measure; `quick` takes fewer runs where they are dear."""
    runs, fewer = (2_000, 500) if quick else (10_000, 4_000)
    cap = {0.4: 300, 0.2: 800, 0.1: CAP}

    def rate(found: Floats) -> dict[str, float]:
        share = float(np.isfinite(found).mean())
        return {"rate": share, "se": round(math.sqrt(share * (1 - share) / len(found)), 5)}

    def medians(draw: Draw, guards: bool, runs: int) -> dict[str, float]:
        found = {h: stops(draw, h, runs, cap[h], guards=guards, seed=2) for h in HARMS}
        return {f"{100 * h:.0f}": float(np.median(stop)) for h, stop in found.items()}

    null = stops(one_to_one, 0.0, runs, CAP, guards=True, seed=1)
    small = stops(one_to_one, 0.05, fewer, CAP, guards=True, seed=3)
    others: dict[str, tuple[Draw, bool]] = {
        "failures_alone": (one_to_one, False),
        "same_items": (same_items, True),
        "at_5_percent": (against_mean_of(19), True),
        "at_20_percent": (against_mean_of(4), True),
        "conversations_icc_0.3": (conversations, True),
    }
    return {
        "canary_false_rollback": rate(null)["rate"],
        "canary_median_pairs": medians(one_to_one, True, fewer),
        "false_rollback_se": rate(null)["se"],
        "runs": runs,
        "pairs_at_most": CAP,
        "caught_of_5_points": rate(small)["rate"],
        "naive_peeking_false_rollback": rate(naive_stops(0.0, min(runs, 2_000), 4))["rate"],
        "false_rollback_conversations": rate(
            stops(conversations, 0.0, fewer, CAP, guards=True, seed=5)
        ),
        "median_pairs": {
            name: medians(draw, guards, fewer) for name, (draw, guards) in others.items()
        },
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer runs; 15 seconds")
    print(json.dumps(measure(parser.parse_args().quick)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
