"""The gate, measured: how often it errs, what it can see, and how fast a verdict serves.

    python -m benchmarks.gate [--quick]

Runs each area's own measure and prints one JSON object last. By Monte Carlo over the gate's own
functions: `false_promotion_single` and `false_promotion_20` (at no difference, one look and 20
attempts on one sealed set), `naive_20` (the same attempts by "the score went up"), `power_5pp` and
`power_3pp`, `ni_accept_at_margin` (a guard at exactly its margin), `canary_false_rollback` and
`canary_median_pairs` (by points of harm). By doing it: `races` between promoters and their
`winners`, `promote_s` and `rollback_s` (seconds from a verdict, or the command, to the first answer
of the other version). The areas' own figures stand beside them, with the Monte Carlo error. What
could not be measured is null, with the reason on stderr. `--quick` takes a minute: fewer runs, and
the embedded engine instead of vLLM.
"""

import argparse
import json
import sys
from typing import Any

from benchmarks.areas import measure_area
from traces.storage.connections import interrupt_on_signals

AREAS = {
    "monte_carlo": (
        "false_promotion_single",
        "false_promotion_20",
        "naive_20",
        "power_5pp",
        "power_3pp",
        "ni_accept_at_margin",
    ),
    "canary": ("canary_false_rollback", "canary_median_pairs"),
    "races": ("races", "winners"),
    "serving": ("promote_s", "rollback_s"),
}
"""What each area answers for; its module is `benchmarks.gate_<area>`."""


def measure(quick: bool) -> dict[str, Any]:
    """Run every area and return what was measured."""
    found = {area: measure_area(f"gate_{area}", quick) or {} for area in AREAS}
    asked = {name: found[area].get(name) for area, names in AREAS.items() for name in names}
    beside = {
        area: {name: value for name, value in figures.items() if name not in asked}
        for area, figures in found.items()
    }
    return asked | beside


def main() -> int:
    """Measure and print."""
    interrupt_on_signals()
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer runs; a minute")
    print(json.dumps(measure(parser.parse_args().quick)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
