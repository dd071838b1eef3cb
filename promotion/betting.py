"""Lower limit of a mean of bounded differences by betting: no assumption but its range.

In: sums of differences in [-1, 1] by cluster, the clusters' sizes, and nulls. Out: which nulls are
refused at a level, and the lower limit of the mean. Pure.

Somebody who holds that the mean is at most m offers fair bets on X = (sum - m size) / largest
size of one cluster after another. Who stakes a share b of what they have, chosen before the cluster
is looked at, multiplies it by 1 + b X; that is never below 0, so if the mean is at most m this
wealth reaches 1/alpha with probability at most alpha (Ville's inequality; Waudby-Smith and Ramdas
2024, "Estimating means of bounded random variables by betting"). It holds for every number of
clusters and every skew, where a t errs: a mean of many small gains and few whole losses looks sure
while no loss was seen.

Where we differ is the share. Theirs aims at growth, and wealth far beyond 1/alpha is of no use
here, so ours replicates what pays 1/alpha or nothing at the last cluster: given wealth W it is
the one that keeps alpha W = Phi(d) a price of that if the rest were normal, with the variance
seen so far (targets recalculated from the wealth are the idea of Voracek and Orabona 2025,
"STaR-Bets"). That gives limits nearly as narrow as a t's, and the guarantee does not hang on
it. `promotion.canary.harm` stakes fixed shares, which needs no order but excludes half as often.

Shares depend on the order, so it is nobody's to choose: by a digest of the clusters' labels, which
knows nothing of scores. Clusters are taken for independent draws, as everywhere in the gate.
"""

import hashlib
import math
from collections.abc import Hashable, Iterable

import numpy as np
import numpy.typing as npt
from scipy import special

Floats = npt.NDArray[np.float64]

FIRST_VARIANCE, FIRST_CLUSTERS = 0.02, 4.0
"""Variance before anything is seen, and how many clusters it counts for."""
UNSEEN_SHARE = 0.1
"""Share of the mean by which the null was beaten so far that may be a whole loss not yet seen."""
JUMP = 0.3
"""Finite step, of a whole loss, in which the price is differentiated: losses come in jumps."""
MOST = 0.9999
"""Largest share of what a whole loss leaves that is staked."""
STEPS, FINE_STEPS = 200, 2000
"""Nulls tried for a limit: multiples of half a point, then those of a twentieth."""


def in_order(labels: Iterable[Hashable]) -> list[int]:
    """Return in which order clusters are bet on, by the SHA-256 of their labels."""
    digests = [hashlib.sha256(str(label).encode()).digest() for label in labels]
    return sorted(range(len(digests)), key=digests.__getitem__)


def shown_above(
    sum_X_G: Floats, size_G: Floats, null_X: Floats, alpha: float
) -> npt.NDArray[np.bool_]:
    """Whether a mean is shown to be above a null in (-1, 1), many (X) at once, clusters in order.

    Either axis X may be of length 1.
    """
    value_X_G = (sum_X_G - null_X[:, None] * size_G) / size_G.max()
    loss_X, groups = 1 + null_X, len(size_G)
    # The wealth, over the 1 / alpha that is aimed at.
    wealth_X = np.full(len(value_X_G), alpha)
    total_X = np.zeros(len(value_X_G))
    square_X = np.full(len(value_X_G), FIRST_CLUSTERS * FIRST_VARIANCE)
    for seen, value_X in enumerate(value_X_G.T):
        unseen_X = UNSEEN_SHARE * loss_X * np.maximum(0, total_X)
        variance_X = (square_X + unseen_X) / (FIRST_CLUSTERS + seen)
        d_X = special.ndtri(np.clip(wealth_X, 1e-300, 1 - 1e-12))
        step_X = JUMP * loss_X / np.sqrt(variance_X * (groups - seen))
        left_X = np.exp(special.log_ndtr(d_X - step_X) - special.log_ndtr(d_X))
        share_X = np.minimum((1 - left_X) / JUMP, MOST) / loss_X
        wealth_X = np.where(wealth_X < 1, wealth_X * (1 + share_X * value_X), wealth_X)
        total_X = total_X + value_X
        square_X = square_X + value_X**2
    shown_X: npt.NDArray[np.bool_] = wealth_X >= 1
    return shown_X


def lower_limit(sum_G: Floats, size_G: Floats, alpha: float) -> float:
    """Return the lower limit at `alpha` of the mean of items, clusters in order.

    It is just above the last null that is refused with all before it, and each multiple of half a
    point is a null of its own: so far the level is exact. In between it is told in twentieths.
    """
    effect = float(sum_G.sum() / size_G.sum())
    last = _last_shown(
        sum_G, size_G, np.arange(1 - STEPS, math.floor(STEPS * effect) + 1) / STEPS, alpha
    )
    start = -FINE_STEPS if last is None else round(last * FINE_STEPS)
    between = np.arange(start + 1, start + FINE_STEPS // STEPS) / FINE_STEPS
    finer = _last_shown(sum_G, size_G, between, alpha)
    highest = last if finer is None else finer
    return -1.0 if highest is None else math.nextafter(highest, 1)


def least_shown(groups: int, spread: float, alpha: float) -> float:
    """Return the least mean that is shown to be above 0 by so many clusters of one size.

    Every other one is above the mean by `spread`, the rest below it; 1 if no mean is.
    """
    mean_X = np.arange(1, STEPS + 1) / STEPS
    sum_X_G = mean_X[:, None] + _around_0(spread, groups)
    shown_X = shown_above(sum_X_G, np.ones(groups), np.zeros(1), alpha)
    return float(mean_X[shown_X.argmax()]) if shown_X.any() else 1.0


def clusters_shown(groups: int, margin: float, spread: float, alpha: float, quantile: float) -> int:
    """Return how many clusters of one size, from `groups` on, exclude a loss of `margin`.

    Every other one is above their mean by `spread`, the rest below it; the mean is so many
    (`quantile`) standard errors below 0. In steps of a tenth.
    """
    while True:
        sum_G = _around_0(spread, groups) - quantile * spread / math.sqrt(groups)
        if shown_above(sum_G[None], np.ones(groups), np.array([-margin]), alpha)[0]:
            return groups
        groups = math.ceil(1.1 * groups)


def _around_0(spread: float, groups: int) -> Floats:
    return np.resize(np.array([spread, -spread]), groups)


def _last_shown(sum_G: Floats, size_G: Floats, null_X: Floats, alpha: float) -> float | None:
    """Return the last of ascending nulls that is refused with all before it."""
    shown_X = shown_above(sum_G[None], size_G, null_X, alpha)
    count = len(shown_X) if shown_X.all() else int(shown_X.argmin())
    return float(null_X[count - 1]) if count else None
