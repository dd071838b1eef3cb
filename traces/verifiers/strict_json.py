"""Read JSON as its standard has it (RFC 8259), which `json.loads` alone does not.

In: a text that a model wrote. Out: its value. NaN and infinities are no JSON; an object with a
key twice is read by one program in this way and by another in that, so it is none here either.
"""

import json
from typing import Any


class KeyTwice(ValueError):
    """A key stands twice in an object."""


def read_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        KeyTwice: naming the key.
        ValueError: if it is not JSON otherwise.
        RecursionError: if it is nested too deeply to be read.
    """
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise KeyTwice(f"key {key[:40]!r} stands twice in an object")
        made[key] = value
    return made


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
