"""Proves that a full server says so, that nothing takes for ever, and that no disk fails an answer.

The engine is a stub over HTTP, slow or hanging on order; server, recorder and disk are real.
"""

import concurrent.futures
import contextlib
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_answers import slots_answer
from gateway_asks import PATHS, PROTOCOLS, ask, check_refusal, text_of
from mol_server import LIMIT_S, Running, mol_server
from stub_engine import Answer, StubEngine, stub_engine

CHAT = PATHS["chat"]
HOP = ask("chat", model="L2")


@pytest.fixture
def stub():
    with stub_engine() as stub:
        stub.reply = slots_answer("L0", "Hi.")
        yield stub


def until(happened: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def busy(mol: Running, stub: StubEngine) -> Iterator[concurrent.futures.Future[httpx.Response]]:
    """Have the only place taken while the block runs."""
    stub.reply = None
    stub.default = Answer(text="Late.", delay_s=60)
    gone = httpx.Client(base_url=mol.url, timeout=LIMIT_S)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        call = pool.submit(gone.post, CHAT, json=HOP)
        until(lambda: mol.server.services.admission.running == 1 and stub.running == 1)
        yield call
        raw_abort(gone)
        with pytest.raises(httpx.HTTPError):
            call.result(LIMIT_S)


def raw_abort(client: httpx.Client) -> None:
    for connection in client._transport._pool.connections:  # type: ignore[attr-defined]
        stream = connection._connection._network_stream  # type: ignore[union-attr]
        stream._sock.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("protocol", [*PROTOCOLS, "slot"])
def test_a_full_queue_is_a_429_at_once(tmp_path: Path, stub, protocol) -> None:
    body = HOP if protocol == "slot" else ask(protocol)
    shape = "chat" if protocol == "slot" else protocol
    limits = {"max_running": 1, "max_waiting": 0}
    with mol_server(tmp_path, stub.url, limits=limits) as mol:
        stub.requests.clear()
        with busy(mol, stub):
            answer = httpx.post(mol.url + PATHS[shape], json=body)
            check_refusal(answer, shape, 429, "overloaded")
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert httpx.get(f"{mol.url}/health").status_code == 200
        until(lambda: mol.server.services.admission.running == 0)
        assert len(stub.chats) == 1


def test_one_that_waits_too_long_is_a_429_and_one_that_leaves_the_queue_is_gone(
    tmp_path: Path, stub
) -> None:
    limits = {"max_running": 1, "max_waiting": 1, "max_wait_s": 0.5}
    with mol_server(tmp_path, stub.url, limits=limits) as mol:
        stub.requests.clear()
        admission = mol.server.services.admission
        with busy(mol, stub):
            answer = httpx.post(mol.url + CHAT, json=ask("chat"))
            check_refusal(answer, "chat", 429, "overloaded")
            assert int(answer.headers["retry-after"]) >= 1
            assert admission.waiting == 0
            with pytest.raises(httpx.TimeoutException):
                httpx.post(mol.url + CHAT, json=ask("chat"), timeout=0.2)
            until(lambda: admission.waiting == 0)
            assert admission.running == 1
        until(lambda: admission.running == 0)
        assert len(stub.chats) == 1
        metrics = httpx.get(f"{mol.url}/metrics").text
        assert 'mol_requests_total{endpoint="/v1/chat/completions",status="429"} 1.0' in metrics
        assert 'mol_requests_total{endpoint="/v1/chat/completions",status="499"} 2.0' in metrics


def test_one_that_waits_gets_the_place_that_comes_free(tmp_path: Path, stub) -> None:
    stub.reply = slots_answer("L0", "Hi.", delay_s=0.1)
    with (
        mol_server(tmp_path, stub.url, limits={"max_running": 2, "max_waiting": 50}) as mol,
        httpx.Client(base_url=mol.url, timeout=LIMIT_S) as client,
        concurrent.futures.ThreadPoolExecutor(20) as pool,
    ):
        calls = [pool.submit(client.post, CHAT, json=HOP) for _ in range(20)]
        assert {call.result(LIMIT_S).status_code for call in calls} == {200}
        # Those of the server itself, that try a version before it serves, are over by now.
        assert stub.most_running <= 2
        # The last answer is at the client before its place is given back.
        until(lambda: mol.server.services.admission.running == 0)


@pytest.mark.parametrize("fault", [{"delay_s": 20}, {"fault": "hang"}])
def test_a_hop_whose_engine_hangs_is_a_504_and_is_asked_once(tmp_path: Path, stub, fault) -> None:
    timeouts = {"hop_s": 0.5, "idle_s": 0.3}
    with mol_server(tmp_path, stub.url, timeouts=timeouts) as mol:
        stub.requests.clear()
        stub.reply = slots_answer("L0", "Hi.", **fault)

        answer = httpx.post(mol.url + CHAT, json=HOP, timeout=LIMIT_S)

        check_refusal(answer, "chat", 504, "engine_timeout")
        assert int(answer.headers["retry-after"]) >= 1
        (hop,) = mol.records("hop", 1)
        assert hop["status"] in ("engine_error", "broken_stream")
        assert "Timeout" in hop["error"]
        assert len(stub.chats) == 1


@pytest.mark.parametrize("protocol", [*PROTOCOLS, "slot"])
def test_an_engine_that_is_gone_is_a_503(tmp_path: Path, protocol) -> None:
    body = HOP if protocol == "slot" else ask(protocol)
    shape = "chat" if protocol == "slot" else protocol
    with contextlib.ExitStack() as stack:
        engine = contextlib.ExitStack()
        stub = engine.enter_context(stub_engine())
        stack.callback(engine.close)
        mol = stack.enter_context(mol_server(tmp_path, stub.url))
        engine.close()

        answer = httpx.post(mol.url + PATHS[shape], json=body)

        check_refusal(answer, shape, 503, "engine_unavailable")
        assert int(answer.headers["retry-after"]) >= 1
        first, second = mol.records("hop", 2)
        assert (first["status"], first["supersedes"]) == ("engine_error", None)
        assert second["status"] == "engine_error"
        assert second["supersedes"]
        ready = httpx.get(f"{mol.url}/readiness")
        assert ready.status_code == 503
        assert "127.0.0.1" not in ready.text


def test_without_a_slot_table_a_turn_is_a_503_that_tells_no_path(tmp_path: Path, stub) -> None:
    (tmp_path / "slots.json").write_text("{")
    with mol_server(tmp_path, stub.url) as mol:
        answer = httpx.post(mol.url + CHAT, json=ask("chat"))
        ready = httpx.get(f"{mol.url}/readiness")

    check_refusal(answer, "chat", 503, "not_ready")
    assert ready.status_code == 503
    assert str(tmp_path) not in ready.text


def test_a_client_that_takes_nothing_of_its_answer_is_given_up(tmp_path: Path, stub) -> None:
    stub.reply = slots_answer("L0", "word " * 200_000)
    body = httpx.Request("POST", "http://localhost", json=ask("chat", stream=True)).content
    with mol_server(tmp_path, stub.url, timeouts={"body_s": 1.0}) as mol:
        address = httpx.URL(mol.url)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect((address.host, address.port))
            head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            sock.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            until(lambda: mol.server.services.admission.running == 1)
            until(lambda: mol.server.services.admission.running == 0)
        (turn,) = mol.records("turn", 1)
    assert turn["status"] == "abandoned"


def dropped(mol: Running) -> dict[str, int]:
    return dict(httpx.get(f"{mol.url}/health").json()["recording"]["dropped"])


@pytest.mark.parametrize("what", ["a file", "a file that came later"])
def test_a_spool_that_cannot_be_written_delays_and_fails_no_answer(
    tmp_path: Path, stub, what
) -> None:
    home, spool = tmp_path / "home", tmp_path / "spool"
    if what == "a file":
        spool.write_text("in the way")
    record = {"folder": spool, "queue": 20}
    with (
        mol_server(home, stub.url, record=record) as mol,
        httpx.Client(base_url=mol.url, timeout=LIMIT_S) as client,
    ):
        if what != "a file":
            client.post(CHAT, json=HOP)
            until(lambda: any(spool.glob("*.jsonl")))
            shutil.rmtree(spool)
            spool.write_text("in the way")
        for n in range(60):
            protocol = PROTOCOLS[n % 3]
            body = HOP if n % 4 == 0 else ask(protocol, f"Hello {n}")
            path = CHAT if n % 4 == 0 else PATHS[protocol]
            assert client.post(path, json=body).status_code == 200
        # The writer pauses for half a second after each failure; nobody waits for that.
        assert dropped(mol).get("queue_full", 0) > 0
        until(lambda: dropped(mol).get("disk", 0) > 0)
        health = client.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "ok")
        assert health.json()["recording"]["last_error"] == os.strerror(17)
        assert str(tmp_path) not in health.text
        metrics = client.get("/metrics").text
        assert 'mol_records_dropped_total{reason="queue_full"}' in metrics
        assert 'mol_records_dropped_total{reason="disk"}' in metrics
        spool.unlink()
        until(lambda: client.get("/health").json()["recording"]["queued"] == 0)
        answer = client.post(CHAT, json=ask("chat", "And now?"))
        assert text_of("chat", answer) == "Hi."
        until(lambda: any("And now?" in file.read_text() for file in spool.glob("*.jsonl")))


def test_feedback_that_cannot_be_kept_is_no_success(tmp_path: Path, stub) -> None:
    (tmp_path / "spool").write_text("in the way")
    record = {"folder": tmp_path / "spool", "queue": 1}
    with mol_server(tmp_path / "home", stub.url, record=record) as mol:
        said = {"response_id": "r", "thumb": "up"}
        answers = [httpx.post(f"{mol.url}/v1/feedback", json=said) for _ in range(8)]
    refused = [answer for answer in answers if answer.status_code != 202]
    assert refused
    check_refusal(refused[0], "chat", 503, "overloaded")
    assert refused[0].headers["retry-after"] == "1"
