"""Wilson's score interval of a share, in plain arithmetic: blame asks it for every failed turn."""

from math import sqrt

Z_95 = 1.959963984540054


def wilson(successes: float, turns: float, z: float = Z_95) -> tuple[float, float]:
    """Return Wilson's score interval (JASA 22, 1927), 95 % by default; (0, 1) of no turns."""
    if turns == 0:
        return 0.0, 1.0
    rate, extra = successes / turns, z * z / turns
    middle = rate + extra / 2
    half = z * sqrt(rate * (1 - rate) / turns + extra / (4 * turns))
    low, high = (middle - half) / (1 + extra), (middle + half) / (1 + extra)
    # Exact at the ends, where rounding would leave a trace.
    return 0.0 if successes == 0 else max(0.0, low), 1.0 if successes == turns else min(1.0, high)
