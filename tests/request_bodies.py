"""Bodies of requests, valid and otherwise, and what must come of them."""

from types import ModuleType
from typing import Any

import orjson
from hypothesis import strategies as st

from serving.exchange import Ask, RequestInvalid
from serving.protocols import anthropic_messages, chat, responses
from serving.protocols.refusals import MAX_SHOWN

PROTOCOLS = [chat, responses, anthropic_messages]
TOOL: dict[str, Any] = {"name": "clock", "description": "d"}
VALID: dict[str, dict[str, Any]] = {
    chat.__name__: {
        "model": "mol",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "t"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "clock", "arguments": "{}"},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "noon"},
        ],
        "tools": [{"type": "function", "function": TOOL | {"parameters": {"a": [None]}}}],
        "tool_choice": {"type": "function", "function": {"name": "clock"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
        "temperature": 1.0,
        "max_tokens": 5,
        "stop": ["x"],
        "logit_bias": {"1": 2},
        "metadata": {"k": "v"},
        "stream_options": {"include_usage": True},
    },
    responses.__name__: {
        "model": "mol",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "t"}]},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c1", "name": "clock", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "noon"},
        ],
        "tools": [{"type": "function", "parameters": {"a": [None]}} | TOOL],
        "tool_choice": {"type": "function", "name": "clock"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
        "reasoning": {"effort": "low"},
        "previous_response_id": "resp_1",
    },
    anthropic_messages.__name__: {
        "model": "mol",
        "max_tokens": 5,
        "system": [{"type": "text", "text": "s"}],
        "messages": [
            {"role": "user", "content": "t"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c1", "name": "clock", "input": {}}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "noon"},
                    {"type": "text", "text": "t"},
                ],
            },
        ],
        "tools": [TOOL | {"input_schema": {"a": [None]}}],
        "tool_choice": {"type": "tool", "name": "clock"},
        "output_config": {"format": {"type": "json_schema", "schema": {}}},
        "stop_sequences": ["x"],
        "metadata": {"user_id": "u"},
    },
}

texts = st.text(st.characters(), max_size=8) | st.sampled_from(["\ud800", "user", "text", "\x00"])
scalars = (
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers()
    | st.sampled_from([10**400, -(10**4000), 2**64])
    | texts
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


HOSTILE = {
    "deep": deep(300),
    "very deep": deep(1000),
    "not a number": float("nan"),
    "infinite": float("-inf"),
    "huge": 10**4000,
    "half a pair": "\ud800",
}


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) of a JSON value."""
    pairs = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    found = [(value, key) for key, _ in pairs]
    for _, inner in pairs:
        if isinstance(inner, dict | list):
            found += places(inner)
    return found


def check_refusal(protocol: ModuleType, problem: RequestInvalid) -> None:
    text = str(problem)
    assert text.isprintable()
    assert len(text) < len(problem.param or "") + MAX_SHOWN + 200
    orjson.dumps(protocol.error_body(problem, "req_1"))


def outcome(protocol: ModuleType, raw: Any) -> Ask | RequestInvalid:
    try:
        ask = protocol.parse(raw)
    except RequestInvalid as problem:
        check_refusal(protocol, problem)
        return problem
    assert isinstance(ask, Ask)
    assert ask.messages
    assert all(message.role != "system" for message in ask.messages)
    # What was accepted, everything behind can write.
    orjson.dumps([m.to_openai() for m in ask.messages])
    orjson.dumps([ask.instructions, ask.tools, ask.options, ask.user, ask.metadata])
    return ask
