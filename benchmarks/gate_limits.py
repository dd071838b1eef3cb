"""The gate's limits of many simulated runs at once; a twin of `promotion.paired` and `betting`.

In: differences of two arms by run (R) and item (N), clusters in order. Out: lower limits, or
whether a bound is excluded. Tests hold each to `compare`.
"""

from functools import cache

import numpy as np
import numpy.typing as npt
from scipy import special

from benchmarks.gate_draws import Floats
from promotion.betting import in_order, shown_above
from promotion.paired import UNLIKE, mcnemar_limits, share_at_most

Bools = npt.NDArray[np.bool_]


def shown(difference_R_N: Floats, sizes: tuple[int, ...], alpha: float, bound: float) -> Bools:
    """Whether `compare(...).lower` is above a bound (half points), all runs at once.

    Scores are taken for graded where a difference is other than -1, 0 and 1.
    """
    graded_R = (difference_R_N != np.round(difference_R_N)).any(1)
    found_R = np.zeros(len(graded_R), dtype=bool)
    if graded_R.any():
        starts_G = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        graded_R_N = difference_R_N[graded_R]
        sum_R_G = np.add.reduceat(graded_R_N, starts_G, axis=1, dtype=np.float64)
        order_G = in_order(range(len(sizes)))
        size_G = np.array(sizes, dtype=np.float64)[order_G]
        found_R[graded_R] = shown_above(sum_R_G[:, order_G], size_G, np.array([bound]), alpha)
    if not graded_R.all():
        rest_R_N = difference_R_N[~graded_R]
        if max(sizes) > 1:
            found_R[~graded_R] = lower_limits(rest_R_N, sizes, alpha) > bound
        else:
            gains_R, losses_R = (rest_R_N > 0).sum(1), (rest_R_N < 0).sum(1)
            found_R[~graded_R] = tabulated(gains_R, losses_R, len(sizes), alpha, bound)
    return found_R


def lower_limits(difference_R_N: Floats, sizes: tuple[int, ...], alpha: float) -> Floats:
    """Return `compare(...).lower` of clustered 0/1 items, all runs at once, clusters in order."""
    size_G = np.array(sizes, dtype=np.float64)
    n, groups = int(size_G.sum()), len(sizes)
    starts_G = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    sum_R_G = np.add.reduceat(difference_R_N, starts_G, axis=1, dtype=np.float64)
    effect_R = sum_R_G.sum(1) / n
    weight_G = 1 / (1 - size_G / n)
    residual_R_G = sum_R_G - effect_R[:, None] * size_G
    error_R = np.sqrt((weight_G * residual_R_G**2).sum(1)) / n
    shared_G = weight_G * size_G**2
    between = (shared_G.sum() ** 2 - (shared_G**2).sum()) / n**2
    degrees = n**2 / ((size_G**2).sum() + between)
    t_alpha = float(special.stdtrit(degrees, 1 - alpha))
    unseen = share_at_most(0, degrees + 1, alpha)
    jump_R_G = np.abs(sum_R_G) / size_G.mean()
    unseen_R = (jump_R_G / size_G).max(1) * (size_G**2).sum() / size_G.sum()
    total_R = np.maximum(jump_R_G.sum(1) + unseen_R, 1e-12)
    scale_R = np.maximum(((jump_R_G**2).sum(1) + unseen_R**2) / total_R, 1e-12)
    gains_R, losses_R = (
        np.maximum(sign * sum_R_G, 0).sum(1) / size_G.mean() / scale_R for sign in (1, -1)
    )
    units_R = groups / scale_R
    score_R = _tango_lower(gains_R, losses_R, units_R, t_alpha)
    exact_R = special.betaincinv(losses_R + 1, np.maximum(units_R - losses_R, 1e-9), 1 - alpha)
    score_R = np.minimum(score_R, _unlike_lower(sum_R_G / size_G.mean(), unseen_R, alpha) / groups)
    share_L = np.array([share_at_most(lost, groups, alpha) for lost in range(groups + 1)])
    lowest_R = share_L[(sum_R_G < -1e-12).sum(1)] * (sum_R_G / size_G).min(1)
    score_R = np.where(gains_R < 1e-9, np.minimum(score_R, np.minimum(-exact_R, lowest_R)), score_R)
    lower_R = np.minimum(effect_R - np.maximum(t_alpha * error_R, unseen), score_R)
    lower_R = np.where(error_R < 1e-12, effect_R - (1 + effect_R) * unseen, lower_R)
    cut_R: Floats = np.maximum(-1.0, lower_R)
    return cut_R


def _tango_lower(gains_R: Floats, losses_R: Floats, n_R: Floats, quantile: float) -> Floats:
    """Return the score limit of `promotion.paired` of all runs at once."""
    low_R, high_R = np.full(gains_R.shape, -1.0), (gains_R - losses_R) / n_R
    for _ in range(60):
        delta_R = (low_R + high_R) / 2
        b_R = (2 * n_R - gains_R + losses_R) * delta_R - gains_R - losses_R
        c_R = -losses_R * delta_R * (1 - delta_R)
        q_R = (np.sqrt(np.maximum(0, b_R**2 - 8 * n_R * c_R)) - b_R) / (4 * n_R)
        variance_R = np.maximum(0, n_R * (2 * q_R + delta_R * (1 - delta_R)))
        below_R = quantile * np.sqrt(variance_R) < gains_R - losses_R - n_R * delta_R
        low_R, high_R = np.where(below_R, delta_R, low_R), np.where(below_R, high_R, delta_R)
    return high_R


def _unlike_lower(jump_R_G: Floats, unseen_R: Floats, alpha: float) -> Floats:
    """Return the limit of `promotion.paired` for losses in larger jumps, of all runs at once."""
    gain_R_G, loss_R_G = np.maximum(jump_R_G, 0), np.maximum(-jump_R_G, 0)
    gained_R, lost_R = gain_R_G.sum(1), loss_R_G.sum(1)
    gain_scale_R = np.maximum((gain_R_G**2).sum(1) / np.maximum(gained_R, 1e-12), 1e-12)
    scale_R = ((loss_R_G**2).sum(1) + unseen_R**2) / np.maximum(lost_R + unseen_R, 1e-12)
    scale_R = np.maximum(scale_R, 1e-12)
    least_R = gain_scale_R * special.gammaincinv(gained_R / gain_scale_R, alpha)
    most_R = scale_R * special.gammaincinv((lost_R + unseen_R) / scale_R, 1 - alpha)
    limit_R = gained_R - lost_R - np.hypot(gained_R - least_R, most_R - lost_R)
    alike_R = (gained_R == 0) | (scale_R <= UNLIKE * gain_scale_R)
    found_R: Floats = np.where(alike_R, jump_R_G.shape[1], limit_R)
    return found_R


def independent_better(
    gains_R: npt.NDArray[np.int64], losses_R: npt.NDArray[np.int64], n: int, alpha: float
) -> Bools:
    """Return `compare(...).better` of independent binary items, all runs at once."""
    return tabulated(gains_R, losses_R, n, alpha, 0.0)


def tabulated(
    gains_R: npt.NDArray[np.int64], losses_R: npt.NDArray[np.int64], n: int, alpha: float,
    bound: float,
) -> Bools:  # fmt: skip
    """Whether the lower limit is above a bound; more gains of as many pairs never lower it."""
    pairs_R = gains_R + losses_R
    fewest_P = np.full(int(pairs_R.max()) + 1, n + 1)
    for count in np.unique(pairs_R):
        fewest_P[count] = _fewest_gains(int(count), n, alpha, bound)
    enough_R: Bools = gains_R >= fewest_P[pairs_R]
    return enough_R


@cache
def _fewest_gains(count: int, n: int, alpha: float, bound: float) -> int:
    low, high = 0, count + 1
    while low < high:
        gains = (low + high) // 2
        if mcnemar_limits(gains, count - gains, n, alpha)[0] > bound:
            high = gains
        else:
            low = gains + 1
    return low
