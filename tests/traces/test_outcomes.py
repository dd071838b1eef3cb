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
    early, late = (signal("thumb", v, user="u1", created_at=at(v + 2)) for v in (-1.0, 1.0))

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


@pytest.mark.parametrize("n", range(4))
def test_both_thumbs_of_a_user_at_one_moment_say_nothing(n: int) -> None:
    """Whatever their ids are; `n` changes those."""
    both = [signal("thumb", v, user="u1", detail=f"{v} {n}", created_at=at(9)) for v in (1.0, -1.0)]
    early = signal("thumb", 1.0, user="u1", created_at=at(1))
    late = signal("thumb", -1.0, user="u1", created_at=at(10))
    other = signal("thumb", 1.0, user="u2", created_at=at(9))
    again = both[0].model_copy(update={"detail": "once more"})

    def of(*feedback: Feedback, user: str | None = "u1") -> tuple[bool | None, str]:
        outcome = settle(TURN.model_copy(update={"user": user}), list(feedback))
        return outcome.success, outcome.rule

    assert of(*both) == of(*both, early) == of(*both, other) == (None, "divided")
    assert of(*both, late) == (False, "thumbed")
    assert of(both[0], again) == (True, "thumbed")
    assert of(*both, other, user=None) == (True, "thumbed")


def test_anonymous_thumbs_count_one_by_one() -> None:
    def of(ups: int, downs: int, last: float) -> bool | None:
        values = [*[1.0] * ups, *[-1.0] * downs, last]
        thumbs = [signal("thumb", v, created_at=at(n)) for n, v in enumerate(values)]
        return settled(*thumbs).success

    assert of(99, 0, -1.0) is True
    assert of(0, 99, 1.0) is False
    assert of(1, 0, -1.0) is False
    assert of(2, 0, -1.0) is True


def test_edits_of_one_moment_that_disagree_are_no_correction() -> None:
    one, two = (signal("edit", None, correction=says(text), detail="d") for text in ("one", "two"))
    same = one.model_copy(update={"detail": "other"})
    late = signal("edit", None, correction=says("late"), created_at=at(70))

    assert settled(one, two).correction is None
    assert settled(one, two).rule == "edited"
    assert settled(one, same).correction == says("one")
    assert settled(one, two, late).correction == says("late")
