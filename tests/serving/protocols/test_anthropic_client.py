"""The official Anthropic client reads our messages, plain and streamed.

Real: client, HTTP, parsing, writers. Faked: the engine, by a scripted answer.
"""

from typing import Any

import anthropic
import pytest
from anthropic import Anthropic
from anthropic.types import Message as AnthropicMessage
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter
from scripted_server import CALLS, THOUGHT, WORDS, Script, ScriptedServer

from serving.records import Message, ToolCall

ASK: dict[str, Any] = {
    "model": "mol",
    "max_tokens": 99,
    "messages": [{"role": "user", "content": "hello"}],
}
TOOLS: list[Any] = [
    {"name": name, "input_schema": {"type": "object"}} for name in ("weather", "clock")
]
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def events(client: Anthropic) -> list[Any]:
    read = list(client.messages.create(**ASK, stream=True))
    for each in read:
        # The client takes whatever comes; its types tell what it should be.
        EVENT.validate_python(each.model_dump(by_alias=True))
    return read


def test_plain_answer_with_usage(anthropic_client: Anthropic) -> None:
    answer = anthropic_client.messages.create(**ASK)
    AnthropicMessage.model_validate(answer.model_dump(by_alias=True))
    assert answer.content[0].text == "Grüße, 你好!"
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert (answer.usage.input_tokens, answer.usage.cache_read_input_tokens) == (10, 20)
    assert answer.usage.output_tokens == 7
    assert answer.id.startswith("msg_")


def test_events_of_a_text_come_in_the_documented_order(anthropic_client: Anthropic) -> None:
    assert [each.type for each in events(anthropic_client)] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_stream_helper_joins_the_text(anthropic_client: Anthropic) -> None:
    with anthropic_client.messages.stream(**ASK) as stream:
        assert list(stream.text_stream) == ["Grüße", ", 你", "好!"]
        final = stream.get_final_message()
    assert final.content[0].text == "Grüße, 你好!"
    assert (final.usage.input_tokens, final.usage.cache_read_input_tokens) == (10, 20)


def test_stream_helper_collects_tool_calls(
    anthropic_client: Anthropic, server: ScriptedServer
) -> None:
    server.script = CALLS
    with anthropic_client.messages.stream(**ASK, tools=TOOLS) as stream:
        pieces = [e.partial_json for e in stream if e.type == "input_json"]
        final = stream.get_final_message()
    assert pieces == ['{"city": ', '"Köln"}', "{}"]
    assert final.stop_reason == "tool_use"
    assert [block.type for block in final.content] == ["text", "tool_use", "tool_use"]
    assert final.content[1].input == {"city": "Köln"}
    assert (final.content[2].id, final.content[2].input) == ("call_b", {})


def test_streamed_answer_equals_the_plain_one(
    anthropic_client: Anthropic, server: ScriptedServer
) -> None:
    for script in (WORDS, THOUGHT, CALLS, Script(CALLS.message)):
        server.script = script
        plain = anthropic_client.messages.create(**ASK)
        with anthropic_client.messages.stream(**ASK) as stream:
            streamed = stream.get_final_message()
        assert [b.to_dict() for b in streamed.content] == [b.to_dict() for b in plain.content]
        assert streamed.stop_reason == plain.stop_reason


def test_tool_use_comes_back_as_a_valid_request(
    anthropic_client: Anthropic, server: ScriptedServer
) -> None:
    server.script = Script(CALLS.message, reasoning="hm", finish_reason="tool_calls")
    first = anthropic_client.messages.create(**ASK, tools=TOOLS)
    server.script = WORDS
    results = [
        {"type": "tool_result", "tool_use_id": "call_a", "content": "rain"},
        {
            "type": "tool_result",
            "tool_use_id": "call_b",
            "content": [{"type": "text", "text": "no clock"}],
            "is_error": True,
        },
        {"type": "text", "text": "Well?"},
    ]
    said = [
        *ASK["messages"],
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": results},
    ]
    anthropic_client.messages.create(**ASK | {"messages": said}, tools=TOOLS)
    assert server.asks[-1].messages[1:] == (
        CALLS.message,
        Message(role="tool", content="rain", tool_call_id="call_a"),
        Message(role="tool", content="Error: no clock", tool_call_id="call_b"),
        Message(role="user", content="Well?"),
    )


def test_broken_arguments_are_kept_as_text(
    anthropic_client: Anthropic, server: ScriptedServer
) -> None:
    call = ToolCall(id="call_a", name="weather", arguments='{"city": ')
    server.script = Script(Message(role="assistant", tool_calls=(call,)))
    first = anthropic_client.messages.create(**ASK, tools=TOOLS)
    assert first.content[0].input == {"INVALID_JSON": '{"city": '}
    said = [*ASK["messages"], {"role": "assistant", "content": first.content}]
    anthropic_client.messages.create(**ASK | {"messages": said}, tools=TOOLS)
    assert server.asks[-1].messages[1].tool_calls == (call,)


def test_reasoning_is_a_thinking_block(anthropic_client: Anthropic, server: ScriptedServer) -> None:
    server.script = THOUGHT
    with anthropic_client.messages.stream(**ASK) as stream:
        thought = [e.thinking for e in stream if e.type == "thinking"]
        content = stream.get_final_message().content
    assert thought == ["two and ", "two"]
    assert [block.type for block in content] == ["thinking", "text"]
    assert content[0].thinking == "two and two"


def test_cut_answer_says_so(anthropic_client: Anthropic, server: ScriptedServer) -> None:
    server.script = Script(WORDS.message, WORDS.deltas, finish_reason="length")
    assert anthropic_client.messages.create(**ASK).stop_reason == "max_tokens"
    assert events(anthropic_client)[-2].delta.stop_reason == "max_tokens"


def test_broken_stream_is_an_api_error(anthropic_client: Anthropic, server: ScriptedServer) -> None:
    server.script = Script(WORDS.message, WORDS.deltas[:1], failure="The engine died.")
    with pytest.raises(anthropic.APIStatusError, match=r"The engine died\."):
        events(anthropic_client)


@pytest.mark.parametrize(
    ("change", "error", "kind"),
    [
        ({"messages": []}, anthropic.BadRequestError, "invalid_request_error"),
        ({"model": "missing"}, anthropic.NotFoundError, "not_found_error"),
        ({"model": "busy"}, anthropic.RateLimitError, "rate_limit_error"),
    ],
)
def test_errors_are_the_clients_own(
    anthropic_client: Anthropic,
    change: dict[str, Any],
    error: type[anthropic.APIStatusError],
    kind: str,
) -> None:
    with pytest.raises(error) as caught:
        anthropic_client.messages.create(**ASK | change)
    assert caught.value.body["error"]["type"] == kind
    assert caught.value.body["request_id"] == "req_1"
