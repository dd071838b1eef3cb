"""Proves what a proxy above gets when the engine fails, and what is recorded of it.

The engine is a stub over HTTP that fails on order; server and recorder are real.
"""

import json
import time
from collections.abc import Callable

import httpx
import pytest
from mol_server import version
from stub_engine import Answer

KEY = "X-SMG-Routing-Key"
L1 = version("L1")["champion"]
ASK = {"model": "L1", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40}
STREAM = {**ASK, "stream": True}
CHAT = "/v1/chat/completions"


@pytest.fixture
def proxy(mol):
    with httpx.Client(base_url=mol.url, timeout=30) as client:
        yield client


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("request_body", [ASK, STREAM])
@pytest.mark.parametrize("status", [400, 422, 429, 500, 503])
def test_an_error_of_the_engine_comes_through_as_it_is(
    stub, mol, proxy, status, request_body
) -> None:
    stub.default = Answer(status=status, error="The context is too long.")

    answer = proxy.post(CHAT, json=request_body)

    assert answer.status_code == status
    assert answer.json()["error"] == {
        "message": "The context is too long.",
        "type": "BadRequestError",
        "param": None,
        "code": status,
    }
    assert answer.headers["content-type"].startswith("application/json")
    (hop,) = mol.records("hop", 1)
    assert hop["status"] == "engine_error"
    assert hop["error"].startswith(f"{status} ")
    assert hop["completion"] is None


def test_an_answer_that_is_no_json_comes_through_and_is_recorded_as_failed(
    stub, mol, proxy
) -> None:
    stub.default = Answer(raw=b"<html>Bad gateway</html>")

    answer = proxy.post(CHAT, json=ASK)

    assert (answer.status_code, answer.text) == (200, "<html>Bad gateway</html>")
    assert mol.records("hop", 1)[0]["status"] == "engine_error"


def test_no_answer_at_all_is_tried_again_and_the_first_try_is_superseded(stub, mol, proxy) -> None:
    stub.script = [Answer(fault="refuse")]

    answer = proxy.post(CHAT, json=ASK, headers={KEY: "k1"})

    assert answer.json()["choices"][0]["message"]["content"] == "Hi."
    failed, good = mol.records("hop", 2)
    assert (failed["status"], good["status"]) == ("engine_error", "ok")
    assert good["supersedes"] is not None
    assert failed["supersedes"] is None


def test_an_engine_that_is_away_is_a_503_in_openais_shape(stub, mol, proxy) -> None:
    stub.default = Answer(fault="refuse")

    answer = proxy.post(CHAT, json=ASK, headers={"X-Request-ID": "r-7"})

    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    error = answer.json()["error"]
    assert error["code"] == "engine_unavailable"
    assert "127.0.0.1" not in answer.text
    assert [hop["status"] for hop in mol.records("hop", 2)] == ["engine_error"] * 2


def test_an_adapter_that_the_engine_lost_is_loaded_again(stub, mol, proxy) -> None:
    stub.adapters.clear()

    answer = proxy.post(CHAT, json=ASK)

    assert answer.status_code == 200
    assert stub.loads == [L1]
    assert answer.json()["model"] == "L1"
    lost, good = mol.records("hop", 2)
    assert (lost["status"], good["status"]) == ("engine_error", "ok")


def test_an_adapter_that_cannot_be_loaded_again_is_an_error(stub, mol, proxy) -> None:
    stub.adapters.clear()
    stub.load_status = {L1: 500}

    answer = proxy.post(CHAT, json=ASK)

    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert answer.json()["error"]["code"] == "not_ready"


@pytest.mark.parametrize("fault", ["die", "half_chunk", "no_done", "error_event"])
def test_a_stream_that_breaks_ends_with_an_error_event(stub, mol, proxy, fault) -> None:
    stub.default = Answer(text="one two three", fault=fault, pieces=3)

    with proxy.stream("POST", CHAT, json=STREAM) as answer:
        events = [line for line in answer.iter_lines() if line]

    data = [event.removeprefix("data: ") for event in events]
    said = [json.loads(one) for one in data if one != "[DONE]"]
    assert any(chunk.get("choices", [{}])[0].get("delta", {}).get("content") for chunk in said)
    assert [chunk for chunk in said if "error" in chunk]
    (hop,) = mol.records("hop", 1)
    assert hop["status"] == "broken_stream"
    assert hop["error"]
    assert hop["completion"]["content"].startswith("one ")


def test_a_stream_without_an_end_of_the_answer_is_recorded_as_broken(stub, mol, proxy) -> None:
    stub.default = Answer(text="one two three", fault="no_finish")

    proxy.post(CHAT, json=STREAM)

    (hop,) = mol.records("hop", 1)
    assert (hop["status"], hop["finish_reason"]) == ("broken_stream", None)


@pytest.mark.parametrize("request_body", [ASK, STREAM])
def test_a_client_that_leaves_frees_the_engine(stub, mol, proxy, request_body) -> None:
    stub.default = Answer(text="one two three", fault="hang", pieces=3)

    with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=mol.url, timeout=1) as client:
        client.post(CHAT, json=request_body)

    until(lambda: stub.abandoned == 1)
    (hop,) = mol.records("hop", 1)
    assert hop["status"] == "abandoned"
    assert "client left" in hop["error"]
    if request_body is STREAM:
        assert hop["completion"]["content"] == "one two "
    assert stub.running == 0


def test_one_that_leaves_does_not_disturb_the_others(stub, mol, proxy) -> None:
    stub.script = [Answer(text="one two three", fault="hang", pieces=3)]
    with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=mol.url, timeout=1) as client:
        client.post(CHAT, json=STREAM, headers={KEY: "k1"})

    answer = proxy.post(CHAT, json=STREAM, headers={KEY: "k1"})

    assert answer.text.endswith("data: [DONE]\n\n")
    left, again = mol.records("hop", 2)
    assert (left["status"], again["status"]) == ("abandoned", "ok")
    assert again["supersedes"] is not None


@pytest.mark.parametrize(
    "messages", [None, "Hi", [], ["Hi"], [{"role": "user"}], [{"content": 5}], [{"role": "no"}]]
)
def test_what_the_engine_refuses_is_never_an_error_of_the_servers_own(
    stub, mol, proxy, messages
) -> None:
    stub.default = Answer(status=400, error="messages: wrong")

    answer = proxy.post(CHAT, json={"model": "L1", "messages": messages}, headers={KEY: "k1"})

    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "messages: wrong"
    assert proxy.get("/health").status_code == 200
