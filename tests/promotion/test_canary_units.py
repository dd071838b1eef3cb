"""Conversations as units, and pairs of them: what counts, in which order, and that it stays so.

Proved: the rule of `promotion.canary.units`, above all that whoever looks later sees the same
pairs and more, also when words about a turn come days later; and how blocks, the latency limit
and the limits against an earlier champion are made. Turns are made by hand, without a lake.
"""

import random
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from promotion.canary.config import CanaryConfig
from promotion.canary.guards import (
    LEAST_DURATIONS,
    blocks,
    evidence_against,
    limit,
    paired_evidence,
    percentile_95,
)
from promotion.canary.units import Judged, judge, judged_units, units_of
from serving.records import Feedback
from traces.arms import ArmTurn, ArmTurns

START = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
QUIET = timedelta(minutes=30)
CANARY, CHAMPION = "c" * 12, "a" * 12


def minutes(n: float) -> datetime:
    return START + timedelta(minutes=n)


def said(value: float, minute: float, kind: str = "thumb") -> Feedback:
    return Feedback(
        source="mol", target_kind="turn", target_id="t", kind=kind, name=kind, value=value,
        created_at=minutes(minute),
    )  # fmt: skip


def turn(unit: str, minute: float, *signals: Feedback, canary: bool = False, **fields) -> ArmTurn:
    values = {
        "turn_id": f"{unit}-{minute}",
        "unit": unit,
        "version": CANARY if canary else CHAMPION,
        "started_at": minutes(minute),
        "ended_at": minutes(minute),
        "status": "ok",
        "latency_s": 1.0,
        "broken_call": False,
        "refused": False,
        "user": None,
        "asked_again_at": None,
        "signals": signals,
    }
    return ArmTurn(**(values | fields))


def units(*turns: ArmTurn, until: float = 10_000):
    return units_of(ArmTurns(tuple(turns), minutes(until)), CANARY, QUIET)


def test_a_conversation_is_one_unit_whatever_its_turns() -> None:
    broken = {"broken_call": True, "refused": True, "latency_s": 9.0}
    (unit,) = units(turn("c1", 0, said(-1, 1)), turn("c1", 5, said(1, 6)), turn("c1", 9, **broken))
    assert unit.final_at == minutes(39)
    assert (unit.broken_calls, unit.refusals, unit.slower_than(2)) == (1 / 3, 1 / 3, 1 / 3)
    judged = judge(unit, minutes(10_000))
    assert judged == Judged(canary=False, final_at=minutes(39), failures=0.5)


def test_of_what_begins_alike_and_never_pauses_the_first_turns_count() -> None:
    turns = [turn("opening:1", n, nameless=True, refused=n < 31) for n in range(200)]
    (unit,) = units(*turns)
    assert (unit.turns[-1].started_at, unit.final_at) == (minutes(30), minutes(60))
    assert unit.refusals == 1
    # A conversation that somebody named goes on as long as it does.
    (named,) = units(*(turn("c1", n) for n in range(200)))
    assert len(named.turns) == 200


def test_what_comes_after_a_pause_or_from_the_other_version_is_left_out() -> None:
    (paused,) = units(turn("c1", 0), turn("c1", 29), turn("c1", 60))
    assert [t.started_at for t in paused.turns] == [minutes(0), minutes(29)]
    (grown,) = units(turn("c1", 0), turn("c1", 5, canary=True), turn("c1", 6))
    assert (grown.canary, len(grown.turns)) == (False, 1)


def test_what_may_not_be_in_the_lake_yet_does_not_count() -> None:
    assert units(turn("c1", 0), until=29) == []
    assert len(units(turn("c1", 0), until=30)) == 1
    assert units_of(ArmTurns((turn("c1", 0),), None), CANARY, QUIET) == []


def test_a_word_that_comes_late_has_its_place_where_it_came() -> None:
    early, late = turn("c1", 0, said(-1, 4000)), turn("c2", 50, said(1, 55), canary=True)
    found = units(early, late)
    assert [unit.key for unit in found] == ["c1", "c2"]
    judged = judged_units(found, minutes(10_000))
    assert [(unit.final_at, unit.failures) for unit in judged] == [
        (minutes(80), 0.0), (minutes(4000), 1.0)
    ]  # fmt: skip
    assert [unit.final_at for unit in judged_units(found, minutes(3999))] == [minutes(80)]


def test_a_word_after_the_first_changes_nothing() -> None:
    (unit,) = units(turn("c1", 0, said(1, 5), said(0.0, 3000, "verifier")))
    assert judge(unit, minutes(10_000)) == Judged(False, minutes(30), 0.0)
    (asked_again,) = units(turn("c1", 0, said(1, 5), asked_again_at=minutes(400)))
    assert judge(asked_again, minutes(10_000)) == Judged(False, minutes(30), 0.0)


def test_no_answer_is_a_failure_and_an_implicit_word_is_none() -> None:
    (failed,) = units(turn("c1", 0, status="failed"))
    assert judge(failed, minutes(100)) == Judged(False, minutes(30), 1.0)
    (doubted,) = units(turn("c1", 0, said(-1.0, 5, "rephrase")))
    assert judge(doubted, minutes(10_000)) is None


def random_traffic(seed: int) -> list[ArmTurn]:
    rng = random.Random(seed)
    turns = []
    for number in range(120):
        canary, begin = rng.random() < 0.2, rng.uniform(0, 3000)
        for step in range(rng.randint(1, 4)):
            minute = begin + step * rng.choice((1, 5, 45))
            words = [
                said(rng.choice((-1.0, 1.0)), minute + rng.choice((1, 20, 500, 4000)))
                for _ in range(rng.choice((0, 1, 1, 2)))
            ]
            words.sort(key=lambda word: word.created_at)
            # Five percent of the champion's conversations have become the canary's by growth.
            now = canary or (step > 0 and rng.random() < 0.05)
            turns.append(turn(f"c{number}", minute, *words, canary=now))
    return turns


@pytest.mark.parametrize("seed", range(5))
def test_who_looks_later_sees_the_same_pairs_and_more(seed: int) -> None:
    """What was known at each look is cut from the traffic by time alone."""
    traffic = random_traffic(seed)
    seen: dict[str, list] = {"failures": [], "refusals": []}
    for until in (500, 1500, 2500, 4000, 9000):
        moment = minutes(until)
        known = [
            turn(
                one.unit,
                (one.started_at - START) / timedelta(minutes=1),
                *(word for word in one.signals if word.created_at <= moment),
                canary=one.version == CANARY,
            )
            for one in traffic
            if one.started_at <= moment
        ]
        found = units(*known, until=until)
        told = {"failures": list(blocks(judged_units(found, moment))), "refusals": blocks(found)}
        for guard, made in told.items():
            now = [[(u.final_at, u.canary) for u in block] for block in made]
            if guard == "failures":
                now = [[(u.final_at, u.canary, u.failures) for u in b] for b in told["failures"]]
            assert now[: len(seen[guard])] == seen[guard]
            seen[guard] = now
    assert len(seen["failures"]) > 10
    assert len(seen["refusals"]) > 10


def judged(pattern: str, failures: float = 0.0) -> list[Judged]:
    """`C` for a canary's conversation, `a` for a champion's, a minute apart."""
    return [Judged(mark == "C", minutes(n), failures) for n, mark in enumerate(pattern)]


def test_a_block_closes_as_soon_as_both_versions_are_in_it() -> None:
    made = [
        "".join("aC"[unit.canary] for unit in block) for block in blocks(judged("aaaCCaCCCaaa"))
    ]
    assert made == ["aaaC", "Ca", "CCCa"]


def test_a_pair_is_the_canary_against_the_mean_beside_it() -> None:
    told = [
        Judged(False, minutes(0), 1.0), Judged(False, minutes(1), 0.0),
        Judged(True, minutes(2), 1.0), Judged(True, minutes(3), 0.25),
        Judged(True, minutes(4), 0.75), Judged(False, minutes(5), 1.0),
    ]  # fmt: skip
    evidence = paired_evidence([], told, CanaryConfig())
    (state, *others) = evidence.verdict.guards
    assert (state.guard, state.pairs, state.harm) == ("failures", 2, pytest.approx(0.0))
    assert evidence.times == (minutes(2), minutes(5))
    assert evidence.pairs_since(minutes(2)) == 1
    assert [other.pairs for other in others] == [0, 0, 0]


def test_slow_is_what_the_champion_was_not_before() -> None:
    turns = []
    for n in range(60):
        turns.append(turn(f"a{n}", n, latency_s=1.0 + n / 100))
        turns.append(turn(f"c{n}", n + 0.5, canary=True, latency_s=5.0))
    states = {
        state.guard: state
        for state in paired_evidence(units(*turns), [], CanaryConfig()).verdict.guards
    }
    # The first blocks have no limit yet: it takes so many calls of the champion.
    assert states["latency"].pairs <= 60 - LEAST_DURATIONS
    # The champion gets slower, so each of its calls is over the limit from before.
    assert states["latency"].harm == pytest.approx((0 - 0.05) / 1.05)
    before = [1.0] * LEAST_DURATIONS
    told = paired_evidence(units(*turns[1::2], turn("a", 0)), [], CanaryConfig(), before)
    assert {s.guard: s.pairs for s in told.verdict.guards}["latency"] == 1


def test_the_95th_percentile_is_by_nearest_rank() -> None:
    assert percentile_95([float(n) for n in range(1, 101)]) == 95.0
    assert percentile_95([1.0] * (LEAST_DURATIONS - 1)) is None


def test_a_new_champion_is_held_to_what_the_one_before_may_have_had() -> None:
    before = judged("a" * 200, failures=0.2)
    assert limit([unit.failures for unit in before]) == pytest.approx(0.2741, abs=1e-3)
    bad = judged("C" * 200, failures=0.6)
    good = judged("C" * 200, failures=0.25)
    config = CanaryConfig()
    worse = evidence_against(([], before), ([], bad), config).verdict
    assert worse.harmful
    assert worse.worst.guard == "failures"
    assert not evidence_against(([], before), ([], good), config).verdict.harmful
    # Of an earlier champion that nobody judged nothing is known, so nothing is worse.
    assert not evidence_against(([], []), ([], bad), config).verdict.harmful


@pytest.mark.parametrize("quiet_s", [1e12, float("inf"), float("nan")])
def test_a_quiet_time_that_no_clock_can_add_is_refused(quiet_s: float) -> None:
    with pytest.raises(ValidationError, match="quiet_s"):
        CanaryConfig(quiet_s=quiet_s)
