"""Proves what JSON Schemas out of logs say of a value, and that none hangs or breaks the check.

Nothing is faked. Where a schema cannot say, the check has no verdict and says why.
"""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.records import Message, ToolCall
from traces.verifiers.json_schema import check_by_schema
from traces.verifiers.tool_call import check_call, check_tool_call

KEYS = {"patternProperties": {"^n_": {"type": "integer"}}, "additionalProperties": False}
DOUBLING = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)}
ENDLESS = {"$defs": {**DOUBLING, "a40": True}, "$ref": "#/$defs/a0"}
BOMB = "^(a|aa)+$"
LONG = "a" * 5000 + "!"
CENTS = {"properties": {"x": {"multipleOf": 0.01}}}
DRAFT_3 = {"$schema": "http://json-schema.org/draft-03/schema#"}


@pytest.mark.parametrize(
    ("schema", "value", "passed"),
    [
        ({"type": "integer"}, 3, True),
        ({"type": "integer"}, "3", False),
        (True, 3, True),
        (False, 3, False),
        (KEYS, {"n_a": 1}, True),
        (KEYS, {"n_a": "1"}, False),
        (KEYS, {"a": 1}, False),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "null"}}, {"b": None}, True),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "null"}}, {"b": 1}, False),
        ({"additionalProperties": False}, [1], True),
        ({"pattern": r"^\p{Lu}"}, "Ärger", True),
        ({"$defs": {"n": {"type": "integer"}}, "items": {"$ref": "#/$defs/n"}}, [1, "2"], False),
        ({"uniqueItems": True}, [1, True, "1", [1], {"a": 1}, None, False, 0], True),
        ({"uniqueItems": True}, [{"a": [1], "b": 2}, {"b": 2.0, "a": [1.0]}], False),
        ({"uniqueItems": True}, [{"a": [1]}, {"a": [True]}], True),
        ({"uniqueItems": False}, [1, 1], True),
        ({"uniqueItems": True}, [{"a": n} for n in range(100_000)], True),
    ],
)
def test_a_value_is_valid_or_not(schema: Any, value: Any, passed: bool) -> None:
    assert check_by_schema(schema, value).passed is passed


def test_what_is_wrong_is_said_with_its_place() -> None:
    schema = {"properties": {"rooms": {"items": {"required": ["name"]}}}}

    found = check_by_schema(schema, {"rooms": [{"name": "hall"}, {}]})

    assert found.detail == "breaks the schema at $.rooms[1] (required)"


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ("text", 1, "is no JSON Schema"),
        (None, 1, "is no JSON Schema"),
        ([1], 1, "is no JSON Schema"),
        ({1, 2}, 1, "not JSON"),
        ({"type": "float"}, 1, "is no JSON Schema at $.type"),
        ({"properties": {"x": {"required": True}}}, {}, "is no JSON Schema at $.properties.x"),
        ({"$schema": ["x"]}, {}, "'$schema' is no address"),
        (DRAFT_3 | {"type": "x"}, {}, "unknown type"),
        ({"$ref": "#/nowhere"}, {}, "refers to '/nowhere', which is not there"),
        ({"$ref": "http://["}, {}, "which is not there"),
        ({"pattern": "("}, "x", "a pattern that is none"),
        ({"pattern": BOMB}, LONG, "takes too long"),
        ({"patternProperties": {BOMB: True}}, {LONG: 1}, "takes too long"),
        ({"patternProperties": {BOMB: True}, "additionalProperties": False}, {LONG: 1}, "too long"),
        ({"propertyNames": {"pattern": BOMB}}, {LONG: 1}, "takes too long"),
        ({"patternProperties": {}, "unevaluatedProperties": False}, {}, "bounded time"),
        ({"$ref": "#"}, {}, "too deep"),
        (ENDLESS, {}, "takes too long"),
        (CENTS, {"x": math.inf}, "cannot be checked"),
        ({"$ref": "#/x", "x": 5}, {}, "cannot be checked: TypeError"),
        ({"$ref": "#/x", "x": {"required": 5}}, {}, "cannot be checked: TypeError"),
        ({"items": {"anyOf": [{"const": n} for n in range(1000)]}}, [-1] * 9999, "takes too long"),
    ],
)
def test_a_schema_that_cannot_say_gives_no_verdict(schema: Any, value: Any, reason: str) -> None:
    found = check_by_schema(schema, value)

    assert found.passed is None
    assert reason in found.detail
    assert len(found.detail.splitlines()) == 1


@pytest.mark.parametrize(
    ("step", "value", "passed"),
    [
        (0.01, 19.99, True),
        (0.01, 19.999, False),
        (0.1, 0.3, True),
        (0.1, 10**400, True),
        (1e-300, 3e300, True),
        (0.3, 1, False),
        (2, 2**60 + 1, False),
        (2, 4.0, True),
        (0.01, "19.99", True),
        (0.01, True, True),
    ],
)
def test_a_multiple_is_told_by_decimal_digits(step: float, value: Any, passed: bool) -> None:
    assert check_by_schema({"multipleOf": step}, value).passed is passed
    assert check_by_schema(DRAFT_3 | {"divisibleBy": step}, value).passed is passed


def test_a_value_is_judged_after_whatever_others_took_too_long() -> None:
    schema = {"title": "of this test alone", "pattern": BOMB}

    for _ in range(4):
        assert check_by_schema(schema, LONG).detail == "the schema takes too long to check"

    assert check_by_schema(schema, "aa").passed
    assert check_by_schema(schema, "ab").passed is False


WORDS = st.sampled_from(
    ["type", "properties", "items", "required", "$ref", "$id", "$dynamicRef", "enum", "pattern",
     "anyOf", "not", "additionalProperties", "patternProperties", "multipleOf", "minimum", "#",
     "$schema", "http://json-schema.org/draft-04/schema#", "object", "string", "a", "[", "//["]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=5),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(WORDS, part, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=300)
@given(VALUES, VALUES)
def test_no_schema_and_no_value_is_too_odd(schema: Any, value: Any) -> None:
    assert check_by_schema(schema, value).detail


def call(name: str, arguments: Any) -> ToolCall:
    return ToolCall(id="1", name=name, arguments=json.dumps(arguments))


def tool(parameters: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}} | fields


@pytest.mark.parametrize(
    ("tools", "passed", "reason"),
    [
        ([tool({"required": ["a"]})], False, "arguments break the schema of f at $ (required)"),
        ([tool({"type": "float"})], None, "f: the schema is no JSON Schema at $.type"),
        ([tool({})], True, "f: valid by the schema"),
        ([tool({}) | {"type": "custom"}], None, "f is no function, and what it takes is not known"),
        ([{"type": "mcp", "server_label": "x"}], None, "'f' may be of a tool that is no function"),
        ([], False, "no tool is called 'f'"),
    ],
)
def test_a_call_by_itself(tools: list[Any], passed: bool | None, reason: str) -> None:
    found = check_call(call("f", {}), tools)

    assert (found.passed, found.detail) == (passed, reason)


def test_an_expected_call_is_right_though_its_schema_is_none() -> None:
    answer = Message(role="assistant", tool_calls=(call("f", {"a": 1}),))
    tools = [tool({"type": "float"})]

    right = check_tool_call(answer, "f", {"a": 1}, tools)
    wrong = check_tool_call(answer, "f", {"a": 2}, tools)

    assert right.passed
    assert right.detail == "f called as expected; f: the schema is no JSON Schema at $.type"
    assert wrong.passed is False


def test_free_text_for_a_tool_that_is_no_function_has_no_verdict() -> None:
    written = ToolCall(id="1", name="f", arguments="print(1)")
    answer = Message(role="assistant", tool_calls=(written,))

    assert check_tool_call(answer, "f", {}, [tool({}) | {"type": "custom"}]).passed is None
