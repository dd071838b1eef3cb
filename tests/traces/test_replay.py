"""Counterfactual replay over a real lake: which turns, what is kept, what a kill leaves.

The engine is scripted (`replayed_turns`): it stands in where an outcome must be forced; the
checks, the views, the lake and the pairs are the real parts. `test_replay_embedded` has a real
engine.
"""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from replayed_turns import (
    NEW,
    OLD,
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
from trace_records import PROFILE, at, says, signal, user, write_spool

from serving.engine import ChatRequest, ChatResult
from serving.errors import EngineRefused, EngineUnavailable
from traces.attribute import attribute
from traces.attribution.replay_rows import Replays
from traces.attribution.replayed import ArmConfig
from traces.ingest import ingest
from traces.storage.lake import Lake


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with one failed turn, `t1`; tests work on copies of it."""
    return lake_of(tmp_path_factory.mktemp("template") / "home", failed_turn("t1"))


@pytest.fixture
def once(home: Path, template: Path) -> Path:
    return Path(shutil.copytree(template, home))


def test_every_slot_is_asked_m_times_with_seeds_of_its_own(once: Path) -> None:
    engine = ScriptedEngine(named(L2=1.0))
    report = run(once, pool_of(engine), samples=8)
    assert (report.replayed, report.calls) == (1, 32)
    assert Counter(r.model for r in engine.asked) == dict.fromkeys(named(), 8)
    assert len({r.seed for r in engine.asked}) == 32
    assert {r.temperature for r in engine.asked} == {0.7}
    kept = rows(once, "SELECT slot, digest, samples, successes FROM replays ORDER BY slot")
    assert kept == [("L0", NEW, 8, 0), ("L1", NEW, 8, 0), ("L2", NEW, 8, 8), ("L3", NEW, 8, 0)]
    assert report.verdicts == {"router": 1}


def test_a_success_of_the_version_that_failed_makes_one_pair(once: Path) -> None:
    engine = ScriptedEngine(named() | {f"L0@{OLD}": 1.0})
    report = run(once, pool_of(engine, {"L0": OLD}))
    assert (report.verdicts, report.versions, report.pairs) == (
        {"stochastic": 1}, {"served": 1}, 1,
    )  # fmt: skip
    (pair,) = pairs(once, slot="L0")
    assert (pair.preference.chosen, pair.preference.rejected) == (
        says("It is Paris."), says("It is Rome."),
    )  # fmt: skip
    assert (pair.preference.digest, pair.preference.source) == (OLD, "replay")
    assert pair.prompt[-1] == user("Capital of France, t1?")
    assert pairs(once, slot="L2") == []


def test_where_the_version_is_gone_its_successor_is_asked_and_both_answers_are_its_own(
    once: Path,
) -> None:
    report = run(once, pool_of(ScriptedEngine(named(L0=0.5))))
    assert (report.versions, report.pairs) == ({"champion": 1}, 1)
    (pair,) = pairs(once)
    assert pair.preference.digest == NEW
    assert pair.preference.chosen == says("It is Paris.")
    assert pair.preference.rejected.content.startswith("It is Rome, ")


def test_what_was_asked_is_not_asked_again(once: Path) -> None:
    run(once, pool_of(ScriptedEngine(named(L0=0.6))))
    before = rows(once, "FROM replays ORDER BY slot"), rows(once, "FROM preferences")
    engine = ScriptedEngine(named(L0=0.6))
    report = run(once, pool_of(engine))
    assert (engine.asked, report.left_out) == ([], {"replayed before": 1})
    assert (rows(once, "FROM replays ORDER BY slot"), rows(once, "FROM preferences")) == before


def test_more_samples_are_added_to_those_there(once: Path) -> None:
    chances = named(L0=0.4, L2=0.7)
    first, second, whole = (ScriptedEngine(chances) for _ in range(3))
    run(once, pool_of(first), samples=3)
    run(once, pool_of(second), samples=8)
    seeds = {r.seed for r in [*first.asked, *second.asked]}
    other = lake_of(once.parent / "other" / "home", failed_turn("t1"))
    run(other, pool_of(whole), samples=8)
    assert len(second.asked) == 4 * 5
    assert seeds == {r.seed for r in whole.asked}
    counts = "SELECT slot, samples, successes FROM replays ORDER BY slot"
    assert rows(once, counts) == rows(other, counts)


def test_a_later_reference_has_the_turn_asked_again(once: Path) -> None:
    run(once, pool_of(ScriptedEngine(named() | {f"L0@{OLD}": 0.9}), {"L0": OLD}))
    assert len(pairs(once)) == 1
    rome = json.dumps({"verifier": "short_answer", "accepted": ["Lyon"]})
    late = signal(name="short_answer", target_id="t1", reference=rome, created_at=at(500))
    ingest(once, write_spool(once.parent / "late.jsonl", [late]))
    assert pairs(once) == []
    report = run(once, pool_of(ScriptedEngine(named() | {f"L0@{OLD}": 0.9}), {"L0": OLD}))
    assert report.replayed == 1
    assert rows(once, "SELECT DISTINCT samples, successes FROM replays") == [(8, 0)]
    assert rows(once, "FROM preferences") == []


def test_the_pair_of_an_answer_that_a_later_check_passed_is_left_out(home: Path) -> None:
    edit = signal("edit", None, target_id="t1", correction=says("It is Paris."))
    lake_of(home, [*failed_turn("t1")[:-1], edit])
    run(home, pool_of(ScriptedEngine(named(L0=0.6))))
    assert len(pairs(home)) == 1
    passed = signal(name="short_answer", value=1.0, target_id="t1", created_at=at(500))
    ingest(home, write_spool(home.parent / "late.jsonl", [passed]))
    assert pairs(home) == []
    assert rows(home, "SELECT success FROM outcomes") == [(True,)]


def test_a_turn_alike_whose_reference_changed_since_counts_nowhere(home: Path) -> None:
    """Its replay was checked against what is wrong now, and tells nothing of any turn."""
    lake_of(home, failed_turn("t1") + failed_turn("t2"))
    run(home, pool_of(ScriptedEngine(named(L2=1.0))))
    lyon = json.dumps({"verifier": "short_answer", "accepted": ["Lyon"]})
    late = signal(name="short_answer", target_id="t2", reference=lyon, created_at=at(500))
    ingest(home, write_spool(home.parent / "late.jsonl", [late]))
    attribute(home, PROFILE)
    verdicts = rows(home, "SELECT turn_id, verdict FROM blame ORDER BY turn_id")
    assert verdicts == [("t1", "router"), ("t2", None)]
    with Lake.open(home, read_only=True) as lake:
        lake.connection.execute("ATTACH ':memory:' AS judged")
        lake.connection.execute("CREATE TABLE judged.outcomes AS FROM outcomes")
        lake.connection.execute(
            "CREATE TABLE judged.turns AS SELECT turn_id, slot, false AS superseded FROM turns"
        )
        replays = Replays.of(lake.connection, "", {"t1": 0, "t2": 0})
    assert (len(replays.rows("t1")), replays.rows("t2"), replays.similar("t1")) == (4, (), [])


@pytest.mark.slow
def test_the_budget_is_kept_and_the_next_run_goes_on(home: Path) -> None:
    records = [record for n in range(3) for record in failed_turn(f"t{n}")]
    lake_of(home, records)
    reports = [run(home, pool_of(ScriptedEngine(named(L2=1.0))), replay_budget=70) for _ in "123"]
    assert [(r.replayed, r.calls, r.waiting) for r in reports] == [
        (2, 64, 1),
        (1, 32, 0),
        (0, 0, 0),
    ]
    other = lake_of(home.parent / "other" / "home", records)
    run(other, pool_of(ScriptedEngine(named(L2=1.0))))
    counts = "SELECT turn_id, slot, digest, samples, successes, config FROM replays ORDER BY ALL"
    assert rows(home, counts) == rows(other, counts)


def test_an_engine_that_goes_away_leaves_what_was_done(home: Path) -> None:
    lake_of(home, [record for n in range(9) for record in failed_turn(f"t{n}")])
    report = run(home, pool_of(ScriptedEngine(named(), gone_after=200)))
    assert report.stopped is not None
    assert "it was stopped" in report.stopped
    assert 4 <= report.replayed < 9
    done = {row[0] for row in rows(home, "SELECT turn_id FROM replays")}
    assert len(done) == report.replayed
    assert rows(home, "SELECT DISTINCT samples, successes FROM replays") == [(8, 0)]
    report = run(home, pool_of(ScriptedEngine(named())))
    assert (report.replayed, report.stopped) == (9 - len(done), None)


def test_truncated_answers_are_not_judged(once: Path) -> None:
    class Cut(ScriptedEngine):
        def finish(self, request: ChatRequest) -> str:
            return "length" if (request.seed or 0) % 2 else "stop"

    report = run(once, pool_of(Cut(named(L0=1.0))), samples=8)
    ((samples, successes, config),) = rows(
        once, "SELECT samples, successes, config FROM replays WHERE slot = 'L0'"
    )
    how = ArmConfig.model_validate_json(config)
    assert 0 < samples < 8
    assert successes == samples
    assert (how.asked, how.left_out) == (8, {"cut at its token limit": 8 - samples})
    assert report.samples_left_out["cut at its token limit"] >= 8 - samples


def test_a_refused_call_is_no_failure_of_the_arm(once: Path) -> None:
    class Narrow(ScriptedEngine):
        async def chat(self, request: ChatRequest, on_delta: Any = None) -> ChatResult:
            if request.model.startswith("L3"):
                raise EngineRefused("The prompt is too long (400).", 400)
            return await super().chat(request)

    report = run(once, pool_of(Narrow(named(L2=1.0))))
    counts = dict(rows(once, "SELECT slot, samples FROM replays"))
    assert counts == {"L0": 8, "L1": 8, "L2": 8, "L3": 0}
    assert (report.stopped, report.verdicts) == (None, {"router": 1})


@pytest.mark.parametrize("status", [None, 400, 500])
def test_a_turn_that_the_engine_did_not_answer_is_asked_again(
    once: Path, status: int | None
) -> None:
    """An engine that is broken stops the run; what was too slow, or refused, waits for another."""

    class Down(ScriptedEngine):
        async def chat(self, request: ChatRequest, on_delta: Any = None) -> ChatResult:
            if status is not None:
                raise EngineRefused(f"The engine said {status}.", status)
            late = EngineUnavailable("Not in time.")
            late.timed_out = True
            raise late

    broken = status == 500
    report = run(once, pool_of(Down(named())))
    assert (report.replayed, report.stopped) == (
        (0, "The engine said 500.") if broken else (1, None)
    )
    assert rows(once, "SELECT count(*), sum(samples) FROM replays") == [
        (0, None) if broken else (4, 0)
    ]
    report = run(once, pool_of(ScriptedEngine(named(L2=1.0))))
    assert (report.replayed, report.left_out, report.verdicts) == (1, {}, {"router": 1})
    assert rows(once, "SELECT DISTINCT samples FROM replays") == [(8,)]


def test_what_cannot_be_replayed_is_counted_with_its_reason(home: Path) -> None:
    plain = signal(name="short_answer", target_id="a")
    records = [
        *failed_turn("a")[:-1], plain,
        *failed_turn("b", canary=True),
        *failed_turn("c", answer={"finish_reason": "length"}),
        *failed_turn("d", decision="fallback"),
        *failed_turn("e")[1:],
    ]  # fmt: skip
    lake_of(home, records)
    engine = ScriptedEngine(named())
    report = run(home, pool_of(engine))
    assert (report.replayed, engine.asked) == (0, [])
    assert report.left_out == {
        "blamed on the fallback": 1,
        "calls are missing from the record": 1,
        "canary turn": 1,
        "nothing to check a fresh answer against": 1,
        "truncated answer": 1,
    }


def test_doubtful_blame_comes_first_and_the_same_request_later(home: Path) -> None:
    sure = failed_turn("a", "L0", request="Sure?")
    doubtful = failed_turn("b", "L1", request="Doubtful?")  # its verifier is another slot's
    doubtful[-1] = signal(name="made_up", target_id="b", reference=RIGHT)
    again = failed_turn("c", "L1", request="doubtful? ")
    again[-1] = signal(name="made_up", target_id="c", reference=RIGHT)
    lake_of(home, [*sure, *doubtful, *again])
    confidence = dict(rows(home, "SELECT turn_id, confidence FROM blame"))
    assert confidence["b"] < confidence["a"]
    run(home, pool_of(ScriptedEngine(named())), replay_budget=32)
    assert {row[0] for row in rows(home, "SELECT turn_id FROM replays")} == {"b"}
    run(home, pool_of(ScriptedEngine(named())), replay_budget=32)
    done = {row[0] for row in rows(home, "SELECT turn_id FROM replays")}
    assert done in ({"a", "b"}, {"b", "c"})


@pytest.mark.slow
def test_a_turn_that_only_an_edited_text_can_check_comes_later(home: Path) -> None:
    edited = failed_turn("a", "L0", request="Edited?")
    edited[-1] = signal("edit", None, target_id="a", correction=says("It is Paris, of course."))
    verified = failed_turn("b", "L0", request="Verified by all means?")
    lake_of(home, [*edited, *verified])
    run(home, pool_of(ScriptedEngine(named())), replay_budget=32)
    assert rows(home, "SELECT DISTINCT turn_id FROM replays") == [("b",)]
    run(home, pool_of(ScriptedEngine(named())), replay_budget=32)
    assert len(rows(home, "SELECT DISTINCT turn_id FROM replays")) == 2
