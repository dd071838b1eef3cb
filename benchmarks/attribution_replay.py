"""The gap rule of counterfactual replay: how often it blames a router that is not to blame.

    python -m benchmarks.attribution_replay [--quick]

Exact: all counts that four arms can show are enumerated through the rule itself, for equally
good arms of any chance of success. Monte Carlo: equally good arms, and arms with the notes'
gaps (1.4), drawn and judged. No engine is asked: what an arm says is drawn from its chance.
"""

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import binom

from benchmarks import quick_asked
from traces.attribution.gap import Arm, gap_needed, judge, power

FALSE_ROUTER = 0.05
ARMS = 4
GAPS = ((0.1, 0.9), (0.2, 0.7), (0.3, 0.6))
"""Chance of success of the slot that answered and the others, and of the one better slot."""
_SEED = 5


def measure(quick: bool = False) -> dict[str, Any]:
    """Return the error rate of the rule and its power.

    `equal_arms_false_router` is the greatest over the grid of p, enumerated at m = 8;
    `monte_carlo` the greatest seen in draws, with the draws' standard error.
    """
    rng = np.random.default_rng(_SEED)
    grid = np.linspace(0.01, 0.99, 25 if quick else 99).tolist()
    exact = {m: exact_false_router(m, grid) for m in ((4, 8) if quick else (4, 8, 16))}
    draws = 2_000 if quick else 20_000
    seen = [drawn_share(rng, 8, [p] * ARMS, draws) for p in (0.05, 0.2, 0.5, 0.8, 0.95)]
    uneven = [drawn_share(rng, (8, 5, 7, 3), [p] * ARMS, draws) for p in (0.2, 0.5, 0.8)]
    worst = max(*seen, *uneven)
    return {
        "equal_arms_false_router": max(exact[8]),
        "goal": FALSE_ROUTER,
        "exact": {f"m={m}": round(max(rates), 4) for m, rates in exact.items()},
        "monte_carlo": round(worst, 4),
        "monte_carlo_uneven": round(max(uneven), 4),
        "monte_carlo_se": round((worst * (1 - worst) / draws) ** 0.5, 4),
        "draws": draws,
        "power": power_rows(rng, draws),
    }


def exact_false_router(samples: int, chances: Sequence[float]) -> list[float]:
    """Return, for each chance of success, how often equally good arms blame the router.

    The rule sees only the greatest of the other arms and the sum of all, so that arms in
    another order count together.
    """
    blamed = []
    for own in range(samples + 1):
        for others in itertools.combinations_with_replacement(range(samples + 1), ARMS - 1):
            if max(others) > own and _router(own, others, [samples] * ARMS):
                ways = len(set(itertools.permutations(others)))
                blamed.append((own, others, ways))
    rates = []
    for p in chances:
        chance = binom.pmf(np.arange(samples + 1), samples, p)
        rates.append(float(sum(w * chance[own] * np.prod(chance[list(o)]) for own, o, w in blamed)))
    return rates


def drawn_share(
    rng: np.random.Generator, samples: int | Sequence[int], chances: Sequence[float], draws: int
) -> float:
    """Return the share of drawn replays that blame the router; the first arm had answered."""
    sizes = [samples] * len(chances) if isinstance(samples, int) else list(samples)
    counts_N_A = rng.binomial(sizes, chances, size=(draws, len(chances)))
    found, times_N = np.unique(counts_N_A, axis=0, return_counts=True)
    blamed = [_router(row[0], row[1:], sizes) for row in found.tolist()]
    return float(times_N[np.array(blamed)].sum() / draws)


def power_rows(rng: np.random.Generator, draws: int) -> dict[str, dict[str, float | None]]:
    """Return the power at m = 8: the notes' rule with its g at p = .2 and .5, and this one's."""
    rows: dict[str, dict[str, float | None]] = {}
    for low, high in GAPS:
        others = (high, *[low] * (ARMS - 2))
        notes = [gap_needed(8, ARMS, FALSE_ROUTER, p) for p in (0.2, 0.5)]
        known = [None if g is None else round(power(8, g, low, others), 3) for g in notes]
        drawn = drawn_share(rng, 8, [low, *others], draws)
        rows[f"{low}->{high}"] = {
            "notes_p.2": known[0], "notes_p.5": known[1], "ours": round(drawn, 3),
        }  # fmt: skip
    return rows


def _router(own: int, others: Sequence[int], sizes: Sequence[int]) -> bool:
    pairs = zip(sizes[1:], others, strict=True)
    arms = [Arm(f"L{n}", size, hits) for n, (size, hits) in enumerate(pairs)]
    found = judge(Arm("own", sizes[0], own), arms, FALSE_ROUTER)
    return found is not None and found.verdict == "router"


if __name__ == "__main__":
    print(json.dumps(measure(quick_asked(__doc__))))
