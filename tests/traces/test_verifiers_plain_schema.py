"""Proves that the quick test of plain schemas accepts what is valid in full, and nothing else.

Nothing is faked. `jsonschema` itself says what is valid.
"""

import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft3Validator, Draft7Validator, Draft202012Validator

from traces.verifiers.json_schema import check_by_schema
from traces.verifiers.plain_schema import quick_test

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**53 + 1, 2**63, 2**64 + 1, -(2**63) - 1, 10**40]),
    st.sampled_from([0.0, -0.0, 1.0, 2.5, 1e308, 5e-324, 2.0**53, 9007199254740992.5]),
    st.sampled_from([math.inf, -math.inf, math.nan]),
    st.sampled_from(["", "a", "é", "e\u0301", "👩‍👩‍👧", "\ud800", "ab", "1"]),
)
NAMES = st.sampled_from(["a", "b", "é", "", "$ref"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
BOUNDS = st.integers(0, 3)
NUMBERS = SCALARS.filter(lambda value: type(value) in (int, float))
LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
    "const": VALUES,
    "enum": st.lists(VALUES, min_size=1, max_size=3),
    "format": st.sampled_from(["email", "date", "no-such-format"]),
    "required": st.lists(NAMES, unique=True, max_size=2),
    "title": st.text(max_size=3),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), NUMBERS),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), BOUNDS),
    **dict.fromkeys(("minProperties", "maxProperties"), BOUNDS),
}


def _with_parts(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    one = ("additionalProperties", "contains", "items", "not", "propertyNames")
    several = dict.fromkeys(("allOf", "anyOf", "oneOf"), st.lists(inner, min_size=1, max_size=2))
    return st.fixed_dictionaries(
        {},
        optional=LEAVES
        | dict.fromkeys(one, inner)
        | several
        | {"properties": st.dictionaries(NAMES, inner, max_size=3)},
    )


SCHEMAS = st.recursive(
    st.booleans() | st.fixed_dictionaries({}, optional=LEAVES), _with_parts, max_leaves=6
)


@pytest.mark.parametrize("kind", [Draft7Validator, Draft202012Validator])
@settings(max_examples=400, deadline=None)
@given(SCHEMAS, VALUES)
@example({"const": 1}, True)
@example({"enum": [0.0]}, False)
@example({"type": "integer"}, 1.0)
@example({"maximum": 9007199254740992.5}, 2**53 + 1)
@example({"const": 2**64 + 1}, 2**64 + 1.0)
@example({"items": {"minimum": 0, "maximum": 1}}, [math.inf])
@example({"not": {"type": "number"}}, math.inf)
@example({"enum": [math.inf, 1]}, None)
def test_what_is_accepted_is_valid(kind: Any, schema: Any, value: Any) -> None:
    accepts = quick_test(kind, schema)

    if accepts is not None and accepts(value):
        assert kind(schema).is_valid(value)


CALL = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 40, "description": "where"},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "unit": {"anyOf": [{"enum": ["metric", "imperial"]}, {"type": "null"}]},
    },
    "required": ["city"],
    "additionalProperties": False,
}


def test_the_schema_of_a_tool_is_plain() -> None:
    accepts = quick_test(Draft7Validator, CALL)

    assert accepts is not None
    assert accepts({"city": "Rome", "days": [1, 2], "unit": None})
    assert not accepts({"city": "Rome", "days": [-1]})
    assert check_by_schema(CALL, {"city": "Rome", "days": [-1]}).detail == (
        "breaks the schema at $.days[0] (minimum)"
    )


DEEP: dict[str, Any] = {}
for _ in range(400):
    DEEP = {"items": DEEP}


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "^a"},
        {"multipleOf": 0.01},
        {"$ref": "#"},
        {"properties": {"a": {"$ref": "#"}}},
        {"items": {"uniqueItems": True}},
        {"patternProperties": {"^(a|aa)+$": True}},
        {"anyOf": [{"$schema": "http://json-schema.org/draft-07/schema#"}]},
        {"items": [True]},
        DEEP,
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_only_known_keywords_are_plain(schema: Any) -> None:
    assert quick_test(Draft202012Validator, schema) is None


def test_the_check_that_cannot_be_stopped_gets_little_to_do() -> None:
    # Each of so many items is compared with each alternative.
    numbers = [*range(10_000)]
    schema = {"items": {"anyOf": [{"const": number} for number in numbers]}}
    accepts = quick_test(Draft202012Validator, schema)

    assert accepts is not None
    assert accepts(numbers[:5])
    assert not accepts(numbers)
    assert check_by_schema(schema, numbers[-1:] * 10_000).detail == (
        "the schema takes too long to check"
    )


def test_a_number_that_is_not_finite_is_held_to_its_bound() -> None:
    schema = {"properties": {"n": {"maximum": 100}}}

    assert check_by_schema(schema, {"n": math.inf}).passed is False
    assert check_by_schema({"const": math.inf}, None).passed is False
    assert check_by_schema({"maximum": math.inf}, 5).passed is True


DEEP_VALUE: list[Any] = []
for _ in range(100_000):
    DEEP_VALUE = [DEEP_VALUE]


@pytest.mark.parametrize(
    "value",
    ["\ud800", 10**5000, math.nan, {1: 2}, object(), DEEP_VALUE],
    ids=["half a character", "many digits", "no number", "no name", "no JSON", "deep"],
)
def test_what_cannot_be_read_is_not_accepted_and_raises_nothing(value: Any) -> None:
    accepts = quick_test(Draft202012Validator, {"type": ["string", "number", "object", "array"]})

    assert accepts is not None
    assert not accepts(value)


def test_of_other_drafts_no_schema_is_plain() -> None:
    assert quick_test(Draft3Validator, {"type": "integer"}) is None
