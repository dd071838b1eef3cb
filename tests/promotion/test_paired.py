"""The paired comparison: proved against scipy, statsmodels, brute force and simulation.

Nothing is faked; scores are drawn or enumerated here. Simulations are seeded and
small: they show that error rates are near alpha, the benchmarks show how near.
"""

import math

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar

from promotion.paired import (
    InsufficientData,
    InvalidScores,
    PairedComparison,
    cluster_mean,
    compare,
    informative_needed,
    mid_p,
)
from promotion.power import items_to_exclude, minimum_detectable_effect, required_items


def _binary(gains: int, losses: int, n: int) -> PairedComparison:
    champion = [0.0] * gains + [1.0] * losses + [1.0] * (n - gains - losses)
    challenger = [1.0] * gains + [0.0] * losses + [1.0] * (n - gains - losses)
    return compare(champion, challenger, list(range(n)))


def _clustered_null(rng: np.random.Generator, groups: int, size: int) -> PairedComparison:
    """Both arms equally good in expectation; differences share a cluster effect."""
    cluster_N = np.repeat(np.arange(groups), size)
    shift_N = np.repeat(rng.normal(0, 0.35, groups), size)
    champion_N = (rng.random(groups * size) < np.clip(0.5 - shift_N / 2, 0, 1)).astype(float)
    challenger_N = (rng.random(groups * size) < np.clip(0.5 + shift_N / 2, 0, 1)).astype(float)
    return compare(champion_N, challenger_N, cluster_N.tolist())


@pytest.mark.parametrize(("gains", "losses"), [(0, 0), (5, 0), (0, 5), (9, 4), (30, 31)])
def test_mid_p_is_the_exact_test_minus_half_the_observed_point(gains: int, losses: int) -> None:
    pairs = gains + losses
    exact = stats.binomtest(gains, pairs, 0.5, "greater").pvalue if pairs else 1.0
    assert mid_p(gains, losses) == pytest.approx(exact - stats.binom.pmf(gains, pairs, 0.5) / 2)


def test_mid_p_agrees_with_the_exact_mcnemar_of_statsmodels() -> None:
    two_sided = mcnemar([[40, 14], [5, 41]], exact=True).pvalue
    assert 2 * (mid_p(14, 5) + stats.binom.pmf(14, 19, 0.5) / 2) == pytest.approx(two_sided)


@pytest.mark.parametrize(("gains", "losses", "n"), [(12, 3, 60), (3, 12, 60), (30, 25, 400)])
def test_binary_limits_invert_the_score_test_with_a_brute_force_likelihood(
    gains: int, losses: int, n: int
) -> None:
    result = _binary(gains, losses, n)
    for limit, sign in ((result.lower, 1), (result.upper, -1)):
        q_grid = np.linspace(max(0.0, -limit) + 1e-7, (1 - limit) / 2 - 1e-7, 400_001)
        likelihood = (
            gains * np.log(q_grid + limit)
            + losses * np.log(q_grid)
            + (n - gains - losses) * np.log(1 - 2 * q_grid - limit)
        )
        q = q_grid[likelihood.argmax()]
        z = (gains - losses - n * limit) / math.sqrt(n * (2 * q + limit * (1 - limit)))
        assert sign * z == pytest.approx(stats.norm.ppf(0.95), abs=2e-3)


def test_limits_of_equal_clusters_are_those_of_statsmodels() -> None:
    rng = np.random.default_rng(5)
    cluster_N = np.repeat(np.arange(14), 6)
    champion_N, challenger_N = rng.random(len(cluster_N)), rng.random(len(cluster_N))
    fit = sm.OLS(challenger_N - champion_N, np.ones(len(cluster_N))).fit(
        cov_type="cluster", cov_kwds={"groups": cluster_N}, use_t=True
    )
    low, high = fit.conf_int(alpha=0.10)[0]
    mean = cluster_mean(challenger_N - champion_N, cluster_N)
    assert mean.limits(0.05) == pytest.approx((low, high))
    assert mean.standard_error == pytest.approx(float(fit.bse[0]))
    assert mean.degrees == pytest.approx(13)
    assert mean.p_value(14) == pytest.approx(float(stats.t.sf(fit.tvalues[0], 13)))


def _dense_cr2(value_N: np.ndarray, cluster_N: np.ndarray) -> tuple[float, float]:
    """Standard error and degrees of freedom by Bell and McCaffrey's matrices, as they stand."""
    n = len(value_N)
    hat_N_N = np.full((n, n), 1 / n)
    residual_N = value_N - value_N.mean()
    rows = []
    for g in np.unique(cluster_N):
        own_N = cluster_N == g
        values, vectors = np.linalg.eigh(np.eye(own_N.sum()) - hat_N_N[np.ix_(own_N, own_N)])
        root = vectors @ np.diag(values**-0.5) @ vectors.T
        rows.append((np.eye(n) - hat_N_N)[:, own_N] @ root @ np.full(own_N.sum(), 1 / n))
    row_G_N = np.array(rows)
    gram_G_G = row_G_N @ row_G_N.T
    error = math.sqrt(((row_G_N @ residual_N) ** 2).sum())
    return error, float(np.trace(gram_G_G) ** 2 / (gram_G_G**2).sum())


def test_unlike_clusters_have_the_cr2_variance_and_satterthwaites_degrees() -> None:
    rng = np.random.default_rng(8)
    cluster_N = np.repeat(np.arange(9), [1, 1, 2, 3, 5, 8, 13, 21, 34])
    champion_N, challenger_N = rng.random(len(cluster_N)), rng.random(len(cluster_N))
    champion_N, challenger_N = champion_N.round(), challenger_N.round()
    result = compare(champion_N, challenger_N, cluster_N.tolist(), alpha=0.03)
    error, degrees = _dense_cr2(challenger_N - champion_N, cluster_N)
    assert (result.standard_error, result.degrees) == pytest.approx((error, degrees))
    half_width = stats.t.ppf(0.97, degrees) * error
    assert result.lower <= result.effect - half_width + 1e-9
    assert result.upper >= result.effect + half_width - 1e-9
    assert result.degrees is not None
    assert result.degrees < 5


def test_method_follows_the_data() -> None:
    assert _binary(5, 2, 30).method == "mid-p McNemar"
    assert compare([0, 1, 0, 1], [1, 1, 0, 0], "aabb").method == "cluster-robust t"
    assert compare([0, 1, 0, 1], [1, 1, 0, 0.5], "aabb").method == "betting"
    assert compare([0, 1, 0, 1], [1, 1, 0, 0.5], "abcd").method == "betting"


@pytest.mark.parametrize("n", [2, 30, 59, 500])
def test_no_discordant_pair_leaves_the_exact_bound_on_discordance(n: int) -> None:
    result = _binary(0, 0, n)
    assert (result.lower, result.upper) == pytest.approx(
        (-(1 - 0.05 ** (1 / n)), 1 - 0.05 ** (1 / n))
    )
    assert not result.better


def test_losses_alone_are_bounded_exactly() -> None:
    exact = stats.binomtest(2, 100).proportion_ci(0.90, "exact").high
    assert _binary(0, 2, 100).lower <= -exact + 1e-9


@pytest.mark.parametrize("gains", range(0, 12))
@pytest.mark.parametrize("losses", range(0, 4))
def test_a_limit_never_claims_a_gain_that_mid_p_denies(gains: int, losses: int) -> None:
    result = _binary(gains, losses, 40)
    assert not result.better or result.p_value <= 0.05


def test_swapping_the_arms_mirrors_the_limits() -> None:
    forward, backward = _binary(9, 3, 70), _binary(3, 9, 70)
    assert forward.lower == pytest.approx(-backward.upper)
    assert forward.effect == pytest.approx(-backward.effect)


def test_clusters_all_alike_do_not_give_certainty() -> None:
    two = compare([0] * 40, [1] * 40, ["a", "b"] * 20)
    many = compare([0] * 40, [1] * 40, [i // 4 for i in range(40)])
    assert two.effect == many.effect == 1
    assert not two.better
    assert many.better


def test_one_cluster_that_moves_never_looks_safer_than_none() -> None:
    clusters = [i // 5 for i in range(100)]
    still = compare([1] * 100, [1] * 100, clusters)
    moved = compare([1] * 100, [0] + [1] * 99, clusters)
    assert still.lower == pytest.approx(-(1 - 0.05 ** (1 / 20)))
    assert moved.lower <= still.lower


def test_many_small_gains_do_not_hide_that_few_whole_losses_were_seen() -> None:
    """200 clusters of 20; the truth may be 9.5 lost whole, of which 5 or fewer come in 8.8%."""
    clusters = [i // 20 for i in range(4000)]
    first_N = np.arange(4000) % 20 == 0
    for lost, shown in ((5, False), (4, False), (2, True)):
        whole_N = np.arange(4000) < 20 * lost
        champion_N = whole_N.astype(float)
        challenger_N = (first_N & ~whole_N).astype(float)
        result = compare(champion_N, challenger_N, clusters, alpha=0.0304)
        assert (result.effect > 0.02, result.better) == (True, shown)
        mirrored = compare(challenger_N, champion_N, clusters, alpha=0.0304)
        assert mirrored.upper == pytest.approx(-result.lower)


def test_one_cluster_is_insufficient() -> None:
    with pytest.raises(InsufficientData, match="one cluster, 'only'"):
        compare([0, 1, 1], [1, 1, 1], ["only"] * 3)


def test_no_item_is_insufficient() -> None:
    with pytest.raises(InsufficientData, match="0 items"):
        compare([], [], [])


@pytest.mark.parametrize("score", [math.nan, math.inf, -0.1, 1.5])
def test_a_score_that_is_not_one_is_refused(score: float) -> None:
    with pytest.raises(InvalidScores, match=r"challenger's score .* of item 1"):
        compare([0, 1, 1], [0, score, 1], [0, 1, 2])


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(InvalidScores, match="same items"):
        compare([0, 1], [0, 1, 1], [0, 1])


def test_independent_false_positives_stay_near_alpha() -> None:
    rng = np.random.default_rng(1)
    runs, n = 2000, 60
    found = sum(
        _binary(*rng.multinomial(n, [0.1, 0.1, 0.8])[:2].tolist(), n).better for _ in range(runs)
    )
    assert found / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_clustered_false_positives_stay_near_alpha_where_the_naive_test_does_not() -> None:
    rng = np.random.default_rng(2)
    runs = 2000
    results = [_clustered_null(rng, groups=12, size=15) for _ in range(runs)]
    found = sum(r.better for r in results)
    naive = sum(mid_p_of(r) <= 0.05 for r in results)
    assert found / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
    assert naive / runs > 0.08


def test_few_clusters_of_unlike_sizes_do_not_promote_more_often() -> None:
    """CR1 with G - 1 degrees of freedom would reject in about 9.5% of these."""
    rng = np.random.default_rng(9)
    sizes, runs = [4, 4, 8, 8, 16, 30, 40, 60, 90, 140], 2000
    cluster_N = np.repeat(np.arange(10), sizes)
    found = 0
    for _ in range(runs):
        latent_N = 0.55 * rng.normal(size=10)[cluster_N] + 0.84 * rng.normal(size=len(cluster_N))
        difference_N = (latent_N > 1.28).astype(float) - (latent_N < -1.28)
        found += compare((1 - difference_N) / 2, (1 + difference_N) / 2, cluster_N).better
    assert found / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_one_gain_does_not_take_back_what_unlike_clusters_may_hide() -> None:
    """Five conversations of 50 turns and 100 of one: the few are not seen to lose, by luck."""
    cluster_N = np.repeat(np.arange(105), [1] * 100 + [50] * 5)
    for gains in (0, 1, 3):
        champion_N, challenger_N = np.ones(350), np.ones(350)
        challenger_N[:8] = 0
        champion_N[8 : 8 + gains] = 0
        result = compare(champion_N, challenger_N, cluster_N, alpha=0.03)
        assert result.effective_clusters == pytest.approx(350**2 / (100 + 5 * 50**2), rel=0.01)
        assert result.lower < -0.10


def test_ten_clusters_exclude_no_loss_that_ten_can_have_missed() -> None:
    cluster_N, champion_N = np.repeat(np.arange(10), 40), np.tile([0.0, 1.0], 200)
    challenger_N = champion_N.copy()
    challenger_N[:2] = 1 - champion_N[:2]
    result = compare(champion_N, challenger_N, cluster_N)
    assert result.lower == pytest.approx(result.effect - (1 - 0.05**0.1))
    assert result.upper == pytest.approx(result.effect + (1 - 0.05**0.1))
    graded = compare(np.full(400, 0.5), np.full(400, 0.5), cluster_N)
    assert graded.lower == pytest.approx(-(1 - 0.05**0.1), abs=0.005)


@pytest.mark.parametrize("attempt", [1, 2])
def test_clusters_that_are_lost_whole_and_rarely_are_let_through_at_most_at_the_level(
    attempt: int,
) -> None:
    """A loss of exactly the margin, where t alone lets 4.4% through in place of 3.0%."""
    rng, runs, alpha = np.random.default_rng(3), 2000, 6 * 0.05 / (math.pi * attempt) ** 2
    cluster_N = np.repeat(np.arange(202), [2] * 54 + [1] * 148)
    accepted = t_alone = 0
    for _ in range(runs):
        drawn_G = rng.choice([1.0, -1.0, 0.0], 202, p=[0.01, 0.04, 0.95])[cluster_N]
        result = compare((drawn_G < 0) * 1.0, (drawn_G > 0) * 1.0, cluster_N, alpha)
        reach = stats.t.ppf(1 - alpha, result.degrees) * result.standard_error
        accepted += result.lower > -0.03
        t_alone += result.effect - reach > -0.03
    assert accepted <= alpha * runs + 3 * math.sqrt(alpha * runs)
    assert accepted < t_alone


def test_few_clusters_that_lose_everything_are_bounded_exactly() -> None:
    """Two of fifty templates broken: the t alone would exclude a loss of 10 points."""
    clusters = [i // 4 for i in range(200)]
    result = compare([1] * 200, [0] * 8 + [1] * 192, clusters)
    exact = stats.binomtest(2, 50).proportion_ci(0.90, "exact").high
    assert result.effect - stats.t.ppf(0.95, 49) * result.standard_error > -0.10
    assert result.lower == pytest.approx(-exact)


def mid_p_of(result: PairedComparison) -> float:
    """The p-value that ignores clusters."""
    net = round(result.effect * result.n)
    return mid_p((result.discordant + net) // 2, (result.discordant - net) // 2)


@pytest.mark.parametrize("n", [60, 100, 150])
@pytest.mark.parametrize("gain_share", [0.0, 0.01, 0.05, 0.2])
def test_a_loss_of_the_margin_is_accepted_at_most_near_alpha(n: int, gain_share: float) -> None:
    """Enumerated, not simulated: the exact accept rate of the non-inferiority rule."""
    margin = 0.05
    rates = [gain_share, gain_share + margin, 1 - 2 * gain_share - margin]
    most = min(n, int(n * (2 * gain_share + margin) + 6 * math.sqrt(n)) + 5)
    accepted = 0.0
    for gains in range(most + 1):
        for losses in range(min(most, n - gains) + 1):
            share = stats.multinomial.pmf([gains, losses, n - gains - losses], n, rates)
            if share > 1e-7 and _binary(gains, losses, n).lower > -margin:
                accepted += float(share)
    assert accepted <= 0.052


@pytest.mark.parametrize(
    ("delta", "psi", "n"), [(0.05, 0.2, 493), (0.03, 0.2, 1372), (0.02, 0.1, 1544), (0.1, 0.3, 184)]
)
def test_sizes_are_those_of_the_published_table(delta: float, psi: float, n: int) -> None:
    assert math.ceil(required_items(delta, psi)) == pytest.approx(n, abs=1)


def test_detectable_effect_inverts_the_size_formula() -> None:
    result = _binary(50, 49, 493)
    assert minimum_detectable_effect(result) == pytest.approx(0.05, abs=0.001)


def test_detectable_effect_is_reached_with_the_stated_power() -> None:
    rng = np.random.default_rng(3)
    cluster_N = np.repeat(np.arange(20), 10)

    def draw(gain: float) -> PairedComparison:
        shift_N = np.repeat(rng.normal(gain, 0.1, 20), 10)
        return compare(
            np.full(200, 0.4), np.clip(0.4 + shift_N + rng.normal(0, 0.1, 200), 0, 1), cluster_N
        )

    typical = float(np.median([minimum_detectable_effect(draw(0.0)) for _ in range(200)]))
    power = np.mean([draw(typical).better for _ in range(500)])
    assert power == pytest.approx(0.8, abs=0.06)


def test_detectable_effect_of_a_few_items_is_large() -> None:
    assert minimum_detectable_effect(_binary(0, 0, 5)) > 0.5


def test_an_excluded_margin_needs_the_published_number_of_items() -> None:
    """Numbers of the notes: 3,092 at psi 0.2 and 2 points, 687 at 0.1 and 3 points."""
    assert items_to_exclude(_binary(309, 309, 3090), 0.02) == pytest.approx(3092, rel=0.005)
    assert items_to_exclude(_binary(35, 35, 700), 0.03) == pytest.approx(687, rel=0.005)


def test_silence_needs_as_many_items_as_its_exact_bound() -> None:
    needed = items_to_exclude(_binary(0, 0, 40), 0.005)
    assert 1 - 0.05 ** (1 / needed) <= 0.005 < 1 - 0.05 ** (1 / (needed - 1))


@pytest.mark.parametrize(("alpha", "flips"), [(0.05, 5), (0.5**4, 4), (0.01, 7)])
def test_a_sign_test_needs_this_many_flips(alpha: float, flips: int) -> None:
    assert informative_needed(alpha) == flips
