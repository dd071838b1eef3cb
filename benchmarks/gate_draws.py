"""What `gate_monte_carlo` draws: designs of clusters, and differences of two arms on them."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

Floats = npt.NDArray[np.floating[Any] | np.int8]
"""Scores and limits, of whatever width they are drawn in."""

PSI = 0.2
"""Share of items on which two arms that are equally good differ."""
ICC = 0.3
"""Intraclass correlation of what makes an item go one way or the other."""
DESIGNS: Mapping[str, tuple[int, ...]] = {
    "50x8": (8,) * 50,
    "40x10": (10,) * 40,
    "20x20": (20,) * 20,
    "10x40": (40,) * 10,
    "4 to 140": (4, 4, 8, 8, 16, 30, 40, 60, 90, 140),
}
"""Sizes of the clusters, about 400 items each."""
RARE: Mapping[str, tuple[tuple[int, ...], float, float]] = {
    "54x2 and 148x1, 1% won": ((2,) * 54 + (1,) * 148, 0.01, 0.03),
    "66x2 and 124x1, 1% won": ((2,) * 66 + (1,) * 124, 0.01, 0.02),
    "40x10, 1% won": ((10,) * 40, 0.01, 0.1),
    "100x1 and 5x50, 1% won": ((1,) * 100 + (50,) * 5, 0.01, 0.1),
    "200 of 1 to 60, 5% won": (tuple(max(1, 60 // (i + 1)) for i in range(200)), 0.05, 0.1),
}
"""Clusters that are won or lost whole and rarely: sizes, share that is won, points lost.

The first two are how built-in suites are drawn, the last two how users' conversations may lie.
"""
GRADED: Mapping[str, tuple[tuple[int, ...], float, float, float]] = {
    "60x1, 0.1 on nearly all": ((1,) * 60, 0.1, 1.0, 0.0),
    "200x1, 0.05 on nearly all": ((1,) * 200, 0.05, 1.0, 0.0),
    "256x1, 0.05 on nearly all": ((1,) * 256, 0.05, 1.0, 0.0),
    "256x1, 0.2 on nearly all": ((1,) * 256, 0.2, 1.0, 0.0),
    "256x1, -0.1 on nearly all": ((1,) * 256, -0.1, 1.0, 0.0),
    "256x1, 1 of 3 samples on 10%": ((1,) * 256, 1 / 3, 0.1, 0.0),
    "256x1, 1 of 5 samples on 10%": ((1,) * 256, 1 / 5, 0.1, 0.0),
    "256x1, 1 of 10 samples on 30%": ((1,) * 256, 1 / 10, 0.3, 0.0),
    "200x1, 1 of 20 samples on 60%": ((1,) * 200, 1 / 20, 0.6, 0.0),
    "60x1, 1 of 10 samples on 1%": ((1,) * 60, 1 / 10, 0.01, 0.0),
    "200x1, 1 of 3 samples on 5%, 1% won": ((1,) * 200, 1 / 3, 0.05, 0.01),
    "200x4, 0.05 on nearly all": ((4,) * 200, 0.05, 1.0, 0.0),
    "54x2 and 148x1, 0.1 on half": ((2,) * 54 + (1,) * 148, 0.1, 0.5, 0.0),
    "200 of 1 to 60, 0.1 on nearly all": (RARE["200 of 1 to 60, 5% won"][0], 0.1, 1.0, 0.0),
}
"""Graded scores that are skewed: sizes of the clusters, a step, share of clusters that moves by it,
share that is won whole; so many are moved whole the other way that the mean is right."""
LOPSIDED: Mapping[str, tuple[tuple[int, ...], int, float]] = {
    "60x2, 1 item won in a third": ((2,) * 60, 1, 0.3),
    "50x4, 1 item won in most": ((4,) * 50, 1, 0.7),
    "150x10, 1 item won in most": ((10,) * 150, 1, 0.85),
    "150x10, 8 items won in a twentieth": ((10,) * 150, 8, 0.05),
    "200x20, 1 item won in nearly all": ((20,) * 200, 1, 0.9),
}
"""0/1 items of which a cluster gains some, or is lost whole: sizes of the clusters, how many are
won, share of clusters that win them; so many are lost that the mean is right."""
SAMPLES = (1, 3, 5, 10, 20)
"""Answers to each of 256 items from each arm, for `sampled`."""


def pairs(
    rng: np.random.Generator, runs: int, n: int, gain: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Draw numbers of won and of lost items of n independent ones that differ on PSI of them."""
    shares = [(PSI + gain) / 2, (PSI - gain) / 2, 1 - PSI]
    drawn_R_3 = rng.multinomial(n, shares, size=runs)
    return drawn_R_3[:, 0], drawn_R_3[:, 1]


def ternary(rng: np.random.Generator, runs: int, sizes: tuple[int, ...], gain: float) -> Floats:
    """Draw differences of -1, 0 and 1 whose latent normal has the intraclass correlation ICC."""
    cluster_N = np.repeat(np.arange(len(sizes)), sizes)
    latent_R_N = rng.standard_normal((runs, len(cluster_N)), dtype=np.float32)
    latent_R_N *= math.sqrt(1 - ICC)
    shared_R_G = rng.standard_normal((runs, len(sizes)), dtype=np.float32)
    latent_R_N += math.sqrt(ICC) * shared_R_G[:, cluster_N]
    high, low = -special.ndtri((PSI + gain) / 2), special.ndtri((PSI - gain) / 2)
    found_R_N: Floats = (latent_R_N > high).astype(np.float32) - (latent_R_N < low)
    return found_R_N


def noisy(rng: np.random.Generator, runs: int, sizes: tuple[int, ...]) -> Floats:
    """Draw differences of grades by a judge who is sure of some clusters and guesses at others.

    Quality is common to both arms; the error has a standard deviation of 0.05 to 0.5 by cluster
    and grades are cut to [0, 1].
    """
    cluster_N = np.repeat(np.arange(len(sizes)), sizes)
    shape = (runs, len(cluster_N))
    quality_R_N = rng.random(shape, dtype=np.float32)
    spread_R_N = rng.uniform(0.05, 0.5, (runs, len(sizes))).astype(np.float32)[:, cluster_N]
    arms = []
    for _ in range(2):
        mood_R_N = rng.standard_normal((runs, len(sizes)), dtype=np.float32)[:, cluster_N]
        error_R_N = math.sqrt(1 - ICC) * rng.standard_normal(shape, dtype=np.float32)
        error_R_N += math.sqrt(ICC) * mood_R_N
        arms.append(np.clip(quality_R_N + spread_R_N * error_R_N, 0, 1))
    difference_R_N: Floats = arms[1] - arms[0]
    return difference_R_N


def broken(rng: np.random.Generator, runs: int, sizes: tuple[int, ...], share: float) -> Floats:
    """Draw differences where each cluster is lost whole with a probability, else nothing moves."""
    lost_R_G = rng.random((runs, len(sizes))) < share
    return -lost_R_G[:, np.repeat(np.arange(len(sizes)), sizes)].astype(np.float32)


def rare(
    rng: np.random.Generator, runs: int, sizes: tuple[int, ...], gained: float, lost: float
) -> Floats:
    """Draw differences where each cluster is won whole, lost whole or does not move."""
    drawn_R_G = rng.random((runs, len(sizes)), dtype=np.float32)
    moved_R_G = (drawn_R_G > 1 - gained).astype(np.float32) - (drawn_R_G < lost)
    found_R_N: Floats = moved_R_G[:, np.repeat(np.arange(len(sizes)), sizes)]
    return found_R_N


def lopsided(
    rng: np.random.Generator, runs: int, case: tuple[tuple[int, ...], int, float], effect: float
) -> Floats:
    """Draw differences where each cluster wins some items, is lost whole or does not move."""
    sizes, won, share = case
    drawn_R_G = rng.random((runs, len(sizes)), dtype=np.float32)
    lost = share * won / sizes[0] - effect
    assert share + lost <= 1, "a cluster cannot both win and lose"
    moved_R_G_M = np.zeros((runs, len(sizes), sizes[0]), dtype=np.int8)
    moved_R_G_M[drawn_R_G < lost] = -1
    moved_R_G_M[..., :won][drawn_R_G > 1 - share] = 1
    found_R_N: Floats = moved_R_G_M.reshape(runs, -1)
    return found_R_N


def skewed(
    rng: np.random.Generator,
    runs: int,
    design: tuple[tuple[int, ...], float, float, float],
    mean: float,
) -> Floats:
    """Draw differences of a design of GRADED with this mean."""
    sizes, step, share, won = design
    whole = -math.copysign(1.0, step)
    moved = (mean - won - share * step) / whole
    if share + moved + won > 1:
        moved = (mean - step) / (whole - step)
        share = 1 - moved
    drawn_R_G = rng.random((runs, len(sizes)))
    ends = np.cumsum([moved, won, share])
    found_R_G = np.select([drawn_R_G < end for end in ends], [whole, 1.0, step], 0.0)
    found_R_N: Floats = found_R_G[:, np.repeat(np.arange(len(sizes)), sizes)]
    return found_R_N


def sampled(rng: np.random.Generator, runs: int, n: int, samples: int, gain: float) -> Floats:
    """Draw differences of two arms' mean scores of several samples, items of every difficulty.

    How often an item comes out right is drawn at the ends more than in the middle; the better arm
    is right a `gain` more often.
    """
    right_R_N = rng.beta(0.3, 0.3, (runs, n)) * (1 - abs(gain))
    better_R_N = rng.binomial(samples, right_R_N + abs(gain))
    worse_R_N = rng.binomial(samples, right_R_N)
    found_R_N: Floats = math.copysign(1.0, gain) * (better_R_N - worse_R_N) / samples
    return found_R_N


def graded(
    rng: np.random.Generator, runs: int, mean: float
) -> dict[str, tuple[Floats, tuple[int, ...]]]:
    """Draw differences with this mean, and their sizes, of all of GRADED and of all SAMPLES."""
    found = {
        f"graded, {name}": (skewed(rng, runs, design, mean), design[0])
        for name, design in GRADED.items()
    }
    for samples in SAMPLES:
        found[f"256, {samples} samples"] = (sampled(rng, runs, 256, samples, mean), (1,) * 256)
    return found
