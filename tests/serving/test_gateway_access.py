"""Proves who may ask the MoL server what, and that nothing secret leaves it.

The engine is a stub over HTTP that notes what reaches it; server, memory, recorder, both ports
and the clients are real.
"""

import asyncio
import contextlib
import dataclasses
import http.client
import logging
import stat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anthropic
import httpx
import openai
import pytest
from gateway_answers import CALL, slots_answer
from gateway_asks import PATHS, PROTOCOLS, ask, check_refusal, results, said, text_of, tool
from mol_server import LIMIT_S, mol_server
from stub_engine import stub_engine

from serving.access import KeysInvalid
from serving.addresses import ENGINE_KEY
from serving.config import ServeConfig
from serving.gateway import create_app
from serving.serve import running
from serving.slots import load_profile

ANN, BEN = "a-key-of-ann-0123456789", "a-key-of-ben-0123456789"
ADMIN = "the-key-of-the-admin-0123456789"
ENVIRONMENT = {"MOL_API_KEYS": f"{ANN},{BEN}", "MOL_ADMIN_KEY": ADMIN}
GUARDED = [
    ("POST", "/v1/chat/completions"), ("POST", "/v1/responses"), ("POST", "/v1/messages"),
    ("POST", "/v1/feedback"), ("GET", "/v1/models"), ("GET", "/metrics"),
    ("DELETE", "/_internal/routing-key"), ("DELETE", "/_internal/routing-keys"),
]  # fmt: skip
OF_ENGINES = (
    "/update_weights", "/update_weights_from_disk", "/init_weights_update_group",
    "/collective_rpc", "/sleep", "/wake_up", "/is_sleeping", "/reset_prefix_cache",
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/embeddings", "/v1/completions",
    "/server_info", "/get_server_info", "/flush_cache", "/start_profile", "/tokenize",
    "/detokenize", "/pause", "/shutdown", "/ping", "/invocations", "/load", "/scale_elastic_ep",
)  # fmt: skip


@pytest.fixture
def stub():
    with stub_engine() as stub:
        stub.reply = slots_answer("L0", "Hi.")
        yield stub


@pytest.fixture
def mol(tmp_path: Path, stub):
    with mol_server(tmp_path, stub.url, environment=ENVIRONMENT) as mol:
        stub.requests.clear()
        yield mol


def client_of(mol, key: str | None = None) -> httpx.Client:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=mol.url, timeout=LIMIT_S, headers=headers)


@pytest.mark.parametrize("given", [{}, {"authorization": "Bearer wrong"}, {"x-api-key": ANN[:-1]}])
def test_without_a_key_nothing_is_told_or_done(mol, stub, given) -> None:
    with client_of(mol) as client:
        for method, path in GUARDED:
            answer = client.request(method, path, headers=given)
            check_refusal(answer, "messages" if path == PATHS["messages"] else "chat", 401)
            assert answer.headers["www-authenticate"] == "Bearer"
        for path in ("/health", "/readiness", "/openapi.json"):
            assert client.get(path, headers=given).status_code == 200
    assert not stub.chats


def test_an_engine_gets_its_own_key_and_no_callers(tmp_path, stub) -> None:
    environment = ENVIRONMENT | {ENGINE_KEY: "the-engines-key\n"}
    with mol_server(tmp_path, stub.url, environment=environment) as mol, client_of(mol, ANN) as ann:
        assert text_of("chat", ann.post(PATHS["chat"], json=ask("chat", "Hi")))
        assert ann.post(PATHS["chat"], json=ask("chat", "Hi", model="L0")).status_code == 200
    paths = {asked.path for asked in stub.requests}
    assert {"/v1/chat/completions", "/v1/load_lora_adapter", "/v1/models"} <= paths
    assert {asked.headers.get("authorization") for asked in stub.requests} == {
        "Bearer the-engines-key"
    }


def test_official_clients_send_their_keys_their_own_way(mol) -> None:
    said = [{"role": "user", "content": "Hi"}]
    with openai.OpenAI(base_url=f"{mol.url}/v1", api_key=ANN, max_retries=0) as client:
        reply = client.chat.completions.create(model="mol", messages=said)
        assert reply.choices[0].message.content == "Hi."
    with anthropic.Anthropic(base_url=mol.url, api_key=BEN, max_retries=0) as client:
        assert client.messages.create(model="mol", max_tokens=9, messages=said).content
    with openai.OpenAI(base_url=f"{mol.url}/v1", api_key="no", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as refusal:
            client.chat.completions.create(model="mol", messages=said)
        assert refusal.value.request_id
    with (
        anthropic.Anthropic(base_url=mol.url, api_key="no", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError),
    ):
        client.messages.create(model="mol", max_tokens=9, messages=said)


def test_a_response_of_another_caller_is_not_known(mol) -> None:
    with client_of(mol, ANN) as ann, client_of(mol, BEN) as ben:
        first = ann.post(PATHS["responses"], json=ask("responses", "My secret.")).json()["id"]
        follow = ask("responses", "What was it?", previous_response_id=first)
        refused = ben.post(PATHS["responses"], json=follow)
        check_refusal(refused, "responses", 404, "previous_response_not_found")
        # As is one of the same caller in the name of another user, or in another session.
        for other in ({"json": follow | {"user": "u"}}, {"headers": {"x-session-id": "s"}}):
            refused = ann.post(PATHS["responses"], **{"json": follow, **other})
            check_refusal(refused, "responses", 404, "previous_response_not_found")
        assert text_of("responses", ann.post(PATHS["responses"], json=follow)) == "Hi."


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_transcript_leads_nobody_into_another_callers_conversation(mol, protocol) -> None:
    with client_of(mol, ANN) as ann, client_of(mol, BEN) as ben:
        first = ann.post(PATHS[protocol], json=ask(protocol, "Hello"))
        history = ["Hello", *said(protocol, first), {"role": "user", "content": "Go on."}]
        for client in (ben, ann):
            assert text_of(protocol, client.post(PATHS[protocol], json=ask(protocol, *history)))
    mol.settle()
    first_turn, by_ben, by_ann = mol.records("turn", 3)
    assert by_ben["conversation_id"] != first_turn["conversation_id"]
    assert by_ann["conversation_id"] == first_turn["conversation_id"]


def test_tool_results_of_another_caller_take_up_no_turn(mol, stub) -> None:
    stub.reply = slots_answer("L1", "", tool_calls=(CALL,))
    with client_of(mol, ANN) as ann, client_of(mol, BEN) as ben:
        first = ann.post(PATHS["chat"], json=ask("chat", "Timer!", tools=[tool("chat")]))
        body = ask("chat", "Timer!", *said("chat", first), *results("chat", "call-1"))
        stub.reply = slots_answer("L1", "It runs.")
        assert text_of("chat", ben.post(PATHS["chat"], json=body)) == "It runs."
        (by_ben,) = mol.records("turn", 1)
        assert text_of("chat", ann.post(PATHS["chat"], json=body)) == "It runs."
    (_, by_ann) = mol.records("turn", 2)
    assert by_ben["conversation_id"] != by_ann["conversation_id"]
    assert by_ann["supersedes"] is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "mol.example"])
def test_a_host_that_others_reach_needs_keys(tmp_path: Path, host: str) -> None:
    async def start() -> None:
        config = ServeConfig(host=host, port=0, admin_port=0)
        async with running(tmp_path, load_profile(), config, {"MOL_ADMIN_KEY": ADMIN}):
            raise AssertionError

    with pytest.raises(KeysInvalid, match="API keys are needed"):
        asyncio.run(start())


def test_without_keys_only_the_loopbacks_own_names_are_answered(tmp_path: Path, stub) -> None:
    with mol_server(tmp_path, stub.url) as mol, client_of(mol) as client:
        stub.requests.clear()
        for protocol in PROTOCOLS:
            headers = {"host": "evil.example:8080"}
            answer = client.post(PATHS[protocol], json=ask(protocol), headers=headers)
            check_refusal_of_host(answer, protocol)
        assert not stub.chats
        answer = client.post(PATHS["chat"], json=ask("chat"), headers={"host": "localhost"})
        assert text_of("chat", answer) == "Hi."


def check_refusal_of_host(answer: httpx.Response, protocol: str) -> None:
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert "evil.example" in error["message"]
    assert error.get("code", "host_not_allowed") == "host_not_allowed"
    assert error["type"] == "permission_error"


def test_the_admin_port_is_apart_on_the_loopback(mol, stub) -> None:
    public, admin = httpx.URL(mol.url), httpx.URL(mol.server.admin_url)
    assert (admin.host, admin.port != public.port) == ("127.0.0.1", True)
    bearer = {"authorization": f"Bearer {ADMIN}"}
    table = httpx.get(f"{admin}/slots", headers=bearer).json()
    with client_of(mol, ANN) as client:
        for path in ("/slots", "/versions", "/admin", "/admin/slots"):
            for method in ("GET", "PUT", "POST"):
                answer = client.request(method, path, json=table, headers=bearer)
                check_refusal(answer, "chat", 404, "no_endpoint")
    for key in (ANN, "x", "x" * 40):
        answer = httpx.put(f"{admin}/slots", json=table, headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == 401
    check_refusal(httpx.get(f"{mol.url}/v1/models", headers=bearer), "chat", 401)


def test_the_admin_key_of_the_servers_own_is_for_its_owner_alone(tmp_path: Path, stub) -> None:
    for _ in range(2):
        with mol_server(tmp_path, stub.url) as mol:
            key = (tmp_path / "admin.key").read_text()
            answer = httpx.get(
                f"{mol.server.admin_url}/slots", headers={"authorization": f"Bearer {key}"}
            )
            assert answer.status_code == 200
    assert len(key) == 48
    assert stat.S_IMODE((tmp_path / "admin.key").stat().st_mode) == 0o600


def status_of_raw(mol, way: str) -> int:
    """POST to a path as it stands; httpx would tidy it up first."""
    address = urlsplit(mol.url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
    headers = {"authorization": f"Bearer {ANN}", "content-type": "application/json"}
    with contextlib.closing(connection):
        connection.request("POST", way, b"{}", headers)
        return connection.getresponse().status


@pytest.mark.parametrize("path", OF_ENGINES)
def test_nothing_of_the_engine_but_chats_can_be_reached(mol, stub, path) -> None:
    with client_of(mol, ANN) as client:
        for method in ("GET", "POST"):
            answer = client.request(method, path, json={"lora_name": "x", "lora_path": "/etc"})
            check_refusal(answer, "chat", 404, "no_endpoint")
    for way in (f"/v1/chat/completions/..{path}", f"/v1/models/%2e%2e{path}", f"/{path}"):
        assert status_of_raw(mol, way) == 404
    assert not [asked for asked in stub.requests if asked.path not in ("/v1/models", "/health")]


@pytest.mark.parametrize("model", ["../x", "L2@4c3261000000", "base", "/etc", "l2", "L2 ", ""])
def test_a_model_that_is_not_on_the_list_reaches_no_engine(mol, stub, model) -> None:
    with client_of(mol, ANN) as client:
        for protocol in PROTOCOLS:
            answer = client.post(PATHS[protocol], json=ask(protocol, model=model))
            check_refusal(answer, protocol, 404 if model else 400)
    assert not stub.chats


def everything_kept(home: Path) -> bytes:
    return b"".join(file.read_bytes() for file in home.rglob("*") if file.is_file())


def test_no_key_is_recorded_logged_told_or_passed_on(mol, stub, tmp_path, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    told: list[str] = []

    def post(client: httpx.Client, path: str, body: Any) -> None:
        told.append(client.post(path, json=body).text)

    with client_of(mol, ANN) as client:
        for protocol in PROTOCOLS:
            post(client, PATHS[protocol], ask(protocol))
        post(client, PATHS["chat"], ask("chat", model="L2"))
        stub.reply = slots_answer("L0", "Hi.", status=500)
        post(client, PATHS["chat"], ask("chat"))
        post(client, PATHS["chat"], ask("chat", model="L2"))
        told.append(client.get("/metrics").text)
    with client_of(mol, "a-wrong-key-0123456789") as client:
        post(client, PATHS["chat"], ask("chat"))
    mol.settle()
    mol.records("hop", 8)

    passed_on = "".join(str(asked.headers) + asked.raw.decode() for asked in stub.requests)
    assert stat.S_IMODE((tmp_path / "spool").stat().st_mode) == 0o700
    kept = everything_kept(tmp_path).decode(errors="replace")
    for text in (*told, passed_on, kept, caplog.text):
        assert "0123456789" not in text
    assert "authorization" not in passed_on


def test_one_session_name_of_two_callers_is_two_conversations(mol, stub) -> None:
    session = {"x-session-id": "1"}
    for key in (ANN, BEN):
        with client_of(mol, key) as client:
            answer = client.post(PATHS["chat"], json=ask("chat"), headers=session)
            assert answer.status_code == 200

    ann, ben = mol.records("turn", 2)
    assert ann["conversation_id"] != ben["conversation_id"]


def test_an_error_of_our_own_is_a_500_that_tells_nothing(mol, caplog) -> None:
    async def broken() -> bool:
        raise RuntimeError("secret of the inside")

    app = create_app(dataclasses.replace(mol.server.services, healthy=broken))

    async def ask_it() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get("/readiness")

    answer = asyncio.run(ask_it())

    check_refusal(answer, "chat", 500, "internal_error")
    assert "secret" not in answer.text
    assert "secret of the inside" in caplog.text
    assert "Traceback" in caplog.text
