"""Proves that bad requests get their protocol's own error, and touch neither engine nor memory.

The engine is a stub over HTTP that notes what reaches it; server, memory, recorder and the
connections are real. One server takes all requests that never become a turn.
"""

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_answers import slots_answer
from gateway_asks import PATHS, PROTOCOLS, ask, called, check_refusal, results, text_of, tool
from mol_server import Running, mol_server
from stub_engine import StubEngine, stub_engine

BODY_LIMIT = 1 << 20
JSON = {"content-type": "application/json"}
LIST = {"chat": "messages", "responses": "input", "messages": "messages"}


@pytest.fixture(scope="module")
def stub() -> Iterator[StubEngine]:
    with stub_engine() as stub:
        yield stub


@pytest.fixture(scope="module")
def mol(tmp_path_factory: pytest.TempPathFactory, stub: StubEngine) -> Iterator[Running]:
    home: Path = tmp_path_factory.mktemp("mol")
    limits = {"max_body_bytes": BODY_LIMIT}
    with mol_server(home, stub.url, limits=limits, timeouts={"body_s": 1.0}) as mol:
        yield mol


@pytest.fixture
def client(mol: Running, stub: StubEngine) -> Iterator[httpx.Client]:
    """A client; what is asked through it must reach no engine and leave no record or lease."""
    stub.requests.clear()
    stub.reply = slots_answer("L0", "Fine.")
    recorded = len(mol.records("hop")), len(mol.records("turn"))
    with httpx.Client(base_url=mol.url, timeout=30) as client:
        yield client
        assert not stub.chats
        mol.settle()
        assert (len(mol.records("hop")), len(mol.records("turn"))) == recorded
        assert unused(mol)
        stats = mol.server.services.recorder.stats()
        assert (stats.dropped, mol.server.services.admission.running) == ({}, 0)


def unused(mol: Running) -> bool:
    versions = mol.server.services.versions
    return versions.held == 0 and not any(row["leases"] for row in versions.describe())


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("model", ["gpt-9", "../x", "/etc/passwd", "L2@000000000000", "base", "L9"])
def test_an_unknown_model_is_a_404(client, protocol, model) -> None:
    answer = client.post(PATHS[protocol], json=ask(protocol, model=model))

    assert repr(model) in check_refusal(answer, protocol, 404, "model_not_found")


@pytest.mark.parametrize("protocol", ["responses", "messages"])
def test_a_slot_takes_hops_of_chat_completions_alone(client, protocol) -> None:
    answer = client.post(PATHS[protocol], json=ask(protocol, model="L2"))

    check_refusal(answer, protocol, 404, "model_not_found")


MALFORMED = {
    "nothing": b"",
    "cut": b'{"model": "mol", "messages": [',
    "no utf-8": b'{"model": "\xff\xfe"}',
    "not a number": b'{"model": "mol", "temperature": NaN}',
    "infinite": b'{"model": "mol", "temperature": 1e999}',
    "huge": b'{"model": "mol", "max_tokens": ' + b"9" * 5000 + b"}",
    "half a pair": b'{"model": "mol", "user": "\\ud800"}',
    "too deep to read": b"[" * 5000 + b"]" * 5000,
    "two values": b"{}{}",
    "compressed": b"\x1f\x8b\x08\x00",
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_json_is_a_400(client, protocol, body) -> None:
    answer = client.post(PATHS[protocol], content=body, headers=JSON)

    assert "not JSON" in check_refusal(answer, protocol, 400, "invalid_json")


WRONG: dict[str, Any] = {
    "a list": [],
    "a text": "mol",
    "nothing": None,
    "no fields": {},
    "no messages": {"model": "mol"},
    "model of a wrong type": {"model": 7},
    "messages of a wrong type": {"MESSAGES": 7},
    "a message of a wrong type": {"MESSAGES": [7]},
    "a message without a role": {"MESSAGES": [{"content": "x"}]},
    "an unknown role": {"MESSAGES": [{"role": "root", "content": "x"}]},
    "an image": {"MESSAGES": [{"role": "user", "content": [{"type": "image_url"}]}]},
    "the answer last": {
        "MESSAGES": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    },
    "messages without end": {"MESSAGES": [{"role": "user", "content": "x"}] * 20_000},
    "a negative limit": {"max_tokens": -1, "max_output_tokens": -1},
    "a limit of zero": {"max_tokens": 0, "max_output_tokens": 0},
    "a limit as text": {"max_tokens": "9", "max_output_tokens": "9"},
    "a temperature below zero": {"temperature": -0.1},
    "stream as text": {"stream": "yes"},
    "tools of a wrong type": {"tools": {"name": "x"}},
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_field_is_a_400(client, protocol, wrong) -> None:
    body = wrong
    if wrong and isinstance(wrong, dict) and wrong != {"model": "mol"}:
        fields = {LIST[protocol] if name == "MESSAGES" else name: v for name, v in wrong.items()}
        body = ask(protocol) | fields

    raw = json.dumps(body).encode()
    check_refusal(client.post(PATHS[protocol], content=raw, headers=JSON), protocol, 400)


def deep(levels: int) -> Any:
    value: Any = "x"
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize("protocol", [*PROTOCOLS, "slot"])
@pytest.mark.parametrize("levels", [201, 240, 254, 600, 800])
def test_a_body_nested_too_deep_is_a_400(client, protocol, levels) -> None:
    model, protocol = ("L1", "chat") if protocol == "slot" else ("mol", protocol)

    answer = client.post(PATHS[protocol], json=ask(protocol, model=model, metadata=deep(levels)))

    assert "nested" in check_refusal(answer, protocol, 400)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_tool_result_that_answers_no_call_is_a_400(client, protocol) -> None:
    alone = ask(protocol, *results(protocol, "c1"))
    other = ask(protocol, "Hi", *called(protocol, "c1"), *results(protocol, "c2"))

    for body in (alone, other):
        check_refusal(client.post(PATHS[protocol], json=body), protocol, 400)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_two_tool_results_for_one_call_are_a_400(client, protocol) -> None:
    body = ask(protocol, "Hi", *called(protocol, "c1"), *results(protocol, "c1", "c1"))

    check_refusal(client.post(PATHS[protocol], json=body), protocol, 400)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_result_for_one_of_two_calls_is_a_400(client, protocol) -> None:
    history = ["Hi", *called(protocol, "c1", "c2"), *results(protocol, "c1")]

    answer = client.post(PATHS[protocol], json=ask(protocol, *history, tools=[tool(protocol)]))

    assert "'c2'" in check_refusal(answer, protocol, 400, "tool_result_without_call")


def test_a_result_for_a_call_of_long_ago_is_a_400(client) -> None:
    later = [{"role": "user", "content": "Never mind."}, {"role": "assistant", "content": "Fine."}]
    history = ["Hi", *called("chat", "c1"), *later, *results("chat", "c1")]

    answer = client.post(PATHS["chat"], json=ask("chat", *history))

    check_refusal(answer, "chat", 400, "tool_result_without_call")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_another_content_type_is_a_415(client, protocol, kind) -> None:
    # What a page in a browser can send anywhere without being allowed to.
    body = json.dumps(ask(protocol)).encode()

    answer = client.post(PATHS[protocol], content=body, headers={"content-type": kind})

    check_refusal(answer, protocol, 415, "unsupported_media_type")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_50_megabytes_is_a_413_that_the_client_gets_to_read(
    client, protocol, chunked
) -> None:
    megabyte = b" " * (1 << 20)
    whole = (megabyte for _ in range(50)) if chunked else megabyte * 50

    answer = client.post(PATHS[protocol], content=whole, headers=JSON)

    assert str(BODY_LIMIT) in check_refusal(answer, protocol, 413, "request_too_large")
    assert answer.headers["connection"] == "close"


def test_a_client_that_asks_first_sends_no_body_in_vain(client, mol) -> None:
    head = f"content-length: {50 << 20}\r\nexpect: 100-continue\r\n"

    answer = raw_post(mol, head, [])

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"100 Continue" not in answer


@pytest.mark.parametrize("parts", [[], [b'{"model": ']])
def test_a_body_that_does_not_come_is_a_408(client, mol, parts) -> None:
    answer = raw_post(mol, "content-length: 100\r\n", parts)

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"request_timeout" in answer
    assert b"connection: close" in answer.lower()


def test_a_client_that_leaves_while_it_sends_does_no_harm(client, mol) -> None:
    with connection(mol) as sock:
        sock.sendall(head_of("content-length: 100\r\n") + b"{")
    check_refusal(client.post(PATHS["chat"], json=7), "chat", 400)


def test_a_head_without_end_and_one_that_does_not_come_are_cut_off(client, mol) -> None:
    with connection(mol) as sock:
        sock.sendall(b"POST /v1/chat")
        assert sock.recv(1000) == b""
    with connection(mol) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(b"GET / HTTP/1.1\r\n")
            for _ in range(1000):
                sock.sendall(b"X-A: " + b"a" * 1000 + b"\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1000).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v1/models/", "/v1/completions", "/v1/chat/completions/", "/%00", "/é", "//x"],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_path_is_a_404(client, method, path) -> None:
    check_refusal(client.request(method, path), "chat", 404, "no_endpoint")


def test_an_unknown_path_of_anthropics_has_its_shape(client) -> None:
    check_refusal(client.post("/v1/messages/count_tokens", json={}), "messages", 404)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_wrong_method_is_a_405_that_says_which_is_right(client, protocol, method) -> None:
    answer = client.request(method, PATHS[protocol])

    check_refusal(answer, protocol, 405, "no_endpoint")
    assert answer.headers["allow"] == "POST"


def test_a_host_that_is_no_host_is_no_error_of_the_servers(client, mol) -> None:
    for path in ("/v1/models/", "/nowhere", "/v1/models"):
        answer = raw_answer(mol, f"GET {path} HTTP/1.1\r\nHost: [\r\nConnection: close\r\n\r\n")
        assert answer.split()[1] in (b"404", b"403")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_client_chooses_the_request_id_if_it_is_a_plain_word(client, protocol) -> None:
    for said, kept in (("my-id.7", True), ("a b", False), ("x" * 65, False), ("<b>", False)):
        answer = client.post(PATHS[protocol], json={}, headers={"x-request-id": said})

        check_refusal(answer, protocol, 400)
        assert (answer.headers["x-request-id"] == said) is kept


def test_bodies_that_are_deep_but_not_too_deep_get_through(mol, stub) -> None:
    stub.reply = slots_answer("L1", "Fine.")
    with httpx.Client(base_url=mol.url, timeout=30) as client:
        for protocol in PROTOCOLS:
            timer = tool(protocol)
            function = timer["function"] if protocol == "chat" else timer
            function["input_schema" if protocol == "messages" else "parameters"] = deep(191)
            answer = client.post(PATHS[protocol], json=ask(protocol, tools=[timer]))
            assert text_of(protocol, answer) == "Fine."
    assert any(asked.body.get("tools") for asked in stub.chats)
    mol.settle()
    assert unused(mol)


@contextlib.contextmanager
def connection(mol: Running) -> Iterator[socket.socket]:
    address = httpx.URL(mol.url)
    with socket.create_connection((address.host, address.port or 0), timeout=20) as sock:
        yield sock


def head_of(more: str) -> bytes:
    head = f"POST {PATHS['chat']} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}{more}\r\n".encode()


def raw_post(mol: Running, more: str, parts: list[bytes]) -> bytes:
    return raw_answer(mol, head_of(more).decode() + b"".join(parts).decode())


def raw_answer(mol: Running, request: str) -> bytes:
    """Send bytes and return all that comes until the server closes the connection."""
    with connection(mol) as sock:
        sock.sendall(request.encode())
        if "expect" in request:
            sock.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: sock.recv(65536), b""))
