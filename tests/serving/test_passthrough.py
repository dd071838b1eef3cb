"""Proves what a proxy above gets from the MoL server for a slot's name, and what is recorded.

The engine is a stub over HTTP in vLLM's shapes; server, recorder and slot table are real.
`test_passthrough_faults.py` has the engines that fail and the clients that leave.
"""

import json
import socket
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from mol_server import mol_server, version, write_slots
from stub_engine import Answer

from serving.records import Hop
from serving.slot_table import SlotEntry

KEY, SESSION, HOP = "X-SMG-Routing-Key", "X-Session-ID", "X-MOL-Internal-Hop"
L1 = version("L1")["champion"]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "set_timer", "parameters": {"type": "object", "properties": {}}},
    }
]
CALL = {"id": "chatcmpl-tool-1", "function": {"name": "set_timer", "arguments": '{"minutes": 5}'}}
ASK = {
    "model": "L1",
    "messages": [
        {"role": "system", "content": "You run the home."},
        {"role": "user", "content": "Timer!"},
    ],
    "max_tokens": 40,
    "temperature": 0.0,
    "tools": TOOLS,
    "chat_template_kwargs": {"enable_thinking": True},
    "stop": None,
    "an_unknown_field": {"deep": [1, 2.5, None, "ä"]},
}


@pytest.fixture
def proxy(mol):
    with httpx.Client(base_url=mol.url, timeout=30) as client:
        yield client


def ask(proxy: httpx.Client, request: dict[str, Any] = ASK, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return proxy.post("/v1/chat/completions", json=request, headers=named)


def chunks_of(text: str) -> list[Any]:
    """Return the data of a stream's events; the end as None."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line]
    return [None if one == "[DONE]" else json.loads(one) for one in data]


def without(value: dict[str, Any], *names: str) -> dict[str, Any]:
    return {k: v for k, v in value.items() if k not in names}


def as_if_unasked(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the engine's answer under the slot's name, with null where the record asked."""
    shown = answer | {"model": "L1"}
    if "prompt_token_ids" in shown:
        shown["prompt_token_ids"] = None
    hidden = {"token_ids": None}
    shown["choices"] = [c | {k: v for k, v in hidden.items() if k in c} for c in answer["choices"]]
    return shown


def test_the_engine_gets_the_request_as_it_is_under_the_champions_name(stub, proxy) -> None:
    assert ask(proxy).status_code == 200

    (asked,) = stub.chats
    assert asked.body == {**ASK, "model": L1, "return_token_ids": True}


def test_the_proxy_gets_the_answer_as_it_is_under_the_slots_name(stub, proxy) -> None:
    stub.default = Answer(text="Done – ä.", reasoning="hm", tool_calls=(CALL,), cached_tokens=7)

    answer = ask(proxy)

    (answered,) = stub.answered
    assert answer.json() == as_if_unasked(answered[0])
    assert answered[0]["choices"][0]["token_ids"]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-mol-adapter"] == L1


def test_a_stream_comes_through_event_by_event(stub, proxy) -> None:
    stub.default = Answer(text="one two three", reasoning="hm", tool_calls=(CALL,))
    request = {**ASK, "stream": True, "stream_options": {"include_usage": True}}

    answer = ask(proxy, request)

    (answered,) = stub.answered
    assert len(answered) > 5
    assert chunks_of(answer.text) == [*(as_if_unasked(chunk) for chunk in answered), None]
    assert answer.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_that_the_proxy_asked_for_are_its_own(stub, proxy, stream) -> None:
    own = {"return_token_ids": True, "logprobs": True, "stream": stream}

    answer = ask(proxy, {**ASK, **own}, **{HOP: "route"})

    got = chunks_of(answer.text)[:-1] if stream else [answer.json()]
    assert got == [chunk | {"model": "L1"} for chunk in stub.answered[0]]
    assert any(choice.get("token_ids") for chunk in got for choice in chunk["choices"])
    assert any(choice.get("logprobs") for chunk in got for choice in chunk["choices"])


def test_a_proxy_that_refuses_token_ids_gets_and_records_none(stub, mol, proxy) -> None:
    ask(proxy, {**ASK, "return_token_ids": False})

    assert stub.chats[0].body["return_token_ids"] is False
    assert mol.records("hop", 1)[0]["completion_token_ids"] is None


def test_a_route_hop_is_asked_for_logprobs_that_only_the_record_sees(stub, mol, proxy) -> None:
    request = {
        **without(ASK, "tools"),
        "structured_outputs": {"choice": ["L0", "L1"]},
        "logprobs": None,
    }
    stub.default = Answer(text="L1", probability=0.75)

    answer = ask(proxy, request, **{HOP: "route"})

    assert stub.chats[0].body["logprobs"] is True
    assert answer.json()["choices"][0]["logprobs"] is None
    (hop,) = mol.records("hop", 1)
    assert hop["confidence"] == pytest.approx(0.75)
    assert hop["propensity"] == 1.0


def test_nothing_is_asked_for_a_record_that_is_not_kept(tmp_path: Path, stub) -> None:
    with mol_server(tmp_path, stub.url, record={"enabled": False}) as mol:
        stub.requests.clear()
        httpx.post(f"{mol.url}/v1/chat/completions", json=ASK, headers={HOP: "route"})

        assert stub.chats[0].body == {**ASK, "model": L1}
        mol.settle()
        assert mol.records("hop") == []


def test_the_record_holds_the_whole_hop_plain_or_streamed(stub, mol, proxy) -> None:
    stub.default = Answer(text="It runs.", reasoning="hm", tool_calls=(CALL,), cached_tokens=3)
    for request in (ASK, {**ASK, "stream": True, "stream_options": {"include_usage": True}}):
        ask(proxy, request, **{KEY: "k1", "User-Agent": "proxy/0.2.1"})

    plain, streamed = mol.records("hop", 2)

    assert plain["messages"] == [
        {"role": role, "content": text, "tool_calls": [], "tool_call_id": None}
        for role, text in (("system", "You run the home."), ("user", "Timer!"))
    ]
    assert json.loads(plain["tools"]) == TOOLS
    assert json.loads(plain["params"]) == without(ASK, "model", "messages", "tools")
    assert plain["model"] == plain["served_name"] == L1
    assert plain["conversation_id"] == "k1"
    assert plain["completion"]["content"] == "It runs."
    assert plain["completion"]["tool_calls"] == [
        {"id": CALL["id"], "name": "set_timer", "arguments": '{"minutes": 5}'}
    ]
    assert plain["reasoning"] == "hm"
    assert plain["finish_reason"] == "tool_calls"
    engines = [answered[0] for answered in stub.answered]
    assert [h["response_id"] for h in (plain, streamed)] == [e["id"] for e in engines]
    assert plain["prompt_token_ids"] == engines[0]["prompt_token_ids"]
    assert plain["completion_token_ids"] == engines[0]["choices"][0]["token_ids"]
    assert plain["prompt_tokens"] == len(plain["prompt_token_ids"])
    assert plain["cached_tokens"] == 3
    assert plain["harness_version"] == "proxy/0.2.1"
    assert plain["duration_s"] > 0
    assert 0 < streamed["ttft_s"] <= streamed["duration_s"]
    each = {"started_at", "duration_s", "ttft_s", "seq", "response_id", "params"}
    assert without(streamed, *each) == without(plain, *each)


@pytest.mark.parametrize(
    ("said", "messages", "limit", "role"),
    [
        ("route", ["user", "assistant"], 24, "route"),
        (None, ["user"], 40, "answer"),
        (None, ["user", "assistant", "user"], 40, "answer"),
        (None, ["user", "assistant", "user"], 192, "summary"),
        ("answer", ["user", "assistant", "user"], 192, "answer"),
    ],
)
def test_roles_by_header_or_by_what_a_summary_looks_like(
    mol, proxy, said, messages, limit, role
) -> None:
    request = {
        "model": "L1",
        "messages": [{"role": r, "content": "x"} for r in messages],
        "max_tokens": limit,
    }

    ask(proxy, request, **({HOP: said} if said else {}))

    assert mol.records("hop", 1)[0]["role"] == role


def test_the_same_key_and_body_again_supersedes_what_went_before(mol, proxy) -> None:
    for key in ("k1", "k1", "k2", "k1"):
        ask(proxy, ASK, **{KEY: key})
    ask(proxy, {**ASK, "max_tokens": 41}, **{KEY: "k1"})
    ask(proxy)
    ask(proxy)

    hops = [Hop.model_validate(hop) for hop in mol.records("hop", 7)]
    first, again, other, third, *rest = hops
    assert (first.supersedes, again.supersedes) == (None, first.hop_id)
    assert other.supersedes is None
    assert third.supersedes == again.hop_id
    assert [hop.supersedes for hop in rest] == [None, None, None]


def test_no_secret_is_recorded(mol, proxy) -> None:
    secrets = {"Authorization": "Bearer sk-very-secret-1", "X-Api-Key": "very-secret-2"}
    for stream in (False, True):
        ask(proxy, {**ASK, "stream": stream}, **secrets, Cookie="very-secret-3")

    mol.records("hop", 2)
    spool = b"".join(file.read_bytes() for file in (mol.home / "spool").iterdir())
    assert b"Timer!" in spool
    assert b"very-secret" not in spool
    everything = b"".join(f.read_bytes() for f in mol.home.rglob("*") if f.is_file())
    assert b"very-secret" not in everything


def test_no_header_of_the_proxy_reaches_the_engine_but_the_request_id(stub, proxy) -> None:
    ask(proxy, ASK, **{"Authorization": "Bearer sk-secret", KEY: "k1", "X-Request-ID": "r-1"})

    headers = stub.chats[0].headers
    assert headers["x-request-id"] == "r-1"
    assert not {"authorization", "cookie", KEY.lower()} & headers.keys()


def test_an_official_client_can_be_the_proxy(mol, stub) -> None:
    stub.default = Answer(text="", tool_calls=(CALL,))
    with openai.OpenAI(base_url=f"{mol.url}/v1", api_key="none", max_retries=0) as client:
        completions = client.chat.completions
        plain = completions.create(model="L1", messages=ASK["messages"], tools=TOOLS)
        with completions.stream(model="L1", messages=ASK["messages"], tools=TOOLS) as stream:
            streamed = stream.get_final_completion()

    for reply in (plain, streamed):
        call = reply.choices[0].message.tool_calls[0]
        assert (call.id, call.function.arguments) == (CALL["id"], '{"minutes": 5}')
        assert reply.model == "L1"


def test_a_slot_without_a_champion_is_the_base(tmp_path: Path, stub) -> None:
    write_slots(tmp_path, SlotEntry(slot="L0", **version("L0")), SlotEntry(slot="L1"))
    with mol_server(tmp_path, stub.url) as mol:
        stub.requests.clear()
        answer = httpx.post(f"{mol.url}/v1/chat/completions", json=ASK)

        assert stub.chats[0].model == "base"
        assert answer.json()["model"] == "L1"
        assert mol.records("hop", 1)[0]["model"] == "base"


@pytest.mark.parametrize("name", [L1, "base", "../L1", "L9", "l1", "", None, 5])
def test_only_a_slots_own_name_is_passed_on(stub, proxy, name) -> None:
    answer = ask(proxy, {**ASK, "model": name})

    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["message"]
    assert stub.chats == []


def test_the_calls_that_a_proxy_makes_beside_its_hops(mol, stub, proxy) -> None:
    assert proxy.get("/readiness").status_code == 200
    assert proxy.get("/health").status_code == 200
    models = {model["id"] for model in proxy.get("/v1/models").json()["data"]}
    assert {"L0", "L1", "L2", "L3"} <= models
    one = proxy.delete("/_internal/routing-key", headers={KEY: "k1"})
    many = proxy.request("DELETE", "/_internal/routing-keys", json={"routing_keys": ["k1", "k2"]})
    assert (one.status_code, many.status_code) == (200, 200)
    wrong = proxy.request("DELETE", "/_internal/routing-keys", json={"routing_keys": "k1"})
    assert wrong.status_code == 400
    stub.healthy = False
    assert proxy.get("/readiness").status_code == 503


def test_no_part_of_an_answer_waits_for_the_clients_acknowledgement(mol) -> None:
    for server in mol.server._servers:
        (listening,) = server.servers[0].sockets
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
