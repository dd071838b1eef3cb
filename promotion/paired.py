"""Paired comparison of champion and challenger on the same items.

In: per-item scores in [0, 1] of both arms and a cluster label an item (user,
template, conversation). Out: the mean difference, its one-sided limits, a
p-value for "the challenger is no better". What such items could have shown: `promotion.power`.

Three methods, after notes on evaluation gates (Miller 2024, arXiv 2411.00640, for
pairing and clusters):

- independent binary items: mid-p McNemar test (Fagerland, Lydersen and Laake
  2013) with Tango's (1998) score limits for a paired difference of proportions;
- graded scores, in clusters or not: limits by betting (`promotion.betting`), which hold for
  every skew; a t passes who gains a little on most items and loses a few whole, up to three
  times as often as it says;
- binary items in clusters: cluster-robust t with the CR2 variance and Satterthwaite's degrees
  of freedom (Bell and McCaffrey 2002). For clusters of one size these are CR1 and
  G - 1, the numbers of statsmodels' OLS on a constant with `cov_type="cluster"`; for
  few clusters of unlike sizes CR1 rejects twice as often as it says (9.5% for 5%
  with ten of 4 to 140 items), and these do not. Where few clusters differ, a t excludes
  losses that it has seen too little of, so its limits are never closer than Tango's for
  clusters counted by how much they weigh, nor than what so many clusters can have missed, nor,
  where losses are larger than gains, than limits of each put together say.
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

from promotion.betting import in_order, lower_limit
from serving.errors import MolError
from serving.records import Record

Method = Literal["mid-p McNemar", "cluster-robust t", "betting"]
Floats = npt.NDArray[np.float64]

UNLIKE = 1.2
"""How many times larger losses must be than gains, by sum of squares over sum, to be unlike."""


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
    """Degrees of freedom of its t; None for independent binary items.

    With graded scores no more than clusters of the largest size would leave, as limits by betting
    take each to be worth that much.
    """
    p_value: float
    """One-sided, against "the challenger is no better"; with graded scores only the t's, and the
    limits decide."""
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
        error, degrees, p_value = mean.standard_error, mean.degrees, mean.p_value(group_count)
        size_G = np.bincount(cluster_N).astype(np.float64)
        sum_G = np.bincount(cluster_N, weights=difference_N).astype(np.float64)
        if binary:
            lower, upper = _cluster_limits(mean, sum_G, size_G, alpha)
            method = "cluster-robust t"
        else:
            order_G = in_order(dict.fromkeys(clusters))
            size_G, sum_G = size_G[order_G], sum_G[order_G]
            lower = min(mean.mean, lower_limit(sum_G, size_G, alpha))
            upper = max(mean.mean, -lower_limit(-sum_G, size_G, alpha))
            degrees = min(degrees, max(1.0, n / float(size_G.max()) - 1))
            method = "betting"
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
    return bisect(excess, -1.0, effect) if effect > -1 else -1.0


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

    def p_value(self, groups: int) -> float:
        """Return the t's p-value against "at most 0"; a coin a cluster if all differ alike."""
        if self.standard_error < 1e-12:
            return 1.0 if self.mean < -1e-12 else 0.5 if self.mean < 1e-12 else 0.5**groups
        return 1 - float(special.stdtr(self.degrees, self.mean / self.standard_error))


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
    mean: ClusterMean, sum_G: Floats, size_G: Floats, alpha: float
) -> tuple[float, float]:
    """Limits of a mean of differences of -1, 0 and 1, from sums by cluster.

    The t's, moved away where so many clusters (G; the effective number E) show too little:

    - Score limits (Tango) on clusters counted by weight, as weighted Poisson counts are (Fay and
      Feuer 1997): a cluster's sum, over the mean cluster's size, is a jump; those up are so many
      gains, those down so many losses, of G, each over c, sum of squares over sum of the jumps.
      One jump more is taken in as not yet seen: an item's cluster, lost like the worst seen.
    - Where no cluster gains, the exact (Clopper-Pearson) bound on the share that loses.
    - Where losses come in larger jumps than gains, one scale for both takes the gains for rarer
      and the losses for commoner than they were. There each has limits of its own, put together
      (`_unlike_lower`).
    - No limit is closer to the effect than 1 - alpha^(1/E), the share that E clusters can all
      have missed. If every cluster differs by the same, such a share may be at the far end.
    """
    effect = mean.mean
    unseen = share_at_most(0, mean.degrees + 1, alpha)
    if mean.standard_error < 1e-12:
        return effect - (1 + effect) * unseen, effect + (1 - effect) * unseen
    low, high = mean.limits(alpha)
    quantile = float(special.stdtrit(mean.degrees, 1 - alpha))
    lower = min(low, effect - unseen, _score_lower(sum_G, size_G, quantile, alpha))
    upper = max(high, effect + unseen, -_score_lower(-sum_G, size_G, quantile, alpha))
    return lower, upper


def _score_lower(sum_G: Floats, size_G: Floats, quantile: float, alpha: float) -> float:
    """Lower limit of the mean of clusters that are counted by weight."""
    groups, mean_size = len(size_G), size_G.mean()
    worst = float(np.abs(sum_G / size_G).max())
    unseen = worst * float((size_G**2).sum() / size_G.sum()) / mean_size
    jump_J = np.append(np.abs(sum_G) / mean_size, unseen)
    scale = float((jump_J**2).sum() / jump_J.sum())
    gains = float(sum_G[sum_G > 0].sum()) / mean_size / scale
    losses = float(-sum_G[sum_G < 0].sum()) / mean_size / scale
    lower = _tango_lower(gains, losses, groups / scale, quantile)
    lower = min(lower, _unlike_lower(sum_G / mean_size, unseen, alpha) / groups)
    if gains < 1e-9:
        losing = int((sum_G < -1e-12).sum())
        lower = min(
            lower,
            -share_at_most(losses, groups / scale, alpha),
            share_at_most(losing, groups, alpha) * float((sum_G / size_G).min()),
        )
    return lower


def _unlike_lower(jump_G: Floats, unseen: float, alpha: float) -> float:
    """Lower limit of gains minus losses where losses come in larger jumps, else 1 a cluster.

    Both are sums of jumps of weighted Poisson counts, with gamma limits (Fay and Feuer 1997): of
    the losses with one jump more that is not seen yet. The limit of their difference is by variance
    recovery (Zou and Donner 2008, "MOVER").
    """
    gain_J, loss_J = jump_G[jump_G > 0], -jump_G[jump_G < 0]
    gained, lost = float(gain_J.sum()), float(loss_J.sum())
    gain_scale = float((gain_J**2).sum()) / gained if gained else math.inf
    scale = float((loss_J**2).sum() + unseen**2) / (lost + unseen)
    if scale <= UNLIKE * gain_scale:
        return float(len(jump_G))
    least = gain_scale * float(special.gammaincinv(gained / gain_scale, alpha))
    most = scale * float(special.gammaincinv((lost + unseen) / scale, 1 - alpha))
    return gained - lost - math.hypot(gained - least, most - lost)


def bisect(rising_from_negative: Callable[[float], float], low: float, high: float) -> float:
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
