"""Proves that a coding agent's run is one turn, with what the agent saw at every step.

The function-calling run is a published one; older, newer and failed ones are made here after
SWE-agent's own types. Nothing is faked.
"""

import copy
import json
from pathlib import Path
from typing import Any

from import_rows import DATA, decoded, rows_of
from trace_records import PROFILE

from traces.analytics.views import query
from traces.attribute import attribute
from traces.ingest import ingest

RUN = json.loads((DATA / "trajectories" / "swe_agent.traj").read_text())


def entry(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "agent": "primary", **more}


def step(response: str, action: str, **more: Any) -> dict[str, Any]:
    return {"response": response, "thought": response, "action": action, "observation": "...",
            "state": {}, **more}  # fmt: skip


OLD: dict[str, Any] = {
    "environment": "swe_main",
    "history": [
        entry("system", "You are a programmer."),
        entry("user", "Here is a demonstration.", is_demo=True),
        entry("assistant", "I demonstrate.", is_demo=True),
        entry("user", "Fix the colon."),
        entry("assistant", "I look.", thought="I look.", action="ls"),
        entry("user", "a.py"),
        entry("assistant", "I submit.", thought="I submit.", action="submit"),
    ],
    "trajectory": [step("I look.", "ls"), step("I submit.", "submit")],
    "info": {"exit_status": "submitted", "submission": "diff", "model_stats": {"api_calls": 2}},
}


def read(item: Any) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {"hops": [], "turns": [], "feedback": []}
    for row in rows_of(item):
        found.setdefault(row.table, []).append(decoded(row))
    return found


def texts(hop: dict[str, Any]) -> list[str]:
    return [message["content"] for message in hop["said"]]


def test_a_function_calling_run_is_one_turn() -> None:
    found = read(RUN)
    hops, (turn,) = found["hops"], found["turns"]
    spoken = [n for n, e in enumerate(RUN["history"]) if e["role"] == "assistant"]

    assert [hop["seq"] for hop in hops] == spoken
    assert turn["task"] == "marshmallow-code__marshmallow-1867"
    assert (turn["request"], turn["slot"]) == (RUN["history"][1]["content"], "gpt-4o")
    for hop in hops:
        history = RUN["history"][: hop["seq"]]
        assert texts(hop) == [e["content"] for e in history]
        assert [m["tool_call_id"] for m in hop["said"] if m["role"] == "tool"] == [
            e["tool_call_ids"][0] for e in history if e["role"] == "tool"
        ]
        made = RUN["history"][hop["seq"]]["tool_calls"][0]
        (call,) = hop["completion"]["tool_calls"]
        assert (call["id"], call["name"], call["arguments"]) == (
            made["id"], made["function"]["name"], made["function"]["arguments"],
        )  # fmt: skip
    assert [m["content"] for m in turn["tail"]] == [RUN["history"][-1]["content"]]


def test_demonstrations_were_seen_but_are_no_steps() -> None:
    found = read(OLD)

    assert [texts(hop)[-1] for hop in found["hops"]] == ["Fix the colon.", "a.py"]
    assert texts(found["hops"][0])[1:3] == ["Here is a demonstration.", "I demonstrate."]
    assert found["turns"][0]["request"] == "Fix the colon."
    assert (found["hops"][0]["model"], found["turns"][0]["task"]) == ("agent", None)


def test_a_newer_run_has_the_very_queries() -> None:
    elided = [entry("system", "S"), entry("user", "Old output: (1 line omitted)")]
    steps = [
        step("I look", "", query=OLD["history"][:4]),
        step("I look.", "ls", query=[*OLD["history"][:4], entry("user", "No action. Again.")]),
        step("I submit.", "submit", query=elided),
    ]

    hops = read({**OLD, "trajectory": steps})["hops"]

    assert [hop["completion"]["content"] for hop in hops] == ["I look", "I look.", "I submit."]
    assert texts(hops[1])[-1] == "No action. Again."
    assert texts(hops[2]) == ["S", "Old output: (1 line omitted)"]


def test_a_growing_run_keeps_its_id(tmp_path: Path) -> None:
    run = copy.deepcopy(RUN)
    cut = {**run, "history": run["history"][:10], "trajectory": run["trajectory"][:4], "info": {}}
    (tmp_path / "r.traj").write_text(json.dumps(cut))
    ingest(tmp_path / ".mol", tmp_path / "r.traj")
    (tmp_path / "r.traj").write_text(json.dumps(run))
    ingest(tmp_path / ".mol", tmp_path / "r.traj")

    rows = [row.values for row in rows_of(run)]
    wanted = sorted(values["hop_id"] for values in rows if "hop_id" in values)
    assert query(tmp_path / ".mol", "SELECT hop_id FROM hops ORDER BY 1")[1] == [
        (hop_id,) for hop_id in wanted
    ]
    assert query(tmp_path / ".mol", "SELECT len(hop_ids) FROM turns")[1] == [(len(wanted),)]


def test_a_run_of_mini_swe_agent_is_one_turn() -> None:
    def answer(number: int, **more: Any) -> dict[str, Any]:
        usage = {"prompt_tokens": 10 * number, "completion_tokens": number}
        response = {"id": f"r{number}", "model": "L2@0123456789ab", "created": 1775802340 + number,
                    "object": "chat.completion", "usage": usage,
                    "choices": [{"finish_reason": "tool_calls", "message": more}]}  # fmt: skip
        extra = {"response": response, "timestamp": 1775802340.5 + number, "cost": 0.1}
        return {"role": "assistant", **more, "extra": extra}

    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    run = {
        "info": {"mini_version": "2.2.7", "exit_status": "Submitted", "submission": "diff",
                 "config": {"model": {"model_name": "p/L2", "model_kwargs": {"temperature": 0.5}}}},
        "messages": [
            {"role": "system", "content": "You are a programmer."},
            {"role": "user", "content": "Fix the colon."},
            answer(1, content=None, tool_calls=[call]),
            {"role": "tool", "tool_call_id": "c1", "content": "a.py", "extra": {"timestamp": 1.0}},
            answer(2, content="Done."),
            {"role": "exit", "content": "diff", "extra": {"exit_status": "Submitted"}},
        ],
        "instance_id": "o__r-1", "trajectory_format": "mini-swe-agent-1.1",
    }  # fmt: skip

    found, growing = read(run), read({**run, "messages": run["messages"][:3]})
    first, second = found["hops"]
    (turn,) = found["turns"]

    assert growing["hops"] == [first]
    assert (first["model"], first["served_name"]) == ("p/L2", "L2@0123456789ab")
    assert (first["params"], first["finish_reason"]) == ({"temperature": 0.5}, "tool_calls")
    assert [m["tool_call_id"] for m in second["said"][2:]] == [None, "c1"]
    assert (second["response_id"], second["prompt_tokens"], second["duration_s"]) == ("r2", 20, 0.5)
    assert (turn["task"], turn["request"], turn["status"]) == ("o__r-1", "Fix the colon.", "ok")
    assert (turn["slot"], turn["digest"], turn["tail"]) == ("L2", "0123456789ab", [])
    assert 1.0 < turn["duration_s"] < 2.0


def test_a_run_that_submitted_nothing_failed(tmp_path: Path) -> None:
    ends = ("submitted", "submitted (exit_cost)", "exit_context", "early_exit")
    runs = [
        {**OLD, "environment": end, "info": {**OLD["info"], "exit_status": end}} for end in ends
    ]
    (tmp_path / "r.json").write_text(json.dumps(runs))

    ingest(tmp_path / ".mol", tmp_path / "r.json")
    attribute(tmp_path / ".mol", PROFILE)

    found = query(
        tmp_path / ".mol",
        "SELECT t.error, t.status, o.success FROM turns t JOIN outcomes o USING (turn_id)",
    )[1]
    assert sorted(found, key=str) == sorted(
        [(None, "ok", None), (None, "ok", None), ("exit_context", "failed", False),
         ("early_exit", "failed", False)], key=str,
    )  # fmt: skip


def test_the_programs_own_last_words_are_no_step() -> None:
    note = entry("assistant", "Exit due to cost limit", thought="Exit due to cost limit", action="")
    run = {**OLD, "history": [*OLD["history"][:-1], note], "info": {"exit_status": "exit_cost"}}

    found = read(run)

    assert [hop["completion"]["content"] for hop in found["hops"]] == ["I look."]
    assert [m["content"] for m in found["turns"][0]["tail"]] == ["a.py", "Exit due to cost limit"]


def test_how_it_ended_is_a_comment_and_only_the_file_says_whether_it_is_right() -> None:
    (remark,) = read(OLD)["feedback"]
    assert remark["kind"] == "comment"
    assert json.loads(remark["detail"]) == OLD["info"]

    judged = {**OLD, "info": {**OLD["info"], "report": {"resolved": False}}}
    verdict = read(judged)["feedback"][1]
    assert (verdict["kind"], verdict["name"], verdict["value"]) == ("verifier", "resolved", 0.0)


def test_each_attempt_is_a_conversation_and_a_broken_one_is_set_aside() -> None:
    second = {**OLD, "history": [*OLD["history"][:4], entry("assistant", "Else.", action="x")]}
    broken = {**OLD, "history": [{"role": "nobody", "content": "x"}]}

    found = read({"attempts": [OLD, second, broken], **OLD})

    assert len({turn["conversation_id"] for turn in found["turns"]}) == len(found["turns"]) == 2
    (aside,) = found["quarantine"]
    assert json.loads(aside["raw"])["attempts"] == [broken]
