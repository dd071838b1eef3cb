"""One version's score on a suite: mean, interval, and how many items could be judged."""

import math
from collections.abc import Sequence

import numpy as np

from promotion.paired import cluster_mean
from serving.records import Record
from traces.attribution.intervals import wilson


class SuiteScore(Record):
    """What one version got; scores are in [0, 1]."""

    n: int
    """Items that could be judged."""
    clusters: int
    unjudged: int
    mean: float | None
    """None if nothing could be judged."""
    lower: float | None
    """Limits of the two-sided 95% interval."""
    upper: float | None


def score_of(scores: Sequence[float | None], clusters: Sequence[str]) -> SuiteScore:
    """Return the mean with Wilson's interval for as many independent items as these amount to.

    That number is n over the design effect, which is the variance of the mean by clusters over
    that of n independent items (Dean and Pagano, Survey Methodology 41, 2015); it is at most n,
    and where all items score alike the number of clusters.
    """
    judged = [(s, c) for s, c in zip(scores, clusters, strict=True) if s is not None]
    numbers = {cluster: k for k, cluster in enumerate(dict.fromkeys(c for _, c in judged))}
    n, groups = len(judged), len(numbers)
    if not judged:
        return SuiteScore(n=0, clusters=0, unjudged=len(scores), mean=None, lower=None, upper=None)
    mean = math.fsum(s for s, _ in judged) / n
    independent = float(groups)
    if 0 < mean < 1 and groups > 1:
        value_N = np.array([s for s, _ in judged])
        error = cluster_mean(value_N, np.array([numbers[c] for _, c in judged])).standard_error
        alone = mean * (1 - mean) / (n - 1)
        independent = min(float(n), n * alone / error**2) if error else float(groups)
    lower, upper = wilson(mean * independent, independent)
    return SuiteScore(
        n=n,
        clusters=groups,
        unjudged=len(scores) - n,
        mean=mean,
        lower=lower,
        upper=upper,
    )
