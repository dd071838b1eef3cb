"""Proves what comes of turns whose engine misbehaves or whose client leaves, in each protocol.

An error of the protocol's own, the hop and the turn recorded with a reason, no lease or place
kept, and a conversation that goes on as if nothing had been. The engine is a stub over HTTP
that fails on order; server, memory, recorder and connections are real.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_answers import CALL, PROFILE, slots_answer
from gateway_asks import (
    PATHS,
    PROTOCOLS,
    ask,
    called,
    check_refusal,
    results,
    said,
    text_of,
    tool,
)
from mol_server import LIMIT_S, Running, mol_server
from stub_engine import Answer, Asked, completion

USER = {"role": "user", "content": "And now?"}
BREAKS = ("die", "half_chunk", "error_event", "no_finish", "no_done")


@pytest.fixture
def mol(tmp_path: Path, stub):
    timeouts = {"idle_s": 0.5, "hop_s": 1.0}
    with mol_server(tmp_path, stub.url, timeouts=timeouts, attempts=1) as mol:
        yield mol
        until(lambda: unused(mol))


@pytest.fixture
def client(mol):
    with httpx.Client(base_url=mol.url, timeout=LIMIT_S) as client:
        yield client


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def unused(mol: Running) -> bool:
    """Whether nothing is held but for turns that wait for tool results."""
    services = mol.server.services
    versions, turns = services.versions, services.full_turns
    pinned = any(row["leases"] for row in versions.describe())
    waiting = len(turns._held)
    idle = not services.admission.running and not turns._tasks
    return idle and versions.held == waiting and (pinned == bool(waiting))


def failing(**fault: Any) -> Callable[[Asked], Answer]:
    """Let the stub route and sum up, and fail to answer."""
    return slots_answer("L2", "one two three four", **fault)


def events(body: str) -> list[dict[str, Any]]:
    lines = [line[6:] for line in body.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def error_in(protocol: str, stream: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the error that ends a stream, in the shape of its protocol."""
    last = stream[-1]
    match protocol:
        case "chat":
            return dict(last["error"])
        case "responses":
            failed = [event for event in stream if event["type"] in ("error", "response.failed")]
            assert failed
            return dict(failed[-1].get("response", {}).get("error") or failed[-1])
    assert last["type"] == "error"
    return dict(last["error"])


def goes_on_as_before(client, mol, stub, protocol: str, first: httpx.Response) -> None:
    """Check that the turn after a failed one sees what came before that one, and no more."""
    stub.reply = slots_answer("L2", "second")
    history = ["Hello", *said(protocol, first), USER]

    assert text_of(protocol, client.post(PATHS[protocol], json=ask(protocol, *history))) == "second"

    mol.settle()
    last = [hop for hop in mol.records("hop") if hop["role"] == "answer"][-1]
    assert [m["content"] for m in last["messages"][1:]] == ["Hello", "first", "And now?"]


def begun(client, stub, protocol: str) -> httpx.Response:
    stub.reply = slots_answer("L2", "first")
    first = client.post(PATHS[protocol], json=ask(protocol, "Hello"))
    assert text_of(protocol, first) == "first"
    return first


def next_ask(protocol: str, first: httpx.Response, **more: Any) -> dict[str, Any]:
    lost = {"role": "user", "content": "LOST"}
    return ask(protocol, "Hello", *said(protocol, first), lost, **more)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("fault", "status", "hop"),
    [
        ({"fault": "die"}, 502, "broken_stream"),
        ({"fault": "refuse"}, 503, "engine_error"),
        ({"fault": "hang"}, 504, "broken_stream"),
        ({"delay_s": 5}, 504, "engine_error"),
        ({"status": 500}, 502, "engine_error"),
        ({"status": 401}, 502, "engine_error"),
        ({"status": 400, "error": "Too long."}, 400, "engine_error"),
        ({"status": 429}, 429, "engine_error"),
    ],
)
def test_a_plain_answer_that_fails(client, mol, stub, protocol, fault, status, hop) -> None:
    first = begun(client, stub, protocol)
    stub.reply = failing(**fault)

    answer = client.post(PATHS[protocol], json=next_ask(protocol, first))

    check_refusal(answer, protocol, status)
    assert ("retry-after" in answer.headers) == (status in (429, 503, 504))
    failed = [turn for turn in mol.records("turn", 2) if turn["status"] == "failed"]
    broken = [h for h in mol.records("hop") if h["status"] != "ok"]
    assert len(failed) == len(broken) == 1
    assert failed[0]["error"]
    assert (broken[0]["status"], bool(broken[0]["error"])) == (hop, True)
    assert broken[0]["turn_id"] == failed[0]["turn_id"]
    goes_on_as_before(client, mol, stub, protocol, first)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("fault", [*BREAKS, "hang"])
def test_a_stream_that_breaks_off(client, mol, stub, protocol, fault) -> None:
    first = begun(client, stub, protocol)
    stub.reply = failing(fault=fault, pieces=2)

    answer = client.post(PATHS[protocol], json=next_ask(protocol, first, stream=True))

    assert answer.status_code == 200
    error = error_in(protocol, events(answer.text))
    wanted = "in time" if fault == "hang" else "broke off"
    assert wanted in error["message"]
    assert "127.0.0.1" not in answer.text
    failed = [turn for turn in mol.records("turn", 2) if turn["status"] == "failed"]
    (broken,) = [h for h in mol.records("hop") if h["status"] != "ok"]
    assert len(failed) == 1
    assert broken["status"] == "broken_stream"
    assert broken["error"]
    assert broken["completion"]["content"].startswith("one")
    goes_on_as_before(client, mol, stub, protocol, first)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves(client, mol, stub, protocol, stream) -> None:
    first = begun(client, stub, protocol)
    stub.reply = slots_answer("L2", "one two three", piece_delay_s=0.4, delay_s=0.3)
    body = next_ask(protocol, first, stream=stream)
    if stream:
        with client.stream("POST", PATHS[protocol], json=body) as response:
            next(response.iter_raw())
    else:
        with pytest.raises(httpx.TimeoutException):
            client.post(PATHS[protocol], json=body, timeout=0.2)

    abandoned = [turn for turn in mol.records("turn", 2) if turn["status"] == "abandoned"]
    until(lambda: len([h for h in mol.records("hop") if h["status"] != "ok"]) == 1)
    (left,) = [h for h in mol.records("hop") if h["status"] != "ok"]
    assert (left["status"], len(abandoned)) == ("abandoned", 1)
    assert "left" in left["error"]
    goes_on_as_before(client, mol, stub, protocol, first)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_wrong_results_leave_a_turn_waiting_for_the_right_ones(client, mol, stub, protocol) -> None:
    stub.reply = slots_answer("L1", "", tool_calls=(CALL,))
    offered = {"tools": [tool(protocol)]}
    first = client.post(PATHS[protocol], json=ask(protocol, "Timer!", **offered))
    history = ["Timer!", *said(protocol, first)]
    stub.reply = slots_answer("L1", "It runs.")
    wrong = ask(protocol, *history, *results(protocol, "c9"), **offered)
    twice = ask(protocol, *history, *results(protocol, "call-1", "call-1"), **offered)

    for body in (wrong, twice):
        check_refusal(client.post(PATHS[protocol], json=body), protocol, 400)
    assert mol.server.services.full_turns._held
    right = ask(protocol, *history, *results(protocol, "call-1"), **offered)

    assert text_of(protocol, client.post(PATHS[protocol], json=right)) == "It runs."
    (turn,) = mol.records("turn", 1)
    assert (turn["status"], turn["supersedes"], len(turn["hop_ids"])) == ("ok", None, 4)


def test_results_for_a_response_are_checked_against_its_calls(client, mol, stub) -> None:
    stub.reply = slots_answer("L1", "", tool_calls=(CALL,))
    body = ask("responses", "Timer!", tools=[tool("responses")])
    first = client.post(PATHS["responses"], json=body).json()["id"]

    def follow(*ids: str) -> httpx.Response:
        items = results("responses", *ids)
        return client.post(
            PATHS["responses"], json=ask("responses", *items, previous_response_id=first)
        )

    stub.reply = slots_answer("L1", "It runs.")
    check_refusal(follow("c9"), "responses", 400, "tool_result_without_call")
    assert text_of("responses", follow("call-1")) == "It runs."


def test_results_that_fail_may_come_again(client, mol, stub) -> None:
    stub.reply = slots_answer("L1", "", tool_calls=(CALL,))
    first = client.post(PATHS["chat"], json=ask("chat", "Timer!", tools=[tool("chat")]))
    body = ask("chat", "Timer!", *said("chat", first), *results("chat", "call-1"))
    stub.reply = failing(status=500)
    check_refusal(client.post(PATHS["chat"], json=body), "chat", 502)
    stub.reply = slots_answer("L1", "It runs.")

    assert text_of("chat", client.post(PATHS["chat"], json=body)) == "It runs."

    failed, done = mol.records("turn", 2)
    assert (failed["status"], done["status"]) == ("failed", "ok")
    assert done["supersedes"] == failed["turn_id"]
    assert not set(done["hop_ids"]) & set(failed["hop_ids"])


def test_a_user_who_goes_on_in_vain_leaves_the_call_waiting(client, mol, stub) -> None:
    stub.reply = slots_answer("L1", "", tool_calls=(CALL,))
    first = client.post(PATHS["chat"], json=ask("chat", "Timer!", tools=[tool("chat")]))
    history = ["Timer!", *said("chat", first)]
    stub.reply = failing(status=500)
    check_refusal(client.post(PATHS["chat"], json=ask("chat", *history, USER)), "chat", 502)
    stub.reply = slots_answer("L1", "It runs.")

    answer = client.post(PATHS["chat"], json=ask("chat", *history, *results("chat", "call-1")))

    assert text_of("chat", answer) == "It runs."
    assert [turn["status"] for turn in mol.records("turn", 2)] == ["failed", "ok"]


def test_the_same_results_after_a_restart_are_another_turn(tmp_path: Path, stub) -> None:
    stub.reply = slots_answer("L1", "", tool_calls=(CALL,))
    body = ask("chat", "Timer!", tools=[tool("chat")])
    for text in ("It runs.", "It runs again."):
        with mol_server(tmp_path, stub.url) as mol, httpx.Client(base_url=mol.url) as client:
            if text == "It runs.":
                first = client.post(PATHS["chat"], json=body)
                body = ask("chat", "Timer!", *said("chat", first), *results("chat", "call-1"))
            stub.reply = slots_answer("L1", text)
            assert text_of("chat", client.post(PATHS["chat"], json=body)) == text
            turns = mol.records("turn", 1 if text == "It runs." else 2)
    one, two = turns
    assert one["turn_id"] != two["turn_id"]
    assert two["supersedes"] == one["turn_id"]


def test_a_call_in_a_history_made_elsewhere_is_replayed_and_checked(client, stub) -> None:
    stub.reply = slots_answer("L1", "It runs.")
    history = ["Timer!", *called("chat", "a", "b")]

    done = client.post(PATHS["chat"], json=ask("chat", *history, *results("chat", "b", "a")))
    half = client.post(PATHS["chat"], json=ask("chat", *history, *results("chat", "b")))

    assert text_of("chat", done) == "It runs."
    check_refusal(half, "chat", 400, "tool_result_without_call")


@pytest.mark.parametrize(
    ("said", "status", "reason"),
    [(b"{}", 503, "not as an OpenAI-compatible server would"), (b"", 502, "routed to 'L9'")],
)
def test_a_router_that_says_nonsense_fails_the_turn_with_a_reason_in_the_record(
    client, mol, stub, said: bytes, status: int, reason: str
) -> None:
    def nonsense(asked: Asked) -> Answer:
        if "structured_outputs" not in asked.body:
            return Answer()
        return Answer(raw=said) if said else Answer(raw=completion_of("L9", asked))

    stub.reply = nonsense

    check_refusal(client.post(PATHS["chat"], json=ask("chat")), "chat", status)

    (turn,) = mol.records("turn", 1)
    assert turn["status"] == "failed"
    assert reason in turn["error"]


def completion_of(text: str, asked: Asked) -> bytes:
    """Return an answer that keeps to no choices."""
    free = {name: value for name, value in asked.body.items() if name != "structured_outputs"}
    return json.dumps(completion(Answer(text=text), free)).encode()


def test_a_summary_that_hangs_holds_up_no_answer(client, mol, stub) -> None:
    def reply(asked: Asked) -> Answer:
        if asked.body["messages"][-1]["content"] == PROFILE.summary_prompt:
            return Answer(delay_s=5)
        return slots_answer("L2", "first")(asked)

    stub.reply = reply
    first = client.post(PATHS["chat"], json=ask("chat", "Hello"))

    assert text_of("chat", first) == "first"
    assert mol.server.services.full_turns._tasks
    goes_on_as_before(client, mol, stub, "chat", first)


def test_results_of_before_again_leave_the_turn_that_waits_further_on(client, mol, stub) -> None:
    offered = {"tools": [tool("chat")]}
    stub.reply = slots_answer("L1", "", tool_calls=(CALL,))
    first = client.post(PATHS["chat"], json=ask("chat", "Timer!", **offered))
    once = ["Timer!", *said("chat", first), *results("chat", "call-1")]
    stub.reply = slots_answer("L1", "", tool_calls=(CALL | {"id": "call-2"},))
    second = client.post(PATHS["chat"], json=ask("chat", *once, **offered))
    twice = [*once, *said("chat", second), *results("chat", "call-2")]

    stub.reply = slots_answer("L1", "It runs.")
    texts = [
        text_of("chat", client.post(PATHS["chat"], json=ask("chat", *history, **offered)))
        for history in (once, twice)
    ]

    assert texts == ["It runs."] * 2
    again, whole = mol.records("turn", 2)
    assert (again["supersedes"], whole["supersedes"]) == (whole["turn_id"], None)
    assert len(whole["hop_ids"]) == 5
