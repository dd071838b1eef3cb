"""Do off-policy estimates tell the truth, and refuse where they cannot?

    python -m benchmarks.attribution_estimators [--quick]

A synthetic router with known truth: topics that slots serve with different chances, a greedy
policy that is right on most of them, epsilon-greedy logging, conversations whose turns share topic
and luck. Every replication draws a new world. `traces.attribution.off_policy.estimate` is the
code under test; the outcome model is a cross-fitted table of topics, and in some replications the
hashed one of `traces.attribution.outcome_model` over texts. Goal: 95% intervals cover 93 to 97%.
"""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import binomtest

from benchmarks import quick_asked
from traces.attribution.off_policy import (
    MIN_ESS,
    EstimateRefused,
    Floats,
    Ints,
    Logged,
    PolicyValue,
    effective_sample_size,
    estimate,
)
from traces.attribution.outcome_model import FOLDS, cross_fitted, folds

LABELS = ("L0", "L1", "L2", "L3")
TOPICS = 12
SHARED_LUCK = 0.3
"""Chance that a turn's luck is that of its whole conversation."""
SETTINGS = tuple((n, epsilon) for n in (500, 1500, 3000, 10_000) for epsilon in (0.05, 0.1, 0.2))
"""Turns and exploration."""
ESTIMATORS = ("ips", "snips", "dr")
Predict = Callable[["World", Logged, Ints], Floats]


@dataclass(frozen=True, slots=True)
class World:
    """What a router meets."""

    chance_T_K: Floats
    """Of success, by topic and slot."""
    greedy_T: Ints
    """What the logged router chooses."""
    best_T: Ints

    @staticmethod
    def drawn(rng: np.random.Generator) -> "World":
        """Return a world in which one slot is good at each topic, and the router mostly knows."""
        k = len(LABELS)
        best_T = rng.integers(0, k, TOPICS)
        chance_T_K = rng.uniform(0.05, 0.6, (TOPICS, k))
        chance_T_K[np.arange(TOPICS), best_T] = rng.uniform(0.5, 0.95, TOPICS)
        knows_T = rng.random(TOPICS) < 0.7
        return World(chance_T_K, np.where(knows_T, best_T, rng.integers(0, k, TOPICS)), best_T)

    def policies(self) -> dict[str, Floats]:
        """Return probabilities by topic and slot of what might have been done."""
        each = np.eye(len(LABELS))
        return {
            "one slot": np.tile(each[0], (TOPICS, 1)),
            "better router": each[self.best_T],
            "no exploration": each[self.greedy_T],
            "half random": 0.5 * each[self.greedy_T] + 0.5 / len(LABELS),
        }

    def truth(self, policy_T_K: Floats) -> float:
        """Return the value of a policy; all topics are as frequent."""
        return float((policy_T_K * self.chance_T_K).sum(axis=1).mean())

    def log(self, n: int, epsilon: float, rng: np.random.Generator) -> tuple[Logged, Ints]:
        """Return about n turns of conversations of one to eight, and their topics."""
        length_G = rng.integers(1, 9, size=n)
        length_G = length_G[: int(np.searchsorted(np.cumsum(length_G), n)) + 1]
        conversation_N = np.repeat(np.arange(len(length_G)), length_G)
        size, k = len(conversation_N), len(LABELS)
        favourite_G, luck_G = rng.integers(0, TOPICS, len(length_G)), rng.random(len(length_G))
        same_N, shared_N = rng.random(size) < 0.5, rng.random(size) < SHARED_LUCK
        topic_N = np.where(same_N, favourite_G[conversation_N], rng.integers(0, TOPICS, size))
        greedy_N = self.greedy_T[topic_N]
        action_N = np.where(rng.random(size) < epsilon, rng.integers(0, k, size), greedy_N)
        luck_N = np.where(shared_N, luck_G[conversation_N], rng.random(size))
        reward_N = (luck_N < self.chance_T_K[topic_N, action_N]).astype(np.float64)
        propensity_N = epsilon / k + (1 - epsilon) * (action_N == greedy_N)
        return Logged(LABELS, action_N, propensity_N, reward_N, conversation_N), topic_N


def topic_table(world: World, logged: Logged, topic_N: Ints) -> Floats:
    """Predict by the cross-fitted mean of topic and slot, drawn towards the slot's own."""
    k = len(LABELS)
    fold_N = folds(logged.conversation_N, FOLDS)
    cell_N = (fold_N * TOPICS + topic_N) * k + logged.action_N
    shape = (FOLDS, TOPICS, k)
    tried = np.bincount(cell_N, minlength=FOLDS * TOPICS * k).reshape(shape)
    won = np.bincount(cell_N, logged.reward_N, FOLDS * TOPICS * k).reshape(shape)
    tried, won = tried.sum(axis=0) - tried, won.sum(axis=0) - won
    slot = (won.sum(axis=1, keepdims=True) + 1) / (tried.sum(axis=1, keepdims=True) + 2)
    table: Floats = (won + 4 * slot) / (tried + 4)
    return table[fold_N, topic_N]


def hashed_text(world: World, logged: Logged, topic_N: Ints) -> Floats:
    """Predict by the model that the command uses, over texts of three words of the topic."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 6, (len(topic_N), 3))
    texts = [
        "please " + " ".join(f"t{topic}w{w}" for w in three)
        for topic, three in zip(topic_N, words, strict=True)
    ]
    return cross_fitted(texts, logged.action_N, logged.reward_N, logged.conversation_N, len(LABELS))


def wrong(world: World, logged: Logged, topic_N: Ints) -> Floats:
    """Predict the opposite of the truth."""
    return 1 - world.chance_T_K[topic_N]


class Tally:
    """Errors, coverage and refusals of one kind of replications."""

    def __init__(self) -> None:
        self.errors: dict[str, list[float]] = defaultdict(list)
        self.covered: dict[str, list[bool]] = defaultdict(list)
        self.asked = self.refused = self.short = self.short_refused = 0

    def add(self, found: PolicyValue | None, ess: float, truth: float, now: float) -> None:
        """Count one estimate; `now` is the logged policy's true value."""
        self.asked += 1
        self.refused += found is None
        self.short += ess < MIN_ESS
        self.short_refused += ess < MIN_ESS and found is None
        if found is None:
            return
        for name in (*ESTIMATORS, "logged", "gain"):
            value = getattr(found, name)
            right = {"logged": now, "gain": truth - now}.get(name, truth)
            self.errors[name].append(value.estimate - right)
            self.covered[name].append(value.lower <= right <= value.upper)

    def merged(self, other: "Tally") -> None:
        """Add another tally to this one."""
        for name in other.errors:
            self.errors[name] += other.errors[name]
            self.covered[name] += other.covered[name]
        for name in ("asked", "refused", "short", "short_refused"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def coverage(self, name: str) -> float | None:
        """Return the share of intervals that hold the truth; None without any."""
        return float(np.mean(self.covered[name])) if self.covered[name] else None

    def rmse(self, name: str) -> float:
        """Return the root mean squared error."""
        return float(np.sqrt(np.mean(np.square(self.errors[name]))))


Tallies = dict[tuple[int, float, str], Tally]
"""By number of turns, epsilon and policy."""


def replicate(
    tallies: Tallies,
    n: int,
    epsilon: float,
    predict: Predict,
    seed: int,
) -> None:
    """Draw a world and its log, and estimate every policy."""
    rng = np.random.default_rng([seed, n, round(epsilon * 1000)])
    world = World.drawn(rng)
    logged, topic_N = world.log(n, epsilon, rng)
    predicted_N_K = predict(world, logged, topic_N)
    behaviour_T_K = epsilon / len(LABELS) + (1 - epsilon) * np.eye(len(LABELS))[world.greedy_T]
    for name, policy_T_K in world.policies().items():
        policy_N_K = policy_T_K[topic_N]
        taken_N = policy_N_K[np.arange(len(topic_N)), logged.action_N]
        try:
            found = estimate(logged, policy_N_K, predicted_N_K)
        except EstimateRefused:
            found = None
        tallies[n, epsilon, name].add(
            found,
            effective_sample_size(taken_N / logged.propensity_N),
            world.truth(policy_T_K),
            world.truth(behaviour_T_K),
        )


def measure(quick: bool) -> dict[str, Any]:
    """Return coverage, bias, errors and refusals."""
    started = time.monotonic()
    table = _run(topic_table, 40 if quick else 400)
    text = _run(hashed_text, 1 if quick else 4)
    reversed_ = _run(wrong, 4 if quick else 40)
    total = _total(table)
    held = binomtest(sum(total.covered["dr"]), len(total.covered["dr"]))
    limits = held.proportion_ci(method="wilson")
    return {
        "ope_coverage": total.coverage("dr"),
        "ope_coverage_interval": [float(limits.low), float(limits.high)],
        "coverage": {name: total.coverage(name) for name in (*ESTIMATORS, "logged", "gain")},
        "estimates": len(total.covered["dr"]),
        "bias": {name: float(np.mean(total.errors[name])) for name in ESTIMATORS},
        "rmse": {name: total.rmse(name) for name in ESTIMATORS},
        "rmse_dr_over_ips": total.rmse("dr") / total.rmse("ips"),
        "hashed_text": _brief(_total(text)),
        "wrong_model": _brief(_total(reversed_)),
        "refused": total.refused / total.asked,
        "refused_below_ess": total.short_refused / total.short if total.short else None,
        "refused_without_propensities": _refused_without_propensities(20),
        "extremes": _extremes(table, 20 if quick else 100),
        "settings": list(_settings(table)),
        "seconds": round(time.monotonic() - started, 1),
    }


def _run(predict: Predict, replications: int) -> Tallies:
    tallies: Tallies = defaultdict(Tally)
    for n, epsilon in SETTINGS:
        for seed in range(replications):
            replicate(tallies, n, epsilon, predict, seed)
    return tallies


def _total(tallies: Tallies) -> Tally:
    total = Tally()
    for tally in tallies.values():
        total.merged(tally)
    return total


def _brief(total: Tally) -> dict[str, Any]:
    return {
        "coverage": total.coverage("dr"),
        "bias": float(np.mean(total.errors["dr"])),
        "rmse_dr_over_ips": total.rmse("dr") / total.rmse("ips"),
        "estimates": len(total.covered["dr"]),
    }


def _extremes(tallies: Tallies, least: int) -> dict[str, list[float]]:
    """Return lowest and highest coverage of the settings with that many estimates."""
    enough = [tally for tally in tallies.values() if len(tally.covered["dr"]) >= least]
    found = {}
    for name in ESTIMATORS:
        each = [float(np.mean(tally.covered[name])) for tally in enough]
        found[name] = [min(each), max(each)]
    return found


def _settings(tallies: Tallies) -> Iterator[dict[str, Any]]:
    """Yield one row a setting: how often it was refused, and coverage of the rest."""
    for (n, epsilon, policy), tally in tallies.items():
        coverage = {name: tally.coverage(name) for name in ESTIMATORS}
        yield {"n": n, "epsilon": epsilon, "policy": policy,
               "refused": tally.refused / tally.asked, **coverage}  # fmt: skip


def _refused_without_propensities(replications: int) -> float:
    """Return the share of logs refused where one turn in a hundred lacks its propensity."""
    refused = 0
    for seed in range(replications):
        rng = np.random.default_rng(seed)
        world = World.drawn(rng)
        logged, topic_N = world.log(3000, 0.2, rng)
        logged.propensity_N[rng.random(len(topic_N)) < 0.01] = np.nan
        policy_N_K = world.policies()["no exploration"][topic_N]
        try:
            estimate(logged, policy_N_K, np.full(policy_N_K.shape, 0.5))
        except EstimateRefused:
            refused += 1
    return refused / replications


def main() -> None:
    """Measure, say what was found on stderr, print JSON as the last line."""
    found = measure(quick_asked(__doc__))
    for row in found["settings"]:
        print(row, file=sys.stderr)
    print(json.dumps(found | {"settings": len(found["settings"])}))


if __name__ == "__main__":
    main()
