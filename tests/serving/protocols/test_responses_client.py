"""The official OpenAI client reads our responses, plain and streamed.

Real: client, HTTP, parsing, writers. Faked: the engine, by a scripted answer.
"""

from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter
from scripted_server import CALLS, THOUGHT, WORDS, Script, ScriptedServer

from serving.records import Message

TOOLS: list[Any] = [
    {"type": "function", "name": name, "parameters": {"type": "object"}, "strict": False}
    for name in ("weather", "clock")
]
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def events(client: OpenAI, **options: Any) -> list[Any]:
    read = list(client.responses.create(model="mol", input="hello", stream=True, **options))
    for each in read:
        # The client takes whatever comes; its types tell what it should be.
        EVENT.validate_python(each.model_dump(by_alias=True))
    assert [each.sequence_number for each in read] == list(range(len(read)))
    return read


def test_plain_answer_repeats_the_request(openai_client: OpenAI) -> None:
    answer = openai_client.responses.create(
        model="mol",
        input="hello",
        instructions="Be brief.",
        tools=TOOLS,
        tool_choice={"type": "function", "name": "clock"},
        max_output_tokens=50,
        metadata={"ticket": "7"},
        previous_response_id="resp_0",
        temperature=0.5,
        store=False,
    )
    Response.model_validate(answer.model_dump(by_alias=True))
    assert answer.output_text == "Grüße, 你好!"
    assert (answer.status, answer.error) == ("completed", None)
    assert answer.usage.input_tokens_details.cached_tokens == 20
    assert answer.usage.total_tokens == 37
    assert answer.instructions == "Be brief."
    assert answer.tool_choice.name == "clock"
    assert [tool.name for tool in answer.tools] == ["weather", "clock"]
    assert answer.metadata == {"ticket": "7", "mol_slot": "L2"}
    assert answer.previous_response_id == "resp_0"
    assert answer.max_output_tokens == 50


def test_events_of_a_text_come_in_the_documented_order(openai_client: OpenAI) -> None:
    read = events(openai_client)
    assert [each.type for each in read] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert read[-1].response.output == [read[-2].item]


def test_stream_helper_returns_the_final_response(openai_client: OpenAI) -> None:
    with openai_client.responses.stream(model="mol", input="hello") as stream:
        snapshots = [e.snapshot for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots == ["Grüße", "Grüße, 你", "Grüße, 你好!"]
    assert final.output_text == "Grüße, 你好!"
    assert final.usage.total_tokens == 37


def test_streamed_answer_equals_the_plain_one(
    openai_client: OpenAI, server: ScriptedServer
) -> None:
    for script in (WORDS, THOUGHT, CALLS):
        server.script = script
        plain = openai_client.responses.create(model="mol", input="hello").model_dump()
        streamed = events(openai_client)[-1].response.model_dump()
        hexes = [each["id"].removeprefix("resp_") for each in (plain, streamed)]
        assert str(plain).replace(hexes[0], "X") == str(streamed).replace(hexes[1], "X")


def test_stream_helper_collects_tool_calls(openai_client: OpenAI, server: ScriptedServer) -> None:
    server.script = CALLS
    with openai_client.responses.stream(model="mol", input="hello", tools=TOOLS) as stream:
        read = list(stream)
        output = stream.get_final_response().output
    assert [item.type for item in output] == ["message", "function_call", "function_call"]
    assert [(item.call_id, item.arguments) for item in output[1:]] == [
        ("call_a", '{"city": "Köln"}'),
        ("call_b", "{}"),
    ]
    pieces = [e.delta for e in read if e.type == "response.function_call_arguments.delta"]
    assert pieces == ['{"city": ', '"Köln"}', "{}"]


def test_output_items_come_back_as_a_valid_request(
    openai_client: OpenAI, server: ScriptedServer
) -> None:
    server.script = Script(CALLS.message, reasoning="hm", finish_reason="tool_calls")
    first = openai_client.responses.create(model="mol", input="hello", tools=TOOLS)
    server.script = WORDS
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "ok"}
        for item in first.output
        if item.type == "function_call"
    ]
    openai_client.responses.create(
        model="mol",
        input=[{"role": "user", "content": "hello"}, *first.output, *results],
        tools=TOOLS,
    )
    said = server.asks[-1].messages
    assert [m.role for m in said] == ["user", "assistant", "tool", "tool"]
    assert said[1] == CALLS.message


def test_results_alone_follow_a_stored_answer(
    openai_client: OpenAI, server: ScriptedServer
) -> None:
    result = {"type": "function_call_output", "call_id": "call_a", "output": "ok"}
    openai_client.responses.create(model="mol", input=[result], previous_response_id="resp_0")
    assert server.asks[-1].previous_response_id == "resp_0"
    assert server.asks[-1].messages == (Message(role="tool", content="ok", tool_call_id="call_a"),)
    with pytest.raises(openai.BadRequestError) as caught:
        openai_client.responses.create(model="mol", input=[result])
    assert caught.value.param == "input.0.call_id"


def test_reasoning_is_an_item_of_its_own(openai_client: OpenAI, server: ScriptedServer) -> None:
    server.script = THOUGHT
    with openai_client.responses.stream(model="mol", input="hello") as stream:
        thought = [e.delta for e in stream if e.type == "response.reasoning_text.delta"]
        output = stream.get_final_response().output
    assert thought == ["two and ", "two"]
    assert [item.type for item in output] == ["reasoning", "message"]
    assert output[0].content[0].text == "two and two"


def test_typed_answers_are_parsed(openai_client: OpenAI, server: ScriptedServer) -> None:
    class Sum(BaseModel):
        total: int

    server.script = Script(Message(role="assistant", content='{"total": 4}'))
    answer = openai_client.responses.parse(model="mol", input="2+2", text_format=Sum)
    assert answer.output_parsed == Sum(total=4)
    asked = server.asks[-1].options["response_format"]
    assert (asked["type"], asked["json_schema"]["name"]) == ("json_schema", "Sum")
    assert asked["json_schema"]["schema"]["required"] == ["total"]


def test_cut_answer_is_incomplete(openai_client: OpenAI, server: ScriptedServer) -> None:
    server.script = Script(WORDS.message, WORDS.deltas, finish_reason="length")
    plain = openai_client.responses.create(model="mol", input="hello")
    last = events(openai_client)[-1]
    assert last.type == "response.incomplete"
    for answer in (plain, last.response):
        assert answer.status == "incomplete"
        assert answer.incomplete_details.reason == "max_output_tokens"
        assert answer.output[-1].status == "incomplete"


def test_broken_stream_is_a_failed_response(openai_client: OpenAI, server: ScriptedServer) -> None:
    server.script = Script(WORDS.message, WORDS.deltas[:1], failure="The engine died.")
    last = events(openai_client)[-1]
    assert last.type == "response.failed"
    assert last.response.status == "failed"
    assert last.response.error.message == "The engine died."


def test_empty_answer_has_an_empty_message(openai_client: OpenAI, server: ScriptedServer) -> None:
    server.script = Script(Message(role="assistant"))
    with openai_client.responses.stream(model="mol", input="hello") as stream:
        assert stream.get_final_response().output_text == ""


@pytest.mark.parametrize(
    ("request_", "error", "param"),
    [
        ({"model": "mol", "input": []}, openai.BadRequestError, "input"),
        ({"model": "missing", "input": "x"}, openai.NotFoundError, None),
        ({"model": "busy", "input": "x"}, openai.RateLimitError, None),
    ],
)
def test_errors_are_the_clients_own(
    openai_client: OpenAI,
    request_: dict[str, Any],
    error: type[openai.APIStatusError],
    param: str | None,
) -> None:
    with pytest.raises(error) as caught:
        openai_client.responses.create(**request_)
    assert caught.value.param == param
