"""Off-policy estimates: what another way of routing would have been worth on logged turns.

In: arrays of what a randomised router logged (action, its propensity, reward, conversation), the
other policy's probabilities, and predictions of an outcome model that never saw the turns it
predicts. Out: a frozen `PolicyValue` with three estimates and their intervals, or a refusal in
one line. Pure numpy; `traces.attribution.logged_routes` reads the lake, `outcome_model` predicts.

    IPS    (1/n) sum w r,  w = policy(a|x) / propensity     (Horvitz and Thompson 1952)
    SNIPS  sum w r / sum w                                   (Swaminathan and Joachims 2015)
    DR     (1/n) sum [ sum_a policy(a|x) q(x,a) + w (r - q(x,a_taken)) ]
           (Dudik, Langford and Li 2011, arXiv 1103.4601), q cross-fitted
    ESS    (sum w)^2 / sum w^2                               (Kish)

Intervals are of the influence function, summed by conversation. Weights make it skewed and its
variance uncertain; a plain normal interval falls to 90% where few draws weigh much. So quantiles
are of Student's t with the degrees of freedom that the fourth moment leaves (Satterthwaite), taken
through Hall's (1992) monotone cubic transformation, which removes the skewness.

No weight is ever clipped: that trades a bias nobody sees for a variance that everybody does.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from serving.errors import MolError
from serving.records import Record

MIN_ESS = 100.0
"""Fewest turns that the weighted ones must be worth; a caller may ask for more, not for fewer."""
MIN_CARRIERS = 30.0
"""Fewest turns of the largest weights that must carry the variance, `(sum w^2)^2 / sum w^4`. Where
a policy mostly agrees with the logged one, hundreds of effective turns may hang on ten draws."""
MIN_CONVERSATIONS = 30
"""Fewest conversations whose sums the variance is taken over."""
MAX_WEIGHT = 1000.0
"""A larger weight would have to be clipped."""
MAX_DRIFT = 4.0
"""Standard errors that the mean weight, 1 in truth, or the number of draws may be off."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class EstimateRefused(MolError, ValueError):
    """The logged turns cannot tell what the other policy is worth."""


@dataclass(frozen=True, slots=True)
class Logged:
    """N turns of a randomised router."""

    labels: tuple[str, ...]
    """The K actions."""
    action_N: Ints
    """Taken action, an index of `labels`."""
    propensity_N: Floats
    """Probability with which the router took it; NaN where none was logged."""
    reward_N: Floats
    """In [0, 1]."""
    conversation_N: Ints
    """Turns with the same number are not independent."""


class Value(Record):
    """An estimate with its interval; an IPS estimate alone may lie outside [0, 1]."""

    estimate: float
    lower: float
    upper: float
    se: float
    """Cluster-robust standard error."""


class PolicyValue(Record):
    """Mean reward that a policy would have had on the logged turns."""

    n: int
    conversations: int
    matched: int
    """Turns that weigh anything: the policy might have done as the router did."""
    ess: float
    """Effective sample size."""
    mean_weight: float
    """1 but for chance."""
    max_weight: float
    level: float
    """Of the intervals, such as 0.95."""
    logged: Value
    """Of the logged policy itself, on the same turns."""
    ips: Value
    snips: Value
    dr: Value
    gain: Value
    """`dr` less `logged`."""


def estimate(
    logged: Logged,
    policy_N_K: Floats,
    predicted_N_K: Floats,
    *,
    level: float = 0.95,
    min_ess: float = MIN_ESS,
) -> PolicyValue:
    """Estimate the value of a policy.

    Args:
        logged: what was logged.
        policy_N_K: probability of each action in each turn.
        predicted_N_K: expected reward of each action in each turn, by a model that did not see
            the turn's conversation. A bad model widens the interval of `dr` and biases nothing.
        level: of the intervals.
        min_ess: refuses below it; at least `MIN_ESS`.

    Raises:
        EstimateRefused: naming the first thing that is wrong.
    """
    _check_logged(logged)
    _check_policy(logged, policy_N_K, predicted_N_K)
    if not 0.5 < level < 1:
        raise EstimateRefused(f"Interval level {level!r} is not between 0.5 and 1, such as 0.95.")
    weight_N = policy_N_K[np.arange(len(logged.action_N)), logged.action_N] / logged.propensity_N
    _check_weights(logged, weight_N, max(min_ess, MIN_ESS))
    by = _Conversations(logged.conversation_N, level)
    reward_N = logged.reward_N
    taken_N = predicted_N_K[np.arange(len(reward_N)), logged.action_N]
    snips = float((weight_N * reward_N).sum() / weight_N.sum())
    score_N = (policy_N_K * predicted_N_K).sum(axis=1) + weight_N * (reward_N - taken_N)
    ess = effective_sample_size(weight_N)
    unseen = _unseen(reward_N[weight_N > 0], ess, level)
    return PolicyValue(
        n=len(reward_N),
        conversations=by.count,
        matched=int((weight_N > 0).sum()),
        ess=ess,
        mean_weight=float(weight_N.mean()),
        max_weight=float(weight_N.max()),
        level=level,
        logged=by.mean(reward_N, _unseen(reward_N, by.count, level)),
        ips=by.mean(weight_N * reward_N, unseen),
        snips=by.mean(snips + weight_N * (reward_N - snips) / weight_N.mean(), unseen),
        dr=by.mean(score_N, unseen),
        gain=by.mean(score_N - reward_N, unseen, lowest=-1.0),
    )


def effective_sample_size(weight_N: Floats) -> float:
    """Return how many turns of equal weight these are worth; 0 where none weighs anything."""
    squares = float((weight_N**2).sum())
    return float(weight_N.sum()) ** 2 / squares if squares else 0.0


def carriers(weight_N: Floats) -> float:
    """Return how many turns of equal weight the sum of squared weights is made of."""
    fourths = float((weight_N**4).sum())
    return float((weight_N**2).sum()) ** 2 / fourths if fourths else 0.0


def check_draws(drawn_N: npt.NDArray[np.bool_], chance_N: Floats) -> None:
    """Check that actions were drawn as often as the logged chances say.

    Args:
        drawn_N: whether the turn's action is another than the router's choice.
        chance_N: probability of that, by the logged propensities.

    Raises:
        EstimateRefused: if the number is too far off for chance.
    """
    expected, found = float(chance_N.sum()), int(drawn_N.sum())
    spread = math.sqrt(float((chance_N * (1 - chance_N)).sum()))
    if abs(found - expected) > MAX_DRIFT * spread + 1:
        raise EstimateRefused(
            f"{found:,} of {len(drawn_N):,} turns were explored where the logged propensities "
            f"say about {expected:,.0f}; the log is incomplete or selected by what was done. "
            "Take in the whole spool, and choose turns only by what was known before the route."
        )


class _Conversations:
    """Means of turns with intervals robust to what conversations share."""

    def __init__(self, conversation_N: Ints, level: float) -> None:
        _, self.index_N = np.unique(conversation_N, return_inverse=True)
        self.count, self.level = int(self.index_N.max()) + 1, level

    def mean(self, value_N: Floats, unseen: float = 0.0, lowest: float = 0.0) -> Value:
        """Return the mean; an interval within [lowest, 1], `unseen` wide at least on each side."""
        mean = float(value_N.mean())
        sum_G = np.bincount(self.index_N, weights=value_N - mean)
        deviation_G = np.asarray(sum_G * (self.count / len(value_N)), dtype=np.float64)
        lower, upper, se = interval(deviation_G, self.level)
        lower, upper = min(mean + lower, mean - unseen), max(mean + upper, mean + unseen)
        return Value(
            estimate=mean,
            lower=min(max(lower, lowest), 1.0),
            upper=max(min(upper, 1.0), lowest),
            se=se,
        )


def interval(deviation_G: Floats, level: float = 0.95) -> tuple[float, float, float]:
    """Return how far the truth may be below and above a mean, and the mean's standard error.

    `deviation_G` are independent deviations from that mean, one a conversation. Without any
    spread all three are 0. Source: Hall, "On the removal of skewness by transformation" (1992),
    J. R. Statist. Soc. B 54; where we differ, his normal quantile is one of Student's t.
    """
    from scipy.special import stdtrit

    groups = len(deviation_G)
    second = float((deviation_G**2).mean())
    if groups < 2 or second < 1e-18:
        return 0.0, 0.0, 0.0
    se = math.sqrt(second / (groups - 1))
    third = float((deviation_G**3).mean()) / second**1.5 / math.sqrt(groups)
    fourth = float((deviation_G**4).mean()) / second**2
    degrees = min(max(2 * groups / max(fourth - 1, 1e-9), 2.0), groups - 1.0)
    quantile = float(stdtrit(degrees, (1 + level) / 2))
    if abs(third) < 1e-6:
        return -quantile * se, quantile * se, se

    high, low = np.cbrt(1 + third * (np.array([quantile, -quantile]) - third / 6)) - 1
    return -float(3 / third * high) * se, -float(3 / third * low) * se, se


def _is_flat(reward_N: Floats) -> bool:
    return bool((reward_N == reward_N[0]).all())


def _unseen(reward_N: Floats, size: float, level: float) -> float:
    """Return how far the mean of equal rewards may be off (Clopper-Pearson); 0 if they differ."""
    return 1 - math.exp(math.log((1 - level) / 2) / size) if _is_flat(reward_N) else 0.0


def _check_logged(logged: Logged) -> None:
    n, k = len(logged.action_N), len(logged.labels)
    shapes = {len(logged.propensity_N), len(logged.reward_N), len(logged.conversation_N)}
    if shapes != {n} or not n:
        raise EstimateRefused(
            f"{n!r} actions with {len(logged.propensity_N)!r} propensities, "
            f"{len(logged.reward_N)!r} rewards and {len(logged.conversation_N)!r} conversations "
            "are no logged turns; each turn has one of each, and there is at least one turn."
        )
    missing = int(np.isnan(logged.propensity_N).sum())
    if missing:
        raise EstimateRefused(
            f"{missing:,} of {n:,} routed turns have no logged propensity, so nobody knows how "
            "likely their slot was. Serve with '--serve.router.epsilon 0.1', which logs it."
        )
    wrong_N = ~((logged.propensity_N > 0) & (logged.propensity_N <= 1))
    if wrong_N.any():
        raise EstimateRefused(
            f"The logged propensity {float(logged.propensity_N[wrong_N.argmax()])!r} is no "
            "probability in (0, 1] of an action that was taken; correct what records it."
        )
    if not ((logged.reward_N >= 0) & (logged.reward_N <= 1)).all():
        raise EstimateRefused("A reward is not in [0, 1]; give 1 for success and 0 for failure.")
    if not ((logged.action_N >= 0) & (logged.action_N < k)).all():
        raise EstimateRefused(f"An action is none of the {k} labels {', '.join(logged.labels)}.")


def _check_policy(logged: Logged, policy_N_K: Floats, predicted_N_K: Floats) -> None:
    shape = (len(logged.action_N), len(logged.labels))
    if policy_N_K.shape != shape or predicted_N_K.shape != shape:
        raise EstimateRefused(
            f"Policy and predictions of shapes {policy_N_K.shape!r} and {predicted_N_K.shape!r} "
            f"do not fit {shape[0]} turns with {shape[1]} slots."
        )
    if not ((policy_N_K >= 0).all() and np.allclose(policy_N_K.sum(axis=1), 1.0, atol=1e-6)):
        raise EstimateRefused("The policy's probabilities of a turn are not a distribution.")
    if not np.isfinite(predicted_N_K).all():
        raise EstimateRefused("The outcome model predicts a number that is not finite.")
    taken_K = np.bincount(logged.action_N, minlength=shape[1])
    never = [label for label, taken, used in zip(
        logged.labels, taken_K, policy_N_K.max(axis=0), strict=True) if used > 0 and not taken
    ]  # fmt: skip
    if never:
        raise EstimateRefused(
            f"The policy takes {', '.join(never)}, which the router never took in {shape[0]:,} "
            "logged turns: there is no evidence of it. Explore longer, or replay these turns."
        )


def _check_weights(logged: Logged, weight_N: Floats, min_ess: float) -> None:
    largest = float(weight_N.max())
    if largest > MAX_WEIGHT:
        raise EstimateRefused(
            f"A turn would weigh {largest:,.0f}, and above {MAX_WEIGHT:,.0f} a weight would have "
            "to be clipped, which biases the estimate. Explore with a larger epsilon."
        )
    ess = effective_sample_size(weight_N)
    if ess < min_ess:
        raise EstimateRefused(
            f"The {len(weight_N):,} logged turns are worth {ess:.0f} of the policy's own; at "
            f"least {min_ess:.0f} are needed. Explore longer or with a larger epsilon, or replay."
        )
    conversations = len(np.unique(logged.conversation_N[weight_N > 0]))
    if conversations < MIN_CONVERSATIONS:
        raise EstimateRefused(
            f"Turns of {conversations} conversations tell of the policy; at least "
            f"{MIN_CONVERSATIONS} are needed to know how much conversations differ."
        )
    carrying = carriers(weight_N)
    if carrying < MIN_CARRIERS:
        raise EstimateRefused(
            f"The estimate hangs on about {carrying:.0f} explored turns of large weight; at least "
            f"{MIN_CARRIERS:.0f} are needed. Explore longer or with a larger epsilon, or replay."
        )
    by = _Conversations(logged.conversation_N, 0.95)
    drift = by.mean(weight_N)
    if abs(drift.estimate - 1) > MAX_DRIFT * drift.se + 1e-9:
        raise EstimateRefused(
            f"The weights average {drift.estimate:.2f} instead of 1, too far for chance: the log "
            "lacks turns by what was done, or outcomes are known more often for some slots."
        )
