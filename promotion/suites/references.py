"""Whether a reference can judge: told before a suite is asked, not when its answers have come.

In: a reference that describes a check, that check, and the tools that are offered. Out: why it
could judge no answer, or let none pass.
"""

import ast
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import regex  # type: ignore[import-untyped]
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

from serving.records import Message, ToolCall
from traces.verifiers.registry import Checker
from traces.verifiers.sandbox.trials import why_idle
from traces.verifiers.tool_call import check_tool_call

_PATTERNS = FormatChecker(formats=())
_PATTERNS.checks("regex", raises=regex.error)(
    lambda pattern: not isinstance(pattern, str) or regex.compile(pattern) is not None
)


def why_useless(
    check: Checker, reference: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]
) -> str | None:
    """Return why a reference judges no answer or lets none pass; None where nothing says so.

    What it calls right is put to it, where it says that, else something of the kind it asks for.
    """
    match reference["verifier"], reference.get("form"):
        case "tool_call", _:
            name, arguments = reference["name"], reference["arguments"]
            call = ToolCall(id="", name=name, arguments=json.dumps(arguments))
            right = Message(role="assistant", tool_calls=(call,))
            found = check_tool_call(right, name, arguments, tools)
            return None if found.passed else found.detail
        case "exact" | "short_answer", _:
            checks = [check(_said(answer)) for answer in reference["accepted"]]
            return None if any(found.passed for found in checks) else checks[0].detail
        case "python_tests", _:
            return _no_tests("\n".join(reference["tests"]))
        case "form", "tool_call":
            return None if tools else "no tool is offered"
    found = check(_said("null"))
    return found.detail if found.passed is None else _bad_pattern(reference.get("schema"))


def _said(text: str) -> Message:
    return Message(role="assistant", content=text)


def _no_tests(tests: str) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that of comparing with a number by `is`
        try:
            compile(tests, "<tests>", "exec")
            return why_idle(ast.parse(tests))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return f"the tests are no Python: {error}"


def _bad_pattern(schema: Mapping[str, Any] | None) -> str | None:
    """Return which pattern of a schema is none; a check comes only to those for its answer."""
    if schema is None or "attern" not in json.dumps(schema):
        return None
    kind: Any = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema, format_checker=_PATTERNS)
    except SchemaError as error:
        return f"the schema has a pattern that is none at {error.json_path}"
    return None
