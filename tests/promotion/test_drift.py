"""Distance from the base, length and variety of answers, durations: what is told beside a verdict.

The distance is measured on a tiny base that really answers; its estimator is compared with exact
sums. Durations are of an engine that only writes down who was asked when.
"""

import asyncio
import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_calls import load, make_adapter
from tiny import make_tiny_base

from promotion.drift import answer_shape, base_answers, distance_of, measure_distance
from promotion.latency import measure_durations
from promotion.suites.suite import Item, Played
from serving.embedded import EmbeddedEngine
from serving.engine import ChatRequest, ChatResult, Engine, OnDelta
from serving.records import Message, ToolCall
from traces.verifiers.check import Check


def item(word: str) -> Item:
    return Item(
        item_id=word, cluster=word, text=word, messages=(Message(role="user", content=word),),
        tools=(), choices=(), max_tokens=9, check=lambda answer: Check(True, ""),
    )  # fmt: skip


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def test_the_estimator_is_unbiased_and_no_token_counts_below_nothing() -> None:
    rng = np.random.default_rng(1)
    base_V, version_V = rng.dirichlet(np.ones(50)), rng.dirichlet(np.ones(50))
    ratio_V = np.log(base_V / version_V)
    each_V = [distance_of([np.array([ratio])]) for ratio in ratio_V]
    terms_V = np.array([d.kl for d in each_V if d is not None])
    assert terms_V.min() >= 0
    assert base_V @ terms_V == pytest.approx(base_V @ ratio_V)


def test_a_distance_is_a_mean_over_tokens_with_an_error_by_prompts() -> None:
    alike = distance_of([np.array([0.1, 0.1]), np.array([0.1, 0.1])])
    unlike = distance_of([np.array([0.0, 0.0]), np.array([0.5, 0.5])])
    assert alike is not None
    assert unlike is not None
    assert (alike.prompts, alike.tokens) == (2, 4)
    assert alike.kl == pytest.approx(math.exp(-0.1) - 0.9)
    assert alike.standard_error == pytest.approx(0)
    assert unlike.standard_error == pytest.approx(unlike.kl)
    assert distance_of([]) is None


def test_the_base_is_at_no_distance_and_an_adapter_at_some(tmp_path: Path) -> None:
    tiny_base = make_tiny_base(tmp_path / "base")
    adapter = make_adapter(tmp_path / "adapter", tiny_base, 1)
    items = [item(word) for word in ("Good morning", "Two and two?", "Light on")]

    async def measured():
        engine = EmbeddedEngine(tiny_base)
        try:
            await load(engine, {"L2@aaaaaaaaaaaa": adapter})
            answers = await base_answers(engine, items, seed=5)
            again = await base_answers(engine, items, seed=5)
            near = await measure_distance(engine, answers, "base")
            far = await measure_distance(engine, answers, "L2@aaaaaaaaaaaa")
            return answers, again, near, far
        finally:
            await engine.close()

    answers, again, near, far = asyncio.run(measured())
    assert answers == again
    assert near is not None
    assert far is not None
    assert near.kl == pytest.approx(0, abs=1e-9)
    assert far.kl > 0.01
    assert far.tokens == sum(len(one.answer) for one in answers)


def test_variety_falls_when_answers_are_alike() -> None:
    various = answer_shape([said(f"number {n} is a {n * 7919}") for n in range(30)], 5.0)
    alike = answer_shape([said("it is all the same to me")] * 30, 7.0)
    assert alike.distinct_2 == pytest.approx(6 / (30 * 6))
    assert various.distinct_2 is not None
    assert various.distinct_2 > 3 * alike.distinct_2
    assert various.compression_ratio is not None
    assert alike.compression_ratio is not None
    assert alike.compression_ratio > 3 * various.compression_ratio
    assert (various.tokens, alike.tokens) == (5.0, 7.0)


def test_calls_count_as_text_and_silence_has_no_variety() -> None:
    call = ToolCall(id="random", name="light", arguments='{"room": "hall"}')
    shape = answer_shape([Message(role="assistant", tool_calls=(call,))], 9.0)
    assert shape.distinct_2 == 1.0
    silent = answer_shape([said(""), said(" ")], 0.0)
    assert (silent.distinct_2, silent.compression_ratio) == (None, None)


class Diary:
    """An engine that writes down whom it answered."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.at_once: list[int] = []
        self._now = 0

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        self._now += 1
        self.at_once.append(self._now)
        await asyncio.sleep(0.001)
        self.asked.append((request.messages[0].content, request.model))
        self._now -= 1
        return ChatResult("r", request.model, said("x"), "stop", 1, 1)


def test_arms_answer_each_item_in_turn_alone_and_who_begins_alternates() -> None:
    engine = Diary()
    items = [item("a"), item("b"), item("c")]
    durations = asyncio.run(measure_durations(engine, items, "old", "new"))  # type: ignore[arg-type]
    before, timed = engine.asked[:6], engine.asked[6:]
    assert sorted(before) == sorted(timed)  # what a prefix cache knows is no speed
    assert engine.at_once[6:] == [1] * 6
    assert timed == [
        ("a", "old"), ("a", "new"), ("b", "new"), ("b", "old"), ("c", "old"), ("c", "new")
    ]  # fmt: skip
    assert durations.clusters == ("a", "b", "c")
    assert min(*durations.champion_s, *durations.challenger_s) >= 0.001


def test_only_the_engines_calls_are_timed_in_conversations_too() -> None:
    engine = Diary()
    slow_s = 0.05

    def check(answer: Message) -> Check:
        time.sleep(slow_s)
        return Check(True, "")

    async def play(engine: Engine, model: str, temperature: float, seed: int | None) -> Played:
        request = ChatRequest(model=model, messages=(Message(role="user", content="b"),))
        both = await asyncio.gather(engine.chat(request), engine.chat(request))
        await asyncio.sleep(slow_s)
        return Played(tuple(one.message for one in both), Check(True, ""), 2)

    async def silent(engine: Engine, model: str, temperature: float, seed: int | None) -> Played:
        return Played((), Check(None, "broke off"), 0)

    items = [
        replace(item("a"), check=check), replace(item("b"), play=play),
        replace(item("c"), play=silent),
    ]  # fmt: skip
    started = time.monotonic()
    durations = asyncio.run(measure_durations(engine, items, "old", "new"))  # type: ignore[arg-type]
    elapsed_s = time.monotonic() - started
    assert durations.clusters == ("a", "b")
    assert len(engine.asked) == 2 * 2 * 3
    timed_s = (*durations.champion_s, *durations.challenger_s)
    assert min(timed_s) >= 0.001
    assert sum(timed_s) <= elapsed_s - len(timed_s) * slow_s
