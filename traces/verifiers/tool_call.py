"""Verify a tool call: the right function with the right arguments, valid by its schema.

Schemas come out of logs: what they refer to elsewhere is not fetched, a pattern gets little time,
and one that is no schema is passed over, for then nothing follows from it.
"""

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend, validator_for
from referencing import Registry

from serving.records import Message, ToolCall
from traces.verifiers.check import Check

_PATTERN_LIMIT_S = 0.2


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
    try:
        keys = sorted({*given, *arguments})
        wrong = [key for key in keys if _differs(key, given, arguments)]
    except RecursionError:
        return Check(False, "arguments are nested too deeply")
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


def _differs(key: str, given: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    if key not in given or key not in wanted:
        return True
    return bool(_normal(given[key]) != _normal(wanted[key]))


def _schema_problem(
    name: str, arguments: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]
) -> str | None:
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and function.get("name") == name:
            try:
                error = _first_error(function.get("parameters") or {}, arguments)
            except RecursionError:
                return "arguments are nested too deeply"
            except Exception:
                # No schema: jsonschema raises whatever its keywords stumble over.
                return None
            return error and f"arguments break the schema of {name} at {error.json_path[:80]}"
    return f"no tool is called {name[:40]!r}"


def _first_error(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
    kind = _bounded(validator_for(schema, default=Draft202012Validator))
    return best_match(kind(schema, registry=Registry()).iter_errors(arguments))


@functools.cache
def _bounded(kind: Any) -> Any:
    """Return a validator class that fetches nothing and does not hang on a pattern."""
    return extend(kind, {"pattern": _pattern})  # type: ignore[no-untyped-call]


def _pattern(
    validator: Any, pattern: str, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    import regex  # type: ignore[import-untyped]  # slow to import, rarely needed

    if isinstance(instance, str) and not regex.search(
        pattern, instance, timeout=_PATTERN_LIMIT_S, concurrent=True
    ):
        yield ValidationError(f"does not match {pattern!r:.80}")


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
