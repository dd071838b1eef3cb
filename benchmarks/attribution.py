"""Attribution, measured: who is found responsible, how often rightly, and how fast.

    python -m benchmarks.attribution [--quick] [--who-and-when FOLDER] [--judge URL]

Runs each area's own measure and prints one JSON object last. `faults`: failures of known cause,
recorded over the real engine (`benchmarks.faults`). `equal_arms_false_router`: how often the router
is blamed where all slots are equally good, the greatest of the recorded turns' and the rule's own
rate over all chances of success. `whoandwhen` and `baselines`: labelled failures of other agents'
runs. `ope_coverage`: off-policy intervals on a router of known truth. `turns_per_s`: settling and
structural blame of a lake of made-up turns, end to end; `calling_turns_per_s`: the same where half
of them call tools. `signals`: implicit signals beside verified outcomes. What could not be measured
is null, with the reason on stderr. `--quick` takes a minute.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import faults
from benchmarks.areas import measure_area, tried
from benchmarks.attribution_steps_runs import WHO_AND_WHEN
from infra.base_model import say_on_stderr
from traces.storage.connections import interrupt_on_signals


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run every area and return what was measured."""
    quick = given.quick
    found = tried("faults", lambda: faults.measure(quick, given.faults))
    steps = measure_area(
        "attribution_steps", quick, given.who_and_when, given.judge, given.judge_model
    )
    estimators = measure_area("attribution_estimators", quick)
    replay = measure_area("attribution_replay", quick)
    speed = measure_area("attribution_speed", quick, given.turns)
    return {
        "faults": found,
        "equal_arms_false_router": _greatest(found, replay),
        "whoandwhen": _whoandwhen(steps, given.who_and_when),
        "baselines": (steps or {}).get("baselines"),
        "ope_coverage": (estimators or {}).get("ope_coverage"),
        "turns_per_s": (speed or {}).get("plain"),
        "calling_turns_per_s": (speed or {}).get("calling"),
        "signals": measure_area("attribution_signals", quick),
        "estimators": estimators,
        "replay": replay,
    }


def _greatest(found: dict[str, Any] | None, replay: dict[str, Any] | None) -> float | None:
    rates = [(area or {}).get("equal_arms_false_router") for area in (found, replay)]
    known = [rate for rate in rates if rate is not None]
    return max(known) if known else None


def _whoandwhen(steps: dict[str, Any] | None, folder: Path) -> Any:
    reached = (steps or {}).get("whoandwhen")
    if reached is None:
        say_on_stderr(f"No runs in {str(folder)!r}: name their folder with --who-and-when.")
    return reached


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="less of everything; a minute")
    parser.add_argument("--faults", type=Path, default=faults.FAULTS, help="recorded faults")
    parser.add_argument("--who-and-when", type=Path, default=WHO_AND_WHEN, help="labelled runs")
    parser.add_argument("--judge", help="address of an OpenAI-compatible server that judges too")
    parser.add_argument("--judge-model", help="model to ask there; the first it lists if not given")
    parser.add_argument("--turns", type=int, help="made-up turns for turns_per_s")
    return parser.parse_args(words)


def main() -> int:
    """Measure and print."""
    interrupt_on_signals()
    print(json.dumps(measure(parse())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
