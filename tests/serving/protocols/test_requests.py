"""Requests of the three protocols become asks."""

from typing import Any

import pytest

from serving.exchange import Ask
from serving.protocols import anthropic_messages, chat, responses
from serving.records import Message, ToolCall

HELLO: dict[str, Any] = {"role": "user", "content": "hello"}
CHAT: dict[str, Any] = {"model": "mol", "messages": [HELLO]}
MESSAGE: dict[str, Any] = CHAT | {"max_tokens": 9}
FUNCTION: dict[str, Any] = {"name": "clock", "parameters": {"type": "object"}}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    ],
}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "c1", "content": "noon"}
CALLED = Message(role="assistant", tool_calls=(ToolCall(id="c1", name="clock", arguments="{}"),))
ANSWERED = Message(role="tool", content="noon", tool_call_id="c1")


def chat_of(*messages: dict[str, Any], **fields: Any) -> Ask:
    return chat.parse({"model": "mol", "messages": list(messages)} | fields)


def test_chat_request_keeps_what_the_client_set() -> None:
    ask = chat.parse(
        {
            "model": "mol",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
                {"role": "user", "content": [{"type": "text", "text": x} for x in "ab"]},
                CALL,
                RESULT,
            ],
            "tools": [{"type": "function", "function": FUNCTION | {"description": "time"}}],
            "tool_choice": {"type": "function", "function": {"name": "clock"}},
            "temperature": 0,
            "top_p": None,
            "stop": ["x", "y"],
            "seed": 7,
            "logit_bias": {"5": -1},
            "max_tokens": 5,
            "max_completion_tokens": 6,
            "response_format": {"type": "json_object"},
            "stream": True,
            "stream_options": {"include_usage": True},
            "user": "u",
            "metadata": {"k": "v"},
            "n": 1,
            "logprobs": False,
            "chat_template": "ignored",
        }
    )
    assert ask == Ask(
        protocol="chat",
        model="mol",
        messages=(Message(role="user", content="ab"), CALLED, ANSWERED),
        instructions="Be brief.\n\nBe kind.",
        tools=({"type": "function", "function": FUNCTION | {"description": "time"}},),
        options={
            "temperature": 0,
            "stop": ["x", "y"],
            "seed": 7,
            "logit_bias": {"5": -1},
            "response_format": {"type": "json_object"},
            "tool_choice": {"type": "function", "function": {"name": "clock"}},
        },
        max_tokens=6,
        stream=True,
        include_usage=True,
        user="u",
        metadata={"k": "v"},
    )


def test_response_items_become_chat_messages() -> None:
    ask = responses.parse(
        {
            "model": "mol",
            "instructions": "Be brief.",
            "input": [
                {"role": "developer", "content": "Be kind."},
                {"role": "user", "content": [{"type": "input_text", "text": "time?"}]},
                {"type": "reasoning", "id": "rs_1", "summary": []},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
                },
                {"type": "function_call", "call_id": "c1", "name": "clock", "arguments": "{}"},
                {"type": "function_call", "call_id": "c2", "name": "clock", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "noon"},
                {
                    "type": "function_call_output",
                    "call_id": "c2",
                    "output": [{"type": "input_text", "text": "late"}],
                },
            ],
            "tools": [{"type": "function", "strict": True} | FUNCTION],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "max_output_tokens": 5,
            "reasoning": {"effort": "low"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
            "store": False,
            "stream": True,
            "safety_identifier": "u",
        }
    )
    calls = tuple(ToolCall(id=i, name="clock", arguments="{}") for i in ("c1", "c2"))
    assert ask == Ask(
        protocol="responses",
        model="mol",
        messages=(
            Message(role="user", content="time?"),
            Message(role="assistant", content="Let me see.", tool_calls=calls),
            ANSWERED,
            Message(role="tool", content="late", tool_call_id="c2"),
        ),
        instructions="Be brief.\n\nBe kind.",
        tools=({"type": "function", "function": FUNCTION | {"strict": True}},),
        options={
            "parallel_tool_calls": False,
            "tool_choice": "required",
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "object"}},
            },
            "reasoning_effort": "low",
        },
        max_tokens=5,
        stream=True,
        store=False,
        user="u",
    )


def test_anthropic_request_becomes_chat_messages() -> None:
    ask = anthropic_messages.parse(
        {
            "model": "mol",
            "max_tokens": 5,
            "system": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}],
            "messages": [
                {"role": "user", "content": "time?"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                        {"type": "tool_use", "id": "c1", "name": "clock", "input": {"z": "Köln"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Hurry."},
                        {"type": "tool_result", "tool_use_id": "c1", "content": "noon"},
                    ],
                },
            ],
            "tools": [{"name": "clock", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "stop_sequences": ["x"],
            "top_k": 4,
            "temperature": 1,
            "thinking": {"type": "disabled"},
            "metadata": {"user_id": "u"},
        }
    )
    call = ToolCall(id="c1", name="clock", arguments='{"z": "Köln"}')
    assert ask == Ask(
        protocol="messages",
        model="mol",
        messages=(
            Message(role="user", content="time?"),
            Message(role="assistant", tool_calls=(call,)),
            ANSWERED,
            Message(role="user", content="Hurry."),
        ),
        instructions="Be brief.\n\nBe kind.",
        tools=({"type": "function", "function": FUNCTION},),
        options={
            "temperature": 1,
            "top_k": 4,
            "stop": ["x"],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "reasoning_effort": "none",
        },
        max_tokens=5,
        user="u",
    )


@pytest.mark.parametrize(
    ("anthropic", "openai"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "clock"}, {"type": "function", "function": {"name": "clock"}}),
    ],
)
def test_anthropic_tool_choice_is_translated(anthropic: dict[str, str], openai: Any) -> None:
    tools = [{"name": "clock", "input_schema": {"type": "object"}}]
    ask = anthropic_messages.parse(MESSAGE | {"tools": tools, "tool_choice": anthropic})
    assert ask.options["tool_choice"] == openai


def test_an_id_may_come_back_in_a_later_answer() -> None:
    ask = chat_of(HELLO, CALL, RESULT, CALL, RESULT)
    assert ask.messages[1:] == (CALLED, ANSWERED, CALLED, ANSWERED)


def test_tool_choice_without_tools_is_left_out() -> None:
    assert chat_of(HELLO, tool_choice="auto").options == {}
