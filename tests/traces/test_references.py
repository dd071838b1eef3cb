"""What a fresh answer to a failed turn is checked against: whose word counts, and which.

Nothing is faked: signals are settled, and the checks are the verifiers' own.
"""

import json
from typing import Any

import pytest
from trace_records import at, calls, hop, says, signal, turn_of

from serving.records import Feedback, Message
from traces.attribution.outcomes import settle
from traces.attribution.references import References, references_of
from traces.attribution.right_answer import right_answer

CALL = {"verifier": "tool_call", "name": "wait", "arguments": {"minutes": 5}}
TIDY = {"verifier": "form", "form": "text", "schema": {"pattern": "^It is"}}
WAIT = {"type": "function", "function": {"name": "wait", "parameters": {"type": "object"}}}


def exact(text: str) -> dict[str, Any]:
    return {"verifier": "exact", "accepted": [text]}


def checked(
    reference: Any, value: float | None = 0.0, name: str = "own", seconds: float = 60, **fields: Any
) -> Feedback:
    text = reference if isinstance(reference, str) else json.dumps(reference)
    return signal(name=name, value=value, reference=text, created_at=at(seconds), **fields)


def edited(answer: Message, user: str | None = None, seconds: float = 60) -> Feedback:
    return signal("edit", None, user=user, correction=answer, created_at=at(seconds))


def of(*signals: Feedback, user: str | None = None) -> References | None:
    return references_of(settle(turn_of([hop()], user=user), signals))


def parts(*signals: Feedback) -> tuple[Any, ...]:
    found = of(*signals)
    return () if found is None else found.parts


def test_the_latest_reference_of_a_verifier_counts_in_whatever_order_it_is_told() -> None:
    told = [checked(exact(str(s)), seconds=s) for s in (1, 3, 2)]
    assert parts(*told) == (exact("3"),)


def test_a_reference_that_makes_no_sense_is_passed_over() -> None:
    told = [
        checked(exact("old"), seconds=1),
        checked({"verifier": "vibes"}, seconds=2),
        checked("{", seconds=3),
        signal(name="own", created_at=at(4)),
        signal("comment", None, reference=json.dumps(exact("hearsay")), created_at=at(5)),
    ]
    assert parts(*told) == (exact("old"),)


def test_what_the_turn_failed_is_checked_and_what_it_passed_besides() -> None:
    """A verifier that passed, though the latest, never stands in for the one that failed."""
    found = of(checked(exact("It is Paris")), checked(TIDY, 1.0, "format", 61))
    assert found is not None
    check = found.check(()).last
    assert [check(says(text)).passed for text in ("It is Paris", "Paris", "It is Rome")] == [
        True, False, False,
    ]  # fmt: skip
    assert parts(checked(TIDY, 1.0), edited(says("Oslo"))) == (exact("Oslo"),)
    assert of(checked(TIDY, 1.0)) is None


def test_a_fresh_answer_has_to_pass_all_that_the_turn_failed() -> None:
    found = of(checked(TIDY, name="format"), checked({"verifier": "numeric", "value": 4}))
    assert found is not None
    check = found.check(()).last
    assert [check(says(text)).passed for text in ("It is 4", "4", "It is 5")] == [
        True, False, False,
    ]  # fmt: skip


def test_a_verifier_that_failed_counts_before_one_without_a_score() -> None:
    silent = checked(exact("later"), None, "silent", 90)
    assert parts(checked(exact("failed")), silent) == (exact("failed"),)
    assert parts(silent, edited(says("edit"))) == (exact("later"),)
    again = checked(exact("failed"), None, seconds=90)
    assert parts(checked(exact("failed")), again) == (exact("failed"),)


def test_where_a_call_failed_it_is_the_call_that_is_checked() -> None:
    answer = checked(exact("Done."), name="said", seconds=61)
    found = of(checked(CALL), answer, checked({"verifier": "form", "form": "tool_call"}, 1.0, "f"))
    assert found is not None
    check = found.check([WAIT])
    assert check.judges_calls
    assert check.amid(calls("wait", minutes=5)).passed is True
    assert check.amid(calls("wait", minutes=6)).passed is False
    assert check.last(says("Done.")).passed is False
    said = of(answer, checked(CALL, 1.0))
    assert said is not None
    assert said == References((exact("Done."),))
    assert not said.check([WAIT]).judges_calls


def test_of_several_calls_that_failed_the_latest_is_expected() -> None:
    other = CALL | {"arguments": {"minutes": 9}}
    assert parts(checked(CALL), checked(other, name="second", seconds=61)) == (other,)


def test_what_safety_forbids_fails_a_call_too() -> None:
    safety = {"verifier": "safety", "wanted": "refuse", "unsafe": [], "unsafe_tools": ["fuse"]}
    found = of(checked(CALL), checked(safety, 1.0, "safety"))
    assert found is not None
    check = found.check([WAIT])
    assert check.judges_calls
    assert check.amid(calls("wait", minutes=5)).passed is True
    assert check.amid(calls("fuse")).passed is False


def test_an_edit_says_what_was_expected_where_no_verifier_does() -> None:
    text, call = edited(says("Rome"), seconds=1), edited(calls("wait", minutes=5), seconds=2)
    assert parts(text, call) == (CALL,)
    assert parts(text) == (exact("Rome"),)
    assert parts(text, call, checked(exact("Oslo"), seconds=0)) == (exact("Oslo"),)


def test_an_edit_of_somebody_who_is_not_heard_counts_nowhere() -> None:
    own = edited(says("Paris"), "bob", 60)
    strange = edited(says("evil"), "mallory", 70)
    assert of(own, strange, user="bob") == References((exact("Paris"),))
    thumb = signal("thumb", -1.0, user="bob")
    assert of(thumb, strange, user="bob") is None


def test_what_a_model_checked_against_is_no_reference() -> None:
    judged = checked(exact("model"), seconds=90, annotator="model")
    assert parts(judged, edited(says("user"))) == (exact("user"),)
    assert of(judged) is None
    known = right_answer(says("user said"), [judged])
    assert known is not None
    assert [word.text for word in known.literals] == ["user", "said"]
    assert right_answer(None, [judged]) is not None


@pytest.mark.parametrize(
    "signals",
    [
        [],
        [signal("thumb", value=-1.0)],
        [edited(says(" "))],
        [signal("edit", None)],
        [edited(Message(role="assistant", tool_calls=(
            *calls("wait").tool_calls, *calls("wait", "b").tool_calls)))],
    ],
)  # fmt: skip
def test_without_a_right_answer_there_is_no_reference(signals: list[Feedback]) -> None:
    assert of(*signals) is None


def test_a_single_reference_has_its_own_name_and_several_have_one_in_any_order() -> None:
    first, second = checked(exact("a")), checked(TIDY, name="format")
    one, both, swapped = of(first), of(first, second), of(second, first)
    assert one is not None
    assert both is not None
    assert swapped is not None
    assert both.name == swapped.name != one.name
