"""What an answer shows by itself, without anybody having said what would have been right.

A call that no tool takes, a call whose tool reports an error that nobody answered, JSON that is not
what was asked for. Such checks can fail an answer and never pass one: that a call is valid does not
show that the task was solved. In: the last standing answer of a turn. Out: checks that failed, by
name. Pure; whatever a log holds, a check that cannot be made finds nothing.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from serving.records import Message
from traces.verifiers.check import Check
from traces.verifiers.interface import check_interface, is_interface
from traces.verifiers.json_schema import check_by_schema
from traces.verifiers.strict_json import KeyTwice, read_json
from traces.verifiers.tool_call import check_call
from traces.verifiers.tool_result import tool_error

CALL_SCHEMA = "call_schema"
"""A call of an unknown tool, with broken arguments, or against its tool's schema."""
TOOL_RESULT = "tool_result"
"""The turn ended with a call whose result reports an error."""
ANSWER_SCHEMA = "answer_schema"
"""Not the JSON that the request asked for."""
COMPONENT_SCHEMA = "component_schema"
"""An interface that breaks the component schema or refers to what is not there."""

UNFINISHED = ("length", "max_tokens", "content_filter", "abort", "error")
"""Finish reasons of an answer that was cut, of the OpenAI protocol and as engines say it: half an
answer is not checked."""
_LISTS = 256
"""Lists of tools, and parameters, that are kept read: those of a deployment are few."""


class FinalAnswer(NamedTuple):
    """The last standing answer of a turn, and what it was asked under."""

    answer: Message
    tools: str = "[]"
    """JSON text of the tools it was offered; an empty list says nothing of them."""
    params: str = "{}"
    """JSON text of the request's parameters."""
    finish_reason: str | None = None
    tail: Sequence[Message] = ()
    """What came after it, such as results that no call saw."""
    writes_interfaces: bool = False
    """Whether interfaces are the business of the slot that answered."""


def failed_checks(final: FinalAnswer) -> Iterator[tuple[str, Check]]:
    """Yield what the answer fails, by the name of the check.

    A call that its tool answered without an error was taken, whatever its schema says. A result
    that a later call saw is not looked at: whether the answer made the best of it is not known.
    """
    if final.finish_reason in UNFINISHED:
        return
    if final.answer.tool_calls:
        yield from _of_calls(final)
    elif final.answer.content.strip():
        yield from _of_text(final)


def _of_calls(final: FinalAnswer) -> Iterator[tuple[str, Check]]:
    results = {m.tool_call_id: m.content for m in final.tail if m.role == "tool"}
    errors = {key: tool_error(content) for key, content in results.items()}
    tools = tools_in(final.tools)
    for call in final.answer.tool_calls if tools else ():
        found = check_call(call, tools)
        taken = call.id in results and errors[call.id] is None
        if found.passed is False and not taken:
            yield CALL_SCHEMA, found
            break
    for call in final.answer.tool_calls:
        error = errors.get(call.id)
        if error is not None:
            yield TOOL_RESULT, Check(False, f"{call.name[:40]} ended the turn with: {error}"[:160])
            break


def _of_text(final: FinalAnswer) -> Iterator[tuple[str, Check]]:
    text = final.answer.content
    wanted = _wanted(final.params)
    if wanted is not None:
        found = _answers(text, wanted)
        if found.passed is False:
            detail = f"not the JSON that was asked for: {found.detail}"
            yield ANSWER_SCHEMA, Check(False, detail[:160])
    # Words and other JSON may be right all the same, or show a wrong route.
    if final.writes_interfaces and is_interface(text):
        found = check_interface(text, ())
        if found.passed is False:
            yield COMPONENT_SCHEMA, found


def _answers(text: str, schema: Mapping[str, Any]) -> Check:
    try:
        value = read_json(text)
    except RecursionError:
        return Check(None, "too deep to check")
    except KeyTwice as twice:
        return Check(False, str(twice))
    except ValueError:
        return Check(False, "no JSON at all")
    return check_by_schema(schema, value)


@lru_cache(maxsize=_LISTS)
def tools_in(text: str) -> tuple[Mapping[str, Any], ...]:
    """Return the tools that a hop was offered; none where the log does not say."""
    tools = _json(text)
    return tuple(t for t in tools if isinstance(t, dict)) if isinstance(tools, list) else ()


@lru_cache(maxsize=_LISTS)
def _wanted(params: str) -> Mapping[str, Any] | None:
    """Return the schema of the JSON that was asked for; None where none was.

    `response_format` of the OpenAI protocol, `structured_outputs.json` and `guided_json` of vLLM.
    """
    values = _json(params)
    if not isinstance(values, dict):
        return None
    match values.get("response_format"):
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return schema
        case {"type": "json_object"}:
            return {}
    structured = values.get("structured_outputs")
    given = structured.get("json") if isinstance(structured, dict) else values.get("guided_json")
    found = _json(given) if isinstance(given, str) else given
    return found if isinstance(found, dict) else None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
