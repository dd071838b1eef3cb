"""Verify generated interfaces: JSON that fits the component schema and shows what was asked for.

The component language has five types. `card` holds others; every `button`'s
`action` must be a word; every component asked for must be there with its words.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jsonschema

from traces.verifiers.check import Check

_LEAVES: tuple[dict[str, Any], ...] = (
    {"type": {"const": "text"}, "value": {"type": "string"}},
    {"type": {"const": "button"}, "label": {"type": "string"}},
    {"type": {"const": "input"}, "label": {"type": "string"}},
    {"type": {"const": "list"}, "items": {"type": "array", "items": {"type": "string"}}},
)


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


COMPONENT_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    **_object(
        {
            "type": {"const": "card"},
            "title": {"type": "string"},
            "children": {
                "type": "array",
                "minItems": 1,
                "items": {"oneOf": [_object(leaf) for leaf in _LEAVES]},
            },
        }
    ),
}
"""JSON Schema (2020-12) of an interface."""

_VALIDATOR = jsonschema.Draft202012Validator(COMPONENT_SCHEMA)


def check_interface(text: str, wanted: Sequence[Mapping[str, Any]]) -> Check:
    """Parse, validate by `COMPONENT_SCHEMA`, and look for every component in `wanted`.

    A wanted component names a type and the values it must show; letter case is ignored.
    """
    tree = parse_json(text)
    if tree is None:
        return Check(False, "not JSON")
    try:
        error = next(iter(_VALIDATOR.iter_errors(tree)), None)
    except RecursionError:
        return Check(False, "nested too deeply")
    if error is not None:
        return Check(False, f"breaks the component schema at {error.json_path}")
    shown = [_normal(component) for component in _components(tree)]
    for component in wanted:
        asked = _normal(component)
        if not any(asked.items() <= have.items() for have in shown):
            return Check(False, f"no {component['type']} as asked for")
    return Check(True, "valid and complete")


def parse_json(text: str) -> Any:
    """Return the JSON value of a text, fenced in Markdown or not; None if it is not JSON."""
    fenced = re.search(r"```(?:json)?\s*(.*?)```", text, re.DOTALL)
    try:
        return json.loads(fenced.group(1) if fenced else text)
    except (ValueError, RecursionError):
        return None


def _components(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield {key: value for key, value in tree.items() if key != "children"}
    yield from tree["children"]


def _normal(component: Mapping[str, Any]) -> dict[str, str]:
    return {
        key: json.dumps(value, sort_keys=True, ensure_ascii=False).casefold()
        for key, value in component.items()
    }
