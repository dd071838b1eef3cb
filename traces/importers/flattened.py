"""Nested values that tracing libraries flatten into dotted names, put back together.

`llm.input_messages.0.message.role` is the role of the first of a list of messages. In: a dict
with dotted names, at any depth. Out: dicts and lists.
"""

from typing import Any


def unflattened(attributes: dict[str, Any], prefix: str) -> Any:
    """Return the nested value that names below `prefix` spell; None if there is none.

    Raises:
        ValueError: if a name is both a value and the prefix of others.
    """
    below = prefix + "."
    found = {name[len(below) :]: v for name, v in attributes.items() if name.startswith(below)}
    if attributes.get(prefix) is not None:
        if any(value is not None for value in found.values()):
            raise ValueError(f"{prefix!r} is both a value and the start of others")
        return nested(attributes[prefix])
    return nested(found) if found else None


def nested(value: Any) -> Any:
    """Return a value whose dicts have no dotted names; numbered names become lists.

    What is None is left out: a table has a cell for every name.
    """
    if isinstance(value, list | tuple):
        return [nested(item) for item in value]
    if not isinstance(value, dict):
        return value
    return _listed(_parted(value))


def _parted(value: dict[Any, Any]) -> dict[str, Any]:
    """Return a dict with its dotted names taken apart; numbered names are names still."""
    root: dict[str, Any] = {}
    for name, inner in value.items():
        if inner is None:
            continue
        *path, last = str(name).split(".")
        node = root
        for step in path:
            node = node.setdefault(step, {})
            if not isinstance(node, dict):
                raise ValueError(f"{name!r} is below a value")
        made = nested(inner) if isinstance(inner, dict | list | tuple) else inner
        if isinstance(node.get(last), dict) and isinstance(made, dict):
            node[last] |= made
        elif last in node:
            raise ValueError(f"{name!r} is both a value and the start of others")
        else:
            node[last] = made
    return root


def _listed(node: dict[str, Any]) -> Any:
    """Turn dicts of numbered names into lists; gaps in the numbers close up."""
    made = {k: _listed(inner) if isinstance(inner, dict) else inner for k, inner in node.items()}
    if made and all(key.isdigit() for key in made):
        return [made[key] for key in sorted(made, key=int)]
    return made
