"""Proves kappa and its interval against statsmodels, and what a judge is refused for."""

import re

import pytest
from statsmodels.stats.inter_rater import cohens_kappa

from traces.attribution.agreement import Agreement, agreement


def measured(
    *, right: int = 0, passes: int = 0, fails: int = 0, wrong: int = 0, flips: int = 0
) -> Agreement:
    """Measure a judge that agrees on `right` failures and `passes` successes."""
    rows: list[tuple[bool, bool | None, bool]] = [(False, False, False)] * right
    rows += [(True, True, False)] * passes + [(True, False, False)] * fails
    rows += [(False, True, False)] * wrong + [(True, None, True)] * flips
    return agreement(rows)


def test_kappa_is_cohen_s_and_its_interval_that_of_fleiss_with_half_a_turn_more() -> None:
    found = measured(right=40, passes=35, fails=5, wrong=10, flips=10)

    reference = cohens_kappa([[40, 10], [5, 35]])
    smoothed = cohens_kappa([[40.5, 10.5], [5.5, 35.5]])
    assert found.kappa == pytest.approx(reference.kappa)
    half = 1.959963984540054 * smoothed.std_kappa
    assert found.kappa_low_95 == pytest.approx(smoothed.kappa - half)
    assert found.kappa_high_95 == pytest.approx(smoothed.kappa + half)
    assert (found.turns, found.judged, found.agreed, found.flips) == (100, 90, 75, 10)
    assert found.flip_share == 0.1
    assert found.refused is None


def test_all_agreed_on_a_few_turns_is_not_certain() -> None:
    found = measured(right=15, passes=15)
    assert found.kappa == 1.0
    assert found.kappa_low_95 is not None
    assert 0.4 < found.kappa_low_95 < 0.95


@pytest.mark.parametrize(
    ("judge", "why"),
    [
        (measured(), "a verdict on 0 verified turns, at least 30"),
        (measured(right=15, passes=14), "a verdict on 29 verified turns, at least 30"),
        (measured(right=20, passes=20, flips=14), "26% of its verdicts follow the order"),
        (measured(right=40), "are the same"),
        (measured(right=20, passes=20, fails=20, wrong=20), r"kappa 0.00 \[-0.22, 0.22\]"),
        (measured(right=2, passes=90, fails=2, wrong=2), r"the lower end must be 0.4"),
    ],
)
def test_a_judge_is_refused(judge: Agreement, why: str) -> None:
    assert judge.refused is not None
    assert re.search(why, judge.refused), judge.refused
