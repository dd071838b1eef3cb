"""Rounds in which every target has its turn, and what is made of them.

A machine is never quite alone: what disturbs one target should disturb all. So the targets
take turns within a round, in an order that changes; ratios are taken within a round, and the
middle one is reported with the least and the greatest. Processor time a request hardly
depends on what else runs; it stands beside every latency.
"""

import contextlib
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import serving_load
from benchmarks.serving_load import Load, Measured
from benchmarks.serving_targets import TICK_S, Process
from infra.base_model import say_on_stderr

CLIENTS = (1, 32, 256)
_BUSY = (0, 1, 2, 5, 6, 7)
"""Columns of `/proc/stat` in which a processor works; proc(5)."""


@dataclass(frozen=True, slots=True)
class Target:
    """A program with what it is asked."""

    name: str
    process: Process
    bodies: tuple[str, ...]
    headers: dict[str, str]
    expected: str

    def load(self, clients: int, seconds: float, warm_s: float) -> Load:
        """Return the load of so many clients."""
        return Load(
            self.process.port, self.bodies, clients, seconds, warm_s, headers=self.headers,
            expected=self.expected,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """One target in one round."""

    measured: Measured
    cpu_ms: float
    """Processor time of the program a request, what it does afterwards included."""
    others: float
    """Processors that were busy with none of what is measured."""


Samples = dict[tuple[int, str], list[Sample]]
"""By clients and target, one a round."""


def take(targets: Sequence[Target], rounds: int, seconds: float, warm_s: float) -> Samples:
    """Measure all targets at all numbers of clients, so many rounds."""
    processes = {target.process.pid: target.process for target in targets}
    samples: Samples = {}

    def sample(target: Target, clients: int, for_s: float) -> Sample:
        load = target.load(clients, for_s, warm_s)
        made = _sample(target, load, list(processes.values()))
        if made.measured.failed:
            say_on_stderr(f"{target.name} at {clients} clients: {made.measured.problems}")
        return made

    for target in targets:
        # Counted like all others, so that no hop is missing in the end.
        samples.setdefault((0, target.name), []).append(sample(target, 8, seconds))
    for number in range(rounds):
        for clients in CLIENTS:
            for target in order(targets, number):
                made = sample(target, clients, seconds)
                samples.setdefault((clients, target.name), []).append(made)
        say_on_stderr(f"Round {number + 1} of {rounds} is done.")
    return samples


def order(targets: Sequence[Target], number: int) -> Sequence[Target]:
    """Let every target come first in turn, every other round backwards."""
    start = number // 2 % len(targets)
    turned = [*targets[start:], *targets[:start]]
    return turned if number % 2 == 0 else turned[::-1]


def by_clients(samples: Samples) -> dict[str, dict[str, Any]]:
    """Return every target's medians, with the least and the greatest of the requests a second."""
    table: dict[str, dict[str, Any]] = {}
    for (clients, name), made in samples.items():
        if clients == 0:
            continue
        rps = [sample.measured.rps for sample in made]
        table.setdefault(str(clients), {})[name] = {
            "p50_ms": round(median(sample.measured.p50_ms for sample in made), 3),
            "p99_ms": round(median(sample.measured.p99_ms for sample in made), 3),
            "rps": round(median(rps), 1),
            "rps_range": [min(rps), max(rps)],
            "cpu_ms": round(median(sample.cpu_ms for sample in made), 3),
        }
    return table


def compare(
    samples: Samples, clients: int, one: str, other: str,
    value: Callable[[Sample, Sample], float],
) -> dict[str, float] | None:  # fmt: skip
    """Return the median, least and greatest of a value of two targets, taken within a round."""
    pairs = zip(samples.get((clients, one), ()), samples.get((clients, other), ()), strict=False)
    values = [value(a, b) for a, b in pairs]
    if not values:
        return None
    return {
        "median": round(median(values), 3),
        "least": round(min(values), 3),
        "greatest": round(max(values), 3),
    }


def rps_ratio(one: Sample, other: Sample) -> float:
    """Return how many times the other's requests a second one has."""
    return one.measured.rps / max(other.measured.rps, 0.1)


def cpu_ratio(one: Sample, other: Sample) -> float:
    """Return how many times one's processor time a request the other needs."""
    return other.cpu_ms / max(one.cpu_ms, 0.001)


def answered(samples: Samples, name: str) -> int:
    """Return how many requests a target answered in all."""
    return sum(s.measured.answered for (_, n), made in samples.items() for s in made if n == name)


def failed(samples: Samples) -> int:
    """Return how many requests failed in all."""
    return sum(sample.measured.failed for made in samples.values() for sample in made)


def others(samples: Samples) -> dict[str, float]:
    """Return how many processors were busy with other things, the middle and the worst sample."""
    values = [sample.others for made in samples.values() for sample in made]
    return {"median": round(median(values), 2), "greatest": round(max(values), 2)}


def _sample(target: Target, load: Load, processes: list[Process]) -> Sample:
    before_s = target.process.cpu_s()
    with _others(processes) as busy:
        measured = serving_load.run(load)
    target.process.settle()
    cpu_s = target.process.cpu_s() - before_s
    return Sample(measured, 1000 * cpu_s / max(1, measured.answered), busy[0])


@contextlib.contextmanager
def _others(processes: list[Process]) -> Iterator[list[float]]:
    """Measure how many processors are busy with other things while the block runs."""
    found: list[float] = []
    started, all_s, ours_s = time.monotonic(), _all_busy_s(), _ours_s(processes)
    yield found
    took_s = time.monotonic() - started
    found.append(max(0.0, (_all_busy_s() - all_s - (_ours_s(processes) - ours_s)) / took_s))


def _all_busy_s() -> float:
    columns = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    return sum(int(columns[n]) for n in _BUSY) * TICK_S


def _ours_s(processes: list[Process]) -> float:
    loads = resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(p.cpu_s() for p in processes) + loads.ru_utime + loads.ru_stime + time.process_time()
