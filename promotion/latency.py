"""How fast both arms answer: the same items, one at a time, the arms in turn.

In: an engine, items and the served names of both versions. Out: durations in pairs, and of those
what the gate says: non-inferiority of the mean log ratio of durations, a cluster-robust t.

Durations of answers that were asked all at once are those of the queue, and durations of another
day those of another machine. So these are measured for themselves and are never kept: each item
is asked of both arms one straight after the other, and who begins alternates. Both were asked all
of it before, untimed: of a champion whose scores were kept the engine's prefix cache may know
nothing, while it knows the challenger's prompts, and that is no speed. Timed are the engine's calls
alone: what checks an answer, or a conversation's other side, takes its time whoever answers.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from scipy import special

from promotion.config import GateConfig
from promotion.paired import InvalidScores, cluster_mean
from promotion.slices import Status
from promotion.suites.suite import Item
from serving.engine import ChatResult, Engine
from serving.records import Record


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds in the engine's calls for an item, pair by pair."""

    clusters: tuple[str, ...]
    champion_s: tuple[float, ...]
    challenger_s: tuple[float, ...]


class LatencyResult(Record):
    """What durations say."""

    status: Status
    reason: str
    n: int
    clusters: int
    ratio: float | None
    """Geometric mean of challenger to champion, over 1 where slower; None for too few pairs."""
    lower: float | None
    """One-sided lower limit of the ratio at the attempt's level."""
    upper: float | None
    margin: float
    """Largest slowdown that may stay hidden, as a share."""
    items_needed: int | None
    """Items like these that exclude the margin with the stated power."""


async def measure_durations(
    engine: Engine, items: Sequence[Item], champion: str, challenger: str
) -> Durations:
    """Ask each item of both versions, one at a time, once both have seen all of them.

    An item of which a version was asked nothing, as by a conversation that broke off, is left out.
    """
    await asyncio.gather(*(i.run(engine, name) for name in (champion, challenger) for i in items))
    timed = _TimedEngine(engine)
    arms = [("champion", champion), ("challenger", challenger)]
    pairs: list[tuple[str, float, float]] = []
    for number, item in enumerate(items):
        seconds: dict[str, float] = {}
        for arm, name in arms if number % 2 == 0 else reversed(arms):
            before_s = timed.busy_s
            await item.run(cast(Engine, timed), name)
            seconds[arm] = timed.busy_s - before_s
        if all(seconds.values()):
            pairs.append((item.cluster, seconds["champion"], seconds["challenger"]))
    return Durations(
        clusters=tuple(cluster for cluster, _, _ in pairs),
        champion_s=tuple(old for _, old, _ in pairs),
        challenger_s=tuple(new for _, _, new in pairs),
    )


class _TimedEngine:
    """An engine that adds up for how long at least one of its answers was awaited."""

    def __init__(self, engine: Engine) -> None:
        self.busy_s = 0.0
        self._engine = engine
        self._running = 0
        self._since = 0.0

    async def chat(self, *given: Any, **named: Any) -> ChatResult:
        if not self._running:
            self._since = time.monotonic()
        self._running += 1
        try:
            return await self._engine.chat(*given, **named)
        finally:
            self._running -= 1
            if not self._running:
                self.busy_s += time.monotonic() - self._since

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def judge_latency(durations: Durations, alpha: float, config: GateConfig) -> LatencyResult:
    """Say whether a slowdown of more than the margin is excluded.

    Raises:
        InvalidScores: for a duration that is not above 0, or unequal numbers of them.
    """
    log_ratio_N = _log_ratios(durations)
    groups = {cluster: n for n, cluster in enumerate(dict.fromkeys(durations.clusters))}
    n, margin = len(log_ratio_N), config.latency_margin

    def result(
        status: Status, words: str, limits: Sequence[float] = (), needed: int | None = None
    ) -> LatencyResult:
        ratio, lower, upper = limits or (None, None, None)
        return LatencyResult(
            status=status, reason=f"latency: {words}", n=n, clusters=len(groups), ratio=ratio,
            lower=lower, upper=upper, margin=margin, items_needed=needed,
        )  # fmt: skip

    if len(groups) < 2:
        return result("insufficient", f"{n} items in {len(groups)} clusters say nothing of speed.")
    mean = cluster_mean(log_ratio_N, np.array([groups[c] for c in durations.clusters]))
    # Two clusters at the level of a late attempt reach beyond what a float holds.
    limits = tuple(math.exp(min(x, 700.0)) for x in (mean.mean, *mean.limits(alpha)))
    quantiles = (float(special.stdtrit(mean.degrees, q)) for q in (1 - alpha, config.power))
    needed = math.ceil(n * (sum(quantiles) * mean.standard_error / math.log1p(margin)) ** 2)
    seen = (
        f"{limits[0]:.2f} times the champion's durations [{limits[1]:.2f}, {limits[2]:.2f}] on "
        f"{n} items"
    )
    slower = f"a slowdown of {margin:.0%}"
    if limits[2] < 1 + margin:
        return result("ok", f"{seen}: {slower} is excluded.", limits, needed)
    if limits[1] > 1 + margin:
        return result("worse", f"{seen}: shown to be more than {slower}.", limits, needed)
    if n >= needed:
        return result("undecided", f"{seen}: {slower} is not excluded.", limits, needed)
    words = f"{seen}: {slower} is not excluded; that takes about {needed} items like these."
    return result("insufficient", words, limits, needed)


def _log_ratios(durations: Durations) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    champion_N, challenger_N = np.array(durations.champion_s), np.array(durations.challenger_s)
    sizes = (len(durations.clusters), len(champion_N), len(challenger_N))
    wrong = [s for s in (*durations.champion_s, *durations.challenger_s) if not 0 < s < math.inf]
    if wrong or len(set(sizes)) != 1:
        found = f"the duration {wrong[0]!r} s" if wrong else f"{sizes!r} clusters and durations"
        raise InvalidScores(
            f"{found} cannot be compared; there is one above 0 for each item and arm. "
            "Run 'flows run gate' again."
        )
    ratios: np.ndarray[tuple[int], np.dtype[np.float64]] = np.log(challenger_N / champion_N)
    return ratios
