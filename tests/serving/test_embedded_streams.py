"""Proves what the embedded engine adds for a server: deltas, hidden states, limits, refusals.

A real tiny model, random weights; nothing is faked.
"""

import asyncio
from typing import Any

import pytest
from engine_calls import ask, load

from serving.embedded import EmbeddedEngine
from serving.engine import Delta
from serving.errors import EngineRefused, EngineUnavailable

# PEFT 0.21 reads a property that transformers 5.24 renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")


def test_a_streamed_answer_comes_as_one_piece(engine: EmbeddedEngine) -> None:
    deltas: list[Delta] = []

    async def take(delta: Delta) -> None:
        deltas.append(delta)

    result = asyncio.run(engine.chat(ask(), take))

    assert deltas == [Delta(content=result.message.content)]
    assert result.ttft_s == result.duration_s


def test_a_hidden_state_is_that_of_the_models_own_pass(
    engine: EmbeddedEngine, adapters: Any
) -> None:
    import torch

    text = "Turn on the light."
    ids = torch.tensor([engine.model.tokenizer(text)["input_ids"]])
    with torch.inference_mode():
        expected = engine.model.plain.model(input_ids=ids).last_hidden_state[0, -1].tolist()

    async def run() -> list[tuple[float, ...]]:
        before = await engine.embed(text)
        await load(engine, adapters)
        return [before, await engine.embed(text)]

    before, with_adapters = asyncio.run(run())

    assert before == pytest.approx(expected)
    assert with_adapters == pytest.approx(expected)


def test_an_empty_text_has_no_hidden_state(engine: EmbeddedEngine) -> None:
    with pytest.raises(EngineRefused, match="empty text") as refusal:
        asyncio.run(engine.embed(""))
    assert refusal.value.status == 400


def test_a_call_that_takes_too_long_is_given_up_and_the_next_is_answered(
    engine: EmbeddedEngine,
) -> None:
    async def run() -> str:
        with pytest.raises(EngineUnavailable, match=r"within 0\.001 s"):
            await engine.chat(ask(max_tokens=500, timeout_s=0.001))
        return (await engine.chat(ask())).finish_reason

    assert asyncio.run(run()) == "length"


def test_callers_that_all_leave_the_queue_stop_nothing(engine: EmbeddedEngine) -> None:
    problems: list[Any] = []

    async def run() -> int:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, problem: problems.append(problem)
        )
        first = asyncio.create_task(engine.chat(ask()))
        left = [
            asyncio.create_task(engine.chat(ask(text="x", options={"user": n}))) for n in range(3)
        ]
        await asyncio.sleep(0)
        for call in left:
            call.cancel()
        await first
        return (await engine.chat(ask())).completion_tokens

    assert asyncio.run(run()) == 8
    assert problems == []


def test_messages_that_the_template_refuses_are_the_callers_mistake(
    engine: EmbeddedEngine,
) -> None:
    engine.model.tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"

    with pytest.raises(EngineRefused, match="roles must alternate") as refusal:
        asyncio.run(engine.chat(ask()))

    assert refusal.value.status == 400
