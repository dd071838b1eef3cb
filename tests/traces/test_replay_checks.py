"""What a replay's answers are held to, and which turns it cannot afford or tell.

The engine is scripted (`replayed_turns`); lake, checks and pairs are the real parts.
"""

import json
from pathlib import Path

from replayed_turns import (
    NEW,
    RIGHT,
    ScriptedEngine,
    failed_turn,
    lake_of,
    named,
    pairs,
    pool_of,
    rows,
    run,
)
from trace_records import at, says, signal

from serving.engine import ChatRequest
from serving.records import Feedback, Hop, Turn

TIDY = json.dumps({"verifier": "form", "form": "text", "schema": {"pattern": "^It is"}})


def test_answers_are_held_to_the_check_that_failed_though_another_passed_later(home: Path) -> None:
    passed = signal(name="form", value=1.0, target_id="t1", reference=TIDY, created_at=at(61))
    lake_of(home, [*failed_turn("t1"), passed])
    report = run(home, pool_of(ScriptedEngine(named(L2=1.0))), samples=4)
    assert (report.verdicts, report.pairs) == ({"router": 1}, 0)
    assert rows(home, "SELECT slot, successes FROM replays ORDER BY slot") == [
        ("L0", 0), ("L1", 0), ("L2", 4), ("L3", 0),
    ]  # fmt: skip


def test_a_strangers_edit_writes_no_pair(home: Path) -> None:
    edits = [
        signal("edit", None, target_id="t1", user=who, correction=says(text), created_at=at(when))
        for who, text, when in (("bob", "It is Paris.", 60), ("mallory", "It is evil.", 70))
    ]
    lake_of(home, [*failed_turn("t1", user="bob")[:-1], *edits])
    assert run(home, pool_of(ScriptedEngine(named(L0=1.0)))).verdicts == {"stochastic": 1}
    assert rows(home, "SELECT successes FROM replays WHERE slot = 'L0'") == [(8,)]
    assert pairs(home) == []


def test_a_turn_whose_answer_passes_the_check_failed_for_another_reason(home: Path) -> None:
    lake_of(home, failed_turn("t1", answer={"completion": says("It is Paris.")}))
    report = run(home, pool_of(ScriptedEngine(named())))
    assert (report.calls, report.left_out) == (0, {"the check passes the recorded answer": 1})


def long_turn() -> list[Hop | Turn | Feedback]:
    """Return a turn of three answers, the first of which are calls of no tool: 3 a sample."""
    records = failed_turn("long", "L1", request="Doubtful?")
    records[-1] = signal(name="made_up", target_id="long", reference=RIGHT)
    first = records[1]
    assert isinstance(first, Hop)
    more = [
        first.model_copy(
            update={"hop_id": f"h-long{n}", "response_id": f"r-long{n}", "seq": n,
                    "started_at": at(1 + n / 10)}
        )
        for n in (3, 4)
    ]  # fmt: skip
    turn = records[3]
    assert isinstance(turn, Turn)
    ids = (*turn.hop_ids, *(hop.hop_id for hop in more))
    responses = (*turn.response_ids, *(str(hop.response_id) for hop in more))
    records[3] = turn.model_copy(update={"hop_ids": ids, "response_ids": responses})
    return [*records[:3], *more, *records[3:]]


def test_a_turn_that_no_budget_reaches_holds_up_none_behind_it(home: Path) -> None:
    lake_of(home, [*long_turn(), *failed_turn("t1")])
    report = run(home, pool_of(ScriptedEngine(named())), samples=2, replay_budget=10)
    assert (report.replayed, report.calls, report.waiting) == (1, 8, 0)
    assert report.left_out == {"needs more calls than the budget": 1}


def test_an_arm_that_was_mostly_cut_decides_nothing_and_has_more_room_where_answers_were_long(
    home: Path,
) -> None:
    class Thinks(ScriptedEngine):
        def finish(self, request: ChatRequest) -> str:
            return (
                "length" if request.model == f"L0@{NEW}" and request.max_tokens < 1500 else "stop"
            )

    def recorded(taken: int) -> list[Hop | Turn | Feedback]:
        return failed_turn("t1", answer={"params": "{}", "completion_tokens": taken})

    lake_of(home, recorded(20))
    report = run(home, pool_of(Thinks(named(L1=1.0))), samples=4)
    assert (report.verdicts, report.left_out) == ({"none": 1}, {})
    report = run(home, pool_of(Thinks(named(L1=1.0))), samples=4)
    assert report.left_out == {"replayed before": 1}
    other = lake_of(home.parent / "other" / "home", recorded(2000))
    report = run(other, pool_of(Thinks(named(L1=1.0))), samples=4)
    assert report.verdicts == {"router": 1}
