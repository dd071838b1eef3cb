"""Verify generated interfaces: JSON that fits the component schema and shows what was asked for.

The component language has five types. `card` holds others. Any component may carry an `id`; a
button may carry an `action`, a word, and a `target`, the id of the component it acts on. Ids are
unique, targets exist, no key stands twice in an object, and every component asked for is there
with its words, each one for itself. Beside them there is none but the card that holds them.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jsonschema

from traces.verifiers.check import Check
from traces.verifiers.strict_json import KeyTwice, read_json

_WORD = {"type": "string", "pattern": r"^[A-Za-z][A-Za-z0-9_-]{0,63}$"}
_LEAVES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"type": {"const": "text"}, "value": {"type": "string"}}, {}),
    (
        {"type": {"const": "button"}, "label": {"type": "string"}},
        {"action": _WORD, "target": _WORD},
    ),
    ({"type": {"const": "input"}, "label": {"type": "string"}}, {}),
    (
        {"type": {"const": "list"}, "items": {"type": "array", "items": {"type": "string"}}},
        {},
    ),
)


def _object(required: Mapping[str, Any], optional: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, "id": _WORD, **optional},
        "required": list(required),
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
                "items": {"oneOf": [_object(*leaf) for leaf in _LEAVES]},
            },
        },
        {},
    ),
}
"""JSON Schema (2020-12) of an interface."""

_VALIDATOR = jsonschema.Draft202012Validator(COMPONENT_SCHEMA)

_BEGINS = re.compile(r"\s*(?:```(?:json)?\s*)?[{\[]")
_CARD = re.compile(r'"type"\s*:\s*"card"')


def check_interface(text: str, wanted: Sequence[Mapping[str, Any]]) -> Check:
    """Parse, validate by `COMPONENT_SCHEMA`, follow references, and compare with what is `wanted`.

    A wanted component names a type and the values it must show; letter case is ignored. Where
    nothing is named, any interface will do.
    """
    if not all(isinstance(component.get("type"), str) for component in wanted):
        return Check(None, "a wanted component has no type")
    try:
        tree = _parsed(text)
    except KeyTwice as twice:
        return Check(False, str(twice))
    if tree is None:
        return Check(False, "not JSON")
    try:
        error = next(iter(_VALIDATOR.iter_errors(tree)), None)
    except RecursionError:
        return Check(False, "nested too deeply")
    if error is not None:
        return Check(False, f"breaks the component schema at {error.json_path}"[:160])
    problem = _broken_reference(tree) or (_difference(tree, wanted) if wanted else None)
    return Check(False, problem) if problem else Check(True, "valid and complete")


def is_interface(text: str) -> bool:
    """Whether a text sets out to be an interface: JSON, fenced or not, that names a card.

    It may be broken. What is JSON for something else, or words, is no interface.
    """
    return _BEGINS.match(text) is not None and _CARD.search(text) is not None


def parse_json(text: str) -> Any:
    """Return the JSON value of a text, fenced in Markdown or not; None if it is not JSON."""
    try:
        return _parsed(text)
    except KeyTwice:
        return None


def _parsed(text: str) -> Any:
    fenced = re.search(r"```(?:json)?(.*?)```", text, re.DOTALL)
    # JSON may hold a fence in one of its texts.
    for candidate in (text, *([fenced.group(1).strip()] if fenced else ())):
        try:
            return read_json(candidate)
        except KeyTwice:
            raise
        except (ValueError, RecursionError):
            continue
    return None


def _broken_reference(tree: Mapping[str, Any]) -> str | None:
    components = list(_components(tree))
    ids = Counter(component["id"] for component in components if "id" in component)
    for name, count in ids.items():
        if count > 1:
            return f"{count} components have the id {name!r}"
    for component in components:
        target = component.get("target")
        if target is not None and target not in ids:
            return f"a button's target {target!r} is no component's id"
    return None


def _difference(tree: Mapping[str, Any], wanted: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what is asked for and not shown, or shown and not asked for.

    One component serves one wish. The card is there to hold the others, asked for or not.
    """
    shown = [_normal(component) for component in _components(tree)]
    # Those that ask for most choose first.
    for component in sorted(wanted, key=len, reverse=True):
        asked = _normal(component)
        found = next((have for have in shown if asked.items() <= have.items()), None)
        if found is None:
            return f"no {component['type'][:40]} as asked for"
        shown.remove(found)
    more = next((have["type"] for have in shown if have["type"] != '"card"'), None)
    return None if more is None else f"nobody asked for the {json.loads(more)}"


def _components(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield {key: value for key, value in tree.items() if key != "children"}
    yield from tree["children"]


def _normal(component: Mapping[str, Any]) -> dict[str, str]:
    return {
        key: json.dumps(value, sort_keys=True, ensure_ascii=False).casefold()
        for key, value in component.items()
    }
