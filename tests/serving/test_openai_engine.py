"""Proves what goes over the wire to an OpenAI-compatible server and what is made of its answers.

A real HTTP server on the loopback stands in vLLM's place, with vLLM's paths, statuses and
bodies; `tests/infra/test_vllm_real.py` has the real one.
"""

import asyncio
import json
import math
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from serving.child import HOST, free_port
from serving.engine import ChatRequest
from serving.errors import EngineRefused, EngineUnavailable, MolError
from serving.openai_engine import OpenAIEngine
from serving.records import Message, ToolCall

TOOL = {"type": "function", "function": {"name": "set_timer", "parameters": {"type": "object"}}}
USER = (Message(role="user", content="Hello"),)
ANSWER: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "L1@aaaaaaaaaaaa",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi.", "tool_calls": []},
            "logprobs": None,
            "finish_reason": "stop",
            "token_ids": [7, 8, 2],
        }
    ],
    "usage": {
        "prompt_tokens": 4,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 1},
    },
    "prompt_token_ids": [1, 2, 3, 4],
}


@dataclass
class Server:
    """A server that notes what it is asked and says what it is told to."""

    url: str = ""
    answer: Any = field(default_factory=lambda: JSONResponse(ANSWER))
    asked: list[tuple[str, Any, dict[str, str]]] = field(default_factory=list)
    loaded: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    at_once: int = 0
    most_at_once: int = 0

    async def chat(self, request: Request) -> Response:
        self.asked.append((request.url.path, await request.json(), dict(request.headers)))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(self.delay_s)
        self.at_once -= 1
        return self.answer

    async def models(self, request: Request) -> Response:
        if self.answer is None or self.answer.status_code != 200:
            return self.answer
        return JSONResponse({"object": "list", "data": [{"id": n} for n in ("base", *self.loaded)]})

    async def load(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append((request.url.path, body, dict(request.headers)))
        if body["lora_name"] in self.loaded:
            error = {"message": f"The lora adapter '{body['lora_name']}' has already been loaded."}
            return JSONResponse({"error": error}, 400)
        self.loaded[body["lora_name"]] = body["lora_path"]
        return PlainTextResponse(f"Success: LoRA adapter '{body['lora_name']}' added successfully.")

    async def unload(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append((request.url.path, body, dict(request.headers)))
        if self.loaded.pop(body["lora_name"], None) is None:
            return JSONResponse({"error": {"message": "cannot be found"}}, 404)
        return PlainTextResponse("Success: LoRA adapter removed successfully.")


@pytest.fixture
def server() -> Iterator[Server]:
    stand_in = Server()
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", stand_in.chat, methods=["POST"]),
            Route("/v1/models", stand_in.models),
            Route("/v1/load_lora_adapter", stand_in.load, methods=["POST"]),
            Route("/v1/unload_lora_adapter", stand_in.unload, methods=["POST"]),
        ]
    )
    listener = socket.create_server((HOST, 0))
    stand_in.url = f"http://{HOST}:{listener.getsockname()[1]}"
    config = uvicorn.Config(app, log_level="error", lifespan="off", ws="none")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, args=([listener],))
    thread.start()
    while not running.started:
        time.sleep(0.005)
    yield stand_in
    running.should_exit = True
    thread.join()
    listener.close()


def use(url: str, *calls: Any, concurrency: int = 32) -> list[Any]:
    """Make calls on a new engine, one after the other, and close it."""

    async def run() -> list[Any]:
        engine = OpenAIEngine(url, concurrency)
        try:
            return [await call(engine) for call in calls]
        finally:
            await engine.close()

    return asyncio.run(run())


def chat(server: Server, request: ChatRequest) -> Any:
    return use(server.url, lambda engine: engine.chat(request))[0]


def body_of(server: Server, request: ChatRequest) -> dict[str, Any]:
    chat(server, request)
    return server.asked[-1][1]


def test_a_plain_request_asks_for_exactly_this(server: Server) -> None:
    body = body_of(server, ChatRequest(model="L1@aaaaaaaaaaaa", messages=USER, max_tokens=5))

    assert body == {
        "model": "L1@aaaaaaaaaaaa",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 5,
        "temperature": 0.0,
        "return_token_ids": True,
    }


def test_choices_go_as_structured_outputs(server: Server) -> None:
    body = body_of(server, ChatRequest("base", USER, choices=("L0", "L1"), continue_final=True))

    assert body["structured_outputs"] == {"choice": ["L0", "L1"]}
    assert body["logprobs"] is True
    assert body["continue_final_message"] is True
    assert body["add_generation_prompt"] is False
    assert not [key for key in body if key.startswith("guided")]


def test_tools_seed_and_headers_go_along(server: Server) -> None:
    request = ChatRequest(
        "base", USER, tools=(TOOL,), temperature=0.7, seed=3, headers={"X-MOL-Internal-Hop": "1"}
    )

    body = body_of(server, request)

    assert body["tools"] == [TOOL]
    assert (body["temperature"], body["seed"]) == (0.7, 3)
    assert server.asked[-1][2]["x-mol-internal-hop"] == "1"


def test_tool_calls_and_results_go_in_openai_form(server: Server) -> None:
    call = ToolCall(id="k", name="set_timer", arguments='{"minutes": 5}')
    messages = (
        *USER,
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", content="{}", tool_call_id="k"),
    )

    body = body_of(server, ChatRequest("base", messages))

    assert body["messages"][1]["tool_calls"] == [
        {
            "id": "k",
            "type": "function",
            "function": {"name": "set_timer", "arguments": '{"minutes": 5}'},
        }
    ]
    assert body["messages"][2] == {"role": "tool", "content": "{}", "tool_call_id": "k"}


def test_an_answer_is_read_in_full(server: Server) -> None:
    result = chat(server, ChatRequest("base", USER))

    assert result.response_id == "chatcmpl-1"
    assert result.served_name == "L1@aaaaaaaaaaaa"
    assert result.message == Message(role="assistant", content="Hi.")
    assert result.finish_reason == "stop"
    assert (result.prompt_tokens, result.completion_tokens, result.cached_tokens) == (4, 3, 1)
    assert result.prompt_token_ids == (1, 2, 3, 4)
    assert result.completion_token_ids == (7, 8, 2)
    assert result.choice_probability is None
    assert result.duration_s > 0


def test_a_tool_call_is_read(server: Server) -> None:
    call = {"id": "k", "type": "function", "function": {"name": "f", "arguments": '{"a": 1'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"message": message, "finish_reason": "tool_calls"}
    server.answer = JSONResponse(ANSWER | {"choices": [choice]})

    result = chat(server, ChatRequest("base", USER, tools=(TOOL,)))

    assert result.message.tool_calls == (ToolCall(id="k", name="f", arguments='{"a": 1'),)
    assert result.message.content == ""
    assert result.finish_reason == "tool_calls"


def test_the_probability_of_a_choice_is_that_of_its_tokens(server: Server) -> None:
    logprobs = {"content": [{"logprob": math.log(0.5)}, {"logprob": math.log(0.8)}]}
    server.answer = JSONResponse(
        ANSWER | {"choices": [ANSWER["choices"][0] | {"logprobs": logprobs}]}
    )

    assert chat(server, ChatRequest("base", USER, choices=("a",))).choice_probability == (
        pytest.approx(0.4)
    )


def test_a_server_that_tells_less_is_understood(server: Server) -> None:
    bare = {"id": "x", "model": "m", "choices": [{"message": {"content": "Hi."}}]}
    server.answer = JSONResponse(bare)

    result = chat(server, ChatRequest("base", USER, choices=("a",)))

    assert result.message.content == "Hi."
    assert result.prompt_token_ids is None
    assert result.choice_probability is None


def test_adapters_are_loaded_listed_and_unloaded(server: Server, tmp_path: Path) -> None:
    name = "L1@aaaaaaaaaaaa"
    before, _, during, _, after = use(
        server.url,
        lambda e: e.models(),
        lambda e: e.load_adapter(name, tmp_path),
        lambda e: e.models(),
        lambda e: e.unload_adapter(name),
        lambda e: e.models(),
    )

    assert before == after == ("base",)
    assert during == ("base", name)
    assert [(path, body) for path, body, _ in server.asked] == [
        ("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(tmp_path)}),
        ("/v1/unload_lora_adapter", {"lora_name": name}),
    ]


def test_a_relative_folder_is_sent_as_an_absolute_one(server: Server) -> None:
    use(server.url, lambda e: e.load_adapter("L1@aaaaaaaaaaaa", Path("adapter")))

    assert server.loaded["L1@aaaaaaaaaaaa"] == str(Path.cwd() / "adapter")


def test_a_name_in_use_and_an_unknown_one_are_refused(server: Server, tmp_path: Path) -> None:
    name = "L1@aaaaaaaaaaaa"
    server.loaded[name] = "/there"

    with pytest.raises(EngineRefused, match=r"load_lora_adapter with 400: .*already been loaded"):
        use(server.url, lambda e: e.load_adapter(name, tmp_path))
    with pytest.raises(EngineRefused, match=r"unload_lora_adapter with 404: .*cannot be found"):
        use(server.url, lambda e: e.unload_adapter("L9"))


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_an_error_status_is_a_refusal_with_the_servers_words(server: Server, status: int) -> None:
    error = {"error": {"message": "The model `L9` does not exist.", "code": status}}
    server.answer = JSONResponse(error, status)

    with pytest.raises(EngineRefused) as refusal:
        chat(server, ChatRequest("L9", USER))

    text = str(refusal.value)
    assert f"/v1/chat/completions with {status}" in text
    assert "does not exist" in text
    assert server.url in text
    assert len(text.splitlines()) == 1
    assert isinstance(refusal.value, MolError)


def test_a_long_error_page_is_cut(server: Server) -> None:
    server.answer = PlainTextResponse("<html>\n" * 10_000, 502)

    with pytest.raises(EngineRefused) as refusal:
        chat(server, ChatRequest("base", USER))

    assert len(str(refusal.value)) < 600


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json",
        json.dumps(ANSWER).encode()[:-40],
        b"[]",
        b"null",
        b"{}",
        json.dumps(ANSWER | {"choices": []}).encode(),
        json.dumps(ANSWER | {"choices": [{"message": None}]}).encode(),
        json.dumps(ANSWER | {"choices": [{"message": {"role": "wizard"}}]}).encode(),
        json.dumps(ANSWER | {"choices": [{"message": {"tool_calls": [{}]}}]}).encode(),
        b"\xff\xfe\x00",
    ],
)
def test_an_answer_in_another_form_is_a_known_error(server: Server, content: bytes) -> None:
    server.answer = Response(content, media_type="application/json")

    with pytest.raises(EngineUnavailable, match="not as an OpenAI-compatible server") as refusal:
        chat(server, ChatRequest("base", USER))

    assert len(str(refusal.value).splitlines()) == 1
    assert len(str(refusal.value)) < 500


def test_a_web_site_is_not_an_engine(server: Server) -> None:
    with pytest.raises(EngineRefused, match="404"):
        use(server.url + "/elsewhere", lambda e: e.models())


def test_nobody_listening_is_said_with_what_to_do() -> None:
    url = f"http://{HOST}:{free_port()}"

    with pytest.raises(EngineUnavailable) as refusal:
        use(url, lambda e: e.chat(ChatRequest("base", USER)))

    assert url in str(refusal.value)
    assert "make vllm" in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1


def test_a_connection_that_breaks_is_a_known_error() -> None:
    listener = socket.create_server((HOST, 0))

    def hang_up() -> None:
        connection, _ = listener.accept()
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
        connection.close()

    thread = threading.Thread(target=hang_up)
    thread.start()
    with pytest.raises(EngineUnavailable, match="No answer from the engine"):
        use(f"http://{HOST}:{listener.getsockname()[1]}", lambda e: e.chat(ChatRequest("b", USER)))
    thread.join()
    listener.close()


@pytest.mark.parametrize("address", ["http://[::1", "http://host:port", "host:8000", "", "ftp://x"])
def test_an_address_that_is_none_is_a_known_error(address: str) -> None:
    with pytest.raises(EngineUnavailable, match="--engine"):
        use(address, lambda e: e.models())


def test_no_more_calls_run_at_once_than_allowed(server: Server) -> None:
    server.delay_s = 0.05

    async def all_at_once(engine: OpenAIEngine) -> list[Any]:
        requests = [engine.chat(ChatRequest("base", USER)) for _ in range(9)]
        return await asyncio.gather(*requests)

    [results] = use(server.url, all_at_once, concurrency=3)

    assert len(results) == 9
    assert server.most_at_once == 3
