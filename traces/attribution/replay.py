"""MAIN of counterfactual replay: answer failed turns afresh with every slot, and keep the counts.

    choose the turns -> what would each slot have seen -> m fresh answers of each -> check them
    -> one row an arm, and a preference pair where an adapter both failed and succeeded

The slot that answered is asked too, with the version that served where it can still be loaded;
the failed answer is not one of its samples. What was asked is kept, a few turns a commit: a run
that was killed, or whose engine went away, goes on where it was. Blame follows from the rows at
the next attribution (`from_replay`). By hand: `flows run attribute --replay`.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa

from serving.errors import EngineRefused, EngineUnavailable
from serving.records import Record, canonical_json
from serving.slots import Profile
from traces.attribution.arm_views import answer_hops
from traces.attribution.fresh_answers import Sample, draw, pair_of
from traces.attribution.replay_choice import choose
from traces.attribution.replay_jobs import Job, JobArm, Jobs, Pool, tools_offered, turns_of
from traces.attribution.replayed import ArmConfig, Preference, Replay
from traces.attribution.replayed import from_replay as from_replay
from traces.config import AttributionConfig
from traces.storage.lake import Lake
from traces.storage.tables import arrow_table

Progress = Callable[[int, int], None]
"""Called with engine calls made and the budget."""
SOURCE = "replay"
"""Of the preference pairs."""

TOO_DEAR = "needs more calls than the budget"

_CALLS_AT_ONCE = 128
"""Turns are asked together up to so many calls: engines batch, and a kill loses no more."""
_TURNS_AT_ONCE = 32


class ReplayReport(Record):
    """What a replay did."""

    replayed: int
    """Turns asked again in this run."""
    left_out: dict[str, int]
    """Failed turns that were not, by reason."""
    waiting: int
    """Turns that the budget did not reach."""
    calls: int
    """Engine calls made."""
    budget: int
    samples_left_out: dict[str, int]
    """Fresh answers that say nothing, by reason."""
    verdicts: dict[str, int]
    """Replayed turns by verdict."""
    versions: dict[str, int]
    """Replayed turns by the version that was asked of the slot that had answered: the one that
    `served`, or the `champion` now."""
    pairs: int
    """Preference pairs that are new."""
    stopped: str | None
    """What the engine said when it went away; None if it did not."""


@dataclass(frozen=True, slots=True)
class _Answered:
    """A job with its fresh answers, by slot."""

    job: Job
    samples: dict[str, list[Sample]]


@dataclass(slots=True)
class _Tally:
    replayed: int = 0
    calls: int = 0
    waiting: int = 0
    pairs: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    samples_left_out: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)


async def replay(
    home: Path,
    pool: Pool,
    profile: Profile,
    config: AttributionConfig,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> ReplayReport:
    """Replay failed turns of the lake of `home` until the budget is spent.

    Raises:
        LakeNotFound: if nothing was ingested yet.
        LakeUnavailable: if the lake cannot be written; what was committed before is kept.
    """
    tally, stopped = _Tally(), None
    with Lake.open(home, create=False) as lake:
        order, tally.left_out = choose(
            lake.connection, profile, config.samples, config.cluster_similarity
        )
        jobs = Jobs(lake.connection, pool, profile, config, tools_offered(lake.connection))
        while order and stopped is None:
            group, order = await _next_group(jobs, order, config.replay_budget, tally)
            if not group:
                break
            answered, stopped = await _ask(group, pool, seed, tally, progress, config.replay_budget)
            _keep(lake, answered, profile, config, tally)
        tally.waiting += len(order)
    return ReplayReport(
        replayed=tally.replayed,
        left_out=dict(sorted(tally.left_out.items())),
        waiting=tally.waiting,
        calls=tally.calls,
        budget=config.replay_budget,
        samples_left_out=dict(sorted(tally.samples_left_out.items())),
        verdicts=dict(sorted(tally.verdicts.items())),
        versions=dict(sorted(tally.versions.items())),
        pairs=tally.pairs,
        stopped=stopped,
    )


async def _next_group(
    jobs: Jobs, order: list[str], budget: int, tally: _Tally
) -> tuple[list[Job], list[str]]:
    """Return the next turns to ask together and those after them; none if the budget is spent."""
    group: list[Job] = []
    left, calls = budget - tally.calls, 0
    while order and calls < _CALLS_AT_ONCE:
        bundles = turns_of(jobs.connection, order[:_TURNS_AT_ONCE])
        for place, bundle in enumerate(bundles):
            job = await jobs.job(bundle)
            if isinstance(job, str):
                tally.left_out[job] += 1
                continue
            if job.most_calls > budget:
                tally.left_out[TOO_DEAR] += 1
                continue
            if calls + job.most_calls > left:
                return group, order[place:]
            group.append(job)
            calls += job.most_calls
            if calls >= _CALLS_AT_ONCE:
                return group, order[place + 1 :]
        order = order[_TURNS_AT_ONCE:]
    return group, order


async def _ask(
    group: Sequence[Job],
    pool: Pool,
    seed: int,
    tally: _Tally,
    progress: Progress | None,
    budget: int,
) -> tuple[list[_Answered], str | None]:
    """Return the turns whose every sample was drawn, and why the engine went away, if it did."""

    async def sample(job: Job, arm: JobArm, number: int) -> Sample:
        turn_id = job.bundle.turn.turn_id
        drawn = await draw(
            pool.engine, arm.version.name, arm.view, job.task, arm.check,
            _seed(seed, turn_id, arm.slot, arm.version.name, number),
        )  # fmt: skip
        tally.calls += drawn.calls
        if progress is not None:
            progress(min(tally.calls, budget), budget)
        return drawn

    async def ask(job: Job) -> _Answered:
        samples = {}
        async with asyncio.TaskGroup() as tasks:
            for arm in job.arms:
                first = arm.before.how.asked if arm.before else 0
                numbers = range(first, first + arm.wanted)
                samples[arm.slot] = [tasks.create_task(sample(job, arm, n)) for n in numbers]
        return _Answered(job, {slot: [t.result() for t in each] for slot, each in samples.items()})

    results = await asyncio.gather(*map(ask, group), return_exceptions=True)
    answered = [result for result in results if isinstance(result, _Answered)]
    for problem in (result for result in results if isinstance(result, BaseException)):
        gone, other = _split(problem)
        if other is not None:
            raise other
        return answered, str(gone)
    return answered, None


def _split(problem: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """Return what an engine said when it went away, or the error that is not of its making."""
    found = problem.exceptions[0] if isinstance(problem, BaseExceptionGroup) else problem
    engine = isinstance(found, EngineUnavailable | EngineRefused)
    return (found, None) if engine else (None, found)


def _keep(
    lake: Lake,
    answered: Sequence[_Answered],
    profile: Profile,
    config: AttributionConfig,
    tally: _Tally,
) -> None:
    """Write the rows and pairs of these turns in one commit."""
    now = datetime.now(UTC)
    rows = {a.job.bundle.turn.turn_id: _rows(a, now) for a in answered}
    pairs = [pair for a in answered if (pair := _pair(a, now)) is not None]
    if not answered:
        return

    def work(connection: duckdb.DuckDBPyConnection) -> int:
        for each in answered:
            _forget(connection, each.job)
        lake.insert("replays", _table("replays", [row for made in rows.values() for row in made]))
        new = [pair for pair in pairs if not _has_pair(connection, pair)]
        return len(lake.insert_new("preferences", [p.model_dump(mode="json") for p in new]))

    tally.pairs += lake.commit(work)
    for each in answered:
        turn = each.job.bundle.turn
        tally.replayed += 1
        own = next((arm for arm in each.job.arms if arm.slot == turn.slot), None)
        tally.versions[own.which if own else "served"] += 1
        for samples in each.samples.values():
            tally.samples_left_out.update(s.left_out for s in samples if s.left_out)
        tally.verdicts[_verdict(each, rows[turn.turn_id], profile, config)] += 1


def _forget(connection: duckdb.DuckDBPyConnection, job: Job) -> None:
    """Remove the rows that new ones replace, and pairs that were made by another reference."""
    turn_id = job.bundle.turn.turn_id
    kept = [row.slot for row in job.kept]
    connection.execute(
        "DELETE FROM replays WHERE turn_id = $turn AND NOT list_contains($kept, slot)",
        {"turn": turn_id, "kept": kept},
    )
    if job.stale:
        connection.execute(
            "DELETE FROM preferences WHERE turn_id = ? AND source = ?", [turn_id, SOURCE]
        )


def _has_pair(connection: duckdb.DuckDBPyConnection, pair: Preference) -> bool:
    """Whether the turn has a pair of this adapter already; more samples do not make another."""
    found = connection.execute(
        "SELECT 1 FROM preferences"
        " WHERE turn_id = ? AND source = ? AND digest IS NOT DISTINCT FROM ?",
        [pair.turn_id, pair.source, pair.digest],
    )
    return found.fetchone() is not None


def _rows(answered: _Answered, now: datetime) -> list[Replay]:
    job = answered.job
    return [_row(job, arm, answered.samples[arm.slot], now) for arm in job.arms]


def _row(job: Job, arm: JobArm, samples: Sequence[Sample], now: datetime) -> Replay:
    before = arm.before
    left_out = Counter(before.how.left_out if before else {})
    left_out.update(s.left_out for s in samples if s.left_out)
    how = ArmConfig(
        reference=job.reference,
        version=arm.which,
        view=arm.view.view,
        tools=arm.view.offered,
        temperature=job.task.temperature,
        max_tokens=job.task.max_tokens,
        asked=len(samples) + (before.how.asked if before else 0),
        left_out=dict(sorted(left_out.items())),
        calls=sum(s.calls for s in samples) + (before.how.calls if before else 0),
    )
    return Replay(
        turn_id=job.bundle.turn.turn_id,
        slot=arm.slot,
        digest=arm.version.digest,
        samples=sum(s.passed is not None for s in samples) + (before.samples if before else 0),
        successes=sum(s.passed is True for s in samples) + (before.successes if before else 0),
        config=canonical_json(how.model_dump(mode="json")),
        created_at=now,
    )


def _pair(answered: _Answered, now: datetime) -> Preference | None:
    """Return the preference pair of the adapter that answered; None where it has none."""
    job = answered.job
    turn = job.bundle.turn
    own = next((arm for arm in job.arms if arm.slot == turn.slot), None)
    if own is None:
        return None
    found = pair_of(
        answer_hops(job.bundle), answered.samples[own.slot], same_version=own.which == "served"
    )
    if found is None:
        return None
    hop, chosen, rejected = found
    return Preference.make(turn, hop, own.version.digest, chosen, rejected, SOURCE, now)


def _verdict(
    answered: _Answered, rows: Sequence[Replay], profile: Profile, config: AttributionConfig
) -> str:
    bundle = answered.job.bundle
    assert bundle.blame is not None
    blamed = from_replay(
        bundle.blame, [*answered.job.kept, *rows], bundle.turn, bundle.hops, bundle.outcome,
        profile, config.false_router,
    )  # fmt: skip
    return blamed.verdict or "none"


def _table(name: str, rows: Sequence[Record]) -> pa.Table:
    return arrow_table(name, [row.model_dump(mode="json") for row in rows])


def _seed(seed: int, *parts: object) -> int:
    """Return the seed of one sample: its own, and the same in every run."""
    said = "|".join(map(str, (seed, *parts)))
    return int.from_bytes(hashlib.sha256(said.encode()).digest()[:4], "big") & 0x7FFFFFFF
