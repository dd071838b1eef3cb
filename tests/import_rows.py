"""Runs importers on single items, and damages items as broken exports do."""

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from traces.importers.rows import Row
from traces.sources.detect import format_of, parse_item
from traces.sources.items import Context, Item

DATA = Path(__file__).parent / "data"
ODD: tuple[Any, ...] = (
    None, "", 0, -1, 1e30, True, "x", "[]", "{", '{"a": [1, null]}', [], {}, [None], [[]], {"": 1},
    [{}], "2025-13-45", "é\ud800", 2**70,
)  # fmt: skip
"""Values that stand where others are expected."""


def lines(name: str) -> list[dict[str, Any]]:
    """Return the items of a recording under `tests/data`."""
    return [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines()]


def rows_of(value: Any) -> list[Row]:
    """Return the rows of an item of whatever format it is known to be."""
    format = format_of(value)
    assert format is not None
    return rows_as(format, value)


def rows_as(format: str, value: Any) -> list[Row]:
    """Return the rows of an item in a file of this format."""
    return parse_item(Item(0, value=value), Context(format, "a file", "sha256:0"))


def hop_of(value: Any) -> dict[str, Any]:
    """Return the only row of an item that is a call, its nested values decoded."""
    (row,) = rows_of(value)
    assert row.table == "hops", row.values
    return decoded(row)


def decoded(row: Row) -> dict[str, Any]:
    """Return a row's values: `said` for the messages, and nested ones decoded."""
    values = dict(row.values)
    for name in ("completion", "params", "tools", "correction"):
        if isinstance(values.get(name), str):
            values[name] = json.loads(values[name])
    if row.table == "hops":
        values["said"] = [json.loads(body.text) for body in values["bodies"]]
    return values


def damaged(value: Any, seed: int, count: int) -> Iterator[Any]:
    """Yield copies of an item with one or two fields dropped, replaced or cut."""
    random_ = random.Random(seed)
    for _ in range(count):
        copied = copy.deepcopy(value)
        for _ in range(random_.choice((1, 1, 2))):
            _damage(copied, random_)
        yield copied


def _damage(value: Any, random_: random.Random) -> None:
    places = list(_places(value))
    if not places:
        return
    holder, key = random_.choice(places)
    match random_.randrange(3):
        case 0:
            del holder[key]
        case 1 if isinstance(holder[key], str) and len(holder[key]) > 2:
            holder[key] = holder[key][: random_.randrange(len(holder[key]))]
        case _:
            holder[key] = copy.deepcopy(random_.choice(ODD))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container with every key of it, at any depth."""
    keys = value if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])
