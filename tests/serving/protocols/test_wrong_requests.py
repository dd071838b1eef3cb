"""Wrong requests get an error of one line: field, value, what is allowed."""

from typing import Any

import pytest

from serving.exchange import RequestInvalid
from serving.protocols import anthropic_messages, chat, responses

HELLO: dict[str, Any] = {"role": "user", "content": "hello"}
CHAT: dict[str, Any] = {"model": "mol", "messages": [HELLO]}
RESPONSE: dict[str, Any] = {"model": "mol", "input": "hello"}
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

WRONG_CHAT: list[tuple[dict[str, Any], str, str]] = [
    ({"model": None}, "model", "model is null, but must be a string."),
    ({"messages": []}, "messages", "messages is a list of 0, but must have at least 1 item."),
    ({"messages": [3]}, "messages.0", "messages.0 is 3, but must be an object."),
    (
        {"messages": [{"role": "robot", "content": ""}]},
        "messages.0.role",
        "messages.0.role is 'robot', but must be one of "
        "'system', 'developer', 'user', 'assistant', 'tool'.",
    ),
    ({"messages": [{"role": "user"}]}, "messages.0.content", "messages.0.content is required."),
    (
        {"messages": [{"role": "user", "content": 5}]},
        "messages.0.content",
        "messages.0.content is 5, but must be a string or a list.",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages.0.content.0.type",
        "messages.0.content.0.type is unsupported content 'image_url'; "
        "allowed here: 'text', 'input_text', 'output_text', 'refusal'.",
    ),
    (
        {"messages": [HELLO, RESULT]},
        "messages.1.tool_call_id",
        "messages.1.tool_call_id is 'c1', which answers no earlier tool call.",
    ),
    (
        {"messages": [HELLO, CALL, RESULT, RESULT]},
        "messages.3.tool_call_id",
        "messages.3.tool_call_id is 'c1', but that call has its result already; "
        "send one result for each call.",
    ),
    (
        {"messages": [CALL | {"tool_calls": CALL["tool_calls"] * 2}]},
        "messages.0.tool_calls.1.id",
        "messages.0.tool_calls.1.id is 'c1', as is that of an earlier call.",
    ),
    (
        {"messages": [{"role": "system", "content": "x"}]},
        "messages",
        "messages has only system messages; a message of the user is missing.",
    ),
    (
        {"temperature": 2.1},
        "temperature",
        "temperature is 2.1, but must be less than or equal to 2.",
    ),
    ({"temperature": "1"}, "temperature", "temperature is '1', but must be a number."),
    (
        {"temperature": float("nan")},
        "temperature",
        "temperature is nan, but must be a finite number.",
    ),
    ({"max_tokens": 0}, "max_tokens", "max_tokens is 0, but must be greater than or equal to 1."),
    (
        {"max_tokens": 10**5000},
        "max_tokens",
        "max_tokens is an integer of over 60 digits, but must be less than or equal to 2147483647.",
    ),
    ({"n": 2}, "n", "n is not supported: this server gives one answer a request."),
    (
        {"logprobs": True},
        "logprobs",
        "logprobs is not supported: this server tells no log-probabilities.",
    ),
    ({"functions": []}, "functions", "functions is not supported: use 'tools' instead."),
    (
        {"function_call": "auto"},
        "function_call",
        "function_call is not supported: use 'tool_choice' instead.",
    ),
    ({"stop": ["a"] * 5}, "stop", "stop is a list of 5, but must have at most 4 items."),
    ({"stream": 1}, "stream", "stream is 1, but must be true or false."),
    ({"metadata": {"k": 1}}, "metadata.k", "metadata.k is 1, but must be a string."),
    (
        {"metadata": {str(i): "" for i in range(17)}},
        "metadata",
        "metadata is an object of 17 fields, but must have at most 16 fields.",
    ),
    (
        {"tools": [{"type": "web_search"}]},
        "tools.0.type",
        "tools.0.type is 'web_search', but must be 'function'.",
    ),
    (
        {"tools": [{"type": "function", "function": FUNCTION}] * 2},
        "tools.1.function.name",
        "tools.1.function.name is 'clock', as is that of an earlier tool.",
    ),
    (
        {"tool_choice": "required"},
        "tool_choice",
        "tool_choice demands a tool call, but there are no tools.",
    ),
    (
        {"response_format": {"type": "json_schema"}},
        "response_format.json_schema",
        "response_format.json_schema is required with type 'json_schema'.",
    ),
    (
        {"user": "a\ud800\n"},
        "user",
        "user is 'a\\ud800\\n', but must be valid Unicode text.",
    ),
    ({"x": 2**64}, "x", "x is 18446744073709551616, but must fit into 64 bits."),
]


@pytest.mark.parametrize(("change", "param", "message"), WRONG_CHAT)
def test_wrong_chat_request_names_field_value_and_what_is_allowed(
    change: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(RequestInvalid) as caught:
        chat.parse(CHAT | change)
    assert (caught.value.param, str(caught.value), caught.value.status) == (param, message, 400)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c1", "output": ""}]},
            "input.0.call_id",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input.0.content.0.type",
        ),
        ({"input": [{"type": "reasoning"}]}, "input"),
        ({"input": [{"role": "tool", "content": ""}]}, "input.0.role"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"previous_response_id": ""}, "previous_response_id"),
    ],
)
def test_wrong_response_request_names_the_field(change: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestInvalid) as caught:
        responses.parse(RESPONSE | change)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages.0.content.0.type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]},
            "messages.0.content.0.type",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1"}]}
                ]
            },
            "messages.0.content.0.tool_use_id",
        ),
        ({"temperature": 1.5}, "temperature"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools.0.type"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"system": 5}, "system"),
    ],
)
def test_wrong_anthropic_request_names_the_field(change: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestInvalid) as caught:
        anthropic_messages.parse(MESSAGE | change)
    assert caught.value.param == param


def test_previous_response_does_not_excuse_two_results_for_one_call() -> None:
    result = {"type": "function_call_output", "call_id": "c1", "output": ""}
    with pytest.raises(RequestInvalid, match="has its result already"):
        responses.parse(RESPONSE | {"input": [result] * 2, "previous_response_id": "resp_0"})


def test_large_nonsense_is_refused_at_its_first_element() -> None:
    with pytest.raises(RequestInvalid) as caught:
        chat.parse(CHAT | {"messages": [0] * 1_000_000})
    assert caught.value.param == "messages.0"
