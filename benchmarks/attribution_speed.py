"""How many turns a second are settled and blamed, end to end, from the lake to the lake.

    python -m benchmarks.attribution_speed [--quick]

`plain`: made-up turns of two calls, of which one in ten is rated. `calling`: the same traffic where
half of the turns call one of eight tools, every second of these gets a result and an answer in
words, and one call in twenty breaks its schema; every call that ends a turn is checked.
"""

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from benchmarks import intake_data, quick_asked
from serving.records import canonical_json, hop_id_of
from serving.slots import load_profile
from traces.attribute import attribute
from traces.ingest import ingest

TURNS, QUICK_TURNS = 100_000, 10_000
_CALLERS = ("L1", "L2")
"""Slots whose turns call a tool."""
_BROKEN_EVERY = 20
_PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "country": {"type": "string", "maxLength": 40}},
    "required": ["city"],
    "additionalProperties": False,
}
_PARAMETERS = {
    "type": "object",
    "properties": {
        "place": _PLACE,
        "days": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 14},
        "unit": {"enum": ["metric", "imperial"]},
        "note": {"type": "string"},
    },
    "required": ["place", "days"],
    "additionalProperties": False,
}
TOOLS = canonical_json(
    [
        {
            "type": "function",
            "function": {
                "name": f"tool_{number}",
                "description": f"Looks up matter number {number} for a place and some days.",
                "parameters": _PARAMETERS,
            },
        }
        for number in range(8)
    ]
)


class CallingTraffic(intake_data.Traffic):
    """The traffic of the intake benchmark, of which half calls tools."""

    def conversation(self) -> Iterator[tuple[list[dict[str, Any]], dict[str, Any]]]:
        """Yield the hops and the record of each turn."""
        for number, (hops, turn) in enumerate(super().conversation(), self._number):
            yield _calling(hops, turn, number) if turn["slot"] in _CALLERS else (hops, turn)


def _calling(
    hops: list[dict[str, Any]], turn: dict[str, Any], number: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    route, answer = hops
    arguments: dict[str, Any] = {"place": {"city": f"city {number}"}, "days": [1, number % 9]}
    if number % _BROKEN_EVERY == 0:
        del arguments["days"]
    call = {"id": f"call-{number}", "name": f"tool_{number % 8}"}
    said = answer["completion"] | {
        "content": "",
        "tool_calls": [call | {"arguments": json.dumps(arguments)}],
    }
    made = answer | {"completion": said, "tools": TOOLS, "finish_reason": "tool_calls"}
    made["response_id"] += "-call"
    found = [route, made]
    if number % 2:
        result = said | {"role": "tool", "content": '{"ok": true}', "tool_calls": []}
        seen = [*answer["messages"], said, result | {"tool_call_id": call["id"]}]
        found.append(answer | {"messages": seen, "tools": TOOLS})
    last = found[-1]
    return found, turn | {
        "answer": last["completion"],
        "hop_ids": [hop_id_of(hop) for hop in found],
        "response_ids": [hop["response_id"] for hop in found[1:]],
    }


def measure(quick: bool = False, turns: int | None = None) -> dict[str, float]:
    """Return turns/s by kind of traffic."""
    count = turns or (QUICK_TURNS if quick else TURNS)
    return {
        "plain": turns_per_s(intake_data.Traffic(), count),
        "calling": turns_per_s(CallingTraffic(), count),
    }


def turns_per_s(traffic: intake_data.Traffic, turns: int) -> float:
    """Return how many turns of a traffic are settled and blamed a second."""
    with tempfile.TemporaryDirectory(prefix="mol-attribution-") as folder:
        spool, home = Path(folder, "spool.jsonl"), Path(folder, "home")
        write_spool(spool, traffic, turns)
        ingest(home, spool)
        started = time.monotonic()
        report = attribute(home, load_profile())
        return round(report.turns / (time.monotonic() - started), 1)


def write_spool(path: Path, traffic: intake_data.Traffic, turns: int) -> None:
    """Write a spool of at least so many turns."""
    written = 0
    with path.open("wb") as file:
        while written < turns:
            for hops, turn in traffic.conversation():
                rating = traffic.rating(turn)
                records = [("hop", hop) for hop in hops] + [("turn", turn)]
                records += [("feedback", rating)] if rating is not None else []
                for kind, record in records:
                    line = {"kind": kind, "record": record}
                    file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
                written += 1


if __name__ == "__main__":
    print(json.dumps(measure(quick_asked(__doc__))))
