"""Proves the rule that settles a turn's signals. Pure; the records are real, the texts made up."""

import json
import math

import pytest
from trace_records import at, hop, says, signal, turn_of

from serving.records import Feedback
from traces.attribution.outcomes import Outcome, settle

TURN = turn_of([hop()])


def settled(*feedback: Feedback, **turn: str) -> Outcome:
    return settle(TURN.model_copy(update=turn), list(feedback))


@pytest.mark.parametrize(
    ("feedback", "success", "tier", "rule"),
    [
        ([], None, None, "unjudged"),
        ([signal(value=1.0)], True, "A", "verified"),
        ([signal(value=0.5)], False, "A", "verified"),
        ([signal(value=None)], None, None, "unverified"),
        ([signal(value=math.nan)], None, None, "unverified"),
        ([signal(value=None), signal(value=1.0)], True, "A", "verified"),
        ([signal(value=None), signal("thumb", -1.0)], False, "B", "thumbed"),
        ([signal("thumb", math.nan)], None, None, "unjudged"),
        ([signal(value=1.0), signal(value=0.0, name="other")], False, "A", "verified"),
        ([signal(value=1.0), signal("thumb", -1.0)], True, "A", "verified"),
        ([signal("thumb", 1.0)], True, "B", "thumbed"),
        ([signal("thumb", -1.0), signal("retry", None)], False, "B", "thumbed"),
        ([signal("thumb", 1.0), signal("edit", None)], False, "B", "edited"),
        ([signal("retry", None)], None, "C", "suspect"),
        ([signal("comment", None)], None, None, "unjudged"),
    ],
)
def test_the_highest_tier_decides(
    feedback: list[Feedback], success: bool | None, tier: str | None, rule: str
) -> None:
    outcome = settled(*feedback)

    assert (outcome.success, outcome.tier, outcome.rule) == (success, tier, rule)


def test_a_user_s_latest_thumb_counts() -> None:
    early, late = signal("thumb", -1.0, created_at=at(1)), signal("thumb", 1.0, created_at=at(2))

    assert settled(late, early).success is True


def test_the_latest_edit_is_the_correction() -> None:
    first = signal("edit", None, correction=says("one"), created_at=at(1))
    last = signal("edit", None, correction=says("two"), created_at=at(2))

    assert settled(last, first).correction == says("two")


def test_all_signals_are_kept_in_order_of_time() -> None:
    outcome = settled(signal(created_at=at(9)), signal("thumb", 1.0, created_at=at(3)))

    assert [s["kind"] for s in json.loads(outcome.signals)] == ["thumb", "verifier"]


def test_an_unanswered_turn_failed_and_an_abandoned_one_has_no_outcome() -> None:
    assert settled(signal(value=1.0), status="failed").success is False
    assert settled(signal(value=1.0), status="abandoned").success is None
