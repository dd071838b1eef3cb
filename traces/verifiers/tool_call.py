"""Verify a tool call: the right function with the right arguments, valid by its schema."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for

from serving.records import Message, ToolCall
from traces.verifiers.check import Check


def check_tool_call(
    answer: Message, name: str, arguments: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]
) -> Check:
    """Compare the answer's single tool call with the expected one.

    Strings are compared without regard to case and outer spaces, numbers by value.
    `tools` are in OpenAI form; the call must also be valid by the schema of its tool.
    """
    if len(answer.tool_calls) != 1:
        return Check(False, f"expected one tool call, got {len(answer.tool_calls)}")
    call = answer.tool_calls[0]
    problem = call_problem(call, tools)
    if problem:
        return Check(False, problem)
    given = json.loads(call.arguments)
    if call.name != name:
        return Check(False, f"called {call.name}, expected {name}")
    wrong = sorted(
        key
        for key in set(given) | set(arguments)
        if key not in given
        or key not in arguments
        or _normal(given[key]) != _normal(arguments[key])
    )
    if wrong:
        return Check(False, f"wrong value of {', '.join(wrong)}"[:160])
    return Check(True, f"{name} called as expected")


def call_problem(call: ToolCall, tools: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what is wrong with a call by itself: its JSON, its name or its tool's schema.

    `tools` are in OpenAI form; None means that the tool had to take it.
    """
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return "arguments are not JSON"
    if not isinstance(arguments, dict):
        return "arguments are not a JSON object"
    return _schema_problem(call.name, arguments, tools)


def _schema_problem(
    name: str, arguments: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]
) -> str | None:
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            try:
                error = best_match(
                    _validator(function.get("parameters") or {}).iter_errors(arguments)
                )
            except RecursionError:
                return "arguments are nested too deeply"
            return error and f"arguments break the schema of {name} at {error.json_path[:80]}"
    return f"no tool is called {name[:40]!r}"


def _validator(schema: Mapping[str, Any]) -> Any:
    return validator_for(schema, default=Draft202012Validator)(schema)


def _normal(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip().casefold()
    if isinstance(value, bool):
        return "is", value  # in Python True == 1
    if isinstance(value, list):
        return [_normal(part) for part in value]
    if isinstance(value, dict):
        return {key: _normal(part) for key, part in value.items()}
    return value
