"""The simulation decides as the gate does, run by run; its rates are those of the notes.

Nothing is faked: the twin that takes all runs at once is held to `compare` on random and on
degenerate scores, and its verdicts to `judge`.
"""

import math

import numpy as np
import pytest
from gate_scores import identity_of

from benchmarks import gate_monte_carlo as simulation
from promotion.config import GateConfig
from promotion.gate import judge
from promotion.paired import compare
from promotion.slices import SuiteScores

SIZES = {"equal": (4,) * 12, "unlike": (1, 1, 2, 3, 5, 8, 13), "two": (9, 4)}


def arms_of(difference_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores of two arms in [0, 1] that differ like this."""
    return np.maximum(0, -difference_N), np.maximum(0, difference_N)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("alpha", [0.05, 0.0076])
def test_the_twin_has_the_limits_of_compare(sizes: tuple[int, ...], alpha: float) -> None:
    rng = np.random.default_rng(len(sizes))
    n, cluster_N = sum(sizes), np.repeat(np.arange(len(sizes)), sizes)
    whole = rng.choice([-1.0, 0.0, 1.0], (40, len(sizes)), p=[0.1, 0.8, 0.1])
    difference_R_N = np.concatenate([
        rng.choice([-1.0, 0.0], (40, n), p=[0.04, 0.96]),
        rng.choice([-1.0, 0.0, 1.0], (40, n), p=[0.3, 0.68, 0.02]),
        np.repeat(whole, sizes, axis=1),
        np.where(np.repeat(whole, sizes, axis=1) < 0, -1.0, rng.choice([0.0, 1.0], (40, n))),
        np.full((1, n), -1.0),
        np.zeros((1, n)),
    ])  # fmt: skip
    lower_R = simulation.lower_limits(difference_R_N, sizes, alpha)
    results = [compare(*arms_of(d_N), cluster_N.tolist(), alpha) for d_N in difference_R_N]
    expected = [result.lower for result in results]
    assert {result.method for result in results} == {"cluster-robust t"}
    assert lower_R == pytest.approx(np.array(expected), abs=1e-9)


@pytest.mark.parametrize("sizes", [*SIZES.values(), (1,) * 60], ids=[*SIZES, "many"])
@pytest.mark.parametrize("bound", [0.0, -0.1, -0.3])
def test_what_it_takes_for_shown_is_what_compare_shows(
    sizes: tuple[int, ...], bound: float
) -> None:
    rng = np.random.default_rng(len(sizes))
    n, labels = sum(sizes), np.repeat(np.arange(len(sizes)), sizes).tolist()
    difference_R_N = np.concatenate([
        rng.uniform(-0.2, 0.6, (20, n)),
        rng.choice([-1.0, -0.5, 0.0], (20, n), p=[0.01, 0.01, 0.98]),
        rng.choice([-1.0, 0.0, 1.0], (20, n), p=[0.01, 0.8, 0.19]),
        np.zeros((1, n)),
    ])  # fmt: skip
    shown_R = simulation.shown(difference_R_N, sizes, 0.05, bound)
    lower_R = [compare(*arms_of(d_N), labels, 0.05).lower for d_N in difference_R_N]
    assert (np.array(lower_R) > bound).tolist() == shown_R.tolist()


def test_its_verdicts_are_those_of_judge() -> None:
    rng = np.random.default_rng(2)
    n, runs, attempt = 120, 60, 2
    gains_R = rng.integers(0, 22, runs)
    losses_R = rng.integers(0, 8, runs)
    config = GateConfig()
    alpha = simulation.alpha_of(attempt, config.alpha)
    better_R = simulation.independent_better(gains_R, losses_R, n, alpha)
    ids = tuple(map(str, range(n)))
    for gains, losses, better in zip(gains_R, losses_R, better_R, strict=True):
        difference_N = np.repeat([1.0, -1.0, 0.0], [gains, losses, n - gains - losses])
        champion_N, challenger_N = arms_of(difference_N)
        scores = SuiteScores(
            "functions", "L2", ids, ids, tuple(champion_N), tuple(challenger_N), False, False
        )
        report = judge(scores, [], config, identity_of(attempt=attempt))
        assert (report.verdict == "PASS") == bool(better)
    assert 0 < better_R.sum() < runs


def test_rates_are_those_of_the_notes() -> None:
    """A twentieth of the runs: the error of a rate is 4 points at most, at 500 runs 1 to 2."""
    rng = np.random.default_rng(3)
    runs = 500
    single, naive = simulation.false_promotion_single(rng, runs)
    bound = 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
    assert {name for name, rate in single["gate"].items() if rate["rate"] > bound} == set()
    assert naive["10x40"]["rate"] == pytest.approx(0.29, abs=0.07)
    power = simulation.power_at(rng, runs, 0.05)
    assert power["n"] == 626
    assert power["rate"] == pytest.approx(power["formula"], abs=0.06)
    accepted = simulation.accepted_at_margin(rng, runs)["gate"]
    assert {name for name, rate in accepted.items() if rate["rate"] > bound} == set()


def test_twenty_attempts_by_the_naive_rule_promote_what_is_no_better() -> None:
    rates = simulation._attempts(np.random.default_rng(4), 300, (1,) * 400, kept=True)
    assert rates["score went up"]["rate"] == pytest.approx(0.94, abs=0.05)
    assert rates["p < alpha each"]["rate"] > 0.2
    assert rates["gate"]["rate"] <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)
