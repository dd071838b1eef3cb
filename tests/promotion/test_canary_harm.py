"""The canary's alarm: fair bets, one alarm for all guards, and the numbers that were asked of it.

Proved: wealth is that of the bets, written out; it does not depend on the order; the alarm is
the first moment that the weighted wealth reaches 1 / alpha; and by simulation, false alarms of
all guards together and median pairs to the alarm. The simulated arms stand in for traffic.
"""

import itertools
import math

import numpy as np
import pytest

from benchmarks.gate_canary import against_mean_of, conversations, one_to_one, stops
from promotion.canary.harm import (
    BET_WEIGHTS,
    BETS,
    GUARD_WEIGHTS,
    beyond,
    log_wealth,
    look,
)


def bets_by_hand(harms: list[float]) -> float:
    return sum(
        weight * math.prod(1 + bet * harm for harm in harms)
        for bet, weight in zip(BETS, BET_WEIGHTS, strict=True)
    )


def test_the_weights_share_out_one_stake() -> None:
    assert sum(BET_WEIGHTS) == pytest.approx(1)
    assert sum(GUARD_WEIGHTS.values()) == pytest.approx(1)
    assert all(0 < bet < 1 for bet in BETS), "a pair of -1 must not ruin a bet"


def test_wealth_is_what_the_bets_make_of_the_pairs() -> None:
    harms = [1.0, -1.0, 0.25, 0.0, -0.6, 1.0]
    by_hand = [bets_by_hand(harms[: n + 1]) for n in range(len(harms))]
    assert np.exp(log_wealth(np.array(harms))) == pytest.approx(by_hand)
    for order in itertools.islice(itertools.permutations(harms), 20):
        assert bets_by_hand(list(order)) == pytest.approx(by_hand[-1])


def test_a_fair_coin_leaves_the_stake_as_it_is_in_expectation() -> None:
    # All 2^10 courses of ten fair pairs, exactly: a martingale.
    courses = np.array(list(itertools.product((-1.0, 1.0), repeat=10)))
    assert np.exp(log_wealth(courses)).mean(axis=0) == pytest.approx(np.ones(10))


def test_the_alarm_is_the_first_moment_that_all_guards_together_reach_it() -> None:
    harms = {"failures": [1.0] * 20, "refusals": [1.0] * 20}
    times = {"failures": list(range(0, 40, 2)), "refusals": list(range(1, 41, 2))}
    verdict = look(harms, times, alpha=0.01)

    def evidence(failures: int, refusals: int) -> float:
        kept = 1 - GUARD_WEIGHTS["failures"] - GUARD_WEIGHTS["refusals"]
        return (
            kept
            + GUARD_WEIGHTS["failures"] * bets_by_hand([1.0] * failures)
            + GUARD_WEIGHTS["refusals"] * bets_by_hand([1.0] * refusals)
        )

    n, m = verdict.pairs("failures"), verdict.pairs("refusals")
    assert verdict.harmful
    assert n in (m, m + 1)
    assert verdict.evidence == pytest.approx(evidence(n, m))
    before = evidence(n - 1, m) if n == m + 1 else evidence(n, m - 1)
    assert before < 100 <= verdict.evidence


def test_without_pairs_there_is_no_evidence() -> None:
    verdict = look({"failures": [], "latency": []}, {"failures": [], "latency": []}, alpha=0.01)
    assert (verdict.harmful, verdict.evidence) == (False, 1.0)
    assert [(state.guard, state.pairs) for state in verdict.guards] == [
        ("failures", 0), ("latency", 0)
    ]  # fmt: skip


def test_evidence_that_is_over_any_number_is_no_error() -> None:
    verdict = look({"failures": [1.0] * 5000}, {"failures": list(range(5000))}, alpha=0.01)
    assert verdict.harmful
    assert verdict.pairs("failures") < 20
    assert math.isfinite(float(np.exp(min(log_wealth(np.ones(5000))[-1], 700.0))))


def test_what_is_tolerated_is_no_harm() -> None:
    assert beyond(0.05, 0.05) == 0
    assert beyond(1.0, 0.05) == pytest.approx(0.95 / 1.05)
    assert beyond(-1.0, 0.05) == -1


@pytest.mark.parametrize("draw", [one_to_one, conversations, against_mean_of(19)])
def test_looking_after_every_pair_is_no_false_alarm(draw) -> None:
    # One of a hundred is allowed; 800 runs with that rate exceed 17 once in 1,000 times.
    found = stops(draw, 0.0, 800, 1000, guards=True, seed=7)
    assert np.isfinite(found).sum() <= 17


@pytest.mark.parametrize(
    ("harm", "most", "cap"), [(0.4, 40, 200), (0.2, 110, 600), (0.1, 400, 1600)]
)
def test_harm_is_found_within_the_pairs_that_the_issue_allows(
    harm: float, most: int, cap: int
) -> None:
    assert np.median(stops(one_to_one, harm, 1000, cap, guards=True, seed=8)) <= most
