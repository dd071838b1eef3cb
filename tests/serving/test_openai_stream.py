"""Proves how a streamed answer is told, put together and, if it breaks off, reported.

A real HTTP server on the loopback stands in vLLM's place (`tests/stub_engine.py`).
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from stub_engine import Answer, StubEngine, stub_engine

from serving.engine import CallDelta, ChatRequest, ChatResult, Delta
from serving.errors import BrokenAnswer, EngineRefused, EngineUnavailable
from serving.openai_engine import OpenAIEngine
from serving.records import Message, ToolCall

ASK = ChatRequest("base", (Message(role="user", content="Hello"),))
CALL = {"id": "k", "function": {"name": "set_timer", "arguments": '{"minutes": 5}'}}


@pytest.fixture
def stub() -> Iterator[StubEngine]:
    with stub_engine() as stub:
        yield stub


def stream(
    stub: StubEngine, request: ChatRequest = ASK, **limits: Any
) -> tuple[ChatResult | BaseException, list[Delta]]:
    """Return what became of a streamed call, and the deltas it told."""
    deltas: list[Delta] = []

    async def take(delta: Delta) -> None:
        deltas.append(delta)

    async def run() -> ChatResult:
        engine = OpenAIEngine(stub.url, **limits)
        try:
            return await engine.chat(request, take)
        finally:
            await engine.close()

    try:
        return asyncio.run(run()), deltas
    except EngineUnavailable as error:
        return error, deltas


def test_pieces_are_told_in_order_and_put_together(stub: StubEngine) -> None:
    stub.default = Answer("It is rainy.", reasoning="Hm.", cached_tokens=2)

    result, deltas = stream(stub)

    assert deltas == [
        Delta(reasoning="Hm."),
        Delta(content="It "),
        Delta(content="is "),
        Delta(content="rainy."),
    ]
    assert isinstance(result, ChatResult)
    assert result.message == Message(role="assistant", content="It is rainy.")
    assert (result.reasoning, result.finish_reason) == ("Hm.", "stop")
    assert (result.served_name, result.cached_tokens) == ("base", 2)
    assert result.prompt_tokens == len(result.prompt_token_ids or ())
    assert result.completion_token_ids == tuple(b"It is rainy.")
    assert result.ttft_s is not None
    assert 0 < result.ttft_s <= result.duration_s
    body = stub.chats[0].body
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


def test_a_plain_call_tells_the_same_but_for_the_time_to_the_first_piece(stub: StubEngine) -> None:
    stub.default = Answer("It is rainy.", reasoning="Hm.", tool_calls=(CALL,), cached_tokens=2)

    async def plain() -> ChatResult:
        engine = OpenAIEngine(stub.url)
        try:
            return await engine.chat(ASK)
        finally:
            await engine.close()

    streamed, _ = stream(stub)

    assert isinstance(streamed, ChatResult)
    timeless = {"response_id": "", "duration_s": 0.0, "ttft_s": None}
    assert replace(streamed, **timeless) == replace(asyncio.run(plain()), **timeless)


def test_tool_calls_come_in_pieces(stub: StubEngine) -> None:
    stub.default = Answer("", tool_calls=(CALL,))

    result, deltas = stream(stub)

    assert deltas == [
        Delta(calls=(CallDelta(0, "k", "set_timer"),)),
        Delta(calls=(CallDelta(0, arguments='{"minutes": 5}'),)),
    ]
    assert isinstance(result, ChatResult)
    call = ToolCall(id="k", name="set_timer", arguments='{"minutes": 5}')
    assert (result.message.tool_calls, result.finish_reason) == ((call,), "tool_calls")


def test_a_streamed_choice_has_its_probability(stub: StubEngine) -> None:
    stub.default = Answer("L1", probability=0.4)

    result, _ = stream(stub, replace(ASK, choices=("L0", "L1")))

    assert isinstance(result, ChatResult)
    assert result.choice_probability == pytest.approx(0.4)


def test_a_piece_is_told_while_the_engine_still_writes(stub: StubEngine) -> None:
    stub.default = Answer("One two.", fault="hang", pieces=2)

    async def run() -> str:
        told: asyncio.Queue[Delta] = asyncio.Queue()
        engine = OpenAIEngine(stub.url)
        call = asyncio.create_task(engine.chat(ASK, told.put))
        first = await asyncio.wait_for(told.get(), 20)
        assert not call.done()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await engine.close()
        return first.content

    assert asyncio.run(run()) == "One "


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("die", "to its end"),
        ("half_chunk", "to its end"),
        ("error_event", "The stub was told to fail"),
        ("no_finish", "without a finish_reason"),
        ("no_done", r"without \[DONE\]"),
    ],
)
def test_an_answer_that_breaks_off_is_told_with_what_had_come(
    stub: StubEngine, fault: Any, why: str
) -> None:
    stub.default = Answer("One two three.", fault=fault, pieces=3)

    broken, deltas = stream(stub)

    assert isinstance(broken, BrokenAnswer)
    with pytest.raises(BrokenAnswer, match=why):
        raise broken
    assert stub.url in str(broken)
    assert len(str(broken).splitlines()) == 1
    assert broken.partial is not None
    text = "".join(delta.content for delta in deltas)
    assert broken.partial.message.content == text
    assert text in ("One two ", "One two three.")
    assert broken.partial.served_name == "base"


def test_an_engine_that_falls_silent_is_given_up(stub: StubEngine) -> None:
    stub.default = Answer("One two.", fault="hang", pieces=2)

    broken, deltas = stream(stub, idle_s=0.2)

    assert isinstance(broken, BrokenAnswer)
    assert "TimeoutError" in str(broken)
    assert deltas == [Delta(content="One ")]


def test_a_call_has_a_limit_of_its_own(stub: StubEngine) -> None:
    stub.default = Answer(fault="hang", pieces=0)
    assert isinstance(stream(stub, replace(ASK, timeout_s=0.2))[0], BrokenAnswer)
    stub.default = Answer(delay_s=60)

    problem, _ = stream(stub, replace(ASK, timeout_s=0.2))

    assert isinstance(problem, EngineUnavailable)
    assert not isinstance(problem, BrokenAnswer)


def test_an_error_status_is_a_refusal_with_that_status(stub: StubEngine) -> None:
    with pytest.raises(EngineRefused, match=r"404.*`L9` does not exist") as refusal:
        stream(stub, replace(ASK, model="L9"))

    assert refusal.value.status == 404


def test_a_caller_that_is_cancelled_closes_the_connection(stub: StubEngine) -> None:
    stub.default = Answer("One two.", fault="hang", pieces=2)

    async def run() -> None:
        engine = OpenAIEngine(stub.url)
        came = asyncio.Event()

        async def take(delta: Delta) -> None:
            came.set()

        call = asyncio.create_task(engine.chat(ASK, take))
        await asyncio.wait_for(came.wait(), 20)
        assert stub.running == 1
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await until(lambda: stub.abandoned == 1)
        await engine.close()

    asyncio.run(run())


def test_what_the_taker_raises_ends_the_call(stub: StubEngine) -> None:
    async def run() -> None:
        engine = OpenAIEngine(stub.url)

        async def take(delta: Delta) -> None:
            raise LookupError("the client is gone")

        with pytest.raises(LookupError, match="the client is gone"):
            await engine.chat(ASK, take)
        await engine.close()

    asyncio.run(run())


def test_options_go_along_and_cannot_change_what_is_asked(stub: StubEngine) -> None:
    options = {"top_p": 0.5, "stop": ["."], "temperature": 0.7, "model": "L9", "stream": False}

    stream(stub, replace(ASK, options=options))

    body = stub.chats[0].body
    assert (body["top_p"], body["stop"], body["temperature"]) == (0.5, ["."], 0.7)
    assert (body["model"], body["stream"]) == ("base", True)


def test_token_ids_are_not_asked_of_a_server_that_refuses_the_field(stub: StubEngine) -> None:
    result, _ = stream(stub, token_ids=False)

    assert "return_token_ids" not in stub.chats[0].body
    assert isinstance(result, ChatResult)
    assert result.completion_token_ids is None


async def until(true: Any, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
