"""Proves that a duration that no clock has costs its record, with one clear line, and nothing else.

Nothing is faked: whole ingests in real lakes.
"""

import copy
import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from import_rows import DATA, rows_of
from trace_records import (
    capture_hop,
    capture_request,
    hop,
    line,
    says,
    tables,
    turn_of,
    user,
    write_lines,
)

from traces.ending import MAX_DURATION_S, ended_at
from traces.importers.mindlab_requests import read_request
from traces.importers.rows import LineRefused, checked_duration
from traces.importers.trajectory import Trajectory, exchanges, rows
from traces.ingest import ingest
from traces.joins.histories import Histories
from traces.joins.turns import refresh_turns
from traces.storage.lake import Lake

LONG = [1e300, 1e15, float(MAX_DURATION_S + 1), -1e300]


def counts(home: Path) -> tuple[int, int]:
    """Return the number of hops and of turns."""
    found = tables(home, "hops", "turns")
    return len(found["hops"]), len(found["turns"])


@pytest.mark.parametrize(("kind", "duration_s"), [("hop", 1e300), ("hop", 1e15), ("turn", 1e15)])
def test_a_record_of_the_spool(tmp_path: Path, kind: str, duration_s: float) -> None:
    good = hop(messages=(user("Hello"),), completion=says("Hi"))
    bad: Any = good.model_copy(update={"duration_s": duration_s, "seq": 7})
    if kind == "turn":
        bad = turn_of([good], duration_s=duration_s)
    spool = tmp_path / "spool" / "2026-01-01.jsonl"
    spool.parent.mkdir()
    spool.write_text(line(good) + line(bad))

    report = ingest(tmp_path / ".mol", spool.parent)

    assert report.quarantined == {"bad_record": 1}
    assert counts(tmp_path / ".mol") == (1, 1)


@pytest.mark.parametrize("duration_s", [1e15, "x", [1]])
def test_a_call_and_a_request_of_a_capture(tmp_path: Path, duration_s: Any) -> None:
    write_lines(
        tmp_path / "in" / "hops.jsonl",
        [
            capture_hop("k1", "answer", "L2", "Hello", 1000.0),
            capture_hop("k2", "answer", "L2", "Bye", 1010.0, duration_s=duration_s),
        ],
    )
    write_lines(
        tmp_path / "in" / "turns.jsonl",
        [
            capture_request("Hello", 999.5, 3.0, "L2 says Hello"),
            capture_request("Bye", 1009.5, duration_s, "L2 says Bye"),
        ],
    )

    report = ingest(tmp_path / ".mol", tmp_path / "in")

    assert report.quarantined == {"bad_record": 2}
    assert counts(tmp_path / ".mol") == (1, 1)


def test_a_message_of_a_simulation_is_told_by_its_field() -> None:
    (first, *_) = json.loads((DATA / "trajectories" / "tau_bench.json").read_text())
    assert all(row.table != "quarantine" for row in rows_of(first))
    simulation = {
        "id": "s", "task_id": "7", "termination_reason": "user_stop", "reward_info": None,
        "messages": [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi", "timestamp": "2025-06-01T10:00:03",
             "generation_time_seconds": 1.5},
        ],
    }  # fmt: skip
    results = {"timestamp": "2025-06-01T10:01:00", "tasks": [], "simulations": [simulation],
               "info": {"agent_info": {}, "environment_info": {}}}  # fmt: skip
    assert [row.table for row in rows_of(results)] == ["hops", "turns"]
    for took in (1e300, 1e11, 10**400):
        broken = copy.deepcopy(results)
        broken["simulations"][0]["messages"][1]["generation_time_seconds"] = took

        (row,) = rows_of(broken)

        assert (row.table, row.values["reason"]) == ("quarantine", "bad_record")
        assert row.values["detail"].startswith("generation_time_seconds is out of range: 1")


@pytest.mark.parametrize("duration_s", [*LONG, math.nan, math.inf])
def test_a_trajectory(duration_s: float) -> None:
    messages = (user("Hello"), says("Hi"))
    made = exchanges(messages, {1: {"duration_s": duration_s}})

    with pytest.raises(LineRefused, match="duration_s is out of range: "):
        list(rows(Trajectory("test", "c1", messages, made)))


def test_a_call_at_the_end_of_time_ends_when_it_began() -> None:
    last = datetime(9999, 12, 31, tzinfo=UTC)
    messages = (user("Hello"), says("Hi"))
    made = exchanges(messages, {1: {"started_at": last, "duration_s": 1e6}})

    turn = list(rows(Trajectory("test", "c1", messages, made, started_at=last)))[-1]

    assert (turn.table, turn.values["duration_s"]) == ("turns", 0.0)


def test_when_something_ended() -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)

    assert ended_at(began, 2.5) == began + timedelta(seconds=2.5)
    assert [ended_at(began, odd) for odd in (-1.0, 1e300, math.inf, math.nan)] == [began] * 4


def test_a_duration_is_a_number_within_a_thousand_years() -> None:
    assert [checked_duration("d", each) for each in (0, 2.5, MAX_DURATION_S)] == [
        0.0, 2.5, float(MAX_DURATION_S),
    ]  # fmt: skip
    with pytest.raises(LineRefused, match="d is no number: 'x'"):
        checked_duration("d", "x")


@pytest.mark.parametrize("duration_s", [*LONG, "x", [1], None])
def test_a_request_that_an_older_lake_holds_stops_no_join(duration_s: Any) -> None:
    raw = capture_request("Hello", 999.5, duration_s, "L2 says Hello")

    facts = read_request(0, json.dumps(raw), Histories()).facts

    assert abs(facts.ended_us - facts.started_us) <= MAX_DURATION_S * 10**6


@pytest.mark.parametrize("duration_s", [*LONG, math.nan, math.inf, -math.inf])
def test_a_call_that_an_older_lake_holds_stops_no_join(tmp_path: Path, duration_s: float) -> None:
    call = capture_hop("k1", "answer", "L2", "Hello", 1000.0)
    write_lines(tmp_path / "in" / "hops.jsonl", [call])
    ingest(tmp_path / ".mol", tmp_path / "in")
    with Lake.open(tmp_path / ".mol") as lake:
        lake.connection.execute(
            """
            INSERT INTO hops
            SELECT * REPLACE ('other' AS hop_id, 'other' AS conversation_id, ? AS duration_s)
            FROM hops
            """,
            [duration_s],
        )
        assert refresh_turns(lake) == (1, 0)
        (longest,) = lake.connection.execute("SELECT max(duration_s) FROM turns").fetchone() or ()

    assert 0 <= longest <= MAX_DURATION_S
