"""Logged calls and signals as OpenAI logs, TensorZero and Langfuse have them, to be varied.

Written after the formats' own documents; nothing here was recorded.
"""

import json
from typing import Any

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
ASKED = {"model": "support", "messages": [{"role": "user", "content": "Weather in Paris?"}]}
ANSWERED = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "support@v3",
    "created": 1764431999,
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Rainy."}, "finish_reason": "stop"}
    ],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4},
    },
}

CALL = "019a6000-0000-7000-8000-000000000001"
EPISODE = "019a6000-0000-7000-8000-0000000000aa"
SIGNAL = "019a6000-1000-7000-8000-0000000000f1"


def logged(**changes: Any) -> dict[str, Any]:
    return {
        "request": {**ASKED, "temperature": 0.2, "tools": [WEATHER]},
        "response": ANSWERED,
        "timestamp": 1764432000,
        "client_id": "aiva",
        "workload_id": "agent.chat",
    } | changes


def chat(**changes: Any) -> dict[str, Any]:
    tool = {"name": "weather", "description": "d", "parameters": {"type": "object"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Weather in Paris?"}]},
        {"role": "assistant", "content": [
            {"type": "thought", "text": "Look it up."},
            {"type": "tool_call", "id": "c1", "name": "weather", "arguments": '{"city":"Paris"}'}]},
        {"role": "user", "content": [
            {"type": "tool_result", "id": "c1", "name": "weather", "result": "rain"}]},
    ]  # fmt: skip
    return {
        "id": CALL, "function_name": "support", "variant_name": "support_v3",
        "episode_id": EPISODE,
        "input": json.dumps({"system": "Be brief.", "messages": messages}),
        "output": json.dumps([{"type": "thought", "text": "Rain."},
                              {"type": "text", "text": "Rainy."}]),
        "inference_params": '{"chat_completion": {"temperature": 0.5}}',
        "processing_time_ms": 1500, "ttft_ms": 250, "tags": [["user_id", "u1"]],
        "dynamic_tools": [json.dumps(tool)], "tool_choice": '"auto"',
    } | changes  # fmt: skip


def generation(**changes: Any) -> dict[str, Any]:
    asked = [{"role": "user", "content": "Weather in Paris?"}]
    tool = {"description": "d", "parameters": {"type": "object"}}
    return {
        "id": "o1", "trace_id": "t1", "type": "GENERATION", "parent_observation_id": "",
        "project_id": "p", "start_time": "2025-11-29 16:00:00.000000",
        "end_time": "2025-11-29 16:00:01.500000",
        "completion_start_time": "2025-11-29 16:00:00.250000", "level": "DEFAULT",
        "status_message": "", "input": json.dumps(asked),
        "output": json.dumps({"role": "assistant", "content": "Rainy."}),
        "provided_model_name": "support@v3", "model_parameters": '{"temperature":0.2}',
        "usage_details": {"input": 9, "output": 5, "total": 14, "input_cached_tokens": 4},
        "prompt_name": "", "prompt_version": None, "tool_calls": [],
        "tool_definitions": {"weather": json.dumps(tool)}, "session_id": "s1", "user_id": "u1",
        "trace_name": "chat", "total_cost": 0.25, "updated_at": "2025-11-29 16:00:02.000000",
    } | changes  # fmt: skip


def score(**changes: Any) -> dict[str, Any]:
    return {
        "id": "sc1", "timestamp": "2025-11-29 16:05:00.000000", "project_id": "p",
        "trace_id": "t1", "observation_id": "o1", "session_id": None, "name": "helpful",
        "value": 1, "data_type": "NUMERIC", "string_value": None, "source": "API", "comment": None,
    } | changes  # fmt: skip


def camel(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as the API has it."""
    made = {}
    for name, value in row.items():
        first, *rest = name.split("_")
        made[first + "".join(word.title() for word in rest)] = value
    if "providedModelName" in made:
        made["model"] = made.pop("providedModelName")
    return made
