"""Proves what becomes of turns that do not simply succeed, and how each mode routes.

The engine is a stub over HTTP; server, memory, recorder and clients are real.
"""

import time
from pathlib import Path

import httpx
import openai
import pytest
from gateway_answers import CALL, PROFILE, TOOL, slots_answer
from mol_server import LIMIT_S, mol_server, version, write_slots
from stub_engine import Answer, Asked

from serving.slot_table import SlotEntry

HELLO = [{"role": "user", "content": "Hello"}]


def create(mol, messages, **fields):
    with openai.OpenAI(base_url=f"{mol.url}/v1", api_key="none", max_retries=0) as client:
        made = client.chat.completions.create(model="mol", messages=messages, **fields)
        return list(made) if fields.get("stream") else made


def going_on(messages, reply, text):
    said = reply.choices[0].message.model_dump(exclude_none=True)
    return [*messages, said, {"role": "user", "content": text}]


def answers(mol, at_least: int = 0):
    mol.settle()
    return [h for h in mol.records("hop", at_least) if h["role"] == "answer"]


def test_a_failed_turn_leaves_the_conversation_as_it_was(mol, stub) -> None:
    stub.reply = slots_answer("L2", "first")
    first = create(mol, HELLO)
    mol.settle()
    stub.reply = lambda asked: Answer(status=500) if "LOST" in asked.raw.decode() else None
    with pytest.raises(openai.APIStatusError) as failure:
        create(mol, going_on(HELLO, first, "LOST"))
    assert failure.value.status_code == 502
    stub.reply = slots_answer("L2", "second")

    create(mol, going_on(HELLO, first, "Go on."))

    last = answers(mol)[-1]
    assert [m["content"] for m in last["messages"][1:]] == ["Hello", "first", "Go on."]
    failed = [turn for turn in mol.records("turn", 3) if turn["status"] == "failed"]
    assert len(failed) == 1
    assert "500" in failed[0]["error"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_abandons_its_turn(mol, stub, stream: bool) -> None:
    stub.reply = slots_answer("L0", "one two three four five", piece_delay_s=1, delay_s=0.5)
    body = {"model": "mol", "messages": HELLO, "stream": stream}
    if stream:
        with httpx.stream("POST", f"{mol.url}/v1/chat/completions", json=body) as response:
            next(response.iter_raw())
    else:
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{mol.url}/v1/chat/completions", json=body, timeout=0.2)

    (turn,) = mol.records("turn", 1)
    assert turn["status"] == "abandoned"
    assert mol.records("hop")[-1]["status"] == "abandoned"
    deadline = time.monotonic() + LIMIT_S
    while not stub.abandoned:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_engine_that_dies_in_a_stream_ends_it_with_an_error_event(mol, stub) -> None:
    stub.reply = slots_answer("L0", "one two three", fault="die", pieces=2)

    with pytest.raises(openai.APIError, match="broke off") as failure:
        create(mol, HELLO, stream=True)

    assert "request_id" in str(failure.value.body)
    (turn,) = mol.records("turn", 1)
    assert turn["status"] == "failed"
    broken = mol.records("hop", 2)[-1]
    assert broken["status"] == "broken_stream"
    assert broken["completion"]["content"].startswith("one")


def test_a_call_without_any_answer_is_tried_again_and_the_second_supersedes_it(mol, stub) -> None:
    refused = []

    def reply(asked: Asked) -> Answer:
        if "structured_outputs" in asked.body and not refused:
            refused.append(1)
            return Answer(fault="refuse")
        return slots_answer("L0", "Hi.")(asked)

    stub.reply = reply

    create(mol, HELLO)

    first, second, *_ = mol.records("hop", 4)
    (turn,) = mol.records("turn", 1)
    assert (first["status"], second["status"]) == ("engine_error", "ok")
    assert second["supersedes"] == turn["hop_ids"][0]


def test_an_engine_that_lost_an_adapter_gets_it_back(mol, stub) -> None:
    stub.reply = slots_answer("L0", "Hi.")
    stub.adapters.clear()

    reply = create(mol, HELLO)

    assert reply.choices[0].message.content == "Hi."
    assert version("L0")["champion"] in stub.adapters


def test_the_same_place_asked_again_supersedes_the_earlier_turn(mol, stub) -> None:
    stub.reply = slots_answer("L0", "first")
    first = create(mol, HELLO)
    again = going_on(HELLO, first, "And now?")
    create(mol, again)
    create(mol, again)

    turns = mol.records("turn", 3)
    assert turns[2]["supersedes"] == turns[1]["turn_id"]
    assert turns[0]["supersedes"] is None
    assert turns[2]["position"] == turns[1]["position"] == 1


def test_a_client_that_goes_back_takes_another_path(mol, stub) -> None:
    stub.reply = slots_answer("L2", "A")
    first = create(mol, HELLO)
    create(mol, going_on(HELLO, first, "left"))
    stub.reply = slots_answer("L2", "B")

    create(mol, going_on(HELLO, first, "right"))

    contents = [m["content"] for m in answers(mol, 9)[-1]["messages"][1:]]
    assert contents == ["Hello", "A", "right"]


def test_a_history_made_elsewhere_is_taken_over_verbatim(mol, stub) -> None:
    stub.reply = slots_answer("L2", "def g(): ...")
    history = [
        {"role": "user", "content": "Write f."},
        {"role": "assistant", "content": "def f(): ..."},
        {"role": "user", "content": "Now g."},
    ]
    first = create(mol, history)
    create(mol, going_on(history, first, "Now h."))

    one, two = answers(mol, 6)
    assert [m["content"] for m in one["messages"][1:]] == ["Write f.", "def f(): ...", "Now g."]
    assert two["messages"][:4] == one["messages"]
    first_turn, second_turn = mol.records("turn", 2)
    assert (first_turn["position"], second_turn["position"]) == (1, 2)


def test_a_user_who_goes_on_without_results_abandons_the_call(mol, stub) -> None:
    stub.reply = slots_answer("L1", "", tool_calls=(CALL,))
    first = create(mol, HELLO, tools=[TOOL])
    stub.reply = slots_answer("L0", "Fine.")
    without = [*HELLO, {"role": "assistant", "content": None}, {"role": "user", "content": "No."}]
    without[1] = first.choices[0].message.model_dump(exclude_none=True)

    create(mol, without)

    abandoned, done = mol.records("turn", 2)
    assert (abandoned["status"], done["status"]) == ("abandoned", "ok")
    last = answers(mol)[-1]
    assert [m["content"] for m in last["messages"][1:]] == ["No."]


def test_results_of_a_turn_made_elsewhere_replay_it(mol, stub) -> None:
    stub.reply = slots_answer("L1", "It runs.")
    made = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", **CALL}]}
    result = {"role": "tool", "tool_call_id": CALL["id"], "content": "ok"}

    create(mol, [*HELLO, made, result], tools=[TOOL])

    (answer,) = answers(mol, 3)
    assert [m["role"] for m in answer["messages"]] == ["system", "user", "assistant", "tool"]
    assert [h["role"] for h in mol.records("hop", 3)] == ["route", "answer", "summary"]


def test_the_same_results_twice_are_two_turns_and_the_later_supersedes(mol, stub) -> None:
    stub.reply = slots_answer("L1", "", tool_calls=(CALL,))
    first = create(mol, HELLO, tools=[TOOL])
    message = first.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "ok"}
    history = [*HELLO, message.model_dump(exclude_none=True), result]
    stub.reply = slots_answer("L1", "It runs.")

    replies = [create(mol, history, tools=[TOOL]) for _ in range(2)]

    assert [r.choices[0].message.content for r in replies] == ["It runs."] * 2
    one, two = mol.records("turn", 2)
    assert two["supersedes"] == one["turn_id"]
    assert not set(one["hop_ids"]) & set(two["hop_ids"])


def test_a_summary_that_fails_is_the_answers_first_words(mol, stub) -> None:
    def reply(asked: Asked) -> Answer:
        last = asked.body["messages"][-1]["content"]
        return Answer(status=500) if last == PROFILE.summary_prompt else code(asked)

    code = slots_answer("L2", "def f(): ...")
    stub.reply = reply
    first = create(mol, HELLO)
    mol.settle()
    stub.reply = slots_answer("L0", "Fine.")
    create(mol, going_on(HELLO, first, "Thanks"))

    assert "def f(): ..." in answers(mol)[-1]["messages"][-1]["content"]
    assert [turn["status"] for turn in mol.records("turn", 2)] == ["ok", "ok"]


def test_rules_route_without_a_model_and_override_any_mode(tmp_path: Path, stub) -> None:
    write_slots(
        tmp_path,
        SlotEntry(slot="L0", role="router", **version("L0")),
        SlotEntry(slot="L2", routing_rule="python, !stack trace", **version("L2")),
    )
    stub.reply = slots_answer("L0", "Fine.")
    with mol_server(tmp_path, stub.url, router={"mode": "rules"}) as mol:
        for text in ("Some Python please", "Hello"):
            create(mol, [{"role": "user", "content": text}])
        by_word, by_default = mol.records("turn", 2)
    assert (by_word["slot"], by_word["decision"]) == ("L2", "rule")
    assert (by_default["slot"], by_default["decision"]) == ("L0", "routed")
    assert not any("structured_outputs" in asked.body for asked in stub.chats)
    with mol_server(tmp_path, stub.url) as mol:
        create(mol, [{"role": "user", "content": "What is this stack trace?"}])
        overridden = mol.records("turn", 3)[-1]
        route = mol.records("hop", 9)[-3]
    assert (overridden["slot"], overridden["decision"]) == ("L2", "rule")
    assert (route["role"], route["model"], route["propensity"]) == ("route", "rules", 1.0)


def test_the_change_model_tool_routes_explicitly_and_returns_by_itself(
    tmp_path: Path, stub
) -> None:
    change = {"id": "c", "function": {"name": "change_model", "arguments": '{"model_id": "L2"}'}}
    with mol_server(tmp_path, stub.url, router={"mode": "tool"}) as mol:
        stub.script = [Answer(text="", tool_calls=(change,)), Answer(text="code"), Answer(text="s")]
        first = create(mol, HELLO)
        mol.settle()
        stub.script = [Answer(text="You are welcome."), Answer(text="s")]
        second = create(mol, going_on(HELLO, first, "Thanks"), stream=True)
        said = "".join(c.choices[0].delta.content or "" for c in second if c.choices)
        mol.settle()
        explicit, implicit = mol.records("turn", 2)
        hops = mol.records("hop", 5)

    assert first.choices[0].message.content == "code"
    assert said == "You are welcome."
    assert (explicit["slot"], implicit["slot"]) == ("L2", "L0")
    assert [h["role"] for h in hops] == ["route", "answer", "summary", "answer", "summary"]
    assert hops[0]["completion"]["tool_calls"][0]["name"] == "change_model"
    asked = [a.body for a in stub.chats if a.body.get("tools")]
    assert asked[0]["tools"][-1]["function"]["name"] == "change_model"


def test_a_router_that_is_not_sure_hands_over_to_the_base(tmp_path: Path, stub) -> None:
    stub.reply = slots_answer("L2", "Well.")
    with mol_server(tmp_path, stub.url, router={"min_confidence": 0.95}) as mol:
        create(mol, HELLO)
        (turn,) = mol.records("turn", 1)
    assert (turn["slot"], turn["decision"], turn["digest"]) == ("base", "unsure", None)
    assert stub.chats[-1].model == "base"


def test_exploration_is_logged_with_its_propensity(tmp_path: Path, stub) -> None:
    stub.reply = slots_answer("L0", "Well.")
    with mol_server(tmp_path, stub.url, router={"epsilon": 0.5}) as mol:
        for n in range(24):
            create(mol, [{"role": "user", "content": f"Hello {n}"}])
        turns = {turn["turn_id"]: turn for turn in mol.records("turn", 24)}
        routes = [hop for hop in mol.records("hop", 72) if hop["role"] == "route"]
    slots = {turn["slot"] for turn in turns.values()}
    assert len(slots) > 1
    for hop in routes:
        turn = turns[hop["turn_id"]]
        explored = turn["slot"] != "L0"
        assert turn["decision"] == ("explored" if explored else "routed")
        assert hop["propensity"] == pytest.approx(0.125 if explored else 0.625)


def test_a_new_slot_is_a_row_and_no_restart(mol, stub, tmp_path: Path) -> None:
    old = [SlotEntry(slot=s, **version(s)) for s in PROFILE.labels]
    stub.reply = slots_answer("L4", "Done in a week.")
    new = SlotEntry(
        slot="L4", description="long tasks", system="You plan.", generation=1, **version("L4")
    )

    write_slots(tmp_path, *old, new)

    deadline = time.monotonic() + LIMIT_S
    while "L4" not in httpx.get(f"{mol.url}/v1/models").text:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert create(mol, HELLO).choices[0].message.content == "Done in a week."
    (answer,) = answers(mol, 3)
    assert answer["model"] == version("L4")["champion"]
    assert answer["messages"][0]["content"] == "You plan."
    route = mol.records("hop")[0]
    assert "L4 long tasks" in route["messages"][0]["content"]


def test_a_turn_keeps_its_version_over_a_flip(mol, stub, tmp_path: Path) -> None:
    stub.reply = slots_answer("L1", "", tool_calls=(CALL,))
    first = create(mol, HELLO, tools=[TOOL])
    message = first.choices[0].message
    old = version("L1")["champion"]
    entries = [SlotEntry(slot=s, **version(s)) for s in PROFILE.labels if s != "L1"]
    write_slots(tmp_path, *entries, SlotEntry(slot="L1", generation=1, **version("L1", "b")))
    deadline = time.monotonic() + LIMIT_S
    while mol.server.services.versions.table.get("L1").champion == old:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "ok"}
    stub.reply = slots_answer("L1", "It runs.")

    create(mol, [*HELLO, message.model_dump(exclude_none=True), result], tools=[TOOL])

    mol.settle()
    (turn,) = mol.records("turn", 1)
    models = {h["model"] for h in mol.records("hop", 4) if h["role"] != "route"}
    assert models == {old}
    assert turn["digest"] == old.split("@")[1]
    while old in stub.adapters:
        assert time.monotonic() < deadline
        time.sleep(0.02)
