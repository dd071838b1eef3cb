"""Proves that the task world is solvable, repeatable, and that evaluation never leaks into traffic.

The real world at the sizes and seeds in use; no engine runs.
"""

import functools
import gzip
import json
import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

from curation.examples import prompt_id
from promotion.suites.household import TOOLS, run_tool
from promotion.suites.suite import build_suites, primary_suite
from promotion.suites.task import Partition, Task
from promotion.suites.world import MAKERS, make_tasks, plan_traffic
from serving.records import Message, ToolCall
from serving.slots import load_profile

PROFILE = load_profile()
PARTITIONS: tuple[Partition, ...] = ("seed", "traffic", "gate")
FIRST_DAY = datetime(2026, 11, 2, tzinfo=UTC)
TRACES = Path(__file__).parents[2] / "examples" / "traces"
GATE_SEEDS = range(8)
SIZES = (64, 32, 8)
"""Items of the primary suite, the guards and the bystanders, as in the default settings."""


def suites(slot: str = "L1", seed: int = 0, sizes: tuple[int, int, int] = SIZES):
    return build_suites(PROFILE, slot, *sizes, seed)


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
    """Return the prompt ids of every suite at its largest; the smaller ones begin alike."""
    largest = max(SIZES)
    built = suites("L0", seed, (largest, largest, largest))
    return frozenset(prompt_id(item.text) for suite in built for item in suite.items)


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("slot", [slot for slot in MAKERS if slot != "L2"])
def test_the_right_answer_passes_its_check(slot: str, partition: Partition) -> None:
    tasks = [MAKERS[slot](random.Random(seed), partition) for seed in range(300)]

    failed = [(task.text, task.check(task.answer).detail) for task in tasks
              if not task.check(task.answer).passed]  # fmt: skip

    assert failed == []


@pytest.mark.parametrize("partition", PARTITIONS)
def test_the_right_code_passes_its_tests(partition: Partition) -> None:
    tasks = [MAKERS["L2"](random.Random(seed), partition) for seed in range(400)]
    one_each = {task.keywords[0].rsplit("_", 1)[0]: task for task in tasks}

    assert len(one_each) == 14
    assert [t.text for t in one_each.values() if not t.check(t.answer).passed] == []


@pytest.mark.parametrize("slot", MAKERS)
def test_another_tasks_answer_does_not_pass(slot: str) -> None:
    tasks = make_tasks(slot, 12, 0, "gate")

    for task, other in zip(tasks, tasks[1:] + tasks[:1], strict=True):
        if task.keywords != other.keywords:
            assert not task.check(other.answer).passed, (task.text, other.text)
        assert not task.check(Message(role="assistant", content="I cannot.")).passed


@pytest.mark.parametrize("slot", MAKERS)
def test_tasks_of_a_slot_use_its_verifier(slot: str) -> None:
    assert {t.verifier for t in make_tasks(slot, 20, 0, "traffic")} == set(
        PROFILE.slot(slot).verifiers
    )


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


def test_no_phrasing_of_one_partition_can_make_a_text_of_another() -> None:
    texts: dict[Partition, set[str]] = {
        partition: {
            prompt_id(MAKERS[slot](random.Random(seed), partition).text)
            for slot in MAKERS
            for seed in range(1500)
        }
        for partition in PARTITIONS
    }
    texts["traffic"] |= {prompt_id(task.text) for task in traffic_tasks()}

    assert not texts["gate"] & texts["traffic"]
    assert not texts["gate"] & texts["seed"]
    assert not texts["seed"] & texts["traffic"]


def test_retries_and_handovers_ask_nothing_of_the_gate() -> None:
    handovers = [t for t in traffic_tasks() if t.template == "household-handover"]
    gate = {prompt_id(t.text) for slot in MAKERS for t in make_tasks(slot, 150, 0, "gate")}

    assert handovers
    assert not {prompt_id(task.text) for task in handovers} & gate


@pytest.mark.parametrize("slot", PROFILE.labels)
def test_the_primary_suite_comes_first_and_the_slots_own_before_the_others(slot: str) -> None:
    built = suites(slot)

    owners = [suite.slot for suite in built]
    assert built[0].name == primary_suite(PROFILE, slot)
    assert owners == sorted(owners, key=lambda owner: owner != slot)
    assert [len(s.items) for s in built if s.slot == slot] == [64] + [32] * (owners.count(slot) - 1)
    assert {len(s.items) for s in built if s.slot != slot} == {8}
    assert len({suite.name for suite in built}) == len(built) == 9


def test_routing_is_what_the_router_is_judged_by() -> None:
    assert [primary_suite(PROFILE, slot) for slot in PROFILE.labels] == [
        "route", "tools", "code", "interface"
    ]  # fmt: skip


def test_the_same_seed_gives_the_same_suites_and_another_gives_others() -> None:
    first = {suite.name: suite.digest for suite in suites()}
    other = {suite.name: suite.digest for suite in suites(seed=1)}

    assert {suite.name: suite.digest for suite in suites()} == first
    assert not set(first.values()) & set(other.values())


def test_no_item_is_asked_twice_in_a_suite() -> None:
    for suite in suites("L0"):
        assert len({item.item_id for item in suite.items}) == len(suite.items)
        assert len({item.text for item in suite.items}) == len(suite.items)


@pytest.mark.parametrize("slot", PROFILE.labels)
def test_a_smaller_suite_is_the_beginning_of_a_larger(slot: str) -> None:
    small, large = suites(slot, sizes=(10, 6, 4)), suites(slot, sizes=(40, 20, 12))

    for a, b in zip(small, large, strict=True):
        assert a.name == b.name
        assert [i.item_id for i in b.items[: len(a.items)]] == [i.item_id for i in a.items]


def test_a_routing_suite_asks_for_every_slot() -> None:
    route = suites("L0")[0]
    wanted = [
        next(c for c in route.items[0].choices if item.check(said(c)).passed)
        for item in route.items
    ]

    assert {slot: wanted.count(slot) for slot in PROFILE.labels} == dict.fromkeys(
        PROFILE.labels, 16
    )


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def test_silence_passes_no_item_and_a_summary_that_repeats_the_turn_passes() -> None:
    for suite in suites("L1", sizes=(6, 6, 6)):
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
    for suite in suites("L1"):
        for item in suite.items:
            assert bool(item.tools) == (suite.name == "tools")
            assert bool(item.choices) == (suite.name == "route")


def test_more_tasks_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"Only \d+ distinct seed tasks of L0, not 120"):
        make_tasks("L0", 120, 0, "seed")


def test_traffic_is_the_same_by_seed() -> None:
    def shape(seed: int):
        return [
            (p.conversation_id, p.user, p.started_at,
             [(t.task.text, t.task.answer, t.reaction, t.narrated, t.device_broken)
              for t in p.turns])
            for p in plan_traffic(120, seed, FIRST_DAY)
        ]  # fmt: skip

    assert shape(1) == shape(1)
    assert shape(1) != shape(2)


def test_traffic_has_all_that_happens() -> None:
    plans = plan_traffic(440, 1, FIRST_DAY)
    turns = [turn for plan in plans for turn in plan.turns]

    assert len(turns) >= 440
    assert {turn.task.slot for turn in turns} == set(MAKERS)
    assert any(turn.narrated for turn in turns)
    assert any(turn.device_broken for turn in turns)
    assert len({plan.user for plan in plans}) > 20
    assert len({plan.started_at.date() for plan in plans}) == 10
    assert [p.started_at for p in plans] == sorted(p.started_at for p in plans)
    assert len({plan.conversation_id for plan in plans}) == len(plans)


def test_the_home_answers_calls() -> None:
    for offered in TOOLS:
        call = ToolCall(id="1", name=offered["function"]["name"], arguments="{}")
        assert json.loads(run_tool(call))["ok"] is True
        assert json.loads(run_tool(call, broken=True)) == {"error": "device unreachable"}
    assert json.loads(run_tool(ToolCall(id="1", name="fly", arguments="")))["error"]
