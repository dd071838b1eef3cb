"""Accept a value by a plain JSON Schema at once.

Most schemas of tools are plain: types, bounds and properties, without references, patterns and
conditions. They take no longer than to look at schema and value, and `jsonschema_rs` looks at both
about ninety times as fast as `jsonschema`. In: a schema that is one. Out: a quick test, None for a
schema that is not plain. What the test does not accept is checked in full by
`traces.verifiers.json_schema`, which says why.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jsonschema_rs
from jsonschema import Draft7Validator, Draft202012Validator

_QUICK: Mapping[Any, Any] = {
    Draft7Validator: jsonschema_rs.Draft7Validator,
    Draft202012Validator: jsonschema_rs.Draft202012Validator,
}
"""By the class of `jsonschema`, for the drafts in which the keywords below mean the same."""
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


def quick_test(kind: Any, schema: Any) -> Callable[[Any], bool] | None:
    """Return a test that accepts values which are valid by a plain schema, and only such.

    `kind` is the validator class of `jsonschema` for the schema's draft. What the test cannot read,
    such as a number of many digits, it does not accept.
    """
    if kind not in _QUICK or not isinstance(schema, Mapping):
        return None
    try:
        if not _is_plain({key: part for key, part in schema.items() if key != "$schema"}):
            return None
        is_valid = _QUICK[kind](schema, validate_formats=False, offline=True).is_valid
    except Exception:
        return None  # too deep, or a number that it cannot hold

    def accepts(value: Any) -> bool:
        try:
            return bool(is_valid(value))
        except Exception:
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
