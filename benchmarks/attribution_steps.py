"""The decisive step in failed runs of several agents, beside baselines and published figures.

    python -m benchmarks.attribution_steps [--whoandwhen FOLDER] [--quick] [--judge URL]

In: Who&When in either published form, or a folder of that format; it passes through the importer,
the lake and attribution. Agent and step are matched exactly, never as substrings. Beside the
figures of the shipped weights stand those of weights that never saw the run (nested
cross-validation): where `seen_in_fitting` is true, these are the ones to believe. Intervals are
Wilson's, 95%; `p_value` is McNemar's exact test, two-sided, of the pairs.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import attribution_steps_fit as fitting
from benchmarks.attribution_steps_baselines import NOTES, PUBLISHED, Guess, guesses
from benchmarks.attribution_steps_judge import judged
from benchmarks.attribution_steps_runs import WHO_AND_WHEN, Labelled, digest_of, read_runs
from infra.base_model import say_on_stderr
from traces.attribution import intervals
from traces.attribution.steps import WEIGHTS, Model, Step, decisive_step
from traces.attribution.team_run import read_run
from traces.storage.connections import interrupt_on_signals

COVERAGES = (0.1, 0.25, 0.5, 0.75, 1.0)
REPEATS, QUICK_REPEATS = 5, 1
"""Of the cross-validation, each with folds of its own."""


def measure(
    quick: bool,
    folder: Path = WHO_AND_WHEN,
    judge: str | None = None,
    judge_model: str | None = None,
) -> dict[str, Any]:
    """Return what is reached on a folder of runs; `whoandwhen` is null where there is none.

    `judge` is the address of a server whose model is asked as well, without the right answer.
    """
    if not folder.is_dir():
        return {"whoandwhen": None, "baselines": None, "judge": None, "published": PUBLISHED}
    runs, unlabelled = read_runs(folder)
    steps = [decisive_step(run.turn, run.hops) for run in runs]
    seen = json.loads(WEIGHTS.read_text(encoding="utf-8"))["runs_digest"] == digest_of(runs)
    held_out = _held_out(runs, QUICK_REPEATS if quick else REPEATS)
    reached = {
        **scored(runs, steps),
        "unlabelled": unlabelled,
        "seen_in_fitting": seen,
        "coordinated": sum(read_run(run.turn, run.hops).coordinator is not None for run in runs),
        "cross_validated": _mean(runs, held_out),
        "attributed": attributed(runs),
    }
    named = asyncio.run(judged(runs, judge, judge_model)) if judge else {}
    return {
        "whoandwhen": reached,
        "baselines": _against(runs, steps, held_out),
        "judge": {way: _judge(runs, guessed) for way, guessed in named.items()} or None,
        "published": PUBLISHED,
    }


def scored(runs: Sequence[Labelled], steps: Sequence[Step | None]) -> dict[str, Any]:
    """Return exact match of agent and of step, with n, intervals and the curve of coverage."""
    agent, step = right(runs, _named(steps))
    sure = [s.confidence if s else 0.0 for s in steps]
    return _matches(agent, step) | {"coverage": _coverage(agent, step, sure)}


def _judge(runs: Sequence[Labelled], guessed: Sequence[Guess | None]) -> dict[str, Any]:
    """Return a judge's exact match; what it did not say counts as wrong."""
    nobody = sum(guess is None for guess in guessed)
    return _matches(*right(runs, guessed)) | {"named_nobody": nobody}


def _matches(agent: Any, step: Any) -> dict[str, Any]:
    return {
        "agent": _share(agent),
        "step": _share(step),
        "n": len(agent),
        "agent_interval": wilson(int(agent.sum()), len(agent)),
        "step_interval": wilson(int(step.sum()), len(step)),
    }


def right(
    runs: Sequence[Labelled], named: Sequence[tuple[str, int | None] | None]
) -> tuple["np.ndarray[Any, np.dtype[np.bool_]]", "np.ndarray[Any, np.dtype[np.bool_]]"]:
    """Return for each run whether the agent and whether the step is the labelled one."""
    pairs = list(zip(runs, named, strict=True))
    agent = np.array([n is not None and n[0] == run.agent for run, n in pairs], dtype=bool)
    step = np.array([n is not None and n[1] == run.step for run, n in pairs], dtype=bool)
    return agent, step


def wilson(hits: int, count: int) -> list[float]:
    """Return the 95% interval of a share."""
    return [round(end, 3) for end in intervals.wilson(hits, count)]


def mcnemar(ours: Any, theirs: Any) -> float:
    """Return the two-sided exact p-value that two methods are right equally often."""
    from scipy.stats import binomtest

    gains, losses = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    if gains + losses == 0:
        return 1.0
    return round(float(binomtest(gains, gains + losses).pvalue), 6)


def attributed(runs: Sequence[Labelled]) -> dict[str, Any]:
    """Return what `flows run attribute` blamed: how many it dared to, and how many are right."""
    told = [run for run in runs if run.blame is not None and run.blame.method == "steps"]
    dared = [run for run in told if run.blame and run.blame.slot]
    hits = sum(run.blame is not None and run.blame.slot == run.agent for run in dared)
    hop_ids = [{hop.hop_id: hop.seq for hop in run.hops} for run in dared]
    steps = sum(
        run.blame is not None and seqs.get(run.blame.hop_id or "") == run.step
        for run, seqs in zip(dared, hop_ids, strict=True)
    )
    return {
        "blamed": len(dared),
        "of": len(runs),
        "agent": round(hits / len(dared), 3) if dared else None,
        "step": round(steps / len(dared), 3) if dared else None,
    }


def _held_out(runs: Sequence[Labelled], repeats: int) -> list[list[Step | None]]:
    """Return, once per repetition, the steps that weights name which never saw the run."""
    if len(runs) < 2 * fitting.FOLDS:
        return [[decisive_step(run.turn, run.hops) for run in runs]]
    examples = fitting.examples_of(runs)
    named = []
    for seed in range(repeats):
        models: Sequence[Model] = fitting.held_out_models(examples, seed)
        named.append(
            [decisive_step(r.turn, r.hops, model) for r, model in zip(runs, models, strict=True)]
        )
    return named


def _mean(runs: Sequence[Labelled], named: Sequence[Sequence[Step | None]]) -> dict[str, Any]:
    """Return the mean of the repetitions, the first one's curve, and the spread between them."""
    each = [scored(runs, steps) for steps in named]
    mean = {key: round(float(np.mean([e[key] for e in each])), 3) for key in ("agent", "step")}
    return {
        **mean,
        "n": len(runs),
        "repeats": len(each),
        "agent_range": [min(e["agent"] for e in each), max(e["agent"] for e in each)],
        "step_range": [min(e["step"] for e in each), max(e["step"] for e in each)],
        "agent_interval": wilson(round(mean["agent"] * len(runs)), len(runs)),
        "step_interval": wilson(round(mean["step"] * len(runs)), len(runs)),
        "coverage": each[0]["coverage"],
    }


def _against(
    runs: Sequence[Labelled],
    steps: Sequence[Step | None],
    held_out: Sequence[Sequence[Step | None]],
) -> dict[str, Any]:
    """Return every baseline's figures, with how sure it is that they are beaten.

    Cross-validated, the p-value is the largest of all repetitions.
    """
    ours = right(runs, _named(steps))
    unseen = [right(runs, _named(each)) for each in held_out]
    report: dict[str, Any] = {}
    for name, named in guesses(runs).items():
        theirs = right(runs, named)
        report[name] = {"agent": _share(theirs[0]), "step": _share(theirs[1])}
        for which, what in enumerate(("agent", "step")):
            report[name] |= {
                f"{what}_p_value": mcnemar(ours[which], theirs[which]),
                f"{what}_p_value_cross_validated": max(
                    mcnemar(each[which], theirs[which]) for each in unseen
                ),
            }
        report[name]["notes"] = NOTES.get(name)
    return report


def _named(steps: Sequence[Step | None]) -> list[tuple[str, int | None] | None]:
    return [(step.agent, step.seq) if step else None for step in steps]


def _share(hits: Any) -> float:
    return round(float(hits.mean()), 3) if len(hits) else 0.0


def _coverage(agent: Any, step: Any, confidence: Sequence[float]) -> list[dict[str, float]]:
    """Return precision among the surest runs, for growing shares of them."""
    order = np.argsort([-c for c in confidence], kind="stable")
    curve = []
    for coverage in COVERAGES:
        kept = order[: max(1, round(coverage * len(order)))]
        curve.append(
            {
                "coverage": coverage,
                "agent": _share(agent[kept]),
                "step": _share(step[kept]),
                "least_confidence": round(float(confidence[kept[-1]]), 3),
            }
        )
    return curve


def main() -> int:
    """Print the report; its last line is one JSON object."""
    interrupt_on_signals()
    parser = argparse.ArgumentParser(description="The decisive step in runs of several agents.")
    parser.add_argument("--whoandwhen", type=Path, default=WHO_AND_WHEN)
    parser.add_argument("--quick", action="store_true", help="one cross-validation instead of five")
    parser.add_argument("--judge", metavar="URL", help="an OpenAI-compatible server to ask as well")
    parser.add_argument("--judge-model", help="model to ask there; the first it lists otherwise")
    given = parser.parse_args()
    say_on_stderr(f"Runs of {given.whoandwhen} ...")
    print(json.dumps(measure(given.quick, given.whoandwhen, given.judge, given.judge_model)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
