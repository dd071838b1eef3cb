"""Proves tau-bench's known answers in the lake, on the whole file and on an excerpt of it.

The simulation of tau2-bench is made here after its published data model. Nothing is faked; the
whole file is skipped where `../shared` is missing.
"""

import copy
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from import_rows import DATA, decoded, rows_of
from trace_records import PROFILE, SHARED

from traces.analytics.views import query
from traces.attribute import attribute
from traces.ingest import ingest

EXCERPT = DATA / "trajectories" / "tau_bench.json"
WHOLE = SHARED / "data" / "tau-bench" / "gpt-4o-airline.json"
needs_whole = pytest.mark.skipif(not WHOLE.is_file(), reason="needs ../shared")

SIMULATION: dict[str, Any] = {
    "id": "sim-1", "task_id": "7", "trial": 1, "duration": 9.5, "termination_reason": "user_stop",
    "start_time": "2025-06-01T10:00:00.000000", "end_time": "2025-06-01T10:00:09.500000",
    "reward_info": {"reward": 1.0, "reward_basis": ["DB"]},
    "messages": [
        {"role": "assistant", "content": "Hi! How can I help you today?", "tool_calls": None},
        {"role": "user", "content": "My phone is offline."},
        {"role": "assistant", "content": None,
         "usage": {"prompt_tokens": 9, "completion_tokens": 4},
         "tool_calls": [{"id": "k1", "name": "get_line", "arguments": {"id": "L1"}},
                        {"id": "k2", "name": "get_plan", "arguments": {}}],
         "timestamp": "2025-06-01T10:00:03", "generation_time_seconds": 1.5},
        {"role": "tool", "tool_messages": [
            {"role": "tool", "id": "k1", "content": "roaming off", "requestor": "assistant"},
            {"role": "tool", "id": "k2", "content": "Error: no plan", "requestor": "assistant"}]},
        {"role": "assistant", "content": "Toggle roaming.", "usage": None},
        {"role": "user", "content": None,
         "tool_calls": [{"id": "u1", "name": "toggle", "arguments": {}, "requestor": "user"}]},
        {"role": "tool", "id": "u1", "content": "on", "requestor": "user"},
        {"role": "user", "content": "It works. ###STOP###"},
    ],
}  # fmt: skip
RESULTS: dict[str, Any] = {
    "timestamp": "2025-06-01T10:01:00", "tasks": [], "simulations": [SIMULATION],
    "info": {
        "agent_info": {"implementation": "llm_agent", "llm": "gpt-4.1", "llm_args": {"seed": 1}},
        "environment_info": {"domain_name": "telecom", "policy": "# Telecom Agent Policy",
                             "tool_defs": {"get_line": {"doc": "A line.", "params": {}}}},
    },
}  # fmt: skip


def sql(home: Path, text: str) -> list[tuple[Any, ...]]:
    return query(home, text)[1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("tau") / ".mol"
    ingest(home, WHOLE)
    attribute(home, PROFILE)
    return home


@needs_whole
def test_the_airline_file_has_its_known_answers(whole: Path) -> None:
    assert sql(whole, "SELECT count(DISTINCT conversation_id) FROM turns") == [(200,)]
    assert sql(
        whole, "SELECT success, count(*) FROM outcomes WHERE success IS NOT NULL GROUP BY 1"
    ) in ([(True, 84), (False, 116)], [(False, 116), (True, 84)])
    by_task = sql(
        whole,
        "SELECT count(*) FILTER (passed BETWEEN 1 AND 3), count(*) FILTER (passed = 4),"
        " count(*) FILTER (passed = 0) FROM (SELECT t.task, count(*) FILTER (o.success) AS passed"
        " FROM turns t JOIN outcomes o USING (turn_id) WHERE o.success IS NOT NULL GROUP BY 1)",
    )
    assert by_task == [(26, 10, 14)]
    assert sql(whole, "SELECT DISTINCT workload FROM hops") == [("airline",)]
    assert sql(whole, "SELECT count(*) FROM quarantine") == [(0,)]


@needs_whole
def test_every_text_of_the_airline_file_is_there_byte_for_byte(whole: Path) -> None:
    wanted = {
        (m["role"], m["content"] or "")
        for trajectory in json.loads(WHOLE.read_text())
        for m in trajectory["traj"]
    }
    kept = sql(whole, "SELECT role, body ->> 'content' FROM messages")
    kept += sql(whole, "SELECT 'assistant', completion ->> 'content' FROM hops")
    kept += sql(
        whole, "SELECT m ->> 'role', m ->> 'content' FROM"
        " (SELECT unnest(CAST(tail AS JSON[])) AS m FROM turns)",
    )  # fmt: skip

    assert set(kept) == wanted


def test_every_call_of_a_trajectory_is_a_hop_with_the_whole_history() -> None:
    for item in json.loads(EXCERPT.read_text()):
        hops = [decoded(row) for row in rows_of(item) if row.table == "hops"]
        spoken = [n for n, m in enumerate(item["traj"]) if m["role"] == "assistant"]

        assert [hop["seq"] for hop in hops] == spoken
        for hop in hops:
            told = item["traj"][: hop["seq"]]
            assert [(m["role"], m["content"]) for m in hop["said"]] == [
                (m["role"], m["content"] or "") for m in told
            ]
            assert [m["tool_call_id"] for m in hop["said"] if m["role"] == "tool"] == [
                m["tool_call_id"] for m in told if m["role"] == "tool"
            ]


def test_the_reward_is_the_last_turns_outcome(tmp_path: Path) -> None:
    ingest(tmp_path / ".mol", EXCERPT)
    attribute(tmp_path / ".mol", PROFILE)

    found = sql(
        tmp_path / ".mol",
        "SELECT t.task, o.success FROM turns t JOIN outcomes o USING (turn_id)"
        " WHERE o.rule = 'verified' ORDER BY t.task",
    )

    assert found == [
        ("tau-bench:airline:13", True),
        ("tau-bench:airline:38", True),
        ("tau-bench:airline:44", False),
    ]


def test_another_trial_with_the_same_words_is_another_conversation(tmp_path: Path) -> None:
    first = json.loads(EXCERPT.read_text())[2]
    again = {**first, "trial": first["trial"] + 1}
    (tmp_path / "t.json").write_text(json.dumps([first, again, copy.deepcopy(first)]))

    ingest(tmp_path / ".mol", tmp_path / "t.json")

    assert sql(tmp_path / ".mol", "SELECT count(DISTINCT conversation_id) FROM turns") == [(2,)]
    assert sql(tmp_path / ".mol", "SELECT count(*) FROM feedback") == [(2,)]


def test_a_run_that_an_error_ended_failed() -> None:
    item = {"task_id": 3, "reward": 0.0, "info": {"error": "rate limit", "traceback": "..."},
            "traj": [], "trial": 0}  # fmt: skip

    turn, reward = rows_of(item)

    assert (turn.values["status"], turn.values["error"]) == ("failed", "rate limit")
    assert (reward.table, reward.values["value"]) == ("feedback", 0.0)


def test_the_observations_of_a_text_only_agent_are_no_requests() -> None:
    traj = [{"role": "system", "content": "# Retail agent policy"},
            {"role": "user", "content": "A"},
            {"role": "assistant", "content": "Action: look"},
            {"role": "user", "content": "API output: []"},
            {"role": "assistant", "content": "None."}]  # fmt: skip

    found = defaultdict(list)
    for row in rows_of({"task_id": 3, "reward": 1.0, "info": {}, "traj": traj, "trial": 0}):
        found[row.table].append(row.values)

    assert len(found["hops"]) == 2
    assert [turn["request"] for turn in found["turns"]] == ["A"]
    assert found["turns"][0]["task"] == "tau-bench:retail:3"


@pytest.mark.parametrize("reward", ["1.0", [], {}])
def test_a_reward_that_is_no_number_is_set_aside_and_the_trajectory_kept(reward: Any) -> None:
    item = json.loads(EXCERPT.read_text())[2]

    found = rows_of({**item, "reward": reward})

    assert [row.table for row in found].count("hops") == 2
    assert "feedback" not in {row.table for row in found}
    (aside,) = [row for row in found if row.table == "quarantine"]
    assert (aside.values["reason"], json.loads(aside.values["raw"])["reward"]) == (
        "bad_score",
        reward,
    )


def test_a_simulation_has_what_the_agent_saw() -> None:
    found = [{"table": row.table, **decoded(row)} for row in rows_of(RESULTS)]
    hops = [row for row in found if row["table"] == "hops"]
    (turn,) = [row for row in found if row["table"] == "turns"]
    (reward,) = [row for row in found if row["table"] == "feedback"]

    assert [[m["content"] for m in hop["said"]] for hop in hops] == [
        ["# Telecom Agent Policy", "Hi! How can I help you today?", "My phone is offline."],
        ["# Telecom Agent Policy", "Hi! How can I help you today?", "My phone is offline.", "",
         "roaming off", "Error: no plan"],
    ]  # fmt: skip
    assert [m["tool_call_id"] for m in hops[1]["said"] if m["role"] == "tool"] == ["k1", "k2"]
    assert hops[0]["completion"]["tool_calls"][0]["arguments"] == '{"id": "L1"}'
    assert (hops[0]["prompt_tokens"], hops[0]["duration_s"]) == (9, 1.5)
    assert hops[0]["started_at"].isoformat() == "2025-06-01T10:00:01.500000+00:00"
    assert (hops[0]["model"], hops[0]["task"]) == ("gpt-4.1", "tau-bench:telecom:7")
    assert hops[0]["tools"][0]["function"]["name"] == "get_line"
    assert (turn["conversation_id"], turn["request"]) == ("sim-1", "My phone is offline.")
    assert reward["value"] == 1.0


def test_a_simulation_alone_is_known_and_a_broken_one_stands_in_nobodys_way() -> None:
    assert {row.table for row in rows_of(SIMULATION)} == {"hops", "turns", "feedback"}

    broken = {**SIMULATION, "messages": [{"role": "nobody", "content": "x"}]}
    found = rows_of({**RESULTS, "simulations": [broken, SIMULATION]})

    (aside,) = [row for row in found if row.table == "quarantine"]
    assert json.loads(aside.values["raw"])["simulations"] == [broken]
    assert [row for row in found if row.table != "quarantine"] == rows_of(RESULTS)


def test_results_without_simulations_are_counted() -> None:
    (row,) = rows_of({**RESULTS, "simulations": []})

    assert (row.table, row.values["reason"]) == ("skipped", "results_without_simulations")


@pytest.mark.parametrize(
    ("reason", "status"), [("max_steps", "failed"), ("infrastructure_error", "abandoned")]
)
def test_a_simulation_that_was_stopped_gave_no_answer(reason: str, status: str) -> None:
    found = rows_of({**SIMULATION, "termination_reason": reason})

    (turn,) = [row.values for row in found if row.table == "turns"]
    assert (turn["status"], turn["error"]) == (status, reason)
