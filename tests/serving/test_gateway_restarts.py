"""Proves what of a conversation survives a restart, a late result and a flip of its version.

The engine is a stub over HTTP; server, memory, recorder and clients are real.
"""

import itertools
import threading
import time
from pathlib import Path

import anthropic
import httpx
import openai
import pytest
from gateway_answers import CALL, PROFILE, TOOL, slots_answer
from gateway_asks import check_refusal
from mol_server import LIMIT_S, Running, mol_server, version, write_slots
from stub_engine import Asked, StubEngine

from serving.slot_table import SlotEntry

HELLO = [{"role": "user", "content": "Hello"}]


def post(mol: Running, path: str = "chat/completions", **body) -> httpx.Response:
    return httpx.post(f"{mol.url}/v1/{path}", json={"model": "mol", **body}, timeout=30)


def results_of(answer: httpx.Response) -> list[dict]:
    said = answer.json()["choices"][0]["message"]
    call = said["tool_calls"][0]["id"]
    return [*HELLO, said, {"role": "tool", "tool_call_id": call, "content": "ok"}]


def flip(mol: Running, mark: str, generation: int) -> None:
    entries = [SlotEntry(slot=s, **version(s)) for s in PROFILE.labels if s != "L1"]
    new = SlotEntry(slot="L1", generation=generation, **version("L1", mark))
    write_slots(mol.home, *entries, new)
    deadline = time.monotonic() + LIMIT_S
    while mol.server.services.versions.table.get("L1") != new:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_finished_turns_and_stored_answers_go_on_after_a_restart(tmp_path: Path, stub) -> None:
    stub.reply = slots_answer("L2", "first")
    with mol_server(tmp_path, stub.url) as mol:
        chat = post(mol, messages=HELLO).json()["choices"][0]["message"]
        stored = post(mol, "responses", input="Hello").json()["id"]
    stub.reply = slots_answer("L2", "second")
    with mol_server(tmp_path, stub.url) as mol:
        post(mol, messages=[*HELLO, chat, {"role": "user", "content": "Go on."}])
        post(mol, "responses", input="Go on.", previous_response_id=stored)
        answers = [hop for hop in mol.records("hop", 12) if hop["role"] == "answer"]

    for hop in answers[2:]:
        assert [m["content"] for m in hop["messages"][1:]] == ["Hello", "first", "Go on."]


def test_the_same_question_is_known_again_until_a_restart(tmp_path: Path, stub) -> None:
    stub.reply = slots_answer("L0", "Hi.")
    with mol_server(tmp_path, stub.url) as mol:
        for _ in range(2):
            post(mol, messages=HELLO, user="u")
        mol.records("turn", 2)
    with mol_server(tmp_path, stub.url) as mol:
        post(mol, messages=HELLO, user="u")
        first, again, later = mol.records("turn", 3)
    assert (first["supersedes"], later["supersedes"]) == (None, None)
    assert again["supersedes"] == first["turn_id"]


def test_results_for_a_server_that_is_not_ready_are_to_be_sent_again(tmp_path: Path, stub) -> None:
    stub.reply = slots_answer("L1", "", tool_calls=(CALL,))
    with mol_server(tmp_path, stub.url) as mol:
        called = post(mol, messages=HELLO, tools=[TOOL])
    with mol_server(tmp_path, "http://127.0.0.1:9") as mol:
        refused = post(mol, messages=results_of(called), tools=[TOOL])
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
    assert refused.headers["retry-after"]


def test_results_after_their_version_is_gone_are_answered_by_no_other(tmp_path, stub) -> None:
    stub.reply = slots_answer("L1", "", tool_calls=(CALL,))
    with mol_server(tmp_path, stub.url, timeouts={"drain_s": 0.2}) as mol:
        called = post(mol, messages=HELLO, tools=[TOOL])
        old = version("L1")["champion"]
        flip(mol, "b", 1)
        deadline = time.monotonic() + LIMIT_S
        while old in stub.adapters:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        before = len(stub.chats)

        late = post(mol, messages=results_of(called), tools=[TOOL])

        assert (late.status_code, late.json()["error"]["code"]) == (409, "turn_expired")
        assert len(stub.chats) == before


def test_ten_flips_under_load_fail_no_turn_and_mix_no_versions(mol, stub: StubEngine) -> None:
    """Every third turn calls a tool, every second one is streamed."""
    stop, failures = threading.Event(), []

    def reply(asked: Asked):
        body = asked.body
        calls = body.get("tools") and body["messages"][-1]["role"] == "user"
        last = body["messages"][-1]["content"]
        if calls and last != PROFILE.summary_prompt:
            return slots_answer("L1", "", tool_calls=(CALL,))(asked)
        return slots_answer("L1", "Done.")(asked)

    def talk(number: int) -> None:
        client = openai.OpenAI(base_url=f"{mol.url}/v1", api_key="none", max_retries=0)
        with client:
            for turn in itertools.count():
                if stop.is_set():
                    return
                messages = [{"role": "user", "content": f"{number} {turn}"}]
                tools = {"tools": [TOOL]} if turn % 3 == 0 else {}
                try:
                    say(client, messages, turn % 2 == 0, tools)
                except Exception as error:
                    failures.append(error)

    stub.reply = reply
    threads = [threading.Thread(target=talk, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for generation in range(1, 11):
            flip(mol, "ab"[generation % 2], generation)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    mol.settle()

    assert failures == []
    turns = mol.records("turn")
    assert len(turns) > 10
    by_turn: dict[str, set[str]] = {turn["turn_id"]: set() for turn in turns}
    for hop in mol.records("hop"):
        assert hop["status"] == "ok"
        if hop["role"] != "route":
            by_turn[hop["turn_id"]].add(hop["served_name"])
    assert {len(names) for names in by_turn.values()} == {1}
    assert len(set().union(*by_turn.values())) == 2


def say(client: openai.OpenAI, messages: list[dict], stream: bool, tools: dict) -> None:
    """Take a whole turn, with its tool call if there is one."""
    create = client.chat.completions.create
    if stream and not tools:
        chunks = list(create(model="mol", messages=messages, stream=True))
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Done."
        return
    said = create(model="mol", messages=messages, **tools).choices[0].message
    if tools:
        result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "ok"}
        history = [*messages, said.model_dump(exclude_none=True), result]
        said = create(model="mol", messages=history, **tools).choices[0].message
    assert said.content == "Done."


@pytest.mark.parametrize("enabled", [True, False])
def test_feedback_needs_a_server_that_records(tmp_path: Path, stub, enabled: bool) -> None:
    with mol_server(tmp_path, stub.url, record={"enabled": enabled}) as mol:
        answer = httpx.post(f"{mol.url}/v1/feedback", json={"turn_id": "t", "thumb": "up"})
    assert answer.status_code == (202 if enabled else 409)


@pytest.mark.parametrize("stream", [False, True])
def test_tool_results_stick_however_a_client_writes_the_arguments(mol, stub, stream: bool) -> None:
    """Anthropic's client gives arguments back as an object, not as the engine's text."""
    call = {"id": "c1", "function": {"name": "set_timer", "arguments": '{"b":"é", "a":1.0}'}}
    tool = {"name": "set_timer", "input_schema": {"type": "object"}}
    asked = {"model": "mol", "max_tokens": 50, "tools": [tool]}
    stub.reply = slots_answer("L1", "", tool_calls=(call,))
    with anthropic.Anthropic(base_url=mol.url, api_key="none", max_retries=0) as client:
        if stream:
            with client.messages.stream(messages=HELLO, **asked) as events:
                said = events.get_final_message()
        else:
            said = client.messages.create(messages=HELLO, **asked)
        stub.reply = slots_answer("L3", "It runs.")
        result = {"type": "tool_result", "tool_use_id": said.content[-1].id, "content": "ok"}
        made = {"role": "assistant", "content": [block.model_dump() for block in said.content]}
        client.messages.create(
            messages=[*HELLO, made, {"role": "user", "content": [result]}], **asked
        )

    (turn,) = mol.records("turn", 1)
    assert (turn["slot"], turn["status"]) == ("L1", "ok")
    assert [hop["role"] for hop in mol.records("hop", 4)].count("route") == 1


def test_neither_turn_nor_hop_asks_for_a_name_that_the_engine_lost(tmp_path: Path, stub) -> None:
    """The engine has them again, it seems, and would answer; but nobody could load them."""
    stub.reply = slots_answer("L1", "Hi.")
    with mol_server(tmp_path, stub.url) as mol:
        versions = mol.server.services.versions
        names = list(versions.lease("c").names.values())
        stub.load_status = dict.fromkeys(names, 500)
        stub.adapters.clear()
        for name in names:
            mol.loop.call_soon_threadsafe(versions.lost.lose, name)
        while versions.last_error is None:
            time.sleep(0.01)
        asked = len(stub.chats)
        answers = [post(mol, messages=HELLO, model=model) for model in ("mol", "L1")]
        for answer in answers:
            check_refusal(answer, "chat", 503, "not_ready")
            assert answer.headers["retry-after"]
            assert not any(name in answer.text for name in names)
        assert len(stub.chats) == asked
        assert {hop["status"] for hop in mol.records("hop", 2)} == {"engine_error"}
        stub.load_status = {}
        answers = [post(mol, messages=HELLO, model=model) for model in ("mol", "L1")]
        assert [answer.status_code for answer in answers] == [200, 200]
        deadline = time.monotonic() + LIMIT_S
        while versions.last_error is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
