"""Limits by betting hold for graded scores however skewed, and reach nearly as far as a t's.

Nothing is faked. Simulations are seeded and small: error rates stay within three standard errors
of the level, where the t that stands beside them does not.
"""

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.gate_draws import GRADED, sampled, skewed
from benchmarks.gate_limits import shown
from promotion.betting import in_order, lower_limit, shown_above
from promotion.config import GateConfig
from promotion.paired import PairedComparison, cluster_mean, compare
from promotion.power import items_to_exclude, minimum_detectable_effect
from promotion.slices import SuiteScores, judge_guard, least_margin
from promotion.spending import alpha_of

RUNS = 3000


def _compare(difference_N: np.ndarray, alpha: float = 0.03) -> PairedComparison:
    """Graded scores of independent items that differ like this."""
    labels = [f"item-{i}" for i in range(len(difference_N))]
    champion_N = np.where(difference_N < 0, -difference_N, 0.25 * (1 - difference_N))
    return compare(champion_N, champion_N + difference_N, labels, alpha)


def _t_shows(difference_R_N: np.ndarray, bound: float, alpha: float) -> float:
    n = difference_R_N.shape[1]
    reach_R = stats.t.ppf(1 - alpha, n - 1) * difference_R_N.std(1, ddof=1) / math.sqrt(n)
    return float((difference_R_N.mean(1) - reach_R > bound).mean())


@pytest.mark.parametrize("attempt", [1, 2, 3])
@pytest.mark.parametrize("bound", [0.0, -0.03])
@pytest.mark.parametrize("name", GRADED)
def test_who_is_no_better_is_promoted_at_most_at_the_level(
    name: str, bound: float, attempt: int
) -> None:
    rng, alpha = np.random.default_rng(1), alpha_of(attempt, 0.05)
    drawn_R_N = skewed(rng, RUNS, GRADED[name], bound)
    rate = float(shown(drawn_R_N, GRADED[name][0], alpha, bound).mean())
    assert rate <= alpha + 3 * math.sqrt(alpha / RUNS)


@pytest.mark.parametrize("name", [
    "256x1, 0.05 on nearly all", "256x1, 1 of 5 samples on 10%", "256x1, 1 of 10 samples on 30%",
])  # fmt: skip
def test_a_t_promotes_them_half_as_often_again(name: str) -> None:
    alpha = alpha_of(1, 0.05)
    drawn_R_N = skewed(np.random.default_rng(2), RUNS, GRADED[name], 0.0)
    assert _t_shows(drawn_R_N, 0.0, alpha) > 1.4 * alpha


@pytest.mark.parametrize("samples", [3, 10])
def test_who_answers_better_is_found_nearly_as_often_as_by_a_t(samples: int) -> None:
    alpha = alpha_of(1, 0.05)
    drawn_R_N = sampled(np.random.default_rng(3), 1000, 256, samples, 0.06)
    found = float(shown(drawn_R_N, (1,) * 256, alpha, 0.0).mean())
    assert found > 0.6
    assert found > _t_shows(drawn_R_N, 0.0, alpha) - 0.15


@pytest.mark.parametrize("bound", [0.0, -0.02, -0.03, -0.1])
def test_the_limit_is_above_a_bound_where_that_null_is_refused(bound: float) -> None:
    rng = np.random.default_rng(4)
    decided = []
    for mean in np.linspace(bound, bound + 0.08, 20):
        difference_N = np.clip(rng.normal(mean, 0.2, 120), -1, 1)
        result = _compare(difference_N)
        order_N = in_order(f"item-{i}" for i in range(120))
        refused = shown_above(
            difference_N[order_N][None], np.ones(120), np.array([bound]), result.alpha
        )[0]
        assert (result.lower > bound) == refused
        decided.append(refused)
    assert 0 < sum(decided) < 20


def test_the_order_of_items_is_nobodys_to_choose() -> None:
    rng = np.random.default_rng(5)
    champion_N, challenger_N = rng.random(90), rng.random(90)
    labels_N = np.array([f"cluster-{i // 2}" for i in range(90)])
    first = compare(champion_N, challenger_N, labels_N.tolist())
    for _ in range(5):
        at_N = rng.permutation(90)
        again = compare(champion_N[at_N], challenger_N[at_N], labels_N[at_N].tolist())
        assert (again.lower, again.upper) == (first.lower, first.upper)


def test_swapping_the_arms_mirrors_the_limits() -> None:
    rng = np.random.default_rng(6)
    champion_N, challenger_N = rng.random(50), rng.random(50)
    forward = compare(champion_N, challenger_N, list(range(50)))
    backward = compare(challenger_N, champion_N, list(range(50)))
    assert (forward.lower, forward.upper) == pytest.approx((-backward.upper, -backward.lower))
    assert forward.lower <= forward.effect <= forward.upper


@pytest.mark.parametrize("attempt", [1, 2, 3])
@pytest.mark.parametrize("margin", [0.02, 0.03, 0.05])
def test_silence_takes_as_many_clusters_as_everywhere(margin: float, attempt: int) -> None:
    """Equal graded scores exclude a loss where the documents say that clusters do."""
    alpha = alpha_of(attempt, 0.05)
    enough = math.ceil(math.log(alpha) / math.log1p(-margin))
    assert least_margin(enough, alpha) <= margin < least_margin(enough - 1, alpha)
    assert _compare(np.zeros(enough), alpha).lower > -margin
    assert _compare(np.zeros(enough - 1), alpha).lower <= -margin


def test_each_cluster_may_be_worth_as_much_as_the_largest() -> None:
    """Only the 54 of two are ever lost: the loss is 3 points, and as often as not none is seen."""
    rng, alpha = np.random.default_rng(7), alpha_of(2, 0.05)
    sizes = (2,) * 54 + (1,) * 148
    size_N = np.repeat(sizes, sizes)
    lost_R_G = (rng.random((4000, 202)) < 0.03 * 256 / 108) * (np.array(sizes) == 2)
    difference_R_N = -0.999 * np.repeat(lost_R_G, sizes, axis=1)
    passed = float(shown(difference_R_N + 0.0001 * (size_N == 1), sizes, alpha, -0.03).mean())
    assert passed <= alpha
    labels = np.repeat(np.arange(202), sizes).tolist()
    result = compare(np.full(256, 0.5), np.full(256, 0.5), labels, alpha)
    assert result.effective_clusters == pytest.approx(128)
    assert result.lower == pytest.approx(-least_margin(128, alpha), abs=0.001)


def test_a_guard_says_what_its_graded_clusters_lack() -> None:
    """Of 0/1 items as many clusters would do: 180 of one size, of graded ones 128."""
    labels = tuple(f"c{i}" for i in np.repeat(np.arange(202), [2] * 54 + [1] * 148))
    ids, half = tuple(map(str, range(256))), (0.5,) * 256
    graded = SuiteScores("tools", "L1", ids, labels, half, half, False, False, kind="handover")
    assert judge_guard(graded, alpha_of(1, 0.05), GateConfig()).status == "ok"
    result = judge_guard(graded, alpha_of(2, 0.05), GateConfig())
    assert result.status == "insufficient"
    assert "128 clusters exclude no loss of less than 3.7 points. Ask 161 clusters" in result.reason
    assert result.items_needed == pytest.approx(322, abs=2)


def test_two_clusters_exclude_nothing() -> None:
    result = compare([0.5] * 40, [0.9] * 40, ["a", "b"] * 20)
    assert result.lower < 0
    assert result.upper > 0.9


def test_limits_are_told_in_twentieths_of_a_point() -> None:
    sum_G = np.random.default_rng(8).normal(0.1, 0.2, 100)
    lower = lower_limit(sum_G, np.ones(100), 0.05)
    null_X = np.array([round(2000 * lower) / 2000, round(2000 * lower + 1) / 2000])
    assert shown_above(sum_G[None], np.ones(100), null_X, 0.05).tolist() == [True, False]


@pytest.mark.parametrize("spread", [0.1, 0.3])
def test_graded_items_show_what_they_say_they_would(spread: float) -> None:
    rng, runs = np.random.default_rng(9), 1000

    def draw(n: int, mean: float, times: int) -> np.ndarray:
        return np.clip(rng.normal(mean, spread, (times, n)), -1, 1)

    results = [_compare(difference_N) for difference_N in draw(200, 0.0, 9)]
    gain = float(np.median([minimum_detectable_effect(result) for result in results]))
    found = shown_above(draw(200, gain, runs), np.ones(200), np.zeros(1), 0.03)
    assert 0.7 < found.mean() < 0.95
    needed = int(np.median([items_to_exclude(result, 0.03) for result in results]))
    passed = shown_above(draw(needed, 0.0, runs), np.ones(needed), np.array([-0.03]), 0.03)
    assert 0.7 < passed.mean() < 0.95


def test_the_t_that_stands_beside_is_the_paired_one() -> None:
    rng = np.random.default_rng(10)
    champion_N, challenger_N = rng.random(40), rng.random(40)
    result = compare(champion_N, challenger_N, list(range(40)))
    expected = stats.ttest_rel(challenger_N, champion_N, alternative="greater").pvalue
    assert result.method == "betting"
    assert result.p_value == pytest.approx(float(expected))
    assert result.standard_error == pytest.approx(
        cluster_mean(challenger_N - champion_N, np.arange(40)).standard_error
    )
