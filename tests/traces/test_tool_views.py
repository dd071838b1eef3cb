"""Proves that `v_tool_results` has every tool result once, with its turn, call and verdict.

Real lakes of trajectories and of recorded hops; nothing is faked.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from import_rows import DATA
from metaclaw_files import SESSION
from trace_records import SHARED, calls, hop, result, says, turn_of, user, write_spool

from traces.analytics.views import query
from traces.ingest import ingest

EXCERPT = DATA / "trajectories" / "tau_bench.json"
WHOLE = SHARED / "data" / "tau-bench" / "gpt-4o-airline.json"


@pytest.mark.parametrize(
    ("path", "failed"),
    [
        (EXCERPT, 1),
        pytest.param(
            WHOLE, 73, marks=pytest.mark.skipif(not WHOLE.is_file(), reason="needs ../shared")
        ),
    ],
)
def test_the_tool_errors_of_tau_bench(tmp_path: Path, path: Path, failed: int) -> None:
    wanted = [
        (m["tool_call_id"], m["name"], m["content"], m["content"].startswith("Error"))
        for trajectory in json.loads(path.read_text())
        for m in trajectory["traj"]
        if m["role"] == "tool"
    ]

    ingest(tmp_path / ".mol", path)

    found = rows(tmp_path)
    assert sorted(row[1:] for row in found) == sorted(wanted)
    assert sum(row[4] for row in found) == failed


def test_each_result_is_in_the_turn_that_it_came_in(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text("".join(json.dumps(line) + "\n" for line in SESSION))
    ingest(tmp_path / ".mol", tmp_path / "s.jsonl")

    assert sorted(rows(tmp_path)) == [
        ("metaclaw:s1:u1", "c1", "read", "One.", False),
        ("metaclaw:s1:u1", "c2", "read", "Two.", False),
    ]


def test_an_attempt_that_was_replaced_does_not_count_twice(tmp_path: Path) -> None:
    asked = [user("Taxi?"), calls("taxi"), result('{"ok": false}')]
    first = hop(completion=asked[1], messages=asked[:1])
    second = hop(messages=asked, status="engine_error", completion=None, seq=2)
    third = hop(messages=asked, completion=says("None."), seq=3, supersedes=second.hop_id)
    answered = turn_of([first, second, third])
    write_spool(tmp_path / "spool.jsonl", [first, second, third, answered])

    ingest(tmp_path / ".mol", tmp_path / "spool.jsonl")

    assert rows(tmp_path) == [("t1", "call-1", "taxi", '{"ok": false}', True)]


def rows(folder: Path) -> list[tuple[Any, ...]]:
    text = "SELECT turn_id, tool_call_id, name, content, failed FROM v_tool_results"
    return query(folder / ".mol", text)[1]
