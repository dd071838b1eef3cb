"""Proves whom and which step of a run of several agents is named, and that only the run decides.

The runs are made here; nothing is faked.
"""

import pytest
from team_runs import (
    AGREES,
    CODE,
    FAILED,
    FIGURES,
    MORE_CODE,
    OPENING,
    PRINTED,
    hop_of,
    run_of,
    turn_of,
)

from traces.attribution.step_features import FEATURES
from traces.attribution.steps import Model, Step, decisive_step, model_of

PLAN = "The team: Browser, Reader, Terminal. Plan: search the web, then count what is found."
NEXT = 'Updated ledger: {"progress": true, "next_speaker": "Browser", "instruction": "Search."}'
SEARCHED = "I typed 'bridges of Bern' into the search bar. The viewport shows 40% of the page."


def named(*said: tuple[str, str]) -> tuple[str, int]:
    step = decisive_step(*run_of(*said))
    assert isinstance(step, Step)
    return step.agent, step.seq


def test_the_writer_of_failing_code_is_blamed_not_the_executor() -> None:
    assert named(
        ("A", OPENING), ("B", CODE), ("T", FAILED), ("C", MORE_CODE), ("T", PRINTED), ("C", AGREES)
    ) == ("B", 1)


def test_the_first_who_works_on_another_task_is_blamed() -> None:
    other = "Please find the error in this Python script that sums even numbers, and correct it."

    assert named(("A", other), ("B", CODE), ("T", PRINTED), ("C", AGREES)) == ("A", 0)


def test_figures_that_nothing_printed_are_blamed_on_who_said_them_first() -> None:
    assert named(("A", OPENING), ("B", AGREES), ("C", FIGURES), ("D", AGREES), ("A", FIGURES)) == (
        "C",
        2,
    )


def test_assumed_data_is_blamed_and_not_what_was_printed() -> None:
    assumes = CODE.replace("Let us look it up.", "It does not open, so let us assume the values.")

    assert named(
        ("A", OPENING), ("B", MORE_CODE), ("T", PRINTED), ("C", assumes), ("T", FAILED),
        ("D", AGREES),
    ) == ("C", 3)  # fmt: skip


def test_names_do_not_matter() -> None:
    said = [("A", OPENING), ("B", CODE), ("T", FAILED), ("C", FIGURES), ("D", AGREES)]
    other = {"A": "Orchestrator", "B": "Zoe", "T": "python", "C": "Terminal", "D": "A"}

    agent, step = named(*said)

    assert named(*((other[name], text) for name, text in said)) == (other[agent], step)


@pytest.mark.parametrize("hands_over", [NEXT, "Search the web and tell what you see on the page."])
def test_where_somebody_coordinates_the_most_active_worker_is_blamed(hands_over: str) -> None:
    rounds = [
        entry
        for worker in ("Browser", "Browser", "Reader", "Browser")
        for entry in (("Lead", hands_over.replace("Browser", worker)), (worker, SEARCHED))
    ]

    assert named(("Lead", PLAN), *rounds, ("Lead", FIGURES)) == ("Browser", 2)


def test_a_coordinated_writer_of_code_is_blamed_for_what_first_went_wrong() -> None:
    asks = NEXT.replace("Browser", "Coder")
    runs_it = NEXT.replace("Browser", "Terminal")
    rounds = [
        entry
        for code, printed in ((CODE, PRINTED), (MORE_CODE, FAILED), (CODE, FAILED))
        for entry in (
            ("Lead", asks), ("Coder", code), ("Lead", runs_it), ("Terminal", printed),
        )
    ]  # fmt: skip

    assert named(("Lead", PLAN), *rounds, ("Lead", AGREES)) == ("Coder", 6)


def test_a_coordinator_whom_nobody_answered_is_blamed_itself() -> None:
    assert named(("Lead", PLAN), ("Lead", NEXT), ("T", FAILED), ("Lead", NEXT)) == ("Lead", 0)


def test_who_asks_one_colleague_once_coordinates_nothing() -> None:
    said = [("A", OPENING + " B, please count."), ("B", FIGURES), ("C", AGREES), ("A", AGREES)]

    assert named(*said) == ("B", 1)


def test_a_long_run_is_read_to_its_end() -> None:
    said = [("A", OPENING)] + [("B", CODE), ("T", PRINTED), ("A", AGREES)] * 40
    said[-2:] = [("T", FAILED), ("C", FIGURES), ("A", AGREES)]

    step = decisive_step(*run_of(*said))

    assert step is not None
    assert 0 < step.confidence < 1


def test_the_earlier_of_equal_steps_is_named() -> None:
    same = Model(dict.fromkeys(FEATURES, 0.0))

    step = decisive_step(*run_of(("A", AGREES), ("B", AGREES), ("A", AGREES), ("B", AGREES)), same)

    assert step is not None
    assert (step.agent, step.seq, step.margin) == ("A", 0, 0.0)


def test_a_step_says_what_speaks_for_it() -> None:
    turn, hops = run_of(("A", OPENING), ("B", CODE), ("T", FAILED), ("C", AGREES))

    step = decisive_step(turn, hops)

    assert step is not None
    assert step.hop_id == hops[1].hop_id
    assert "step 1, B: " in step.evidence
    assert "the first whose execution failed" in step.evidence


def test_nothing_is_named_where_nobody_spoke() -> None:
    assert decisive_step(turn_of(), []) is None
    assert decisive_step(turn_of(), [hop_of(0, "A", None), hop_of(1, "B", None)]) is None


def test_weights_of_other_features_are_refused() -> None:
    with pytest.raises(ValueError, match="'opening'"):
        model_of({"weights": dict.fromkeys(FEATURES[1:], 0.0), "slope": 1, "intercept": 0})
