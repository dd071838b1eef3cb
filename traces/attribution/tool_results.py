"""Results of tools beside each other: how one looks, and whether equal calls contradict it.

Pure. What a tool gives back may change with time and with who asks, so that equal calls prove
something only close in time, and by themselves only for the same user.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from traces.attribution.intervals import wilson
from traces.attribution.literals import folded

CLOSE_S = 600.0
"""Seconds in which the same call should give the same result."""
DECLARED_CLOSE_S = 86_400.0
"""The same for a tool that declares that repeating a call changes nothing."""
COMPARED_CHARS = 2000
"""Of a result; what comes after is not compared."""
_USUAL = 0.8
"""Share of results that look alike, by the lower end of its interval, for another look to tell;
of 16 all have to."""

Shapes = Mapping[str, int]
"""How often results of a tool were an `object`, an `array`, another JSON `value` or `text`."""


class Elsewhere(NamedTuple):
    """The result of an equal call in another turn."""

    result: str
    """Its first `COMPARED_CHARS`."""
    later_s: float
    """Seconds after this call; negative before it."""
    same_user: bool


def shape_of(result: str) -> str:
    """Return how a result looks, as `Shapes` has it."""
    try:
        value = json.loads(result)
    except (ValueError, RecursionError):
        return "text"
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, list) else "value"


def unlike(result: str, shapes: Shapes) -> str | None:
    """Return what is unlike other results of the tool, None where nothing is."""
    shape, total = shape_of(result), sum(shapes.values())
    if not total or shapes.get(shape):
        return None
    usual = max(sorted(shapes), key=lambda each: shapes[each])
    if wilson(shapes[usual], total)[0] < _USUAL:
        return None
    return f"is {_words(shape)}, where {shapes[usual]} of {total} are {_words(usual)}"


def _words(shape: str) -> str:
    names = {"object": "a JSON object", "array": "a JSON array", "value": "a JSON value"}
    return names.get(shape, "plain text")


def agreed(result: str, others: Sequence[Elsewhere], limit_s: float) -> Sequence[Elsewhere]:
    """Return the results of equal calls close in time if they agree, and not with this one."""
    near = [each for each in others if abs(each.later_s) <= limit_s]
    said = {folded(each.result) for each in near}
    if len(said) != 1 or folded(result[:COMPARED_CHARS]) in said:
        return ()
    return near


def brackets(others: Sequence[Elsewhere]) -> bool:
    """Whether the same user got these before and after: the result did not just change."""
    own = [each.later_s for each in others if each.same_user]
    return any(later < 0 for later in own) and any(later > 0 for later in own)


def close_s(tools: Sequence[Any], name: str) -> float:
    """Return in how many seconds the same call of a tool should give the same result.

    Longer for one whose annotations, as MCP has them, say that repeating a call changes nothing.
    """
    for tool in tools:
        inner = tool.get("function") if isinstance(tool, dict) else None
        places = [place for place in (tool, inner) if isinstance(place, dict)]
        if not any(place.get("name") == name for place in places):
            continue
        hints = [place["annotations"] for place in places if "annotations" in place]
        if any(_declares(each) for each in hints):
            return DECLARED_CLOSE_S
    return CLOSE_S


def _declares(hints: Any) -> bool:
    return isinstance(hints, dict) and (
        hints.get("idempotentHint") is True or hints.get("readOnlyHint") is True
    )
