"""Guesses without any model, that a method of attribution has to beat on runs of several agents.

In: labelled runs. Out: for each run the guessed agent and step. The first four are those of the
project's notes, written once there; their figures on the 126 algorithm-generated files are in
`PUBLISHED`. The last is stronger: it joins two of them, and was chosen after the labels were seen.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.attribution_steps_runs import Labelled

Guess = tuple[str, int]

NOTES: dict[str, dict[str, float | None]] = {
    "constant_step": {"agent": 0.429, "step": 0.270},
    "most_active": {"agent": 0.540, "step": 0.190},
    "first_error": {"agent": 0.540, "step": 0.302},
    "majority_agent": {"agent": 0.143, "step": None},
}
"""What the notes report for the 126 algorithm-generated runs."""

PUBLISHED = [
    {"method": "all-at-once, GPT-4o", "set": "algorithm-generated", "agent": 0.5433,
     "step": 0.1250,
     "source": "Zhang et al., ICML 2025, the repository's table; with the right answer"},
    {"method": "step-by-step, GPT-4o", "set": "algorithm-generated", "agent": 0.3520,
     "step": 0.2551, "source": "as above"},
    {"method": "binary search, GPT-4o", "set": "algorithm-generated", "agent": 0.4413,
     "step": 0.2398, "source": "as above"},
    {"method": "A2P", "set": "algorithm-generated", "agent": None, "step": 0.4746,
     "source": "arXiv 2509.10401, an excerpt"},
    {"method": "AgenTracer-8B", "set": "algorithm-generated", "agent": None, "step": 0.3730,
     "source": "arXiv 2509.03312, an excerpt; without the right answer"},
    {"method": "all-at-once, GPT-4o", "set": "hand-crafted", "agent": 0.5517, "step": 0.0526,
     "source": "Zhang et al., ICML 2025, the repository's table; with the right answer"},
    {"method": "step-by-step, GPT-4o", "set": "hand-crafted", "agent": 0.3448, "step": 0.0702,
     "source": "as above"},
    {"method": "A2P", "set": "hand-crafted", "agent": None, "step": 0.2931,
     "source": "arXiv 2509.10401, an excerpt"},
    {"method": "AgenTracer-8B", "set": "hand-crafted", "agent": 0.6910, "step": 0.2068,
     "source": "arXiv 2509.03312, an excerpt; with the right answer"},
]  # fmt: skip
"""Figures of others, from the notes. The paper's own evaluation matches substrings."""

_COORDINATES = re.compile(r"orchestrator|manager|human", re.IGNORECASE)
_EXECUTES = re.compile(r"terminal|executor", re.IGNORECASE)
_ERROR = re.compile(r"error|unable to", re.IGNORECASE)
_FAILED = re.compile(r"exit\s*code:?\s*-?[1-9]|Traceback", re.IGNORECASE)
_CONSTANT = 1


@dataclass(frozen=True, slots=True)
class Said:
    """What one entry of a log says."""

    step: int
    name: str
    text: str


def said_in(run: Labelled) -> list[Said]:
    """Return the entries of a run."""
    return [
        Said(hop.seq, hop.slot, hop.completion.content if hop.completion else "")
        for hop in run.hops
    ]


def constant_step(log: Sequence[Said]) -> Guess:
    """Step 1 and who speaks there; chosen after the labels were seen."""
    entry = next((e for e in log if e.step >= _CONSTANT), log[-1])
    return entry.name, entry.step


def most_active(log: Sequence[Said]) -> Guess:
    """Who says most but orchestrators and terminals, and its first step."""
    working = [e for e in log if not _COORDINATES.search(e.name) and not _EXECUTES.search(e.name)]
    name = Counter(e.name for e in working or log).most_common(1)[0][0]
    return name, next(e.step for e in log if e.name == name)


def first_error(log: Sequence[Said]) -> Guess:
    """The first step with a word of failure, its caller where a terminal says it; else step 0."""
    return _caller_of(log, _ERROR) or (log[0].name, log[0].step)


def first_failed_run_or_step(log: Sequence[Said]) -> Guess:
    """Who wrote what first failed to execute, else step 1: two of the others in one."""
    return _caller_of(log, _FAILED) or constant_step(log)


BASELINES: dict[str, Callable[[Sequence[Said]], Guess]] = {
    "constant_step": constant_step,
    "most_active": most_active,
    "first_error": first_error,
    "first_failed_run_or_step": first_failed_run_or_step,
}


def guesses(runs: Sequence[Labelled]) -> dict[str, list[tuple[str, int | None]]]:
    """Return every baseline's guesses, the majority agent's without a step."""
    logs = [said_in(run) for run in runs]
    found: dict[str, list[tuple[str, int | None]]] = {
        name: [guess(log) for log in logs] for name, guess in BASELINES.items()
    }
    majority = Counter(run.agent for run in runs).most_common(1)[0][0]
    return {**found, "majority_agent": [(majority, None)] * len(runs)}


def _caller_of(log: Sequence[Said], pattern: re.Pattern[str]) -> Guess | None:
    for place, entry in enumerate(log):
        if pattern.search(entry.text):
            blamed = log[place - 1] if place and _EXECUTES.search(entry.name) else entry
            return blamed.name, blamed.step
    return None
