"""Proves that the engine client streams from the real vLLM of `.venv-vllm`. Nothing is faked."""

import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_calls import use

from infra.base_model import DEFAULT_FOLDER
from infra.vllm_server import VENV, start
from serving.engine import ChatRequest, ChatResult, Delta
from serving.errors import EngineRefused
from serving.openai_engine import OpenAIEngine
from serving.records import Message

# Starting takes about a minute, and the first test pays for it.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).parents[2]
TIMER = {
    "type": "function",
    "function": {
        "name": "set_timer",
        "description": "Start a timer.",
        "parameters": {
            "type": "object",
            "properties": {"minutes": {"type": "integer"}},
            "required": ["minutes"],
        },
    },
}
QUESTION = (Message(role="user", content="What is the capital of France?"),)
ASK = ChatRequest("base", QUESTION, max_tokens=16)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not (VENV / "bin" / "python").exists() or not (REPOSITORY / DEFAULT_FOLDER).exists():
        pytest.fail("vLLM or the base model is missing; run these tests with 'make vllm-test'")
    log = tmp_path_factory.mktemp("vllm") / "log"
    with start(REPOSITORY / DEFAULT_FOLDER, lora_modules={}, log=log) as url:
        yield url


def both(url: str, request: ChatRequest) -> tuple[ChatResult, ChatResult, list[Delta]]:
    """Return a plain answer, a streamed one and its deltas."""
    deltas: list[Delta] = []

    async def take(delta: Delta) -> None:
        deltas.append(delta)

    plain = use(url, lambda engine: engine.chat(request))
    return plain, use(url, lambda engine: engine.chat(request, take)), deltas


def timeless(result: ChatResult) -> ChatResult:
    return replace(result, response_id="", duration_s=0.0, ttft_s=None, cached_tokens=None)


def test_a_streamed_answer_is_the_plain_one_in_pieces(url: str) -> None:
    plain, streamed, deltas = both(url, ASK)

    assert "Paris" in plain.message.content
    assert timeless(streamed) == timeless(plain)
    assert len(deltas) > 3
    assert "".join(delta.content for delta in deltas) == plain.message.content
    assert 0 < (streamed.ttft_s or 0) < streamed.duration_s
    assert streamed.completion_token_ids


def test_a_streamed_tool_call_says_what_the_plain_one_says(url: str) -> None:
    ask = Message(role="user", content="Set a timer for 5 minutes.")
    options = {"tool_choice": "required"}
    request = ChatRequest("base", (ask,), tools=(TIMER,), max_tokens=64, options=options)

    plain, streamed, deltas = both(url, request)

    [call] = streamed.message.tool_calls
    assert call.name == "set_timer"
    assert call.id
    # A stream has the model's own spacing; a plain answer's JSON is written anew by vLLM.
    [plain_call] = plain.message.tool_calls
    assert json.loads(call.arguments) == json.loads(plain_call.arguments)
    assert streamed.completion_token_ids == plain.completion_token_ids
    assert streamed.finish_reason == plain.finish_reason == "tool_calls"
    pieces = [piece for delta in deltas for piece in delta.calls]
    assert "".join(piece.name for piece in pieces) == "set_timer"
    assert "".join(piece.arguments for piece in pieces) == call.arguments


def test_a_streamed_choice_has_the_probability_of_the_plain_one(url: str) -> None:
    request = replace(ASK, choices=("Paris", "Rome"), max_tokens=8)

    plain, streamed, _ = both(url, request)

    assert streamed.message.content == plain.message.content == "Paris"
    assert streamed.choice_probability == pytest.approx(plain.choice_probability, rel=1e-3)


def test_refusals_have_vllms_statuses(url: str, tmp_path: Path) -> None:
    def status(call: Callable[[OpenAIEngine], Awaitable[Any]]) -> int:
        with pytest.raises(EngineRefused) as refusal:
            use(url, call)
        return refusal.value.status

    assert status(lambda engine: engine.chat(replace(ASK, model="L9"))) == 404
    assert status(lambda engine: engine.unload_adapter("L9")) == 404
    assert status(lambda engine: engine.load_adapter("base", tmp_path)) == 400
    assert status(lambda engine: engine.load_adapter("L9", tmp_path / "nowhere")) == 404
    assert use(url, lambda engine: engine.healthy()) is True
    assert use(url, lambda engine: engine.models()) == ("base",)
