"""Proves that the embedded engine over HTTP answers in vLLM's shapes and statuses.

A real tiny model with real adapters behind a real socket; nothing is faked.
"""

import asyncio
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_calls import ask, make_adapter, use
from engine_server import tiny_engine_server

from serving.embedded import EmbeddedEngine
from serving.engine import ChatResult, Delta
from serving.errors import EngineRefused
from serving.sse import reassemble

# PEFT 0.21 reads a property that transformers 5.24 renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")

FIRST, SECOND = "L1@aaaaaaaaaaaa", "L2@bbbbbbbbbbbb"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Iterator[str]:
    with tiny_engine_server(tmp_path_factory.mktemp("engine"), {FIRST: 1}, base) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        yield client


def chat(client: httpx.Client, **fields: Any) -> httpx.Response:
    body = {"model": "base", "messages": HELLO, "max_tokens": 8, "temperature": 0.0} | fields
    return client.post("/v1/chat/completions", json=body)


def error(response: httpx.Response) -> tuple[int, dict[str, Any]]:
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["code"] == response.status_code
    return response.status_code, body["error"]


def timeless(result: ChatResult) -> ChatResult:
    return replace(result, response_id="", duration_s=0.0, ttft_s=None)


@pytest.mark.parametrize(
    "request_",
    [
        ask(),
        ask(FIRST),
        ask(tools=(TOOL,)),
        ask(choices=("L0", "L1", "L2"), continue_final=False),
        ask(temperature=0.8, seed=3),
        ask(temperature=0.8, seed=3, options={"top_p": 0.1}),
    ],
)
def test_what_the_embedded_engine_says_comes_whole_through_http(
    url: str, base: Path, tmp_path: Path, request_: Any
) -> None:
    async def direct() -> ChatResult:
        engine = EmbeddedEngine(base)
        await engine.load_adapter(FIRST, make_adapter(tmp_path / "lora", base, 1))
        result = await engine.chat(request_)
        await engine.close()
        return result

    expected = timeless(asyncio.run(direct()))

    got = use(url, lambda engine: engine.chat(request_))

    assert timeless(got) == replace(expected, choice_probability=got.choice_probability)
    assert got.choice_probability == pytest.approx(expected.choice_probability)


def test_a_stream_says_the_same_as_a_plain_answer(url: str) -> None:
    deltas: list[Delta] = []

    async def take(delta: Delta) -> None:
        deltas.append(delta)

    plain = use(url, lambda engine: engine.chat(ask(FIRST)))
    streamed = use(url, lambda engine: engine.chat(ask(FIRST), take))

    assert timeless(streamed) == timeless(plain)
    assert "".join(delta.content for delta in deltas) == plain.message.content
    assert streamed.ttft_s > 0


def test_a_stream_is_in_the_form_of_vllm(client: httpx.Client) -> None:
    response = chat(client, stream=True, stream_options={"include_usage": True})

    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk["model"] for chunk in chunks} == {"base"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 8
    assert reassemble(response.text).broken is None


def test_usage_and_token_ids_come_only_if_asked_for(client: httpx.Client) -> None:
    plain, stream = chat(client).json(), reassemble(chat(client, stream=True).text)

    assert (plain["prompt_token_ids"], plain["choices"][0]["token_ids"]) == (None, None)
    assert plain["usage"]["total_tokens"] == plain["usage"]["prompt_tokens"] + 8
    assert (stream.usage, stream.prompt_token_ids, stream.token_ids) == ({}, None, [])


def test_a_choice_tells_its_probability_as_a_logprob(client: httpx.Client) -> None:
    fields = {"structured_outputs": {"choice": ["L0", "L1"]}, "logprobs": True}

    choice = chat(client, **fields).json()["choices"][0]

    [token] = choice["logprobs"]["content"]
    assert token["token"] == choice["message"]["content"]
    assert 0.5 <= math.exp(token["logprob"]) < 1
    streamed = reassemble(chat(client, **fields, stream=True).text)
    assert streamed.logprobs == [token]


def test_a_stop_string_ends_the_answer_before_it(client: httpx.Client) -> None:
    whole = chat(client, max_tokens=16).json()["choices"][0]["message"]["content"]

    choice = chat(client, max_tokens=16, stop=[whole[3:5]]).json()["choices"][0]

    assert choice["message"]["content"] == whole[: whole.index(whole[3:5])]
    assert choice["finish_reason"] == "stop"


def test_models_have_roots_and_parents(client: httpx.Client, base: Path) -> None:
    body = client.get("/v1/models").json()

    assert body["object"] == "list"
    cards = [(card["id"], card["parent"]) for card in body["data"]]
    assert cards == [("base", None), (FIRST, "base")]
    assert body["data"][0]["root"] == str(base)
    assert body["data"][1]["root"].endswith("lora-1")


def test_adapters_are_loaded_and_unloaded(url: str, client: httpx.Client, adapters: Any) -> None:
    use(url, lambda engine: engine.load_adapter(SECOND, adapters[SECOND]))
    assert use(url, lambda engine: engine.models()) == ("base", FIRST, SECOND)
    assert chat(client, model=SECOND).json()["model"] == SECOND

    use(url, lambda engine: engine.unload_adapter(SECOND))

    assert use(url, lambda engine: engine.models()) == ("base", FIRST)
    assert chat(client, model=SECOND).status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("load", {"lora_name": "L9", "lora_path": "/nowhere"}, 404, "No adapter found"),
        ("load", {"lora_name": FIRST, "lora_path": "/nowhere"}, 400, "has already been loaded"),
        ("load", {"lora_name": "base", "lora_path": "/nowhere"}, 400, "conflicts with a served"),
        ("load", {"lora_name": "L9"}, 400, "must be provided"),
        ("unload", {"lora_name": "L9"}, 404, "cannot be found"),
        ("unload", {"lora_name": "base"}, 404, "cannot be found"),
        ("unload", {}, 400, "needs to be provided"),
    ],
)
def test_what_cannot_be_loaded_or_unloaded_is_refused(
    client: httpx.Client, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    got, problem = error(client.post(f"/v1/{path}_lora_adapter", json=body))

    assert got == status
    assert words in problem["message"]


def test_an_adapter_that_does_not_fit_is_refused(client: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    body = {"lora_name": "L9", "lora_path": str(tmp_path)}

    status, _ = error(client.post("/v1/load_lora_adapter", json=body))

    assert status == 500
    assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["base", FIRST]


def test_an_unknown_model_is_not_found(url: str, client: httpx.Client) -> None:
    status, problem = error(chat(client, model="L9"))

    assert (status, problem["type"], problem["param"]) == (404, "NotFoundError", "model")
    assert problem["message"] == "The model `L9` does not exist."
    assert error(chat(client, model="L9", stream=True))[0] == 404
    with pytest.raises(EngineRefused) as refusal:
        use(url, lambda engine: engine.chat(ask("L9")))
    assert refusal.value.status == 404


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "role"),
        ({"messages": [1]}, "message is wrong"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"structured_outputs": {"choice": [1]}}, "choice"),
        ({"structured_outputs": "L1"}, "structured_outputs"),
        ({"model": 7}, "model"),
    ],
)
def test_a_wrong_request_is_refused_with_what_is_wrong(
    client: httpx.Client, fields: dict[str, Any], words: str
) -> None:
    status, problem = error(chat(client, **fields))

    assert status == 400
    assert words in problem["message"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff"])
def test_a_body_that_is_no_object_is_refused(client: httpx.Client, content: bytes) -> None:
    assert error(client.post("/v1/chat/completions", content=content))[0] == 400


def test_other_paths_and_methods_are_refused_in_the_same_form(client: httpx.Client) -> None:
    assert error(client.get("/v1/elsewhere"))[0] == 404
    assert error(client.get("/v1/chat/completions"))[0] == 405
    assert client.get("/health").status_code == 200


def test_a_hidden_state_is_the_bases_own_whatever_is_loaded(url: str, base: Path) -> None:
    async def direct() -> tuple[float, ...]:
        engine = EmbeddedEngine(base)
        vector = await engine.embed("Turn on the light.")
        await engine.close()
        return vector

    vector = use(url, lambda engine: engine.embed("Turn on the light."))

    assert len(vector) == 64
    assert vector == pytest.approx(asyncio.run(direct()))
    assert vector != pytest.approx(use(url, lambda engine: engine.embed("Set a timer.")))


def test_embeddings_are_of_texts_and_of_the_base(client: httpx.Client) -> None:
    def embed(**body: Any) -> httpx.Response:
        return client.post("/v1/embeddings", json={"model": "base", "input": "a"} | body)

    two = embed(input=["a", "b"]).json()
    assert [entry["index"] for entry in two["data"]] == [0, 1]
    assert two["data"][0]["embedding"] == embed().json()["data"][0]["embedding"]
    assert error(embed(model=FIRST))[0] == 400
    assert error(embed(input=7))[0] == 400
    assert error(embed(input=""))[0] == 400
