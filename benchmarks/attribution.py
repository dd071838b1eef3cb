"""Attribution, measured: who is found responsible, how often rightly, and how fast.

    python -m benchmarks.attribution [--quick] [--who-and-when FOLDER] [--judge URL]

Runs each area's own measure and prints one JSON object last. `faults`: failures of known cause,
recorded over the real engine (`benchmarks.faults`). `equal_arms_false_router`: how often the router
is blamed where all slots are equally good, the greatest of the recorded turns' and the rule's own
rate over all chances of success. `whoandwhen` and `baselines`: labelled failures of other agents'
runs. `ope_coverage`: off-policy intervals on a router of known truth. `turns_per_s`: settling and
structural blame of a lake of made-up turns, end to end. `signals`: implicit signals beside verified
outcomes. What could not be measured is null, with the reason on stderr. `--quick` takes a minute.
"""

import argparse
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import faults, intake_data
from benchmarks.attribution_steps_runs import WHO_AND_WHEN
from infra.base_model import say_on_stderr
from serving.errors import MolError
from serving.slots import load_profile
from traces.attribute import attribute
from traces.ingest import ingest

TURNS, QUICK_TURNS = 100_000, 10_000
_HOPS_A_TURN = 2


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run every area and return what was measured."""
    quick = given.quick
    found = _tried("faults", lambda: faults.measure(quick, given.faults))
    steps = _area("steps", quick, given.who_and_when, given.judge, given.judge_model)
    estimators = _area("estimators", quick)
    replay = _area("replay", quick)
    return {
        "faults": found,
        "equal_arms_false_router": _greatest(found, replay),
        "whoandwhen": _whoandwhen(steps, given.who_and_when),
        "baselines": (steps or {}).get("baselines"),
        "ope_coverage": (estimators or {}).get("ope_coverage"),
        "turns_per_s": _tried("turns_per_s", lambda: turns_per_s(given.turns)),
        "signals": _area("signals", quick),
        "estimators": estimators,
        "replay": replay,
    }


def _area(name: str, *arguments: Any) -> Any:
    """Return what an area's own benchmark measures, None where it cannot."""

    def run() -> Any:
        return importlib.import_module(f"benchmarks.attribution_{name}").measure(*arguments)

    return _tried(name, run)


def _tried(name: str, work: Callable[[], Any]) -> Any:
    """Return what `work` measures; None, with the reason on stderr, where its data is missing."""
    say_on_stderr(f"{name} ...")
    started = time.monotonic()
    try:
        measured = work()
    except (ImportError, OSError, MolError) as error:
        say_on_stderr(f"{name} is not measured: {error}")
        return None
    say_on_stderr(f"{name}: {time.monotonic() - started:.1f} s")
    return measured


def _greatest(found: dict[str, Any] | None, replay: dict[str, Any] | None) -> float | None:
    rates = [(area or {}).get("equal_arms_false_router") for area in (found, replay)]
    known = [rate for rate in rates if rate is not None]
    return max(known) if known else None


def _whoandwhen(steps: dict[str, Any] | None, folder: Path) -> Any:
    reached = (steps or {}).get("whoandwhen")
    if reached is None:
        say_on_stderr(f"No runs in {str(folder)!r}: name their folder with --who-and-when.")
    return reached


def turns_per_s(turns: int) -> float:
    """Return how many made-up turns a second are settled and blamed, from the lake to the lake."""
    with tempfile.TemporaryDirectory(prefix="mol-attribution-") as folder:
        spool, home = Path(folder, "spool.jsonl"), Path(folder, "home")
        intake_data.write_spool(spool, turns * _HOPS_A_TURN)
        ingest(home, spool)
        started = time.monotonic()
        report = attribute(home, load_profile())
        return round(report.turns / (time.monotonic() - started), 1)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="less of everything; a minute")
    parser.add_argument("--faults", type=Path, default=faults.FAULTS, help="recorded faults")
    parser.add_argument("--who-and-when", type=Path, default=WHO_AND_WHEN, help="labelled runs")
    parser.add_argument("--judge", help="address of an OpenAI-compatible server that judges too")
    parser.add_argument("--judge-model", help="model to ask there; the first it lists if not given")
    parser.add_argument("--turns", type=int, help="made-up turns for turns_per_s")
    given = parser.parse_args(words)
    given.turns = given.turns or (QUICK_TURNS if given.quick else TURNS)
    return given


def main() -> int:
    """Measure and print."""
    print(json.dumps(measure(parse())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
