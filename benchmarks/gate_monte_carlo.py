"""How often the gate errs, by simulation: false promotions, power, losses let through.

    python -m benchmarks.gate_monte_carlo [--quick]

10,000 runs of each case (2,000 with `--quick`), decided by the functions that the gate decides
with: `promotion.paired.mcnemar_limits`, tabulated over all numbers of discordant pairs,
`promotion.betting` for graded scores, and for clusters of others a twin of `compare` that takes all
runs at once; tests hold both to `compare`. Every rate comes with its Monte Carlo standard error.
The naive rules stand beside: "the score went up", a z-test that ignores clusters, and p < 0.05
at every attempt.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from benchmarks.gate_draws import (
    DESIGNS,
    GRADED,
    ICC,
    LOPSIDED,
    PSI,
    RARE,
    SAMPLES,
    Floats,
    broken,
    graded,
    lopsided,
    noisy,
    pairs,
    rare,
    sampled,
    skewed,
    ternary,
)
from benchmarks.gate_limits import Bools, independent_better, lower_limits, shown, tabulated
from promotion.power import required_items
from promotion.spending import alpha_of

ALPHA = 0.05
ATTEMPTS = 20


def measure(quick: bool) -> dict[str, Any]:
    """Return all rates, each with its standard error, and the seconds it took."""
    runs, started = (2_000 if quick else 10_000), time.monotonic()
    rng = np.random.default_rng(6)
    single, naive_single = false_promotion_single(rng, runs)
    many = false_promotion_many(rng, runs)
    power = {f"{points}pp": power_at(rng, runs, points / 100) for points in (5, 3)}
    accepted = accepted_at_margin(rng, runs)
    return {
        "false_promotion_single": _worst(single["gate"]),
        "false_promotion_20": _worst({k: v["gate"] for k, v in many.items()}),
        "naive_20": many["independent, kept"]["score went up"]["rate"],
        "naive_clustered": naive_single["10x40"]["rate"],
        "power_5pp": power["5pp"]["rate"],
        "power_3pp": power["3pp"]["rate"],
        "ni_accept_at_margin": _worst(accepted["gate"]),
        "detail": {
            "runs": runs,
            "alpha": ALPHA,
            "alpha_1": alpha_of(1, ALPHA),
            "single": single,
            "single, z without clusters at alpha": naive_single,
            "attempts": many,
            "power": power,
            "accepted at the margin": accepted,
            "power of clusters": power_of_clusters(rng, runs),
            "monte_carlo_s": round(time.monotonic() - started, 1),
        },
    }


def false_promotion_single(
    rng: np.random.Generator, runs: int
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return rates at no difference, one look: of the gate, of its tests at alpha, and naive."""
    drawn: dict[str, tuple[Floats, tuple[int, ...]]] = {
        name: (ternary(rng, runs, sizes, 0.0), sizes) for name, sizes in DESIGNS.items()
    }
    drawn |= graded(rng, runs, 0.0)
    more = np.random.default_rng(7)  # what was drawn before these cases stays as it was
    drawn |= {name: (lopsided(more, runs, case, 0.0), case[0]) for name, case in LOPSIDED.items()}
    drawn["20x20, noisy judge"] = (noisy(rng, runs, DESIGNS["20x20"]), DESIGNS["20x20"])
    drawn["400, noisy judge"] = (noisy(rng, runs, (1,) * 400), (1,) * 400)
    gains_R, losses_R = pairs(rng, runs, 400, 0.0)
    levels = {"gate": alpha_of(1, ALPHA), "at alpha": ALPHA}
    found: dict[str, dict[str, Any]] = {}
    for label, alpha in levels.items():
        rates = {"independent": _rate(independent_better(gains_R, losses_R, 400, alpha))}
        for name, (difference_R_N, sizes) in drawn.items():
            rates[name] = _rate(shown(difference_R_N, sizes, alpha, 0.0))
        found[label] = rates
    naive = {name: _rate(_naive_z(d_R_N)) for name, (d_R_N, _) in drawn.items()}
    return found, naive


def false_promotion_many(rng: np.random.Generator, runs: int) -> dict[str, dict[str, Any]]:
    """Return the chance of any promotion in 20 attempts of challengers that are no better."""
    cases: dict[str, tuple[tuple[int, ...], bool]] = {
        "independent, kept": ((1,) * 400, True),
        "independent, fresh": ((1,) * 400, False),
        "20x20, kept": (DESIGNS["20x20"], True),
        "20x20, fresh": (DESIGNS["20x20"], False),
        "10x40, kept": (DESIGNS["10x40"], True),
    }
    found = {name: _attempts(rng, runs, *case) for name, case in cases.items()}
    for name in ("256x1, 0.05 on nearly all", "256x1, 1 of 10 samples on 30%"):
        promoted_R = np.zeros(runs, dtype=bool)
        for k in range(1, ATTEMPTS + 1):
            difference_R_N = skewed(rng, runs, GRADED[name], 0.0)
            promoted_R |= shown(difference_R_N, GRADED[name][0], alpha_of(k, ALPHA), 0.0)
        found[f"graded, {name}, fresh"] = {"gate": _rate(promoted_R)}
    return found


def _attempts(
    rng: np.random.Generator, runs: int, sizes: tuple[int, ...], kept: bool
) -> dict[str, Any]:
    """Play 20 attempts by three rules; on a kept set whoever was promoted is the next to beat."""
    cluster_N = np.repeat(np.arange(len(sizes)), sizes)
    ids = np.arange(0, len(cluster_N))
    independent = len(sizes) == len(ids)

    def arm(hard_R_N: npt.NDArray[np.float32]) -> Bools:
        # Noise for which two arms differ on PSI of the items: P = arccos(1 / (1 + s^2)) / pi.
        noise = math.sqrt(1 / math.cos(math.pi * PSI) - 1)
        own_R_N = rng.standard_normal(hard_R_N.shape, dtype=np.float32)
        if not independent:
            shared_R_G = rng.standard_normal((runs, len(sizes)), dtype=np.float32)
            own_R_N *= math.sqrt(1 - ICC)
            own_R_N += math.sqrt(ICC) * shared_R_G[:, cluster_N]
        right_R_N: Bools = hard_R_N + noise * own_R_N > 0
        return right_R_N

    def better_at(alpha: float) -> Callable[[Floats], Bools]:
        def better(difference_R_N: Floats) -> Bools:
            if not independent:
                return lower_limits(difference_R_N, sizes, alpha) > 0
            gains_R, losses_R = (difference_R_N > 0).sum(1), (difference_R_N < 0).sum(1)
            return independent_better(gains_R, losses_R, len(ids), alpha)

        return better

    rules: dict[str, Callable[[int], Callable[[Floats], Bools]]] = {
        "gate": lambda k: better_at(alpha_of(k, ALPHA)),
        "p < alpha each": lambda k: better_at(ALPHA),
        "score went up": lambda k: lambda difference_R_N: difference_R_N.sum(1) > 0,
    }
    shape = (runs, len(ids))
    hard_R_N = rng.standard_normal(shape, dtype=np.float32)
    champions = dict.fromkeys(rules, arm(hard_R_N))
    promoted = {rule: np.zeros(runs, dtype=bool) for rule in rules}
    for k in range(1, ATTEMPTS + 1):
        if not kept:
            hard_R_N = rng.standard_normal(shape, dtype=np.float32)
            champions = dict.fromkeys(rules, arm(hard_R_N))
        challenger_R_N = arm(hard_R_N)
        for rule, decide in rules.items():
            difference_R_N = challenger_R_N.astype(np.int8) - champions[rule].astype(np.int8)
            won_R = decide(k)(difference_R_N)
            promoted[rule] |= won_R
            champions[rule] = np.where(won_R[:, None], challenger_R_N, champions[rule])
    return {rule: _rate(won_R) for rule, won_R in promoted.items()}


def power_at(rng: np.random.Generator, runs: int, gain: float) -> dict[str, Any]:
    """Return the chance that a true gain is shown on the items the formula names, power 0.8.

    Sized at alpha 0.025 as the notes do; the first attempt's 0.030 finds a little more.
    """
    n = math.ceil(required_items(gain, PSI, 0.025, 0.8))
    gains_R, losses_R = pairs(rng, runs, n, gain)
    first = alpha_of(1, ALPHA)
    return {
        "n": n,
        "formula": _power(n, gain, 0.025),
        **_rate(independent_better(gains_R, losses_R, n, 0.025)),
        "first attempt": {
            "formula": _power(n, gain, first),
            **_rate(independent_better(gains_R, losses_R, n, first)),
        },
    }


def accepted_at_margin(rng: np.random.Generator, runs: int) -> dict[str, dict[str, Any]]:
    """Return how often a guard passes a challenger that loses exactly its margin."""
    levels = {"gate": alpha_of(1, ALPHA), "at alpha": ALPHA}
    later = levels | {f"attempt {k}": alpha_of(k, ALPHA) for k in (2, 3)}
    found: dict[str, dict[str, Any]] = {label: {} for label in levels}
    for margin, n in ((0.02, 3_092), (0.03, 1_374), (0.05, 495)):
        gains_R, losses_R = pairs(rng, runs, n, -margin)
        for label, alpha in levels.items():
            accepted_R = tabulated(gains_R, losses_R, n, alpha, -margin)
            found[label][f"{n} independent, {100 * margin:g} points"] = _rate(accepted_R)
    for name, sizes in DESIGNS.items():
        difference_R_N = ternary(rng, runs, sizes, -0.1)
        for label, alpha in levels.items():
            rate = _rate(lower_limits(difference_R_N, sizes, alpha) > -0.1)
            found[label][f"{name}, 10 points"] = rate
    broken_R_N = broken(rng, runs, DESIGNS["50x8"], 0.1)
    for label, alpha in levels.items():
        rate = _rate(lower_limits(broken_R_N, DESIGNS["50x8"], alpha) > -0.1)
        found[label]["50x8, a tenth of clusters lost whole"] = rate
    for name, (sizes, gained, margin) in RARE.items():
        rare_R_N = rare(rng, runs, sizes, gained, gained + margin)
        for label, alpha in later.items():
            rate = _rate(lower_limits(rare_R_N, sizes, alpha) > -margin)
            found.setdefault(label, {})[f"{name}, {100 * margin:g} points"] = rate
    more = np.random.default_rng(8)
    for margin in (0.02, 0.03):
        drawn = graded(rng, runs, -margin)
        drawn |= {n: (lopsided(more, runs, c, -margin), c[0]) for n, c in LOPSIDED.items()}
        for name, (difference_R_N, sizes) in drawn.items():
            for label in later.keys() - {"at alpha"}:
                rate = _rate(shown(difference_R_N, sizes, later[label], -margin))
                found[label][f"{name}, {100 * margin:g} points"] = rate
    return found


def power_of_clusters(rng: np.random.Generator, runs: int) -> dict[str, dict[str, Any]]:
    """Return how often the first attempt shows a gain of 10 points, and passes who lost nothing."""
    alpha = alpha_of(1, ALPHA)
    gained = {
        f"{name}, {label}": _rate(lower_limits(found_R_N, sizes, alpha) > 0)
        for name, sizes in DESIGNS.items()
        for label, found_R_N in (
            ("a fifth differing", ternary(rng, runs, sizes, 0.1)),
            ("won whole", rare(rng, runs, sizes, 0.1, 0.0)),
        )
    }
    passed = {
        f"{name} and lost, {100 * margin:g} points": _rate(
            lower_limits(rare(rng, runs, sizes, won, won), sizes, alpha) > -margin
        )
        for name, (sizes, won, margin) in RARE.items()
    }
    several = {
        f"{samples} samples, {label}": _rate(
            shown(sampled(rng, runs, 256, samples, gain), (1,) * 256, alpha, bound)
        )
        for samples in SAMPLES
        for label, gain, bound in (
            ("5 points gained", 0.05, 0.0),
            ("nothing lost, 3 points", 0.0, -0.03),
        )
    }
    return {"10 points gained": gained, "as much lost as won": passed, "of 256 items": several}


def _naive_z(difference_R_N: Floats) -> Bools:
    """A one-sided z-test at alpha that takes items for independent."""
    error_R = difference_R_N.std(1) / math.sqrt(difference_R_N.shape[1])
    found: Bools = difference_R_N.mean(1) > special.ndtri(1 - ALPHA) * error_R
    return found


def _power(n: int, gain: float, alpha: float) -> float:
    """Power of the size formula, solved for it."""
    reach = math.sqrt(n) * gain - float(special.ndtri(1 - alpha)) * math.sqrt(PSI)
    return round(float(special.ndtr(reach / math.sqrt(PSI - gain**2))), 4)


def _rate(happened_R: Bools) -> dict[str, float]:
    rate = float(happened_R.mean())
    return {
        "rate": round(rate, 4),
        "standard_error": round(math.sqrt(rate * (1 - rate) / len(happened_R)), 4),
    }


def _worst(rates: Mapping[str, Mapping[str, float]]) -> float:
    return max(rate["rate"] for rate in rates.values())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="a fifth of the runs")
    print(json.dumps(measure(parser.parse_args().quick)))


if __name__ == "__main__":
    main()
