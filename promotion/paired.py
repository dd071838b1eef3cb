"""Paired comparison of champion and challenger on the same items.

In: per-item scores in [0, 1] of both arms and a cluster label an item (user,
template, conversation). Out: the mean difference, its one-sided limits, a
p-value for "the challenger is no better", and what the items could have shown.

Two methods, after notes on evaluation gates (Miller 2024, arXiv 2411.00640, for
pairing and clusters):

- independent binary items: mid-p McNemar test (Fagerland, Lydersen and Laake
  2013) with Tango's (1998) score limits for a paired difference of proportions;
- everything else: CR1 cluster-robust t with G - 1 degrees of freedom, the same
  numbers as statsmodels' OLS on a constant with `cov_type="cluster"`. Its own
  three lines, because importing statsmodels takes seconds; tests compare both.

Where the data hold too little to estimate a variance, both fall back on exact
binomial bounds, so that silence is never read as certainty.
"""

import math
from collections.abc import Callable, Hashable, Sequence
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
    p_value: float
    """One-sided, against "the challenger is no better"."""
    alpha: float
    method: Method

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
    if binary and group_count == n:
        gains, losses = int((difference_N > 0).sum()), int((difference_N < 0).sum())
        lower, upper, p_value = _mcnemar(gains, losses, n, alpha)
        method = "mid-p McNemar"
    else:
        lower, upper, p_value = _cluster_t(difference_N, cluster_N, alpha)
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
    gain of everything might be missed. For clustered items the standard error
    is read back from the limits, so that no data need be kept.
    """
    alpha = comparison.alpha
    if comparison.method == "mid-p McNemar":
        psi = comparison.discordant / comparison.n
        return _bisect(
            lambda delta: comparison.n - required_items(delta, max(psi, delta), alpha, power),
            1e-6,
            1.0,
        )
    degrees = comparison.clusters - 1
    half_width = (comparison.upper - comparison.lower) / 2
    t_alpha, t_power = (float(special.stdtrit(degrees, q)) for q in (1 - alpha, power))
    return min(1.0, half_width * (1 + t_power / t_alpha))


def required_items(delta: float, psi: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """Return how many independent binary items show a gain of `delta` (unrounded).

    `psi` is the share of items on which the arms differ (at least `delta`):
    n = ((z_a sqrt(psi) + z_b sqrt(psi - delta^2)) / delta)^2 (Connor 1987).
    """
    z_alpha, z_power = float(special.ndtri(1 - alpha)), float(special.ndtri(power))
    spread = z_alpha * math.sqrt(psi) + z_power * math.sqrt(max(0.0, psi - delta**2))
    return (spread / delta) ** 2


def informative_needed(alpha: float) -> int:
    """Return how many one-sided coin flips a sign test needs before it can reach alpha."""
    return math.ceil(math.log(alpha) / math.log(0.5) - 1e-9)


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


def _mcnemar(gains: int, losses: int, n: int, alpha: float) -> tuple[float, float, float]:
    """Limits and p-value for independent binary items.

    Tango's limits alone are liberal with one-sided or no discordance, where the
    loss is at most the exact (Clopper-Pearson) bound on the losing share: for no
    discordant pair at all the limits are +-(1 - alpha^(1/n)). A limit never
    claims a sign that the mid-p test does not support.
    """
    p_value = mid_p(gains, losses)
    lower = _tango_lower(gains, losses, n, alpha)
    upper = -_tango_lower(losses, gains, n, alpha)
    if gains == 0:
        lower = min(lower, -_share_at_most(losses, n, alpha))
    if losses == 0:
        upper = max(upper, _share_at_most(gains, n, alpha))
    if p_value > alpha:
        lower = min(lower, 0.0)
    if mid_p(losses, gains) > alpha:
        upper = max(upper, 0.0)
    return lower, upper, p_value


def _tango_lower(gains: int, losses: int, n: int, alpha: float) -> float:
    """Smallest difference the score test at one-sided alpha does not reject (Tango 1998)."""
    z_alpha = float(special.ndtri(1 - alpha))

    def excess(delta: float) -> float:
        # q: maximum-likelihood share of losses when the difference is `delta`.
        b = (2 * n - gains + losses) * delta - gains - losses
        c = -losses * delta * (1 - delta)
        q = (math.sqrt(max(0.0, b * b - 8 * n * c)) - b) / (4 * n)
        variance = n * (2 * q + delta * (1 - delta))
        return z_alpha * math.sqrt(max(0.0, variance)) - (gains - losses - n * delta)

    effect = (gains - losses) / n
    return _bisect(excess, -1.0, effect) if effect > -1 else -1.0


def _share_at_most(count: int, n: int, alpha: float) -> float:
    """Exact one-sided upper limit of a binomial share; 1 - alpha^(1/n) for a count of 0."""
    return 1.0 if count == n else float(special.betaincinv(count + 1, n - count, 1 - alpha))


def _cluster_t(
    difference_N: Floats, cluster_N: npt.NDArray[np.int64], alpha: float
) -> tuple[float, float, float]:
    """Limits and p-value by CR1 cluster-robust t, t with G - 1 degrees of freedom.

    Two guards against too little variance. If every cluster differs by the same d,
    the limits let a share s = 1 - alpha^(1/G) of clusters, the exact bound on what
    G alike can have missed, be at the far end of the scale. If fewer clusters stray
    from 0 than a sign test needs to reach alpha, the limits are no tighter than +-s,
    what no difference at all gives.
    """
    n, groups = len(difference_N), int(cluster_N.max()) + 1
    effect = float(difference_N.mean())
    unseen = _share_at_most(0, groups, alpha)
    residual_G = np.bincount(cluster_N, weights=difference_N - effect, minlength=groups)
    error = math.sqrt(groups / (groups - 1) * float((residual_G**2).sum())) / n
    if error < 1e-12:
        p_value = 1.0 if effect < -1e-12 else 0.5 if effect < 1e-12 else 0.5**groups
        return effect - (1 + effect) * unseen, effect + (1 - effect) * unseen, p_value
    half_width = float(special.stdtrit(groups - 1, 1 - alpha)) * error
    lower, upper = effect - half_width, effect + half_width
    strays = int((np.abs(np.bincount(cluster_N, weights=difference_N)) > 1e-12).sum())
    if strays < informative_needed(alpha):
        lower, upper = min(lower, -unseen), max(upper, unseen)
    return lower, upper, 1 - float(special.stdtr(groups - 1, effect / error))


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
