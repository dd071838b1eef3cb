"""Proves that the benchmark of the decisive step counts exactly, in both published forms.

Small runs are made here after the published files; the 126 algorithm-generated ones are read where
`../shared` is there. The judge is a stub over HTTP that follows a script.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stub_engine import Answer, Asked, stub_engine
from team_runs import AGREES, CODE, FAILED, FIGURES, OPENING, REQUEST
from trace_records import SHARED

from benchmarks.attribution_steps import mcnemar, measure, right, scored, wilson
from benchmarks.attribution_steps_baselines import BASELINES as GUESS
from benchmarks.attribution_steps_baselines import NOTES, Said, said_in
from benchmarks.attribution_steps_fit import weights_file
from benchmarks.attribution_steps_judge import judged
from benchmarks.attribution_steps_runs import Labelled, read_runs
from traces.attribution.steps import WEIGHTS, decisive_step

WHOLE = SHARED / "data" / "who-and-when"
GENERATED: dict[str, Any] = {
    "question": REQUEST, "question_ID": "g", "ground_truth": "19",
    "mistake_agent": "Counter", "mistake_step": "1", "mistake_reason": "Its code is wrong.",
    "history": [
        {"role": "assistant", "name": "Planner", "content": OPENING},
        {"role": "user", "name": "Counter", "content": CODE},
        {"role": "user", "name": "Shell_terminal", "content": FAILED},
        {"role": "user", "name": "Planner", "content": AGREES},
    ],
}  # fmt: skip
CRAFTED: dict[str, Any] = {
    "question": REQUEST, "question_ID": "c", "ground_truth": "19",
    "mistake_agent": "WebSurfer", "mistake_step": "11", "mistake_reason": "It left the page.",
    "history": [
        {"role": "human", "content": REQUEST},
        {"role": "Orchestrator (thought)", "content": "The team: WebSurfer, Coder. " + OPENING},
        *[
            entry
            for _ in range(3)
            for entry in (
                {"role": "Orchestrator (thought)", "content": '{"next_speaker": "WebSurfer"}'},
                {"role": "Orchestrator (-> WebSurfer)", "content": "Please open the next page."},
                {"role": "WebSurfer", "content": "I clicked. The viewport shows a long river."},
            )
        ],
        {"role": "WebSurfer", "content": "I clicked back. The viewport shows another river."},
        {"role": "Orchestrator (termination condition)", "content": FIGURES},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Labelled], int]:
    """Return what is read of a run of each form, one without a label and a file that is none."""
    tmp_path = tmp_path_factory.mktemp("runs")
    (tmp_path / "generated").mkdir()
    (tmp_path / "crafted").mkdir()
    unlabelled = {k: v for k, v in GENERATED.items() if not k.startswith("mistake_")}
    unlabelled["question_ID"] = "u"
    for name, value in {
        "generated/1.json": GENERATED, "generated/2.json": unlabelled, "crafted/1.json": CRAFTED,
        "note.json": {"note": "no run"},
    }.items():  # fmt: skip
        (tmp_path / name).write_text(json.dumps(value))
    return read_runs(tmp_path)


@pytest.fixture
def runs(found: tuple[list[Labelled], int]) -> list[Labelled]:
    return found[0]


def test_both_forms_pass_through_the_lake(
    found: tuple[list[Labelled], int], runs: list[Labelled]
) -> None:
    runs, unlabelled = found

    assert unlabelled == 1
    assert {(run.agent, run.step, len(run.hops)) for run in runs} == {
        ("Counter", 1, 4),
        ("WebSurfer", 11, 12),
    }
    named = {run.agent: decisive_step(run.turn, run.hops) for run in runs}
    assert {name: (s.agent, s.seq) for name, s in named.items() if s} == {
        "Counter": ("Counter", 1),
        "WebSurfer": ("WebSurfer", 4),
    }


def test_steps_are_matched_whole_and_not_as_text(runs: list[Labelled]) -> None:
    said = [("WebSurfer" if r.agent == "WebSurfer" else "Count", 1) for r in runs]

    agent, step = right(runs, said)

    assert sorted(agent.tolist()) == [False, True]  # "Count" is no "Counter"
    assert sorted(step.tolist()) == [False, True]  # 1 is not 11
    assert scored(runs, [None, None])["agent"] == 0.0


def test_intervals_are_wilsons() -> None:
    assert wilson(34, 126) == [0.2, 0.353]
    assert wilson(0, 10) == [0.0, 0.278]


def test_pairs_are_compared_by_mcnemars_exact_test() -> None:
    ours = np.array([True] * 10 + [False] * 2 + [True] * 5)
    theirs = np.array([False] * 10 + [True] * 2 + [True] * 5)

    # 2 (C(12,0) + C(12,1) + C(12,2)) / 2^12
    assert mcnemar(ours, theirs) == pytest.approx(158 / 4096, abs=1e-6)
    assert mcnemar(ours, ours) == 1.0


def test_baselines_guess_as_the_notes_say(runs: list[Labelled]) -> None:
    (generated,) = [run for run in runs if run.agent == "Counter"]
    (crafted,) = [run for run in runs if run.agent == "WebSurfer"]
    guessed = {name: guess(said_in(generated)) for name, guess in GUESS.items()}

    assert guessed == {
        "constant_step": ("Counter", 1),
        "most_active": ("Planner", 0),
        "first_error": ("Counter", 1),
        "first_failed_run_or_step": ("Counter", 1),
    }
    assert GUESS["most_active"](said_in(crafted)) == ("WebSurfer", 4)
    assert GUESS["first_error"]([Said(0, "A", "Well."), Said(1, "B", "Done.")]) == ("A", 0)


def test_a_judge_is_asked_both_ways_and_read_strictly(runs: list[Labelled]) -> None:
    def answer(asked: Asked) -> Answer:
        prompt = asked.body["messages"][0]["content"]
        if "Is step" in prompt:
            return Answer(text=json.dumps({"error": "up to step 4." in prompt}))
        if "Counter" in prompt:
            return Answer(text='The log shows {"agent": "Counter", "step": "1"}')
        return Answer(text="It was the WebSurfer.")

    with stub_engine() as stub:
        stub.reply = answer
        named = asyncio.run(judged(runs, stub.url))
        prompts = [asked.body["messages"][0]["content"] for asked in stub.chats]

    by_agent = [run.agent for run in runs]
    assert dict(zip(by_agent, named["all_at_once"], strict=True)) == {
        "Counter": ("Counter", 1),
        "WebSurfer": None,
    }
    assert dict(zip(by_agent, named["step_by_step"], strict=True)) == {
        "Counter": None,
        "WebSurfer": ("WebSurfer", 4),
    }
    assert not any("Right answer" in p or "mistake" in p or "19\n" in p for p in prompts)


def test_a_judge_may_be_told_the_right_answer(runs: list[Labelled]) -> None:
    with stub_engine() as stub:
        stub.default = Answer(status=400)
        named = asyncio.run(judged(runs, stub.url, "base", with_truth=True))
        prompts = [asked.body["messages"][0]["content"] for asked in stub.chats]

    assert named == {"all_at_once": [None, None], "step_by_step": [None, None]}
    assert all("Right answer: 19" in prompt for prompt in prompts)


def test_without_runs_nothing_is_claimed(tmp_path: Path) -> None:
    assert measure(True, tmp_path / "none")["whoandwhen"] is None
    with pytest.raises(FileNotFoundError, match="No run of several agents"):
        measure(True, tmp_path)


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    if not WHOLE.is_dir():
        pytest.skip("needs ../shared")
    return measure(True, WHOLE)


def test_the_decisive_step_beats_every_baseline(whole: dict[str, Any]) -> None:
    reached = whole["whoandwhen"]

    assert reached["n"] == 126
    assert reached["agent"] >= 0.70
    assert reached["step"] >= 0.54
    for name, baseline in whole["baselines"].items():
        assert reached["agent"] > baseline["agent"], name
        assert baseline["agent_p_value"] < 0.05, name
        assert baseline["step_p_value"] < 0.05, name


def test_attribution_blames_most_runs_and_leaves_the_doubtful(whole: dict[str, Any]) -> None:
    done = whole["whoandwhen"]["attributed"]

    assert 95 <= done["blamed"] < done["of"] == 126
    assert done["agent"] > whole["whoandwhen"]["agent"]
    assert done["step"] > whole["whoandwhen"]["step"]


def test_weights_that_never_saw_a_run_name_it_as_well(whole: dict[str, Any]) -> None:
    unseen = whole["whoandwhen"]["cross_validated"]

    assert unseen["agent"] >= 0.66
    assert unseen["step"] >= 0.48
    assert all(whole["baselines"][n]["agent_p_value_cross_validated"] < 0.05 for n in NOTES)
    surest = next(each for each in unseen["coverage"] if each["coverage"] == 0.5)
    assert surest["agent"] >= unseen["agent"] + 0.1


def test_baselines_repeat_the_notes(whole: dict[str, Any]) -> None:
    for name, notes in NOTES.items():
        assert whole["baselines"][name]["agent"] == notes["agent"]
        assert whole["baselines"][name]["step"] == (notes["step"] or 0.0)


@pytest.mark.skipif(not WHOLE.is_dir(), reason="needs ../shared")
def test_the_shipped_weights_can_be_made_again() -> None:
    shipped = json.loads(WEIGHTS.read_text())
    runs, _ = read_runs(WHOLE)

    made = weights_file(runs)

    assert made["runs_digest"] == shipped["runs_digest"]
    for name, weight in shipped["weights"].items():
        assert made["weights"][name] == pytest.approx(weight, abs=0.02), name
