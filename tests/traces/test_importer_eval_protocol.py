"""Proves Eval Protocol's known answers in the lake, on the whole log and on an excerpt of it.

Rows of newer versions are made here after its data model. Nothing is faked; the whole log is
skipped where `../shared` is missing.
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

EXCERPT = DATA / "trajectories" / "eval_protocol.jsonl"
WHOLE = SHARED / "data" / "eval-protocol" / "logs.jsonl"
NEW: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "Weather in Paris?"},
        {"role": "assistant", "content": None, "reasoning_content": "I must look.",
         "tool_calls": [{"id": "k1", "type": "function",
                         "function": {"name": "weather", "arguments": "{}"}}]},
    ],
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": {}}}],
    "input_metadata": {"row_id": "row-1",
                       "completion_params": {"model": "L2@0123456789ab", "temperature": 0.5}},
    "rollout_status": {"code": 100, "message": "Rollout finished", "details": []},
    "execution_metadata": {"rollout_id": "roll-1", "run_id": "run-1", "invocation_id": "inv-1",
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}},
    "evaluation_result": {"score": 0.25, "reason": "half right", "is_score_valid": True},
    "eval_metadata": {"name": "test_weather", "num_runs": 1, "aggregation_method": "mean"},
    "usage": None, "created_at": "2025-09-01T12:00:00+02:00", "pid": 1,
}  # fmt: skip


def read(item: Any) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {"hops": [], "turns": [], "feedback": []}
    for row in rows_of(item):
        found.setdefault(row.table, []).append(decoded(row))
    return found


@pytest.mark.skipif(not WHOLE.is_file(), reason="needs ../shared")
def test_the_whole_log_has_its_known_answers(tmp_path: Path) -> None:
    check(tmp_path, WHOLE, {1.0: 66, 0.0: 21, None: 40})


def test_every_row_is_a_turn_and_every_score_its_outcome(tmp_path: Path) -> None:
    check(tmp_path, EXCERPT, {1.0: 3, 0.0: 1, None: 3})


def check(tmp_path: Path, path: Path, scores: dict[float | None, int]) -> None:
    items = [json.loads(line) for line in path.read_text().splitlines()]
    home = tmp_path / ".mol"

    ingest(home, path)
    attribute(home, PROFILE)

    counted = dict(query(home, "SELECT success, count(*) FROM outcomes GROUP BY 1")[1])
    assert counted == {True: scores[1.0], False: scores[0.0], None: scores[None]}
    told = dict(query(home, "SELECT value, count(*) FROM feedback GROUP BY 1")[1])
    assert told == {1.0: scores[1.0], 0.0: scores[0.0]}
    turns = query(home, "SELECT conversation_id, request, task FROM turns")[1]
    assert sorted(turns) == sorted(
        (
            item["rollout_id"],
            item["messages"][0]["content"],
            f"eval-protocol:{item['input_metadata']['row_id']}",
        )
        for item in items
    )
    answers = query(home, "SELECT completion ->> 'content', model FROM hops")[1]
    assert sorted(answers) == sorted(
        (
            m["content"],
            item["input_metadata"].get("completion_params", {}).get("model", "agent"),
        )
        for item in items
        for m in item["messages"]
        if m["role"] == "assistant"
    )
    assert query(home, "SELECT count(*) FROM quarantine")[1] == [(0,)]


def test_a_newer_row_keeps_what_it_says_of_the_call() -> None:
    found = read(NEW)
    (hop,), (turn,), (score,) = found["hops"], found["turns"], found["feedback"]

    assert (hop["model"], turn["slot"], turn["digest"]) == ("L2@0123456789ab", "L2", "0123456789ab")
    assert (hop["prompt_tokens"], hop["completion_tokens"]) == (11, 7)
    assert hop["reasoning"] == "I must look."
    assert hop["tools"][0]["function"]["name"] == "weather"
    assert hop["params"] == {
        "temperature": 0.5,
        "metadata": {"run_id": "run-1", "invocation_id": "inv-1"},
    }
    assert hop["started_at"].isoformat() == "2025-09-01T10:00:00.000001+00:00"
    assert (turn["conversation_id"], turn["workload"]) == ("roll-1", "test_weather")
    assert (score["kind"], score["name"], score["value"]) == ("verifier", "test_weather", 0.25)
    assert (score["annotator"], json.loads(score["detail"])["reason"]) == ("code", "half right")


@pytest.mark.parametrize(
    ("said", "status", "error"),
    [
        ({"status": "error", "error_message": "no server"}, "failed", "no server"),
        ({"code": 13, "message": "no server"}, "failed", "no server"),
        ({"code": 4, "message": "too late"}, "failed", "too late"),
        ({"status": "stopped"}, "abandoned", "stopped"),
        ({"code": 101, "message": "Rollout is running"}, "abandoned", "Rollout is running"),
        ({"status": "finished"}, "ok", None),
        (None, "ok", None),
    ],
)
def test_a_rollouts_status_is_its_turns(said: Any, status: str, error: str | None) -> None:
    (turn,) = read({**NEW, "rollout_status": said})["turns"]

    assert (turn["status"], turn["error"]) == (status, error)


@pytest.mark.parametrize(
    "result", [{"score": 0.0, "is_score_valid": False}, {"score": None}, {}, {"error": "x"}]
)
def test_a_score_that_is_not_valid_judges_nothing(result: dict[str, Any]) -> None:
    result["reason"] = "the judge was down"

    (remark,) = read({**NEW, "evaluation_result": result})["feedback"]

    assert (remark["kind"], remark["value"]) == ("comment", None)
    assert json.loads(remark["detail"])["reason"] == "the judge was down"


def test_a_score_that_is_no_number_is_set_aside_and_the_row_kept() -> None:
    found = read({**NEW, "evaluation_result": {"score": "high"}})

    assert (len(found["hops"]), len(found["turns"]), found["feedback"]) == (1, 1, [])
    assert [aside["reason"] for aside in found["quarantine"]] == ["bad_score"]


def test_a_row_logged_again_after_its_evaluation_adds_only_the_score(tmp_path: Path) -> None:
    before = {name: value for name, value in NEW.items() if name != "evaluation_result"}
    before["rollout_status"] = {"code": 101, "message": "Rollout is running"}
    for name, row in (("a", before), ("b", NEW), ("c", {**before, "pid": 2})):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    home = tmp_path / ".mol"

    ingest(home, tmp_path / "a.jsonl")
    report = ingest(home, tmp_path / "b.jsonl")

    assert (report.funnel["hops_added"], report.funnel["feedback_added"]) == (0, 1)
    assert query(home, "SELECT status FROM turns")[1] == [("ok",)]
    # What was said before the end does not win over it, whenever it comes.
    assert not ingest(home, tmp_path / "c.jsonl").added
    assert query(home, "SELECT status FROM turns")[1] == [("ok",)]
