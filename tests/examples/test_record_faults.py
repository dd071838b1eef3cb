"""Proves the recorder of known failures: one fault each, kept only where it flipped the outcome.

Real world, injection, turns, spool, lake and attribution; only the engine is a script that answers
from what it is shown: rightly where the right slot is asked and its view says enough. So whatever
fails, fails because of the fault. One test runs the real embedded engine on the tiny model.
"""

import asyncio
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tiny import make_tiny_base

from benchmarks.faults import blamed, read_lines, scores
from examples.fault_adapters import summary
from examples.fault_injection import corrupted
from examples.fault_plans import TRIED, plan_clean
from examples.fault_world import Request
from examples.record_faults import FAULTS, record_all, write_set
from examples.remembered_engine import RememberedEngine
from serving.embedded import EmbeddedEngine
from serving.engine import ChatRequest, ChatResult, OnDelta
from serving.records import Hop, Message, Record, Turn, canonical_json
from serving.slots import load_profile

PROFILE = load_profile(FAULTS / "profile.toml")
SCALE = 0.12
NAMES = {slot: f"{slot}@{n}a9c1d2e4b5f" for n, slot in enumerate(PROFILE.labels)}
NAMES |= {f"{slot}/noise-2": f"{slot}@bad{n}d2e4b5f0" for n, slot in enumerate(PROFILE.labels)}
REQUESTS = [request for plan in plan_clean(SCALE) for request in plan.requests]


class Script:
    """An engine that answers rightly where slot, version and view allow it."""

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        message = self._answer(request)
        return ChatResult(
            response_id="",
            served_name=request.model,
            message=message,
            finish_reason="tool_calls" if message.tool_calls else "stop",
            prompt_tokens=9,
            completion_tokens=9,
            choice_probability=0.9 if request.choices else None,
            duration_s=0.1,
        )

    def _answer(self, request: ChatRequest) -> Message:
        slot = request.model[:2]
        shown = request.messages[-1].content
        if request.choices:
            asked = request.messages[0].content
            return _said(next((r.task.slot for r in REQUESTS if r.task.text in asked), "L1"))
        damaged = request.model in NAMES.values() and "@bad" in request.model
        if damaged or request.model == "base":
            return _said("Nonsense.")
        if shown == PROFILE.summary_prompt:
            asked = [m.content for m in request.messages if m.role == "user"][-2]
            found = _known(asked)
            return _said(summary(found) if found else "Nothing.")
        if request.messages[-1].role == "tool":
            told = [
                r.told for r in REQUESTS if r.result and canonical_json(dict(r.result)) == shown
            ]
            return _said(told[0] if told else "Nothing.")
        found = _known(shown)
        if found is None or found.task.slot != slot:
            return _said("No idea.")
        return found.task.answer


def _known(shown: str) -> Request | None:
    """Return the request that was made; of several alike, that which fits what was handed over."""
    *before, text = shown.split("\n\n")
    for request in REQUESTS:
        later = "handover" in request.task.template or "recall" in request.task.template
        needed = request.task.keywords[-1].casefold()
        if request.task.text == text and (not later or needed in " ".join(before).casefold()):
            return request
    return None


def _said(text: str) -> Message:
    return Message(role="assistant", content=text)


@cache
def recorded() -> tuple[list[Record], list[dict[str, Any]]]:
    return asyncio.run(record_all(Script(), PROFILE, NAMES, SCALE))  # type: ignore[arg-type]


def test_every_class_has_labels_and_each_names_a_turn_of_the_spool_and_its_decisive_hop() -> None:
    records, labels = recorded()
    turns = {record.turn_id: record for record in records if isinstance(record, Turn)}
    hops = {record.hop_id: record for record in records if isinstance(record, Hop)}
    assert set(Counter(label["class"] for label in labels)) == set(TRIED)
    roles = {"router": "route", "adapter": "answer", "fallback": "answer", "summary": "summary"}
    for label in labels:
        turn = turns[label["turn_id"]]
        if label["class"] in roles:
            hop = hops[label["hop_id"]]
            assert hop.role == roles[label["class"]]
            assert hop.conversation_id == turn.conversation_id
        if label["class"] == "adapter":
            assert label["slot"] == turn.slot == label["right_slot"] or label["right_slot"] is None


def test_only_the_label_tells_the_class() -> None:
    records, labels = recorded()
    text = "\n".join(json.dumps(record.model_dump(mode="json")) for record in records)
    assert {label["kind"] for label in labels} > {"forced", "noise-2", "vague"}
    assert not re.search("fault|inject|forced|vague|noise-|damage", text.casefold())
    conversations = {record.conversation_id for record in records if isinstance(record, Turn)}
    assert all(re.fullmatch(r"c[0-9a-f]{16}", name) for name in conversations)


def test_a_route_is_forced_a_pool_misses_and_the_log_shows_no_more_than_that() -> None:
    records, labels = recorded()
    turns = {record.turn_id: record for record in records if isinstance(record, Turn)}
    hops = {record.hop_id: record for record in records if isinstance(record, Hop)}
    digests = {hop.harness_digest for hop in hops.values() if hop.role != "answer"}
    assert digests == {PROFILE.digest}
    for label in labels:
        turn = turns[label["turn_id"]]
        route = next(hops[h] for h in turn.hop_ids if hops[h].role == "route")
        assert route.completion is not None
        if label["class"] == "router":
            assert turn.decision == "routed"
            assert route.completion.content == turn.slot != label["right_slot"]
        if label["class"] == "fallback":
            assert turn.decision == "fallback"
            assert route.completion.content == label["right_slot"] != turn.slot


@pytest.mark.parametrize("kind", ["error", "truncated", "value", "record", "empty"])
def test_a_corrupted_result_lacks_the_fact(kind: str) -> None:
    import random

    right = '{"city":"Oslo","degrees":7,"sky":"rain"}'
    for seed in range(20):
        wrong = corrupted(right, kind, random.Random(seed))
        assert not ("rain" in wrong and '"degrees":7' in wrong)
        if kind in ("value", "record"):
            assert (json.loads(wrong)["city"] == "Oslo") == (kind == "value")


def test_the_written_set_is_blamed_from_scratch(tmp_path: Path) -> None:
    records, labels = recorded()
    write_set(tmp_path, records, labels)
    assert read_lines(tmp_path / "labels.jsonl.gz") == sorted(labels, key=lambda x: x["turn_id"])
    cases = blamed(tmp_path / "spool", FAULTS / "profile.toml", labels)
    found = scores(cases)
    assert found["n"] == len(labels)
    # What a script leaves behind is no benchmark; that hardly a blame is right would be a bug.
    assert found["classes"]["fallback"]["recall"] > 0.9
    assert found["classes"]["router"]["recall"] > 0.5
    assert sum(found["confusion"]["tool"].values()) == found["classes"]["tool"]["n"]


def test_the_recorder_goes_on_where_it_was_stopped_over_the_real_engine(tmp_path: Path) -> None:
    base = make_tiny_base(tmp_path / "base")
    names = dict.fromkeys(PROFILE.labels, "base")

    async def record() -> tuple[list[Record], int]:
        engine = RememberedEngine(EmbeddedEngine(base), tmp_path / "answers.jsonl")
        records, _ = await record_all(engine, PROFILE, names, 0.006)
        await engine.close()
        return records, engine.asked

    first, asked = asyncio.run(record())
    again, asked_again = asyncio.run(record())
    assert asked > 0 == asked_again
    assert _without_ids(first) == _without_ids(again)


def _without_ids(records: list[Record]) -> list[Any]:
    """Return turns and hops but for the ids that an engine draws."""
    raw = [record.model_dump(mode="json") for record in records]
    drawn = ("response_id", "response_ids", "hop_ids", "target_id", "target_kind")
    text = json.dumps([{k: v for k, v in row.items() if k not in drawn} for row in raw])
    return json.loads(re.sub(r"call-[0-9a-f-]+", "call", text))  # type: ignore[no-any-return]
