"""Make the weights of `traces.attribution.steps`, and say by cross-validation what they are worth.

    python -m benchmarks.attribution_steps_fit [--whoandwhen FOLDER] [--write]

A conditional logit over each run's steps: the penalised likelihood of the labelled step and, with
a smaller share, of the labelled agent. The same runs always give the same weights. Out of sample
the penalty is chosen anew inside each training part (nested cross-validation), and confidence is
fitted to the probabilities that runs got from weights which never saw them. `--write` replaces
`traces/attribution/step_weights.json`; without it the weights are only shown.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.attribution_steps_runs import WHO_AND_WHEN, Labelled, digest_of, read_runs
from infra.base_model import say_on_stderr
from traces.attribution.step_features import FEATURES, features
from traces.attribution.steps import WEIGHTS, Model
from traces.attribution.team_run import answers_of, read_run

Array = npt.NDArray[np.float64]
PENALTIES = (5.0, 10.0, 20.0, 40.0)
AGENT_SHARE = 0.2
"""Of the objective; the rest is the labelled step's."""
FOLDS, INNER_FOLDS = 9, 5
SEED = 0


@dataclass(frozen=True)
class Examples:
    """Labelled runs as arrays, padded to the longest: `R` run, `T` step, `F` feature."""

    features_RTF: Array
    present_RT: Array
    agent_RT: Array
    """Which steps are the labelled agent's."""
    step_RT: Array
    """The labelled step, where it is one of the labelled agent's."""
    speaker_RT: npt.NDArray[np.int64]
    """Who speaks, as a number of the run's own."""

    def of(self, runs: npt.NDArray[np.int64]) -> "Examples":
        """Return some of the runs."""
        return Examples(
            self.features_RTF[runs], self.present_RT[runs], self.agent_RT[runs],
            self.step_RT[runs], self.speaker_RT[runs],
        )  # fmt: skip

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.present_RT)


def examples_of(runs: Sequence[Labelled]) -> Examples:
    """Return the arrays of runs; nothing but features and labels."""
    read = [read_run(run.turn, run.hops) for run in runs]
    longest = max(len(run.steps) for run in read)
    shape = (len(runs), longest)
    found = Examples(
        np.zeros((*shape, len(FEATURES))), np.zeros(shape), np.zeros(shape), np.zeros(shape),
        np.zeros(shape, dtype=np.int64),
    )  # fmt: skip
    for r, (run, labelled) in enumerate(zip(read, runs, strict=True)):
        answers = answers_of(labelled.hops)
        speakers = list(dict.fromkeys(step.speaker for step in run.steps))
        for t, (step, row) in enumerate(zip(run.steps, features(run), strict=True)):
            found.features_RTF[r, t] = [row[name] for name in FEATURES]
            found.present_RT[r, t] = 1
            found.speaker_RT[r, t] = speakers.index(step.speaker)
            found.agent_RT[r, t] = step.speaker == labelled.agent
            found.step_RT[r, t] = answers[step.place].seq == labelled.step
    found.step_RT[:] *= found.agent_RT
    return found


def probabilities(examples: Examples, weights_F: Array) -> Array:
    """Return each step's probability, `RT`."""
    scores = np.where(examples.present_RT > 0, examples.features_RTF @ weights_F, -np.inf)
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    result: Array = raised / raised.sum(axis=1, keepdims=True)
    return result


def fit(examples: Examples, penalty: float) -> Array:
    """Return the weights, `F`; the penalty is on features scaled to the same spread."""
    from scipy.optimize import minimize

    spread = examples.features_RTF[examples.present_RT > 0].std(axis=0) + 1e-9
    targets = ((examples.step_RT, 1 - AGENT_SHARE), (examples.agent_RT, AGENT_SHARE))

    def loss(scaled_F: Array) -> tuple[float, Array]:
        p_RT = probabilities(examples, scaled_F / spread)
        value, gradient = penalty * scaled_F @ scaled_F / 2, penalty * scaled_F
        for target_RT, share in targets:
            hit_RT = p_RT * target_RT
            hit_R = hit_RT.sum(axis=1)
            told = hit_R > 0
            value -= share * np.log(hit_R[told]).sum()
            pull_RT = hit_RT[told] / hit_R[told, None] - p_RT[told]
            pull = np.einsum("rt,rtf->f", pull_RT, examples.features_RTF[told])
            gradient = gradient - share * pull / spread
        return float(value), gradient

    found = minimize(loss, np.zeros(len(FEATURES)), jac=True, method="L-BFGS-B")
    result: Array = found.x / spread
    return result


def best_penalty(examples: Examples) -> float:
    """Return the penalty with the best held-out likelihood of the labelled steps."""
    if len(examples) < 2 * INNER_FOLDS:
        return PENALTIES[-1]
    total = dict.fromkeys(PENALTIES, 0.0)
    for train, test in folds(len(examples), INNER_FOLDS, SEED):
        held = examples.of(test)
        for penalty in PENALTIES:
            p_RT = probabilities(held, fit(examples.of(train), penalty))
            hit_R = (p_RT * held.step_RT).sum(axis=1)
            total[penalty] += float(np.log(hit_R[hit_R > 0]).sum())
    return max(total, key=lambda penalty: total[penalty])


def folds(
    count: int, parts: int, seed: int
) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Return the places to train on and to test on, part by part."""
    order = np.random.default_rng(seed).permutation(count)
    return [(np.sort(np.setdiff1d(order, order[k::parts])), order[k::parts]) for k in range(parts)]


def held_out_models(examples: Examples, seed: int = SEED) -> list[Model]:
    """Return for each run the model of weights that never saw it."""
    models: dict[int, Model] = {}
    for train, test in folds(len(examples), min(FOLDS, len(examples)), seed):
        models |= dict.fromkeys(test.tolist(), model_of_examples(examples.of(train)))
    return [models[place] for place in range(len(examples))]


def model_of_examples(examples: Examples) -> Model:
    """Return weights of the best penalty, with a confidence fitted out of sample."""
    from scipy.optimize import minimize

    penalty = best_penalty(examples)
    weights_F = fit(examples, penalty)
    logit_R, right_R = _held_out_agents(examples, penalty)

    def loss(line: Array) -> float:
        z_R = line[0] * logit_R + line[1]
        surprise = np.logaddexp(0, z_R) - right_R * z_R
        return float(surprise.sum() + ((line - (1.0, 0.0)) ** 2).sum() / 2)

    slope, intercept = minimize(loss, np.array([1.0, 0.0]), method="L-BFGS-B").x
    weights = {name: round(float(w), 3) for name, w in zip(FEATURES, weights_F, strict=True)}
    return Model(weights, round(float(slope), 3), round(float(intercept), 3))


def _held_out_agents(examples: Examples, penalty: float) -> tuple[Array, Array]:
    """Return the logit of the named agent's probability out of sample, and whether it was right."""
    logits, right = [], []
    for train, test in folds(len(examples), min(INNER_FOLDS, len(examples)), SEED):
        held = examples.of(test)
        for r, p_T in enumerate(probabilities(held, fit(examples.of(train), penalty))):
            by_speaker = np.bincount(held.speaker_RT[r], weights=p_T)
            named = int(by_speaker.argmax())
            odds = min(max(float(by_speaker[named]), 1e-6), 1 - 1e-6)
            logits.append(np.log(odds / (1 - odds)))
            right.append(held.agent_RT[r][held.speaker_RT[r] == named].any())
    return np.array(logits), np.array(right, dtype=np.float64)


def weights_file(runs: Sequence[Labelled]) -> dict[str, Any]:
    """Return what `step_weights.json` holds."""
    examples = examples_of(runs)
    model = model_of_examples(examples)
    return {
        "weights": dict(model.weights),
        "slope": model.slope,
        "intercept": model.intercept,
        "made_by": "python -m benchmarks.attribution_steps_fit --write",
        "runs": len(runs),
        "runs_digest": digest_of(runs),
        "penalty": best_penalty(examples),
    }


def main() -> int:
    """Show the weights; with `--write` keep them."""
    parser = argparse.ArgumentParser(description="Make the weights of the decisive step.")
    parser.add_argument("--whoandwhen", type=Path, default=WHO_AND_WHEN)
    parser.add_argument("--write", action="store_true", help="replace the shipped weights")
    given = parser.parse_args()
    runs, _ = read_runs(given.whoandwhen)
    say_on_stderr(f"{len(runs)} labelled runs ...")
    text = json.dumps(weights_file(runs), indent=2) + "\n"
    if given.write:
        WEIGHTS.write_text(text, encoding="utf-8")
    print(text, end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
