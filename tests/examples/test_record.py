"""Proves that what the recorder writes comes back whole: through the spool, the lake, attribution.

Real world, turns, spool, lake; only the engine is a script, which knows the right answers
and gives wrong ones, wrong routes and errors at fixed rates.
"""

import asyncio
import gzip
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from examples.record import SEED_PLANS, record_traffic, seed_examples, write_spool
from promotion.suites.household import TOOLS
from promotion.suites.task import Task
from promotion.suites.world import ConversationPlan, plan_traffic
from serving.engine import ChatRequest, ChatResult, OnDelta
from serving.errors import EngineRefused
from serving.records import Feedback, Hop, Message, Record, Turn, content_id
from serving.slots import load_profile
from traces.attribute import attribute
from traces.ingest import ingest
from traces.read import TurnBundle, read_turns
from traces.verifiers.registry import checker

PROFILE = load_profile()
NAMES = {slot: f"{slot}@{n}a9c1d2e4b5f" for n, slot in enumerate(PROFILE.labels)}
PLANS = plan_traffic(150, 1, datetime(2026, 11, 2, tzinfo=UTC))
TASKS: dict[str, Task] = {turn.task.text: turn.task for plan in PLANS for turn in plan.turns}
"""By request; the right answer to "Send Anna that answer." depends on the conversation."""
HANDOVER = "household-handover"


@dataclass
class Script:
    """An engine that knows the world's answers and errs at fixed rates."""

    closed: bool = False
    wrong: float = 0.3
    misrouted: float = 0.1
    failing: float = 0.03
    given: Counter = field(default_factory=Counter)

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        key = content_id([request.model, [m.to_openai() for m in request.messages]])
        self.given[key] += 1
        rng = random.Random(f"{key} {self.given[key]}")
        if rng.random() < self.failing:
            raise EngineRefused("The engine answered with 500.")
        message = self._answer(request, rng)
        return ChatResult(
            response_id=f"chatcmpl-{key[7:27]}-{self.given[key]}",
            served_name=request.model,
            message=message,
            finish_reason="tool_calls" if message.tool_calls else "stop",
            prompt_tokens=9,
            completion_tokens=4,
            choice_probability=0.9 if request.choices else None,
            duration_s=0.25,
        )

    def _answer(self, request: ChatRequest, rng: random.Random) -> Message:
        last = request.messages[-1]
        if request.choices:
            task = TASKS[request.messages[0].content.rsplit("\n\n", 1)[1]]
            others = [slot for slot in request.choices if slot != task.slot]
            return says(rng.choice(others) if rng.random() < self.misrouted else task.slot)
        if last.role == "tool":
            return says("It is done.")
        if last.content == PROFILE.summary_prompt:
            return says("Something was asked and answered.")
        task = TASKS[last.content.rsplit("\n\n", 1)[-1]]
        is_right = request.model == NAMES[task.slot] and rng.random() >= self.wrong
        return task.answer if is_right else says("I do not know.")

    async def close(self) -> None:
        self.closed = True


def says(text: str) -> Message:
    return Message(role="assistant", content=text)


def record(plans: Sequence[ConversationPlan] = PLANS, **rates: float) -> list[Record]:
    return asyncio.run(record_traffic(Script(**rates), NAMES, plans))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return record()


@dataclass
class Landed:
    bundles: dict[str, TurnBundle]
    unmatched: int
    quarantined: int


@pytest.fixture(scope="module")
def landed(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Landed:
    folder = tmp_path_factory.mktemp("recorded")
    write_spool(folder / "spool", records)
    report = ingest(folder / ".mol", folder / "spool")
    attributed = attribute(folder / ".mol", PROFILE)
    return Landed(
        {bundle.turn.turn_id: bundle for bundle in read_turns(folder / ".mol")},
        attributed.feedback_unmatched,
        sum(n for stage, n in report.funnel.items() if "quarantine" in stage),
    )


def of(kind: type, records: list[Record]) -> list:
    return [record for record in records if type(record) is kind]


def test_a_recording_has_edits_retries_failures_and_broken_devices(records) -> None:
    feedback, turns, hops = (of(kind, records) for kind in (Feedback, Turn, Hop))

    kinds = Counter(signal.kind for signal in feedback)
    assert min(kinds[kind] for kind in ("verifier", "thumb", "edit", "retry")) > 3
    assert {signal.target_kind for signal in feedback} == {"turn", "response"}
    assert any(signal.detail == "the device did not act" for signal in feedback)
    assert any(turn.status == "failed" for turn in turns)
    assert any(hop.status == "engine_error" for hop in hops)
    assert {hop.role for hop in hops} == {"route", "answer", "summary"}
    assert any("device unreachable" in m.content for hop in hops for m in hop.messages)


def test_an_edit_is_the_worlds_right_answer(records) -> None:
    asked = {turn.turn_id: turn for turn in of(Turn, records)}
    asked |= {rid: turn for turn in of(Turn, records) for rid in turn.response_ids}
    planned = {
        (plan.conversation_id, turn.task.text): turn.task for plan in PLANS for turn in plan.turns
    }

    for signal in of(Feedback, records):
        if signal.kind == "edit":
            turn = asked[signal.target_id]
            assert signal.correction == planned[turn.conversation_id, turn.request].answer


def test_a_verifiers_verdict_can_be_repeated_from_its_reference(records) -> None:
    hops = {hop.hop_id: hop for hop in of(Hop, records)}
    turns = {turn.turn_id: turn for turn in of(Turn, records)}
    turns |= {rid: turn for turn in turns.values() for rid in turn.response_ids}
    verdicts = [
        f
        for f in of(Feedback, records)
        if f.kind == "verifier" and f.name != "python_tests" and "device" not in str(f.detail)
    ]

    assert {f.name for f in verdicts} == {"tool_call", "short_answer", "interface_schema"}
    for signal in verdicts:
        turn = turns[signal.target_id]
        answers = [hops[h] for h in turn.hop_ids if hops[h].role == "answer"]
        check = checker(signal.reference or "", TOOLS)
        assert check is not None
        assert check(answers[0].completion or says("")).passed == bool(signal.value)


def test_a_retry_asks_the_same_again_in_the_next_turn(records) -> None:
    turns = {(t.conversation_id, t.position): t for t in of(Turn, records)}
    targets = {t.turn_id: t for t in turns.values()}
    targets |= {rid: t for t in turns.values() for rid in t.response_ids}
    retried = [targets[f.target_id] for f in of(Feedback, records) if f.kind == "retry"]

    assert retried
    for turn in retried:
        assert turns[turn.conversation_id, turn.position + 1].request == turn.request


def test_an_engine_without_fault_gets_no_corrections() -> None:
    plans = [p for p in PLANS if all(t.task.template != HANDOVER for t in p.turns)][:30]
    records = record(plans, wrong=0.0, misrouted=0.0, failing=0.0)

    signals = of(Feedback, records)
    assert {turn.status for turn in of(Turn, records)} == {"ok"}
    assert not [signal for signal in signals if signal.kind in ("edit", "retry")]
    assert {s.value for s in signals if s.kind == "verifier" and "device" not in str(s.detail)} == {
        1.0
    }


def test_equal_runs_write_equal_bytes(records, tmp_path: Path) -> None:
    write_spool(tmp_path / "a", records)
    write_spool(tmp_path / "b", record()[::-1])

    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    assert len(files) >= 10


def test_a_spool_file_holds_one_days_records_in_order_of_time(records, tmp_path: Path) -> None:
    write_spool(tmp_path, records)
    count = 0
    for path in tmp_path.iterdir():
        text = gzip.decompress(path.read_bytes())
        lines = [json.loads(line)["record"] for line in text.splitlines()]
        times = [line.get("created_at") or line["started_at"] for line in lines]
        assert {time[:10] for time in times} == {path.name[:10]}
        moments = [datetime.fromisoformat(time) for time in times]
        assert moments == sorted(moments)
        count += len(lines)

    assert count == len(records)


def test_the_engine_is_closed_and_progress_goes_to_stderr(capsys) -> None:
    script = Script()
    asyncio.run(record_traffic(script, NAMES, PLANS[:3]))  # type: ignore[arg-type]

    captured = capsys.readouterr()
    assert script.closed
    assert "3 of 3 conversations" in captured.err
    assert captured.out == ""


def test_every_turn_lands_with_its_hops_in_order(records, landed: Landed) -> None:
    turns = of(Turn, records)

    assert landed.quarantined == 0
    assert set(landed.bundles) == {turn.turn_id for turn in turns}
    for turn in turns:
        bundle = landed.bundles[turn.turn_id]
        assert bundle.turn == turn
        assert tuple(hop.hop_id for hop in bundle.hops) == turn.hop_ids


def test_every_signal_finds_its_turn_and_every_verified_turn_its_outcome(records, landed) -> None:
    assert landed.unmatched == 0
    targets = {rid: t.turn_id for t in of(Turn, records) for rid in (*t.response_ids, t.turn_id)}
    verified = [f for f in of(Feedback, records) if f.kind == "verifier"]

    assert len(verified) > 80
    for signal in verified:
        outcome = landed.bundles[targets[signal.target_id]].outcome
        assert (outcome.success, outcome.tier) == (signal.value == 1.0, "A")


def test_a_failed_turn_is_blamed_on_who_did_it(records, landed: Landed) -> None:
    """The script knows: a wrong route, a broken device, an engine error, or the adapter."""
    seen: Counter = Counter()
    for bundle in landed.bundles.values():
        if bundle.outcome.success is not False or bundle.outcome.tier != "A":
            continue
        task = TASKS[bundle.turn.request]
        misrouted = bundle.turn.slot != task.slot
        klass = bundle.blame.klass if bundle.blame else None
        seen["router" if misrouted else "adapter", klass] += 1
        if misrouted:
            assert klass == "router", (bundle.turn.request, bundle.blame)
    failed = [b for b in landed.bundles.values() if b.turn.status == "failed"]

    assert seen["router", "router"] > 3
    assert seen["adapter", "adapter"] > 10
    assert failed
    assert {b.blame.klass for b in failed if b.blame} == {"fallback"}


def test_demonstrations_cover_every_duty_of_a_slot() -> None:
    for slot, plan in SEED_PLANS.items():
        examples = seed_examples(slot, plan)
        routes = [e for e in examples if e.duty == "route"]
        assert len(examples) == plan.skill_rows + plan.summary_rows + 4 * plan.route_rows
        assert Counter(e.completion.content for e in routes) == (
            dict.fromkeys(PROFILE.labels, plan.route_rows) if plan.route_rows else {}
        )
        assert len({e.example_id for e in examples}) == len(examples)
        assert all((e.tools != "[]") == (slot == "L1") for e in examples[: plan.skill_rows])
