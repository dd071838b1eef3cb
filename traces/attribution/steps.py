"""The decisive step of a failed run of several agents: whose which step was the error.

    decisive_step(turn, hops) -> Step | None

No model is asked. Each step that an agent can be blamed for gets a score, the weighted sum of
`step_features.FEATURES`; a softmax over the run's steps makes it a probability, an agent's is the
sum over its steps. The most probable agent is named, and its most probable step, the earliest of
equals. The few weights are data, `step_weights.json`, which `python -m
benchmarks.attribution_steps_fit` makes of labelled runs. The form is a conditional logit:
McFadden, "Conditional Logit Analysis of Qualitative Choice Behavior", 1974.

Where somebody coordinates, as an orchestrator does, every second step is a coordinator's and the
workers' steps are observations, of which labelled runs of another form tell little. There the
worker that did most is named, and its first step whose code went wrong, else the one with which
it set out.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from serving.records import Hop, Turn
from traces.attribution.step_features import FEATURES, SAYS, features
from traces.attribution.team_run import TeamRun, Utterance, answers_of, read_run, wrong

WEIGHTS = Path(__file__).with_name("step_weights.json")
_COORDINATED_CONFIDENCE = 0.5
"""Naming the most active worker was right in .586 of 58 published runs, Wilson [.457, .704]."""
_REASONS = 3


@dataclass(frozen=True, slots=True)
class Step:
    """The decisive step of a run."""

    index: int
    """Index of its hop among the turn's answer hops that stand."""
    seq: int
    """Its place in the source."""
    hop_id: str
    agent: str
    confidence: float
    """That it was this agent, in [0, 1]."""
    margin: float
    """By how much the agent is more probable than the next one; 0 where another is as probable."""
    evidence: str


@dataclass(frozen=True, slots=True)
class Model:
    """Weights of the features, and what turns a probability into a confidence."""

    weights: Mapping[str, float]
    slope: float = 1.0
    intercept: float = 0.0

    def confidence(self, probability: float) -> float:
        """Return the calibrated confidence of an agent's probability (Platt 1999)."""
        bounded = min(max(probability, 1e-6), 1 - 1e-6)
        logit = math.log(bounded / (1 - bounded))
        return 1 / (1 + math.exp(-(self.slope * logit + self.intercept)))


def decisive_step(turn: Turn, hops: Sequence[Hop], model: Model | None = None) -> Step | None:
    """Return the step to blame for a run that failed, or None where no agent said anything.

    `model` is for who fits or tests weights; None takes the shipped ones.
    """
    run = read_run(turn, hops)
    if not run.steps:
        return None
    decide = _of_workers if run.coordinator else _of_scores
    chosen, confidence, margin, evidence = decide(run, model or shipped())
    hop = answers_of(hops)[chosen.place]
    return Step(
        index=chosen.place,
        seq=hop.seq,
        hop_id=hop.hop_id,
        agent=chosen.speaker,
        confidence=round(confidence, 3),
        margin=round(margin, 3),
        evidence=f"step {hop.seq}, {chosen.speaker}: {evidence}",
    )


@cache
def shipped() -> Model:
    """Return the weights that come with the code."""
    return model_of(json.loads(WEIGHTS.read_text(encoding="utf-8")))


def model_of(data: Mapping[str, Any]) -> Model:
    """Return the model that a weights file holds.

    Raises:
        ValueError: if the file was made for other features.
    """
    weights = {name: float(weight) for name, weight in data["weights"].items()}
    if set(weights) != set(FEATURES):
        odd = sorted(set(weights) ^ set(FEATURES))
        raise ValueError(
            f"{WEIGHTS.name} and the features differ in {odd}. "
            "Run 'python -m benchmarks.attribution_steps_fit'."
        )
    return Model(weights, float(data["slope"]), float(data["intercept"]))


def agents_of(
    steps: Sequence[Utterance], probabilities: Sequence[float]
) -> list[tuple[str, float]]:
    """Return each agent's probability, the most probable first, the first to speak of equals."""
    total: dict[str, float] = {}
    for step, probability in zip(steps, probabilities, strict=True):
        total[step.speaker] = total.get(step.speaker, 0.0) + probability
    return sorted(total.items(), key=lambda item: -round(item[1], 9))


def _of_scores(run: TeamRun, model: Model) -> tuple[Utterance, float, float, str]:
    rows = features(run)
    scores = [sum(model.weights[name] * row[name] for name in FEATURES) for row in rows]
    most = max(scores)
    exponentials = [math.exp(score - most) for score in scores]
    probabilities = [each / sum(exponentials) for each in exponentials]
    agents = agents_of(run.steps, probabilities)
    agent, probability = agents[0]
    margin = probability - agents[1][1] if len(agents) > 1 else probability
    own = [n for n, step in enumerate(run.steps) if step.speaker == agent]
    best = max(own, key=lambda n: (round(probabilities[n], 9), -n))
    reasons = _reasons(rows, best, model.weights)
    return run.steps[best], model.confidence(probability), margin, reasons


def _reasons(rows: Sequence[Mapping[str, float]], best: int, weights: Mapping[str, float]) -> str:
    """Say what speaks for a step, against the run's average step."""
    gains = {
        name: weights[name] * (rows[best][name] - sum(row[name] for row in rows) / len(rows))
        for name in FEATURES
        if weights[name] > 0 and rows[best][name] > 0
    }
    leading = sorted((n for n in gains if gains[n] > 0), key=lambda n: -gains[n])[:_REASONS]
    return "; ".join(SAYS[name] for name in leading) or "nothing speaks for another step"


def _of_workers(run: TeamRun, _: Model) -> tuple[Utterance, float, float, str]:
    """Name the worker that did most; the coordinator only where nobody worked."""
    done = [step for step in run.steps if step.speaker != run.coordinator]
    if not done:
        return run.steps[0], _COORDINATED_CONFIDENCE, 0.0, "nobody did what it asked for"
    count = Counter(step.speaker for step in done).most_common(2)
    margin = (count[0][1] - (count[1][1] if len(count) > 1 else 0)) / len(done)
    own = [step for step in done if step.speaker == count[0][0]]
    share = f"{count[0][1]} of the {len(done)} steps of work are its"
    first = next((step for step in own if wrong(run.outcome_of(step))), None)
    if first is not None:
        return (
            first,
            _COORDINATED_CONFIDENCE,
            margin,
            f"its code failed or gave nothing, and {share}",
        )
    return own[0], _COORDINATED_CONFIDENCE, margin, f"it set out here, and {share}"
