"""Paired comparison of champion and challenger on the same items.

In: per-item scores in [0, 1] of both arms and a cluster label an item (user,
template, conversation). Out: the mean difference, its one-sided limits, a
p-value for "the challenger is no better", and what the items could have shown.

Two methods, after notes on evaluation gates (Miller 2024, arXiv 2411.00640, for
pairing and clusters):

- independent binary items: mid-p McNemar test (Fagerland, Lydersen and Laake
  2013) with Tango's (1998) score limits for a paired difference of proportions;
- everything else: cluster-robust t with the CR2 variance and Satterthwaite's degrees
  of freedom (Bell and McCaffrey 2002). For clusters of one size these are CR1 and
  G - 1, the numbers of statsmodels' OLS on a constant with `cov_type="cluster"`; for
  few clusters of unlike sizes CR1 rejects twice as often as it says (9.5% for 5%
  with ten of 4 to 140 items), and these do not. Where few clusters differ, a t excludes
  losses that it has seen too little of, so its limits are never closer than Tango's for
  clusters counted by how much they weigh, nor than what so many clusters can have missed.
  Its own lines, because statsmodels has no CR2 and takes seconds to import; tests compare
  both, and a dense CR2.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import special

from serving.errors import MolError
from serving.records import Record

Method = Literal["mid-p McNemar", "cluster-robust t"]
Floats = npt.NDArray[np.float64]


class InvalidScores(MolError, ValueError):
    """The scores handed to a comparison cannot be compared."""


class InsufficientData(MolError, ValueError):
    """Too few items or clusters for any statement; not an error of the caller."""


class PairedComparison(Record):
    """Challenger minus champion on the same items."""

    n: int
    clusters: int
    discordant: int
    """Items on which the arms differ."""
    mean_champion: float
    mean_challenger: float
    effect: float
    """Mean difference, challenger minus champion."""
    lower: float
    """One-sided lower limit at `alpha`: the truth is below it with probability at most alpha."""
    upper: float
    """One-sided upper limit at `alpha`; both together are a 1 - 2 alpha interval."""
    standard_error: float
    """Of the effect."""
    degrees: float | None
    """Degrees of freedom of its t; None for independent binary items."""
    p_value: float
    """One-sided, against "the challenger is no better"."""
    alpha: float
    method: Method

    @property
    def effective_clusters(self) -> float:
        """Number of clusters of one size that tell as much, n^2 / sum of squared sizes, nearly."""
        return float(self.clusters) if self.degrees is None else self.degrees + 1

    @property
    def better(self) -> bool:
        """The challenger is shown to be better at level alpha."""
        return self.lower > 0

    @property
    def worse(self) -> bool:
        """The challenger is shown to be worse at level alpha."""
        return self.upper < 0


def compare(
    champion: Sequence[float] | Floats,
    challenger: Sequence[float] | Floats,
    clusters: Sequence[Hashable],
    alpha: float = 0.05,
) -> PairedComparison:
    """Compare two arms on the same N items, scores in [0, 1].

    Raises:
        InvalidScores: for unequal lengths, NaN, scores outside [0, 1], or a bad alpha.
        InsufficientData: for no item at all or fewer than two clusters.
    """
    champion_N, challenger_N, cluster_N = _checked(champion, challenger, clusters, alpha)
    n, group_count = len(champion_N), int(cluster_N.max()) + 1
    difference_N = challenger_N - champion_N
    binary = bool(np.isin(np.concatenate([champion_N, challenger_N]), (0.0, 1.0)).all())
    method: Method
    degrees: float | None
    if binary and group_count == n:
        gains, losses = int((difference_N > 0).sum()), int((difference_N < 0).sum())
        lower, upper, p_value = mcnemar_limits(gains, losses, n, alpha)
        error, degrees = math.sqrt(gains + losses - (gains - losses) ** 2 / n) / n, None
        method = "mid-p McNemar"
    else:
        mean = cluster_mean(difference_N, cluster_N)
        lower, upper, p_value = _cluster_limits(mean, difference_N, cluster_N, alpha)
        error, degrees = mean.standard_error, mean.degrees
        method = "cluster-robust t"
    return PairedComparison(
        n=n,
        clusters=group_count,
        discordant=int((difference_N != 0).sum()),
        mean_champion=float(champion_N.mean()),
        mean_challenger=float(challenger_N.mean()),
        effect=float(difference_N.mean()),
        lower=max(-1.0, lower),
        upper=min(1.0, upper),
        standard_error=error,
        degrees=degrees,
        p_value=p_value,
        alpha=alpha,
        method=method,
    )


def mid_p(gains: int, losses: int) -> float:
    """One-sided mid-p of McNemar's test: P(B > b) + P(B = b)/2 for B ~ Binomial(b + c, 1/2).

    `gains` (b) are items only the challenger has right, `losses` (c) only the champion.
    """
    pairs = gains + losses
    at_most = float(special.bdtr(gains, pairs, 0.5))
    below = float(special.bdtr(gains - 1, pairs, 0.5)) if gains else 0.0
    return (1 - at_most) + (at_most - below) / 2


def minimum_detectable_effect(comparison: PairedComparison, power: float = 0.8) -> float:
    """Return the smallest true gain these items would show with probability `power`.

    At the discordance (or cluster-robust standard error) seen; 1.0 where even a
    gain of everything might be missed.
    """
    alpha = comparison.alpha
    if comparison.method == "mid-p McNemar":
        psi = comparison.discordant / comparison.n
        return _bisect(
            lambda delta: comparison.n - required_items(delta, max(psi, delta), alpha, power),
            1e-6,
            1.0,
        )
    t_alpha, t_power = (float(special.stdtrit(comparison.degrees, q)) for q in (1 - alpha, power))
    # The limits are wider than t where the items hold too little variance to go by.
    half_width = (comparison.upper - comparison.lower) / 2
    return min(1.0, half_width + t_power * (comparison.standard_error or half_width / t_alpha))


def required_items(delta: float, psi: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """Return how many independent binary items show a gain of `delta` (unrounded).

    `psi` is the share of items on which the arms differ (at least `delta`):
    n = ((z_a sqrt(psi) + z_b sqrt(psi - delta^2)) / delta)^2 (Connor 1987).
    """
    z_alpha, z_power = float(special.ndtri(1 - alpha)), float(special.ndtri(power))
    spread = z_alpha * math.sqrt(psi) + z_power * math.sqrt(max(0.0, psi - delta**2))
    return (spread / delta) ** 2


def items_to_exclude(comparison: PairedComparison, margin: float, power: float = 0.8) -> int:
    """Return how many items like these exclude a loss of `margin` with probability `power`.

    If the arms are truly equal, at the discordance (or cluster-robust standard error) seen:
    n = psi (z_a + z_b)^2 / margin^2 for independent items. Never fewer than it takes when no
    item differs at all, ln(alpha) / ln(1 - margin) items, or clusters like these.
    """
    alpha = comparison.alpha
    quantiles = (1 - alpha, power)
    if comparison.degrees is None:
        z_sum = sum(float(special.ndtri(q)) for q in quantiles)
    else:
        z_sum = sum(float(special.stdtrit(comparison.degrees, q)) for q in quantiles)
    spread = comparison.n * (z_sum * comparison.standard_error / margin) ** 2
    silent = math.log(alpha) / math.log(1 - margin) * comparison.n / comparison.effective_clusters
    return math.ceil(max(spread, silent) - 1e-9)


def informative_needed(alpha: float) -> int:
    """Return how many one-sided coin flips a sign test needs before it can reach alpha."""
    return math.ceil(math.log(alpha) / math.log(0.5) - 1e-9)


def effective_clusters(clusters: Sequence[Hashable]) -> float:
    """Return how many clusters of one size tell as much as these, from a label an item."""
    labels, cluster_N = np.unique([str(each) for each in clusters], return_inverse=True)
    if len(labels) < 2:
        return float(len(labels))
    return cluster_mean(np.zeros(len(cluster_N)), cluster_N).degrees + 1


def _checked(
    champion: Sequence[float] | Floats,
    challenger: Sequence[float] | Floats,
    clusters: Sequence[Hashable],
    alpha: float,
) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    if not 0 < alpha < 0.5:
        raise InvalidScores(f"alpha {alpha!r} is not between 0 and 0.5; set [gate] alpha.")
    champion_N = np.asarray(champion, dtype=np.float64)
    challenger_N = np.asarray(challenger, dtype=np.float64)
    if not champion_N.shape == challenger_N.shape == (len(clusters),):
        raise InvalidScores(
            f"{champion_N.size!r} champion scores, {challenger_N.size!r} challenger scores and "
            f"{len(clusters)!r} cluster labels do not describe the same items; "
            "score both arms on one suite and run 'flows run gate' again."
        )
    for arm, scores_N in (("champion", champion_N), ("challenger", challenger_N)):
        wrong_N = ~((scores_N >= 0) & (scores_N <= 1))
        if wrong_N.any():
            at = int(wrong_N.argmax())
            raise InvalidScores(
                f"The {arm}'s score {float(scores_N[at])!r} of item {at} is not in [0, 1]; "
                "correct the suite's scorer and run 'flows run gate' again."
            )
    if not len(clusters):
        raise InsufficientData("0 items were compared; at least 2 clusters of items are needed.")
    numbers: dict[Hashable, int] = {}
    cluster_N = np.array([numbers.setdefault(c, len(numbers)) for c in clusters], dtype=np.int64)
    if len(numbers) < 2:
        raise InsufficientData(
            f"All {len(clusters)} items belong to one cluster, {clusters[0]!r}; how much clusters "
            "differ cannot be known from one. At least 2 are needed."
        )
    return champion_N, challenger_N, cluster_N


def mcnemar_limits(gains: int, losses: int, n: int, alpha: float) -> tuple[float, float, float]:
    """Return both limits and the p-value for independent binary items.

    Tango's limits alone are liberal with one-sided or no discordance, where the
    loss is at most the exact (Clopper-Pearson) bound on the losing share: for no
    discordant pair at all the limits are +-(1 - alpha^(1/n)). A limit never
    claims a sign that the mid-p test does not support.
    """
    p_value = mid_p(gains, losses)
    z_alpha = float(special.ndtri(1 - alpha))
    lower, upper = _tango_lower(gains, losses, n, z_alpha), -_tango_lower(losses, gains, n, z_alpha)
    if gains == 0:
        lower = min(lower, -share_at_most(losses, n, alpha))
    if losses == 0:
        upper = max(upper, share_at_most(gains, n, alpha))
    if p_value > alpha:
        lower = min(lower, 0.0)
    if mid_p(losses, gains) > alpha:
        upper = max(upper, 0.0)
    return lower, upper, p_value


def _tango_lower(gains: float, losses: float, n: float, quantile: float) -> float:
    """Smallest difference the score test does not reject at a quantile of z or t (Tango 1998)."""

    def excess(delta: float) -> float:
        # q: maximum-likelihood share of losses when the difference is `delta`.
        b = (2 * n - gains + losses) * delta - gains - losses
        c = -losses * delta * (1 - delta)
        q = (math.sqrt(max(0.0, b * b - 8 * n * c)) - b) / (4 * n)
        variance = n * (2 * q + delta * (1 - delta))
        return quantile * math.sqrt(max(0.0, variance)) - (gains - losses - n * delta)

    effect = (gains - losses) / n
    return _bisect(excess, -1.0, effect) if effect > -1 else -1.0


def share_at_most(count: float, n: float, alpha: float) -> float:
    """Exact one-sided upper limit of a binomial share; 1 - alpha^(1/n) for a count of 0.

    Between whole numbers the same beta distribution is read on.
    """
    return 1.0 if count >= n else float(special.betaincinv(count + 1, n - count, 1 - alpha))


@dataclass(frozen=True, slots=True)
class ClusterMean:
    """A mean over clustered items with what a t-test of it needs."""

    mean: float
    standard_error: float
    degrees: float

    def limits(self, alpha: float) -> tuple[float, float]:
        """Return both one-sided limits of the t at `alpha`."""
        reach = float(special.stdtrit(self.degrees, 1 - alpha)) * self.standard_error
        return self.mean - reach, self.mean + reach


def cluster_mean(value_N: Floats, cluster_N: npt.NDArray[np.int64]) -> ClusterMean:
    """Return mean, CR2 standard error and Satterthwaite degrees of freedom (Bell, McCaffrey 2002).

    For a mean both have a closed form in the cluster sizes m_g: each cluster's sum of residuals
    counts 1 / sqrt(1 - m_g / n) times, and the degrees follow from independent equal variances.
    `cluster_N` numbers two clusters or more from 0.
    """
    n = len(value_N)
    size_G = np.bincount(cluster_N).astype(np.float64)
    mean = float(value_N.mean())
    residual_G = np.bincount(cluster_N, weights=value_N - mean)
    weight_G = 1 / (1 - size_G / n)
    error = math.sqrt(float((weight_G * residual_G**2).sum())) / n
    shared_G = weight_G * size_G**2
    between = (float(shared_G.sum()) ** 2 - float((shared_G**2).sum())) / n**2
    degrees = n**2 / (float((size_G**2).sum()) + between)
    return ClusterMean(mean, error, degrees)


def _cluster_limits(
    mean: ClusterMean, difference_N: Floats, cluster_N: npt.NDArray[np.int64], alpha: float
) -> tuple[float, float, float]:
    """Limits and p-value of a mean of differences in [-1, 1].

    The t's, moved away where so many clusters (G; the effective number E) show too little:

    - Score limits (Tango) on clusters counted by weight, as weighted Poisson counts are (Fay and
      Feuer 1997): a cluster's sum, over the mean cluster's size, is a jump; those up are so many
      gains, those down so many losses, of G, each over c, sum of squares over sum of the jumps.
      One jump more is taken in as not yet seen: an item's cluster, lost like the worst seen.
    - Where no cluster gains, the exact (Clopper-Pearson) bound on the share that loses.
    - No limit is closer to the effect than 1 - alpha^(1/E), the share that E clusters can all
      have missed. If every cluster differs by the same, such a share may be at the far end.
    """
    effect, error = mean.mean, mean.standard_error
    size_G = np.bincount(cluster_N).astype(np.float64)
    sum_G = np.bincount(cluster_N, weights=difference_N).astype(np.float64)
    unseen = share_at_most(0, mean.degrees + 1, alpha)
    if error < 1e-12:
        p_value = 1.0 if effect < -1e-12 else 0.5 if effect < 1e-12 else 0.5 ** len(sum_G)
        return effect - (1 + effect) * unseen, effect + (1 - effect) * unseen, p_value
    low, high = mean.limits(alpha)
    quantile = float(special.stdtrit(mean.degrees, 1 - alpha))
    lower = min(low, effect - unseen, _score_lower(sum_G, size_G, quantile, alpha))
    upper = max(high, effect + unseen, -_score_lower(-sum_G, size_G, quantile, alpha))
    return lower, upper, 1 - float(special.stdtr(mean.degrees, effect / error))


def _score_lower(sum_G: Floats, size_G: Floats, quantile: float, alpha: float) -> float:
    """Lower limit of the mean of clusters that are counted by weight."""
    groups, mean_size = len(size_G), size_G.mean()
    worst = float(np.abs(sum_G / size_G).max())
    jump_J = np.append(np.abs(sum_G), worst * (size_G**2).sum() / size_G.sum()) / mean_size
    scale = float((jump_J**2).sum() / jump_J.sum())
    gains = float(sum_G[sum_G > 0].sum()) / mean_size / scale
    losses = float(-sum_G[sum_G < 0].sum()) / mean_size / scale
    lower = _tango_lower(gains, losses, groups / scale, quantile)
    if gains < 1e-9:
        losing = int((sum_G < -1e-12).sum())
        lower = min(
            lower,
            -share_at_most(losses, groups / scale, alpha),
            share_at_most(losing, groups, alpha) * float((sum_G / size_G).min()),
        )
    return lower


def _bisect(rising_from_negative: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function changes sign between `low` and `high`; `high` if it never does.

    The sign at `low` is taken as negative.
    """
    for _ in range(60):
        middle = (low + high) / 2
        if rising_from_negative(middle) < 0:
            low = middle
        else:
            high = middle
    return high
