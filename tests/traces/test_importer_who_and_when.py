"""Proves that no run of Who&When is lost, in either published form.

The algorithm-generated form is real (an excerpt, and all runs where `../shared` is there); the
hand-crafted one is made here after the published files. Nothing is faked.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from import_rows import DATA, decoded, rows_of
from trace_records import PROFILE, SHARED

from traces.analytics.views import query
from traces.attribute import attribute
from traces.ingest import ingest

EXCERPT = DATA / "trajectories" / "who_and_when.json"
WHOLE = SHARED / "data" / "who-and-when"
RUN = json.loads(EXCERPT.read_text())
CRAFTED: dict[str, Any] = {
    "question": "Where is the class?", "ground_truth": "Wall Street", "is_corrected": False,
    "question_ID": "q7", "mistake_agent": "WebSurfer", "mistake_step": "4",
    "mistake_reason": "It clicked on another site.",
    "history": [
        {"role": "human", "content": "Where is the class?"},
        {"role": "Orchestrator (thought)", "content": "Initial plan."},
        {"role": "Orchestrator (-> WebSurfer)", "content": "Search."},
        {"role": "WebSurfer", "content": "I searched."},
        {"role": "WebSurfer", "content": "I clicked."},
    ],
}  # fmt: skip


def read(item: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows_of(item):
        found.setdefault(row.table, []).append(decoded(row))
    return found


@pytest.mark.skipif(not WHOLE.is_dir(), reason="needs ../shared")
def test_all_126_runs_are_turns_that_failed(tmp_path: Path) -> None:
    runs = [json.loads(p.read_text()) for p in (WHOLE / "algorithm-generated").glob("*.json")]
    (tmp_path / "all.json").write_text(json.dumps(runs))
    home = tmp_path / ".mol"

    ingest(home, tmp_path / "all.json")
    attribute(home, PROFILE)

    assert len(runs) == 126
    assert query(home, "SELECT success, count(*) FROM outcomes GROUP BY 1")[1] == [(False, 126)]
    assert query(home, "SELECT count(*) FROM quarantine")[1] == [(0,)]
    hops = query(home, "SELECT model, seq, completion ->> 'content' FROM hops")[1]
    assert sorted(hops) == sorted(
        (entry["name"], step, entry["content"])
        for run in runs
        for step, entry in enumerate(run["history"])
    )
    blamed = query(
        home,
        "SELECT count(*) FROM feedback f JOIN turns t ON t.conversation_id = f.target_id JOIN hops"
        " h ON list_contains(t.hop_ids, h.hop_id) AND h.seq = (f.detail ->> 'mistake_step')::INT",
    )[1]
    assert blamed == [(126,)]


def test_a_run_is_one_turn_with_a_hop_for_each_entry() -> None:
    found = read(RUN)

    (turn,) = found["turns"]
    assert turn["request"] == RUN["question"]
    assert [(h["model"], h["completion"]["content"]) for h in found["hops"]] == [
        (entry["name"], entry["content"]) for entry in RUN["history"]
    ]
    assert turn["hop_ids"] == [h["hop_id"] for h in found["hops"]]


def test_an_agent_saw_its_own_words_as_its_own() -> None:
    hops = read(CRAFTED)["hops"]

    assert [(h["seq"], h["model"]) for h in hops] == [
        (1, "Orchestrator"), (2, "Orchestrator"), (3, "WebSurfer"), (4, "WebSurfer"),
    ]  # fmt: skip
    assert [(m["role"], m["content"]) for m in hops[3]["said"]] == [
        ("user", "Where is the class?"), ("user", "Initial plan."), ("user", "Search."),
        ("assistant", "I searched."),
    ]  # fmt: skip


def test_an_agents_system_prompt_comes_first() -> None:
    named = [h for h in read(RUN)["hops"] if h["model"] in RUN["system_prompt"]]

    assert named
    for hop in named:
        first, second = hop["said"][:2]
        assert (first["role"], first["content"]) == ("system", RUN["system_prompt"][hop["model"]])
        assert (second["role"], second["content"]) == ("user", RUN["question"])


@pytest.mark.parametrize("step", ["4", 4])
def test_the_label_is_a_persons_verdict(step: Any) -> None:
    (label,) = read({**CRAFTED, "mistake_step": step})["feedback"]

    assert (label["kind"], label["name"], label["value"]) == ("verifier", "who_and_when", 0.0)
    assert label["annotator"] == "human"
    assert json.loads(label["detail"]) == {
        "mistake_agent": "WebSurfer",
        "mistake_step": 4,
        "mistake_reason": "It clicked on another site.",
    }


@pytest.mark.parametrize("step", ["5", "last", -1, True, [1]])
def test_a_label_that_names_no_step_is_set_aside_and_the_run_kept(step: Any) -> None:
    found = read({**CRAFTED, "mistake_step": step})

    assert len(found["hops"]) == 4
    assert "feedback" not in found
    (aside,) = found["quarantine"]
    assert aside["reason"] == "bad_label"
    assert json.loads(aside["raw"])["mistake_step"] == step


def test_an_entry_without_a_speaker_refuses_the_run() -> None:
    history = [*CRAFTED["history"], {"content": "Who?"}]

    (aside,) = read({**CRAFTED, "history": history})["quarantine"]

    assert aside["detail"] == "an entry of the history names no speaker"
