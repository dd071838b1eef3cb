"""Verify a tool call: the right function with the right arguments, valid by its schema.

From a schema that is none, or cannot be checked, nothing follows: `check_call` then gives no
verdict, and a call is right if it is the expected one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from serving.records import Message, ToolCall
from traces.verifiers.check import Check
from traces.verifiers.json_schema import check_by_schema
from traces.verifiers.strict_json import KeyTwice, read_json


def check_tool_call(
    answer: Message, name: str, arguments: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]
) -> Check:
    """Compare the answer's single tool call with the expected one.

    Strings are compared without regard to case and outer spaces, numbers by value.
    `tools` are in OpenAI form; the call must also be valid by the schema of its tool, as far as
    that can be said.
    """
    if len(answer.tool_calls) != 1:
        return Check(False, f"expected one tool call, got {len(answer.tool_calls)}")
    call = answer.tool_calls[0]
    found = check_call(call, tools)
    if found.passed is False:
        return found
    if call.name != name:
        return Check(False, f"called {call.name}, expected {name}")
    given = _arguments(call)
    if isinstance(given, str):
        return Check(None, found.detail)
    try:
        keys = sorted({*given, *arguments})
        wrong = [key for key in keys if _differs(key, given, arguments)]
    except RecursionError:
        return Check(False, "arguments are nested too deeply")
    if wrong:
        return Check(False, f"wrong value of {', '.join(wrong)}"[:160])
    unread = "" if found.passed else f"; {found.detail}"
    return Check(True, f"{name} called as expected{unread}"[:160])


def check_call(call: ToolCall, tools: Sequence[Mapping[str, Any]]) -> Check:
    """Check a call by itself: its name, its JSON and its tool's schema; held to no expectation.

    `tools` are in OpenAI form. Passed means that its tool had to take it. There is no verdict where
    the schema has none, on a tool that is no function, and on a name that is not offered beside
    tools whose functions the log does not name.
    """
    tool = next((tool for tool in tools if _function(tool).get("name") == call.name), None)
    if tool is None:
        if any(_kind(tool) != "function" for tool in tools):
            return Check(None, f"{call.name[:40]!r} may be of a tool that is no function")
        return Check(False, f"no tool is called {call.name[:40]!r}")
    if _kind(tool) != "function":
        return Check(None, f"{call.name[:40]} is no function, and what it takes is not known")
    arguments = _arguments(call)
    if isinstance(arguments, str):
        return Check(False, arguments)
    found = check_by_schema(_function(tool).get("parameters") or {}, arguments)
    if found.passed is False:
        where = found.detail.removeprefix("breaks the schema")
        return Check(False, f"arguments break the schema of {call.name[:40]}{where}"[:160])
    return Check(found.passed, f"{call.name[:40]}: {found.detail}"[:160])


def call_problem(call: ToolCall, tools: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what `check_call` finds wrong with a call; None where nothing is known to be."""
    found = check_call(call, tools)
    return found.detail if found.passed is False else None


def _arguments(call: ToolCall) -> dict[str, Any] | str:
    """Return the arguments of a call, or why it has none.

    An empty text is no arguments: so some engines write the call of a tool that takes none.
    """
    if not call.arguments.strip():
        return {}
    try:
        value = read_json(call.arguments)
    except KeyTwice as twice:
        return f"arguments are not JSON: {twice}"
    except (ValueError, RecursionError):
        return "arguments are not JSON"
    return value if isinstance(value, dict) else "arguments are not a JSON object"


def _function(tool: Any) -> Mapping[str, Any]:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    return function if isinstance(function, Mapping) else {}


def _kind(tool: Any) -> str:
    """Return the type of a tool; what says none is a function, as in older protocols."""
    return str(tool.get("type") or "function") if isinstance(tool, Mapping) else "function"


def _differs(key: str, given: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    if key not in given or key not in wanted:
        return True
    return bool(_normal(given[key]) != _normal(wanted[key]))


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
