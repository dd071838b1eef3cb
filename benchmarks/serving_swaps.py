"""Ten changes of all versions while hops and full turns are asked for without a pause.

Every change gives all slots new versions at once, as promotion does by writing `slots.json`.
What must not happen: a request that fails, a turn whose hops were answered by versions of two
tables, a hop that the engine refused as its name no longer served.
"""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import serving_load
from benchmarks.serving_load import Load
from benchmarks.serving_mol import SLOTS, generation_of, write_table
from benchmarks.serving_targets import Mol

SWAPS = 10
PAUSE_S = 0.2
"""Between a change in force and the next one."""
LIMIT_S = 60.0
WARM_S = 0.5


class SwapTooSlow(RuntimeError):
    """A new slot table did not come into force."""


def measure(mol: Mol, loads: Iterable[Load], swaps: int = SWAPS) -> dict[str, Any]:
    """Change all versions under the given loads, which must be long enough for it.

    Returns:
        `swap_failed_requests` and what else may not be above 0, with the seconds each change
        took and the requests answered meanwhile.
    """
    before = len(_hops(mol.home))
    children = [serving_load.start(load) for load in loads]
    time.sleep(WARM_S)
    took_s = []
    for number in range(1, swaps + 1):
        took_s.append(_swap(mol, number))
        time.sleep(PAUSE_S)
    under_load = [child.poll() is None for child in children]
    for child in children:
        child.terminate()
    measured = [serving_load.finish(child) for child in children]
    mol.process.settle()
    mol.recording()
    hops = _hops(mol.home)[before:]
    return {
        "swaps": swaps,
        "swap_failed_requests": sum(one.failed for one in measured),
        "swap_requests": sum(one.answered for one in measured),
        "swap_turns_of_two_versions": _turns_of_two_versions(hops),
        "swap_failed_hops": sum(hop["status"] != "ok" for hop in hops),
        "swap_versions_used": len({generation_of(hop["model"]) for hop in hops}),
        "swap_s": round(max(took_s), 2),
        "swap_under_load_to_the_end": all(under_load),
        "swap_problems": [one.problems for one in measured if one.problems],
        "swap_answered": [one.answered for one in measured],
    }


def _swap(mol: Mol, number: int) -> float:
    """Write a new table and wait until it is in force; return the seconds that took."""
    table = write_table(mol.home, number)
    wanted = {entry.slot: entry.champion for entry in table.slots}
    started = time.monotonic()
    while mol.champions() != wanted:
        if time.monotonic() - started > LIMIT_S:
            raise SwapTooSlow(f"Table {number} of {len(SLOTS)} slots is not in force.")
        time.sleep(0.02)
    return time.monotonic() - started


def _turns_of_two_versions(hops: list[dict[str, Any]]) -> int:
    generations: dict[str, set[int]] = {}
    for hop in hops:
        if hop["turn_id"] is not None:
            generations.setdefault(hop["turn_id"], set()).add(generation_of(hop["model"]))
            generations[hop["turn_id"]].add(generation_of(hop["served_name"] or hop["model"]))
    return sum(len(used) > 1 for used in generations.values())


def _hops(home: Path) -> list[dict[str, Any]]:
    hops = []
    for line in hop_lines(home):
        hop = json.loads(line)["record"]
        hops.append({name: hop[name] for name in ("turn_id", "model", "served_name", "status")})
    return hops


def hop_lines(home: Path) -> Iterable[bytes]:
    """Yield the hops on disk, a line each."""
    for file in sorted((home / "spool").glob("*.jsonl")):
        with file.open("rb") as lines:
            yield from (line for line in lines if line.startswith(b'{"kind":"hop"'))
