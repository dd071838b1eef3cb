"""Proves what has the form of JSON, a tool call, Python and a text, and what has not. No model."""

import json

import pytest

from serving.records import Message, ToolCall
from traces.verifiers.form import check_form
from traces.verifiers.registry import checker

SCHEMA = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
TOOL = {
    "type": "function",
    "function": {"name": "water", "parameters": {
        "type": "object", "required": ["bed"], "properties": {"bed": {"type": "integer"}},
    }},
}  # fmt: skip


def said(text: str = "", **arguments: object) -> Message:
    made = (ToolCall(id="1", name="water", arguments=json.dumps(arguments)),) if arguments else ()
    return Message(role="assistant", content=text, tool_calls=made)


@pytest.mark.parametrize("text", ['{"name": "Ann"}', ' {"name": "", "age": 3}\n'])
def test_json_that_fits_has_the_form(text: str) -> None:
    assert check_form(said(text), "json", SCHEMA).passed


@pytest.mark.parametrize(
    "text",
    ["", "Ann", '{"name": 3}', '{"age": 3}', 'Here: {"name": "A"}', '```json\n{"name": "a"}\n```',
     '{"name": "A", "age": NaN}', '{"name": "A", "age": -Infinity}', '{"name": 3, "name": "A"}'],
)  # fmt: skip
def test_other_text_has_not(text: str) -> None:
    assert check_form(said(text), "json", SCHEMA).passed is False


def test_any_json_does_where_no_schema_is_given() -> None:
    assert check_form(said("[1, 2]"), "json").passed
    assert not check_form(said("[1, 2"), "json").passed
    assert not check_form(said("NaN"), "json").passed
    assert check_form(said('[{"a": 1, "a": 2}]'), "json").detail == (
        "key 'a' stands twice in an object"
    )


def test_a_call_has_the_form_if_its_tool_takes_it() -> None:
    assert check_form(said(bed=3), "tool_call", tools=(TOOL,)).passed
    assert not check_form(said(bed="three"), "tool_call", tools=(TOOL,)).passed
    assert not check_form(said(row=3), "tool_call", tools=(TOOL,)).passed
    assert not check_form(said(bed=3), "tool_call", tools=()).passed
    assert not check_form(said('{"bed": 3}'), "tool_call", tools=(TOOL,)).passed


def test_a_call_is_no_text() -> None:
    assert not check_form(said('{"name": "Ann"}', bed=3), "json").passed


def test_python_has_the_form_if_it_defines_something() -> None:
    assert check_form(said("def f(x):\n    return y"), "python").passed
    assert check_form(said("async def f(x):\n    return y"), "python").passed
    assert check_form(said("Sure:\n```python\ndef f():\n    pass\n```"), "python").passed
    for text in ("", "def f(:", "print('hi')", "I would write a function."):
        assert check_form(said(text), "python").passed is False


def test_a_text_has_the_form_if_its_pattern_and_length_fit() -> None:
    year = {"pattern": r"^\d{4}\.?$"}
    assert check_form(said(" 1789.\n"), "text", year).passed
    for text in ("In 1789", "89", "", "1789\n1790"):
        assert check_form(said(text), "text", year).passed is False
    assert check_form(said("  five \n"), "text", {"maxLength": 4}).passed
    assert check_form(said("fives"), "text", {"maxLength": 4}).passed is False
    assert not check_form(said("1789", bed=3), "text", year).passed


def test_any_text_but_none_at_all_does_where_no_schema_is_given() -> None:
    assert check_form(said("Hello."), "text").passed
    for text in ("", " \n"):
        assert check_form(said(text), "text").passed is False
        assert check_form(said(text), "text", {"maxLength": 4}).passed is False


def test_a_pattern_that_is_none_gives_no_verdict() -> None:
    assert check_form(said("1789"), "text", {"pattern": "("}).passed is None


def test_a_reference_names_it() -> None:
    check = checker({"verifier": "form", "form": "json", "schema": SCHEMA})

    assert check is not None
    assert check(said('{"name": "Ann"}')).passed
    assert checker({"verifier": "form", "form": "text", "schema": {"maxLength": 3}})(
        said("Ann")
    ).passed  # type: ignore[misc]
    assert checker({"verifier": "form", "form": "yaml"}) is None
    assert checker({"verifier": "form", "form": "tool_call"}, (TOOL,))(said(bed=1)).passed  # type: ignore[misc]
