"""Proves that each feature of the decisive step sees what it says in a small run, and only there.

The runs are made here; nothing is faked.
"""

import pytest
from team_runs import (
    AGREES,
    CODE,
    EMPTY,
    FAILED,
    FIGURES,
    IDLE,
    MORE_CODE,
    OPENING,
    PRINTED,
    REQUEST,
    call_of,
    hop_of,
    run_of,
    turn_of,
)

from serving.records import Message
from traces.attribution.step_features import FEATURES, SAYS, features, values_of
from traces.attribution.team_run import read_run

OPENING_CODE = OPENING + "\n```python\nprint(len(bridges))\n```"
OTHER_TASK = "Please find the error in this Python script that sums even numbers, and correct it."
ASSUMING = "As it cannot be opened, let's assume sample data for now and go on with the counting."
LACKING = "Unfortunately the page was not shown to me, so somebody else should open the page."
CLAIMING = "I have checked the page myself and everything on it is as was expected by everybody."
SEEN = "Address: https://example.org/aare Title: Aare Viewport position: page 1 of 3, a long river."
ANSWER = "The final result is 18 bridges as the list of the city says in so many words, all told."

TWICE = [("A", CODE), ("T", FAILED), ("B", CODE), ("T", PRINTED), ("C", AGREES)]

CASES = {
    "opening": ([("A", OPENING), ("B", AGREES)], {0}),
    "strays": ([("A", OTHER_TASK), ("B", OPENING)], {0}),
    "opening_ran": ([("A", OPENING_CODE), ("T", PRINTED), ("B", AGREES)], {0}),
    "writes_code": ([("A", OPENING_CODE), ("T", PRINTED), ("B", CODE), ("T", PRINTED)], {1}),
    "first_wrong": (
        [("A", OPENING), ("B", CODE), ("T", EMPTY), ("C", MORE_CODE), ("T", FAILED)], {1},
    ),
    "repeats": (
        [("A", OPENING), ("B", CODE), ("T", FAILED), ("C", CODE), ("T", FAILED), ("B", MORE_CODE)],
        {2},
    ),
    "assumes": ([("A", ASSUMING), ("B", AGREES), ("C", ASSUMING)], {2}),
    "lacks": ([("A", LACKING), ("B", AGREES), ("C", LACKING)], {2}),
    "claims": ([("A", CLAIMING), ("B", AGREES), ("C", CLAIMING), ("D", CLAIMING + CODE)], {2}),
    "states_answer": ([("A", OPENING), ("B", FIGURES), ("C", AGREES), ("B", ANSWER)], {1}),
    "novel": ([("A", FIGURES), ("B", FIGURES + " And the Wylereggbrücke."), ("C", FIGURES)], {1}),
    "novel_numbers": ([("A", OPENING), ("T", PRINTED), ("B", FIGURES), ("C", FIGURES)], {1}),
    "novel_unexecuted": ([("A", OPENING), ("B", FIGURES), ("C", FIGURES)], {1}),
    "observes": ([("A", SEEN), ("A", SEEN), ("B", AGREES), ("A", SEEN)], {0}),
    "after_failure": (TWICE, {1}),
    "after_output": (TWICE, {2}),
    "after_idle": ([("A", OPENING), ("T", IDLE), ("B", AGREES), ("C", AGREES)], {1}),
    "short": ([("A", OPENING * 4), ("B", "Let me do that now."), ("C", FIGURES * 3)], {1}),
}  # fmt: skip
"""Per feature: a run, and the places among its steps where the feature holds."""


def test_every_feature_has_a_case() -> None:
    assert set(CASES) == set(FEATURES) == set(SAYS)


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_holds_where_it_should(name: str) -> None:
    said, places = CASES[name]
    request = "" if name == "states_answer" else REQUEST

    rows = features(read_run(*run_of(*said, request=request)))

    assert {place for place, row in enumerate(rows) if row[name] > 0} == places
    assert all(0 <= value <= 1 for row in rows for value in row.values())


def test_a_machines_words_and_farewells_are_no_steps() -> None:
    turn, hops = run_of(
        ("A", OPENING), ("B", CODE), ("T", FAILED), ("T", IDLE), ("B", "TERMINATE"), ("A", "")
    )

    run = read_run(turn, hops)

    assert run.executors == {"T"}
    assert [step.place for step in run.steps] == [0, 1]


def test_a_tools_result_is_what_its_call_printed() -> None:
    call = call_of("count_bridges", '{"river": "Aare"}')
    result = Message(role="tool", content=FAILED, tool_call_id="c1")
    hops = [
        hop_of(0, "A", call),
        hop_of(1, "B", Message(role="assistant", content=AGREES), messages=(call, result)),
    ]

    run = read_run(turn_of(), hops)

    assert [step.printed for step in run.steps] == [FAILED, None]
    assert run.steps[1].follows == FAILED
    assert [row["first_wrong"] for row in features(run)] == [1.0, 0.0]


def test_a_superseded_attempt_and_other_hops_say_nothing() -> None:
    turn, (first, second) = run_of(("A", FIGURES), ("A", OPENING))
    second = second.model_copy(update={"supersedes": first.hop_id})
    route = hop_of(2, "L0", Message(role="assistant", content=FIGURES), role="route")

    assert [u.text for u in read_run(turn, [first, second, route]).steps] == [OPENING]


def test_values_are_numbers_and_names_that_begin_no_sentence() -> None:
    text = "The bridge of Kornhaus cost 1,200,000.5 francs.\nBern paid. It opened in 1898."

    assert values_of(text) == {"kornhaus", "1200000.5", "1898"}
