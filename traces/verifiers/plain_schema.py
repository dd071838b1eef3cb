"""Accept a value by a plain JSON Schema at once.

Most schemas of tools are plain: types, bounds, properties and alternatives, without references and
patterns. `jsonschema_rs` looks at them about ninety times as fast as `jsonschema`. It cannot be
stopped, though, and knows no infinity, so that it is asked only where schema and value are small
and hold finite numbers. In: a schema that is one. Out: a quick test, None for a schema that is not
plain. What the test does not accept is checked in full by `traces.verifiers.json_schema`, which
says why.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import jsonschema_rs
from jsonschema import Draft7Validator, Draft202012Validator

_QUICK: Mapping[Any, Any] = {
    Draft7Validator: jsonschema_rs.Draft7Validator,
    Draft202012Validator: jsonschema_rs.Draft202012Validator,
}
"""By the class of `jsonschema`, for the drafts in which the keywords below mean the same."""
_MOST_WORK = 10**7
"""Characters of the schema times those of the value, up to which they are looked at: alternatives
for each of many items take that many steps, a few hundredths of a second."""
_ONE = frozenset(("additionalProperties", "contains", "items", "not", "propertyNames"))
"""Keywords with one schema."""
_SEVERAL = frozenset(("allOf", "anyOf", "oneOf"))
_BY_NAME = frozenset(("properties",))
_OTHER = frozenset(
    ("const", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "maximum", "maxItems",
     "maxLength", "maxProperties", "minimum", "minItems", "minLength", "minProperties", "required",
     "type", "$comment", "default", "deprecated", "description", "examples", "readOnly", "title",
     "writeOnly")
)  # fmt: skip
"""Keywords that hold no schema; `multipleOf` is not among them: it is reckoned by decimals."""
_UNREADABLE = (TypeError, ValueError, RecursionError)
"""What is raised for half a character, a number that is not finite, what is no JSON or too deep."""

_in_digits = json.JSONEncoder(allow_nan=False).encode
"""Renders a value, or raises `ValueError` for a number that is not finite."""


def quick_test(kind: Any, schema: Any) -> Callable[[Any], bool] | None:
    """Return a test that accepts JSON values which are valid by a plain schema, and only such.

    `kind` is the validator class of `jsonschema` for the schema's draft. What the test cannot read,
    such as half a character, it does not accept.
    """
    if kind not in _QUICK or not isinstance(schema, Mapping):
        return None
    try:
        if not _is_plain({key: part for key, part in schema.items() if key != "$schema"}):
            return None
        most = _MOST_WORK / len(_in_digits(schema))
        is_valid = _QUICK[kind](schema, validate_formats=False, offline=True).is_valid
    except _UNREADABLE:
        return None

    def accepts(value: Any) -> bool:
        try:
            return len(_in_digits(value)) <= most and bool(is_valid(value))
        except _UNREADABLE:
            return False

    return accepts


def _is_plain(schema: Any) -> bool:
    """Return whether it has known keywords only."""
    if isinstance(schema, bool):
        return True
    if not isinstance(schema, Mapping):
        return False
    for key, part in schema.items():
        if key in _OTHER:
            continue
        if key in _ONE:
            parts = [part]
        elif key in _SEVERAL and isinstance(part, list):
            parts = part
        elif key in _BY_NAME and isinstance(part, Mapping):
            parts = [*part.values()]
        else:
            return False
        if not all(map(_is_plain, parts)):
            return False
    return True
