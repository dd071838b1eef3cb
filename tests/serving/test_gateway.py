"""Proves what official clients get from the MoL server: turns, streams, tool calls, models.

The engine is a stub over HTTP that answers what the test says; server, recorder, memory and
clients are real.
"""

import json
from pathlib import Path

import anthropic
import httpx
import openai
import pytest
from gateway_answers import CALL, PROFILE, TOOL, slots_answer
from mol_server import mol_server, version


@pytest.fixture
def chat(mol):
    with openai.OpenAI(base_url=f"{mol.url}/v1", api_key="none", max_retries=0) as client:
        yield client.chat.completions


def test_a_chat_completion_is_routed_answered_and_summed_up(mol, stub, chat) -> None:
    stub.reply = slots_answer("L2", "def f(): ...")

    reply = chat.create(model="mol", messages=[{"role": "user", "content": "Write f."}], user="u")

    assert reply.choices[0].message.content == "def f(): ..."
    assert reply.choices[0].finish_reason == "stop"
    assert reply.model == "mol"
    assert reply.usage.prompt_tokens > 0
    (turn,) = mol.records("turn", 1)
    assert [asked.model for asked in stub.chats if asked.body["max_tokens"] != 1] == [
        version("L0")["champion"], version("L2")["champion"], version("L2")["champion"]
    ]  # fmt: skip
    assert (turn["slot"], turn["decision"], turn["status"]) == ("L2", "routed", "ok")
    assert turn["user"] == "u"
    assert reply.id in turn["response_ids"]
    hops = mol.records("hop", 3)
    assert [hop["role"] for hop in hops] == ["route", "answer", "summary"]
    assert hops[0]["confidence"] == pytest.approx(0.9)
    assert hops[0]["propensity"] == 1.0
    assert all(hop["completion_token_ids"] for hop in hops)


def test_a_stream_brings_the_same_text_in_pieces(mol, stub, chat) -> None:
    stub.reply = slots_answer("L0", "one two three four")

    chunks = list(
        chat.create(
            model="mol", messages=[{"role": "user", "content": "Count."}], stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip

    pieces = [
        c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content
    ]
    assert "".join(pieces) == "one two three four"
    assert len(pieces) > 1
    assert chunks[-1].usage.completion_tokens > 0
    (answer,) = [hop for hop in mol.records("hop", 3) if hop["role"] == "answer"]
    assert answer["completion"]["content"] == "one two three four"
    assert answer["ttft_s"] is not None


def test_the_second_turn_sees_the_own_past_verbatim_and_the_others_as_summaries(
    mol, stub, chat
) -> None:
    stub.reply = slots_answer("L2", "CODE VERBATIM")
    history = [{"role": "user", "content": "Write f."}]
    said = chat.create(model="mol", messages=history).choices[0].message.content
    history += [{"role": "assistant", "content": said}, {"role": "user", "content": "Thanks!"}]
    stub.reply = slots_answer("L0", "CHAT VERBATIM")
    said = chat.create(model="mol", messages=history).choices[0].message.content
    history += [{"role": "assistant", "content": said}, {"role": "user", "content": "Now g."}]
    stub.reply = slots_answer("L2", "MORE CODE")

    chat.create(model="mol", messages=history)

    mol.settle()
    answers = [hop for hop in mol.records("hop", 9) if hop["role"] == "answer"]
    by_chat, by_code = (json.dumps(hop["messages"]) for hop in answers[1:])
    assert "CODE VERBATIM" not in by_chat
    assert "summed up" in by_chat
    assert "CODE VERBATIM" in by_code
    assert "CHAT VERBATIM" not in by_code
    assert answers[2]["messages"][: len(answers[0]["messages"])] == answers[0]["messages"]
    turns = mol.records("turn", 3)
    assert len({turn["conversation_id"] for turn in turns}) == 1
    assert [turn["position"] for turn in turns] == [0, 1, 2]


def test_tool_results_stick_to_the_slot_and_the_version_that_called(mol, stub, chat) -> None:
    stub.reply = slots_answer("L1", "", tool_calls=(CALL,))
    history = [{"role": "user", "content": "Timer!"}]
    first = chat.create(model="mol", messages=history, tools=[TOOL]).choices[0]
    assert first.finish_reason == "tool_calls"
    assert first.message.tool_calls[0].function.name == "set_timer"
    history += [
        first.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": first.message.tool_calls[0].id, "content": "ok"},
    ]
    stub.reply = slots_answer("L3", "It runs.")

    second = chat.create(model="mol", messages=history, tools=[TOOL]).choices[0]

    assert second.message.content == "It runs."
    (turn,) = mol.records("turn", 1)
    assert (turn["slot"], len(turn["response_ids"])) == ("L1", 4)
    roles = [hop["role"] for hop in mol.records("hop", 4)]
    assert roles == ["route", "answer", "answer", "summary"]
    answers = [hop for hop in mol.records("hop") if hop["role"] == "answer"]
    assert {hop["model"] for hop in answers} == {version("L1")["champion"]}
    assert [m["role"] for m in answers[1]["messages"][-2:]] == ["assistant", "tool"]


def test_a_streamed_tool_call_is_whole(stub, chat) -> None:
    stub.reply = slots_answer("L1", "", tool_calls=(CALL,))

    with chat.stream(
        model="mol", messages=[{"role": "user", "content": "Timer!"}], tools=[TOOL]
    ) as stream:
        final = stream.get_final_completion()

    call = final.choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"minutes": 5}
    assert final.choices[0].finish_reason == "tool_calls"


def test_responses_follow_one_another_by_id(mol, stub) -> None:
    stub.reply = slots_answer("L0", "Paris.")
    with openai.OpenAI(base_url=f"{mol.url}/v1", api_key="none", max_retries=0) as client:
        first = client.responses.create(model="mol", input="Capital of France?")
        with client.responses.stream(
            model="mol", input="And its river?", previous_response_id=first.id
        ) as stream:
            second = stream.get_final_response()
        with pytest.raises(openai.NotFoundError, match="resp_no"):
            client.responses.create(model="mol", input="x", previous_response_id="resp_no")

    assert first.output_text == "Paris."
    assert second.output_text == "Paris."
    answers = [hop for hop in mol.records("hop", 6) if hop["role"] == "answer"]
    assert [m["content"] for m in answers[1]["messages"][1:]] == [
        "Capital of France?", "Paris.", "And its river?"
    ]  # fmt: skip


def test_anthropic_messages_with_a_tool(mol, stub) -> None:
    stub.reply = slots_answer("L1", "", tool_calls=(CALL,))
    tool = {"name": "set_timer", "input_schema": TOOL["function"]["parameters"]}
    with anthropic.Anthropic(base_url=mol.url, api_key="none", max_retries=0) as client:
        asked = [{"role": "user", "content": "Timer!"}]
        first = client.messages.create(model="mol", max_tokens=50, messages=asked, tools=[tool])
        use = first.content[-1]
        stub.reply = slots_answer("L3", "It runs.")
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "ok"}
        with client.messages.stream(
            model="mol",
            max_tokens=50,
            tools=[tool],
            messages=[
                *asked,
                {"role": "assistant", "content": first.content},
                {"role": "user", "content": [result]},
            ],
        ) as stream:
            second = stream.get_final_message()

    assert first.stop_reason == "tool_use"
    assert use.input == {"minutes": 5}
    assert second.content[-1].text == "It runs."
    assert second.stop_reason == "end_turn"
    (turn,) = mol.records("turn", 1)
    assert turn["slot"] == "L1"


def test_conversations_survive_a_restart(tmp_path: Path, stub) -> None:
    stub.reply = slots_answer("L1", "", tool_calls=(CALL,))
    history = [{"role": "user", "content": "Timer!"}]
    with mol_server(tmp_path, stub.url) as mol:
        client = openai.OpenAI(base_url=f"{mol.url}/v1", api_key="none", max_retries=0)
        first = client.chat.completions.create(model="mol", messages=history, tools=[TOOL])
        client.close()
    message = first.choices[0].message
    history += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "ok"},
    ]
    stub.reply = slots_answer("L3", "It runs.")

    with mol_server(tmp_path, stub.url) as mol:
        client = openai.OpenAI(base_url=f"{mol.url}/v1", api_key="none", max_retries=0)
        second = client.chat.completions.create(model="mol", messages=history, tools=[TOOL])
        client.close()
        assert second.choices[0].message.content == "It runs."
        (turn,) = mol.records("turn", 1)
        assert (turn["slot"], len(turn["hop_ids"])) == ("L1", 4)


def test_models_health_readiness_and_metrics(mol, stub, chat) -> None:
    stub.reply = slots_answer("L0")
    chat.create(model="mol", messages=[{"role": "user", "content": "Hi"}])
    mol.records("turn", 1)

    models = httpx.get(f"{mol.url}/v1/models").json()
    metrics = httpx.get(f"{mol.url}/metrics").text

    assert [model["id"] for model in models["data"]] == ["mol", *PROFILE.labels]
    assert httpx.get(f"{mol.url}/health").json()["recording"]["dropped"] == {}
    assert httpx.get(f"{mol.url}/readiness").status_code == 200
    assert 'mol_turns_total{decision="routed",status="ok"} 1.0' in metrics
    stub.healthy = False
    assert httpx.get(f"{mol.url}/readiness").status_code == 503


def test_feedback_by_response_id_is_recorded(mol, stub, chat) -> None:
    stub.reply = slots_answer("L0")
    reply = chat.create(model="mol", messages=[{"role": "user", "content": "Hi"}])

    kept = httpx.post(
        f"{mol.url}/v1/feedback",
        json={"response_id": reply.id, "thumb": "down", "correction": "Hello!", "comment": "cold"},
    )

    assert kept.status_code == 202
    signals = mol.records("feedback", 3)
    assert {signal["kind"] for signal in signals} == {"thumb", "edit", "comment"}
    assert {signal["target_id"] for signal in signals} == {reply.id}
