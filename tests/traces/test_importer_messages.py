"""Proves that messages of every dialect become the same messages of ours, and nothing is lost.

The dialects' texts are written here after their documentation.
"""

import json
from typing import Any

import pytest

from serving.records import Message, ToolCall
from traces.importers.messages import (
    Usage,
    finish_reason,
    read_answer,
    read_messages,
    read_tools,
    read_usage,
)

CALL = ToolCall(id="c1", name="weather", arguments='{"city": "Paris"}')
TALK = (
    Message(role="system", content="Be brief."),
    Message(role="user", content="Weather?"),
    Message(role="assistant", content="Let me see.", tool_calls=(CALL,)),
    Message(role="tool", content="rain", tool_call_id="c1"),
    Message(role="assistant", content="Rainy."),
)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
NESTED = (
    '[{"function":{"description":"d","name":"weather","parameters":{"properties":'
    '{"city":{"type":"string"}},"type":"object"}},"type":"function"}]'
)

OPENAI_CALL = {"id": "c1", "type": "function", "function": {
    "name": "weather", "arguments": '{"city": "Paris"}'}}  # fmt: skip
DIALECTS: dict[str, list[dict[str, Any]]] = {
    "openai": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [OPENAI_CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "assistant", "content": "Rainy.", "reasoning_content": "It rains."},
    ],
    "openai parts": [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}],
         "tool_calls": [{"id": "c1", "function": {"name": "weather",
                                                  "arguments": {"city": "Paris"}}}]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "rain"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Rainy."}]},
    ],
    "responses": [
        {"role": "system", "content": "Be brief."},
        {"type": "message", "role": "user",
         "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant",
         "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call", "call_id": "c1", "id": "fc_1", "name": "weather",
         "arguments": '{"city": "Paris"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "message", "role": "assistant",
         "content": [{"type": "output_text", "text": "Rainy."}]},
    ],
    "genai": [
        {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]},
        {"role": "user", "parts": [{"type": "text", "content": "Weather?"}]},
        {"role": "assistant", "parts": [
            {"type": "reasoning", "content": "Hm."}, {"type": "text", "content": "Let me see."},
            {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Paris"}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "rain"}]},
        {"role": "assistant", "parts": [{"type": "text", "content": "Rainy."}],
         "finish_reason": "stop"},
    ],
    "anthropic": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "x"},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Paris"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1",
             "content": [{"type": "text", "text": "rain"}]}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Rainy."}]},
    ],
    "vercel": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {"role": "assistant", "content": [
            {"type": "reasoning", "text": "Hm."}, {"type": "text", "text": "Let me see."},
            {"type": "tool-call", "toolCallId": "c1", "toolName": "weather",
             "input": {"city": "Paris"}}]},
        {"role": "tool", "content": [
            {"type": "tool-result", "toolCallId": "c1", "toolName": "weather",
             "output": {"type": "text", "value": "rain"}}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Rainy."}]},
    ],
    "bedrock": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"text": "Weather?"}]},
        {"role": "assistant", "content": [
            {"reasoningContent": {"reasoningText": {"text": "Hm."}}}, {"text": "Let me see."},
            {"toolUse": {"toolUseId": "c1", "name": "weather", "input": {"city": "Paris"}}}]},
        {"role": "user", "content": [
            {"toolResult": {"toolUseId": "c1", "content": [{"text": "rain"}]}}]},
        {"role": "assistant", "content": [{"text": "Rainy."}]},
    ],
}  # fmt: skip


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_talk_is_the_same_in_every_dialect(dialect: str) -> None:
    assert read_messages(DIALECTS[dialect]) == TALK


def test_calls_and_results_without_ids_belong_together_in_order() -> None:
    legacy = [
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "3"},
        {"role": "model", "parts": [{"functionCall": {"name": "g", "args": {"n": 1}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "g", "response": {"ok": True}}}]},
    ]

    asked, said, called, answered = read_messages(legacy)

    assert (asked.tool_calls[0].id, said.tool_call_id, said.content) == ("f", "f", "3")
    assert (called.tool_calls[0].arguments, answered.content) == ('{"n": 1}', '{"ok": true}')
    assert called.tool_calls[0].id == answered.tool_call_id


def test_several_results_in_one_message_are_a_message_each() -> None:
    blocks = [
        {"type": "tool_result", "tool_use_id": "a", "content": "1"},
        {"type": "tool_result", "tool_use_id": "b", "content": {"x": 2}},
        {"type": "text", "text": "And now?"},
    ]

    assert read_messages([{"role": "user", "content": blocks}]) == (
        Message(role="tool", content="1", tool_call_id="a"),
        Message(role="tool", content='{"x": 2}', tool_call_id="b"),
        Message(role="user", content="And now?"),
    )


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        ({"type": "image_url", "image_url": {"url": "https://x/y.png"}}, "[image https://x/y.png]"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
         "[image image/png sha256:63c1dd951ffe]"),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
         "[image image/png sha256:63c1dd951ffe]"),
        ({"type": "blob", "modality": "image", "mime_type": "image/png", "content": "AAAA"},
         "[image image/png sha256:63c1dd951ffe]"),
        ({"type": "image", "image": "AAAA", "mediaType": "image/png"},
         "[image image/png sha256:63c1dd951ffe]"),
        ({"type": "uri", "modality": "video", "uri": "gs://b/v.mp4"}, "[video gs://b/v.mp4]"),
        ({"type": "file", "file": {"file_id": "f-1"}}, "[file f-1]"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
         "[audio wav sha256:63c1dd951ffe]"),
        ({"type": "server_tool_call", "name": "search", "query": "q"},
         '[server_tool_call {"name":"search","query":"q"}]'),
    ],
)  # fmt: skip
def test_what_is_no_text_leaves_a_mark(part: dict[str, Any], shown: str) -> None:
    (message,) = read_messages([{"role": "user", "content": ["See ", part]}])

    assert message.content == f"See {shown}"


def test_an_answer_is_one_message_with_its_reasoning_apart() -> None:
    answer = read_answer(DIALECTS["responses"][2:5])

    assert answer.message == TALK[2]
    assert answer.reasoning == "Hm."
    assert read_answer(DIALECTS["anthropic"][2]).reasoning == "Hm."
    assert read_answer(None).message is None
    assert read_answer("Rainy.").message == TALK[4]


def test_an_unknown_role_is_an_error() -> None:
    with pytest.raises(ValueError, match="role 'narrator' is none of"):
        read_messages([{"role": "narrator", "content": "x"}])


@pytest.mark.parametrize(
    "tools",
    [
        [{"type": "function", "name": "weather", "description": "d", "parameters": SCHEMA}],
        [{"type": "function", "function": {"name": "weather", "description": "d",
                                           "parameters": SCHEMA}}],
        [{"name": "weather", "description": "d", "input_schema": SCHEMA}],
        [{"functionDeclarations": [{"name": "weather", "description": "d", "parameters": SCHEMA}]}],
        {"weather": {"description": "d", "inputSchema": SCHEMA}},
        json.dumps([{"name": "weather", "description": "d", "parameters": json.dumps(SCHEMA)}]),
    ],
)  # fmt: skip
def test_tool_definitions_are_nested_as_openai_has_them(tools: Any) -> None:
    assert read_tools(tools) == NESTED


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2}},
        {"input_tokens": 9, "output_tokens": 5, "cache_read_input_tokens": 2},
        {"input_tokens": 9, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 2}},
        '{"input": "9", "output": 5.0, "input_cached_tokens": 2}',
        {"inputTokens": 9, "outputTokens": 5, "cachedInputTokens": 2},
    ],
)
def test_token_counts_are_read_under_every_name(usage: Any) -> None:
    assert read_usage(usage) == Usage(9, 5, 2)


def test_finish_reasons_are_openais_where_they_are_known() -> None:
    words = ["end_turn", ["tool_call"], "max_tokens", "toolUse", "odd", None, []]

    assert [finish_reason(word) for word in words] == [
        "stop", "tool_calls", "length", "tool_calls", "odd", None, None,
    ]  # fmt: skip
