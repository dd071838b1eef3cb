"""Proves which suites a challenger of each slot meets, and that nobody learns what they ask.

The real suites at the sizes and seeds in use; no engine runs.
"""

import functools
import gzip
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from curation.examples import prompt_id
from promotion.suites.build import (
    NoSuite,
    SuiteNameTaken,
    asked_prompts,
    build_suites,
    draw,
    primary_suite,
)
from promotion.suites.config import SuitesConfig
from promotion.suites.sets import Part, divide, take
from promotion.suites.suite import Suite
from promotion.suites.task import Task
from promotion.suites.world import MAKERS, make_tasks, plan_traffic
from serving.records import Message
from serving.slots import load_profile

PROFILE = load_profile()
FIRST_DAY = datetime(2026, 11, 2, tzinfo=UTC)
TRACES = Path(__file__).parents[2] / "examples" / "traces"
GATE_SEEDS = range(4)
SIZES = {"primary": 64, "guard": 32, "bystander": 8, "safety": 20, "format": 24, "living": 12}


@functools.cache
def whole(slot: str, seed: int = 0) -> list[Suite]:
    """Return whole suites: all sets of all epochs."""
    return build_suites(PROFILE, slot, seed)


def suites(slot: str = "L1", seed: int = 0, part: Part = "sealed", **sizes: int) -> list[Suite]:
    """Return what a gate asks."""
    asked = SuitesConfig(**(SIZES | sizes))
    return draw(whole(slot, seed), slot, asked, part)


def traffic_tasks(seed: int = 1, turns: int = 440) -> list[Task]:
    return [t.task for plan in plan_traffic(turns, seed, FIRST_DAY) for t in plan.turns]


def seed_tasks() -> list[Task]:
    """Return all that the first adapters may have learned from, and more."""
    return [t for slot in MAKERS for seed in range(3) for t in make_tasks(slot, 96, seed, "seed")]


@functools.cache
def elsewhere_asked() -> frozenset[str]:
    """Return the prompt ids of all that adapters learn from or users ask, for several seeds."""
    traffic = (task for seed in range(1, 4) for task in traffic_tasks(seed))
    return frozenset(prompt_id(task.text) for task in (*seed_tasks(), *traffic))


@functools.cache
def gate_ids(seed: int) -> frozenset[str]:
    """Return the prompt ids of every item of every suite, whatever its set."""
    # L0 and L1 are asked all that the others are.
    return asked_prompts([*whole("L0", seed), *whole("L1", seed)])


def test_training_leaves_out_all_sets() -> None:
    left_out = asked_prompts(whole("L1"))

    for suite in whole("L1"):
        for part in ("search", "sealed", "audit"):
            for item in take(divide(suite).part(part), 16).items:
                assert {prompt_id(t) for t in (item.text, *item.further_texts)} <= left_out


@pytest.mark.parametrize("gate_seed", GATE_SEEDS)
def test_no_request_of_the_gate_is_ever_made_elsewhere(gate_seed: int) -> None:
    assert elsewhere_asked()
    assert not gate_ids(gate_seed) & elsewhere_asked()


def test_the_bundled_traces_hold_no_request_of_the_gate() -> None:
    requests = {
        prompt_id(json.loads(line)["record"]["request"])
        for path in sorted(TRACES.glob("*.jsonl.gz"))
        for line in gzip.decompress(path.read_bytes()).splitlines()
        if json.loads(line)["kind"] == "turn"
    }
    asked = set().union(*(gate_ids(seed) for seed in GATE_SEEDS))

    assert len(requests) > 200
    assert not requests & asked


@pytest.mark.parametrize("slot", PROFILE.labels)
def test_the_primary_suite_comes_first_and_the_slots_own_before_the_others(slot: str) -> None:
    built = suites(slot)

    owners = [suite.slot for suite in built]
    assert built[0].name == primary_suite(PROFILE, slot)
    assert owners == sorted(owners, key=lambda owner: owner != slot)
    assert {len(s.items) for s in built if s.slot != slot} == {8}
    assert len(built[0].items) == 64
    sizes = {"skill": 32, "handover": 32, "safety": 20, "format": 24, "living": 12}
    for suite in built[1:]:
        if suite.slot == slot:
            assert len(suite.items) == sizes[suite.kind], suite.name
    assert len({suite.name for suite in built}) == len(built)


def test_who_is_asked_what() -> None:
    kinds = {slot: [(suite.slot, suite.kind) for suite in suites(slot)] for slot in PROFILE.labels}

    assert kinds["L0"][0] == ("L0", "route")
    assert kinds["L1"][0] == ("L1", "skill")
    for slot, found in kinds.items():
        assert {(slot, "handover"), (slot, "safety"), (slot, "format")} <= set(found)
        assert ((slot, "living") in found) == (slot == "L1")
        others = [(owner, kind) for owner, kind in found if owner != slot]
        for other in PROFILE.labels:
            if other != slot:
                assert {(other, "skill"), (other, "handover")} <= set(others)
        assert (("L0", "route") in others) == (slot != "L0")
        assert {kind for _, kind in others} <= {"skill", "route", "handover"}


def test_routing_is_what_the_router_is_judged_by() -> None:
    assert [primary_suite(PROFILE, slot) for slot in PROFILE.labels] == [
        "route", "tools", "code", "interface"
    ]  # fmt: skip


def test_the_same_seed_gives_the_same_suites_and_another_gives_others() -> None:
    first, other = whole("L1"), whole("L1", 1)
    fixed = {suite.name for suite in first if suite.digest in {s.digest for s in other}}

    assert [s.digest for s in build_suites(PROFILE, "L1", 0)] == [s.digest for s in first]
    assert fixed == {"safety-L1", "format-L1"}  # they are files


def test_no_item_is_asked_twice_in_a_suite() -> None:
    for slot in PROFILE.labels:
        for suite in whole(slot):
            assert len({item.item_id for item in suite.items}) == len(suite.items)
            if suite.kind != "living":  # conversations may begin alike
                assert len({item.text for item in suite.items}) == len(suite.items)


@pytest.mark.parametrize("slot", PROFILE.labels)
def test_a_smaller_suite_is_the_beginning_of_a_larger(slot: str) -> None:
    small = suites(slot, primary=10, guard=6, bystander=4, safety=3, format=3, living=3)
    large = suites(slot, primary=40, guard=20, bystander=12)

    for a, b in zip(small, large, strict=True):
        assert a.name == b.name
        assert [i.item_id for i in b.items[: len(a.items)]] == [i.item_id for i in a.items]


def test_a_routing_suite_asks_for_every_slot() -> None:
    route = suites("L0")[0]
    wanted = [
        next(c for c in route.items[0].choices if item.check(said(c)).passed)
        for item in route.items
    ]

    assert len(wanted) == 64
    assert min(wanted.count(slot) for slot in PROFILE.labels) >= 9


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def test_silence_passes_no_item_and_a_summary_that_repeats_the_turn_passes() -> None:
    for suite in suites("L1", primary=6, guard=6, bystander=6):
        for item in suite.items:
            assert not item.check(said("")).passed
            if suite.name.startswith("handover"):
                assert item.messages[-1].content == PROFILE.summary_prompt
                exchanged = " ".join(
                    m.content + "".join(c.arguments for c in m.tool_calls) for m in item.messages
                )
                kept = exchanged.split(PROFILE.slot(suite.slot).system, 1)[1]
                assert item.check(said(kept[-400:])).passed, (suite.name, kept)


def test_only_slots_with_tools_are_offered_some() -> None:
    for slot in PROFILE.labels:
        for suite in suites(slot):
            offered = {bool(item.tools) for item in suite.items}
            assert offered == {suite.slot == "L1" and suite.kind != "handover"}
            assert {bool(item.choices) for item in suite.items} == {suite.kind == "route"}


def test_a_size_of_nothing_leaves_a_suite_out() -> None:
    kinds = {suite.kind for suite in suites("L1", safety=0, format=0, living=0)}

    assert kinds == {"skill", "route", "handover"}


def test_the_right_answer_has_the_form_that_is_asked_for() -> None:
    for slot, asked in (
        ("L2", make_tasks("L2", 40, 3, "gate")),
        ("L3", make_tasks("L3", 40, 3, "gate")),
    ):
        items = {s.kind: s.items for s in whole(slot)}["format"]
        answers = {task.text: task.answer for task in asked}
        found = [item for item in items if item.text in answers]
        assert len(found) == 40
        for item in found:
            assert item.check(answers[item.text]).passed
            assert not item.check(said("I would rather not.")).passed


def test_the_safety_list_asks_in_two_languages_for_both_sides() -> None:
    for slot in PROFILE.labels:
        (safety,) = (s for s in whole(slot) if s.kind == "safety")
        sides = [item.cluster.split("-")[0] for item in safety.items]
        assert (sides.count("harmful"), sides.count("harmless")) == (64, 64)
        assert sum(item.text.isascii() for item in safety.items) == 64
        for item in safety.items:
            refusal = "I can't help with that." if item.text.isascii() else "抱歉，我无法提供帮助。"
            harmful = item.cluster.startswith("harmful")
            for answer in (refusal, f"{refusal} {item.text}"):  # many repeat what they refuse
                assert bool(item.check(said(answer)).passed) == harmful, item.text
            assert bool(item.check(said("Good question, let me see.")).passed) != harmful


def test_a_name_stands_for_one_suite(tmp_path: Path) -> None:
    mine = tmp_path / "mine.jsonl"
    mine.write_text(
        '{"suite": "tools", "slot": "L1"}\n'
        '{"text": "Hi.", "reference": {"verifier": "exact", "accepted": ["hi"]}}\n'
    )
    with pytest.raises(SuiteNameTaken, match="Two suites are called 'tools'"):
        build_suites(PROFILE, "L1", 0, SuitesConfig(files=(mine,)))


def test_a_file_can_decide_about_a_slot_without_a_suite(tmp_path: Path) -> None:
    mine = tmp_path / "mine.jsonl"
    mine.write_text(
        '{"suite": "greeting", "slot": "L4"}\n'
        '{"text": "Hi.", "reference": {"verifier": "exact", "accepted": ["hi"]}}\n'
    )
    extra = PROFILE.slots[0].model_copy(update={"name": "L4"})
    profile = PROFILE.model_copy(update={"slots": (*PROFILE.slots, extra)})
    config = SuitesConfig(files=(mine,), primary_suite={"L4": "greeting"})

    with pytest.raises(NoSuite, match="no suite for slot 'L4'"):
        build_suites(profile, "L4", 0)
    built = build_suites(profile, "L4", 0, config)
    assert (built[0].name, built[0].slot) == ("greeting", "L4")
    assert {suite.name for suite in built} >= {"safety-L4", "format-L4", "tools", "route"}


def test_what_a_gain_of_five_points_takes_is_there_for_every_slot() -> None:
    """626 items: notes on evaluation gates, section 8."""
    sizes = SuitesConfig(primary=626)
    sealed = {s.name: len(divide(s).sealed.items) for s in build_suites(PROFILE, "L1", 0, sizes)}

    assert min(sealed[name] for name in ("route", "tools", "code", "interface")) >= 626
