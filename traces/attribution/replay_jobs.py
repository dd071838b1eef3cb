"""What a replay asks for one turn: which versions, shown what, how often, checked how.

In: a turn with its calls, the lake for what came before it. Out: a `Job`, or why there is none.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import duckdb

from serving.engine import Engine
from serving.records import BASE_SLOT
from serving.slots import Profile
from traces.attribution.arm_views import ArmView, Tools, answer_hops, arm_views
from traces.attribution.fresh_answers import DEFAULT_TOKENS, REFUSED, TOO_SLOW, Task, task_of
from traces.attribution.fresh_answers import TRUNCATED as CUT
from traces.attribution.rechecking import judged_again
from traces.attribution.references import References, references_of
from traces.attribution.replay_choice import NO_CHECK, TRUNCATED
from traces.attribution.replayed import Replay, current
from traces.bundles import TurnBundle, read_bundles
from traces.config import AttributionConfig
from traces.storage.row_records import record_of
from traces.verifiers.registry import TurnCheck

NO_TOOLS = "the tools that were offered are not known"
HOPS_MISSING = "calls are missing from the record"
PASSED = "the check passes the recorded answer"
KNOWN = "replayed before"
_EARLIER_TURNS = 200


@dataclass(frozen=True, slots=True)
class Version:
    """A version that the engine can be asked for."""

    name: str
    """Name to ask for."""
    digest: str | None
    """12 hex digits; None for the bare base model."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The engine with the versions that answer."""

    engine: Engine
    champions: Mapping[str, Version]
    """What each slot serves now."""
    base: Version
    served: Callable[[str, str], Awaitable[Version | None]]
    """Loads the version of a slot that had served (12 hex digits); None where it is gone."""


@dataclass(frozen=True, slots=True)
class JobArm:
    """One arm of a turn."""

    slot: str
    version: Version
    which: Literal["served", "champion"]
    view: ArmView
    check: TurnCheck
    before: Replay | None
    """An earlier row of too few samples, which is added to."""
    wanted: int
    """Samples to draw now."""


@dataclass(frozen=True, slots=True)
class Job:
    """All that is asked for one turn."""

    bundle: TurnBundle
    task: Task
    reference: str
    """`content_id` of what answers are checked against."""
    arms: tuple[JobArm, ...]
    kept: tuple[Replay, ...]
    """Rows of arms that need not be asked again."""
    stale: bool
    """Whether the turn was replayed against another reference before."""

    @property
    def most_calls(self) -> int:
        """Engine calls that it may take."""
        return sum(arm.wanted for arm in self.arms) * self.task.max_calls


@dataclass(frozen=True, slots=True)
class Jobs:
    """Makes the jobs of one run."""

    connection: duckdb.DuckDBPyConnection
    pool: Pool
    profile: Profile
    config: AttributionConfig
    offered: Mapping[str, Tools]
    """Tools that slots were last offered."""

    async def job(self, bundle: TurnBundle) -> Job | str:
        """Return what to ask for a turn, or why nothing is asked."""
        turn = bundle.turn
        if len(set(turn.hop_ids)) != len(bundle.hops) or not answer_hops(bundle):
            return HOPS_MISSING
        if any(hop.finish_reason == "length" for hop in answer_hops(bundle)):
            return TRUNCATED
        references = references_of(bundle.outcome)
        if references is None:
            return NO_CHECK
        reference = references.name
        views = arm_views(self.profile, bundle, self._earlier(bundle), self.offered)
        checks = {slot: references.check(view.tools) for slot, view in views.items()}
        judges_calls = any(check.judges_calls for check in checks.values())
        if judges_calls and not any(view.tools for view in views.values()):
            return NO_TOOLS
        rows = self._rows(turn.turn_id)
        before = current(rows, reference)
        task = task_of(bundle, judges_calls, self.config.replay_temperature)
        before = {slot: row for slot, row in before.items() if not _is_open(row, task)}
        kept = {slot: before[slot] for slot in views if self._is_whole(before.get(slot))}
        if len(kept) == len(views):
            return KNOWN
        if await asyncio.to_thread(_passed, bundle, references):
            return PASSED
        arms = [
            await self._arm(bundle, slot, view, checks[slot], task, before.get(slot))
            for slot, view in views.items()
            if slot not in kept
        ]
        stale = any(row.how.reference != reference for row in rows)
        return Job(bundle, task, reference, tuple(arms), tuple(kept.values()), stale)

    def _is_whole(self, row: Replay | None) -> bool:
        return row is not None and row.how.asked >= self.config.samples

    async def _arm(
        self, bundle: TurnBundle, slot: str, view: ArmView, check: TurnCheck, task: Task,
        row: Replay | None,
    ) -> JobArm:  # fmt: skip
        version, which = await self._version(bundle, slot)
        if row is not None and (
            (row.digest, row.how.temperature) != (version.digest, task.temperature)
            or row.how.version != which
        ):
            row = None  # what another version said is no part of this one's samples
        wanted = self.config.samples - (row.how.asked if row else 0)
        return JobArm(slot, version, which, view, check, row, wanted)

    async def _version(
        self, bundle: TurnBundle, slot: str
    ) -> tuple[Version, Literal["served", "champion"]]:
        """Return the version to ask: for the slot that answered the one that did, if it can be."""
        if slot == BASE_SLOT:
            return self.pool.base, "served"
        champion = self.pool.champions.get(slot, self.pool.base)
        digest = bundle.turn.digest
        if slot != bundle.turn.slot or digest is None:
            return champion, "champion"
        if champion.digest == digest:
            return champion, "served"
        served = await self.pool.served(slot, digest)
        return (served, "served") if served is not None else (champion, "champion")

    def _earlier(self, bundle: TurnBundle) -> list[TurnBundle]:
        """Return the conversation's turns before this one; of several at one place the latest."""
        turn = bundle.turn
        picked = f"""
            SELECT position AS key, turn_id, true AS whole FROM turns
            WHERE conversation_id = $conversation AND position < $position
              AND position >= $position - {_EARLIER_TURNS} AND started_at <= $started
            QUALIFY row_number() OVER (
                PARTITION BY position ORDER BY started_at DESC, turn_id) = 1
        """
        values = {
            "conversation": turn.conversation_id,
            "position": turn.position,
            "started": turn.started_at,
        }
        return list(read_bundles(self.connection, picked, values))

    def _rows(self, turn_id: str) -> list[Replay]:
        relation = self.connection.execute("SELECT * FROM replays WHERE turn_id = ?", [turn_id])
        names = [column[0] for column in relation.description]
        found = (dict(zip(names, row, strict=True)) for row in relation.fetchall())
        return [record_of(Replay, "replays", row) for row in found]


def _passed(bundle: TurnBundle, references: References) -> bool:
    """Whether the answer that failed passes: then this is not what it failed."""
    return judged_again(bundle.hops, references.check).passed is True


def _is_open(row: Replay, task: Task) -> bool:
    """Whether an arm is to be asked afresh: it may answer now, or come to an end.

    The engine had answered none of its calls, or cut most answers at a lower limit than this.
    """
    left_out, asked = row.how.left_out, row.how.asked
    cut = 2 * left_out.get(CUT, 0) > asked
    longer = task.max_tokens > (row.how.max_tokens or DEFAULT_TOKENS)
    return left_out.get(REFUSED, 0) + left_out.get(TOO_SLOW, 0) >= asked or (cut and longer)


def tools_offered(connection: duckdb.DuckDBPyConnection) -> dict[str, Tools]:
    """Return the tools that each slot's latest call with tools was offered."""
    rows = connection.execute(
        "SELECT split_part(coalesce(served_name, model), '@', 1), arg_max(tools, started_at)"
        " FROM hops WHERE role = 'answer' AND tools <> '[]' GROUP BY ALL"
    ).fetchall()
    return {slot: _tools(text) for slot, text in rows}


def turns_of(connection: duckdb.DuckDBPyConnection, turn_ids: Sequence[str]) -> list[TurnBundle]:
    """Return turns with all that is known about them, in this order."""
    picked = """
        SELECT n AS key, turn_id, true AS whole
        FROM (SELECT unnest($ids) AS turn_id, generate_subscripts($ids, 1) AS n)
    """
    return list(read_bundles(connection, picked, {"ids": list(turn_ids)}))


def _tools(text: str) -> tuple[dict[str, Any], ...]:
    try:
        tools = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    return tuple(t for t in tools if isinstance(t, dict)) if isinstance(tools, list) else ()
