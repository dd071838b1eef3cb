"""Verify the form of an answer, whatever it says: JSON, a tool call, Python, or a shape of text.

A form that was asked for and kept is the least that a program behind the answer needs. JSON is
the whole answer, without a fence around it: that is what "nothing else" asks for. A shape of text
(three words, a date, two lines) is a schema of strings: its pattern and its lengths.
"""

import ast
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from serving.records import Message
from traces.verifiers.check import Check
from traces.verifiers.json_schema import check_by_schema
from traces.verifiers.python_tests import extract_code
from traces.verifiers.strict_json import KeyTwice, read_json
from traces.verifiers.tool_call import call_problem

Form = Literal["json", "tool_call", "python", "text"]


def check_form(
    answer: Message,
    form: Form,
    schema: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> Check:
    """Pass if the answer has the form: by `schema` for JSON and text, by `tools` for calls."""
    if form == "tool_call":
        return _calls(answer, tools)
    if answer.tool_calls:
        return Check(False, f"called {answer.tool_calls[0].name[:40]!r} where text is wanted")
    if form == "python":
        return _python(answer.content)
    return (_text if form == "text" else _json)(answer.content, schema)


def _calls(answer: Message, tools: Sequence[Mapping[str, Any]]) -> Check:
    if not answer.tool_calls:
        return Check(False, "no tool call")
    problems = [call_problem(call, tools) for call in answer.tool_calls]
    broken = next((problem for problem in problems if problem), None)
    return Check(broken is None, broken or "every call is one that its tool takes")


def _json(text: str, schema: Mapping[str, Any] | None) -> Check:
    try:
        value = read_json(text)
    except KeyTwice as twice:
        return Check(False, str(twice))
    except (ValueError, RecursionError):
        return Check(False, "the answer is not JSON")
    if schema is None:
        return Check(True, "the answer is JSON")
    return check_by_schema(dict(schema), value)


def _text(text: str, schema: Mapping[str, Any] | None) -> Check:
    given = text.strip()
    if not given:
        return Check(False, "the answer is empty")
    return check_by_schema({"type": "string", **(schema or {})}, given)


def _python(text: str) -> Check:
    code = extract_code(text)
    if not code.strip():
        return Check(False, "no code")
    try:
        made = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Check(False, "the code is not Python")
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    defined = any(isinstance(part, kinds) for part in made.body)
    return Check(defined, "Python that defines something" if defined else "nothing is defined")
