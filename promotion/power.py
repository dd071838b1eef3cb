"""What items could have shown: the least gain they find, how many of them exclude a loss.

In: a `PairedComparison`, whose limits say how far they reach. Out: effects and numbers of items at
a stated power.
"""

import math

from scipy import special

from promotion.betting import clusters_shown, least_shown
from promotion.paired import PairedComparison, bisect


def minimum_detectable_effect(comparison: PairedComparison, power: float = 0.8) -> float:
    """Return the smallest true gain these items would show with probability `power`.

    At the discordance (or cluster-robust standard error) seen; 1.0 where even a
    gain of everything might be missed.
    """
    alpha = comparison.alpha
    if comparison.method == "mid-p McNemar":
        psi = comparison.discordant / comparison.n
        return bisect(
            lambda delta: comparison.n - required_items(delta, max(psi, delta), alpha, power),
            1e-6,
            1.0,
        )
    t_alpha, t_power = (float(special.stdtrit(comparison.degrees, q)) for q in (1 - alpha, power))
    if comparison.method == "betting":
        least = least_shown(round(comparison.effective_clusters), _spread(comparison), alpha)
        return min(1.0, least + t_power * comparison.standard_error)
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
    n = psi (z_a + z_b)^2 / margin^2 for independent items, and as many more as betting takes
    for graded ones. Never fewer than it takes when no item differs at all, ln(alpha) /
    ln(1 - margin) items, or clusters like these.
    """
    alpha, effective = comparison.alpha, comparison.effective_clusters
    quantiles = (1 - alpha, power)
    if comparison.degrees is None:
        z_alpha, z_power = (float(special.ndtri(q)) for q in quantiles)
    else:
        z_alpha, z_power = (float(special.stdtrit(comparison.degrees, q)) for q in quantiles)
    spread = comparison.n * ((z_alpha + z_power) * comparison.standard_error / margin) ** 2
    silent = math.log(alpha) / math.log(1 - margin) * comparison.n / effective
    needed = math.ceil(max(spread, silent) - 1e-9)
    if comparison.method != "betting":
        return needed
    start = math.ceil(needed * effective / comparison.n - 1e-9)
    clusters = clusters_shown(start, margin, _spread(comparison), alpha, z_power)
    return math.ceil(clusters * comparison.n / effective - 1e-9)


def _spread(comparison: PairedComparison) -> float:
    """Standard deviation of clusters of one size that leave the error seen."""
    return min(1.0, comparison.standard_error * math.sqrt(comparison.effective_clusters))
