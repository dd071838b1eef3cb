"""A language model as the judge of turns, where one is configured and measured to be worth it.

    ask about a sample of verified turns, with the options in both orders -> measure agreement with
    the verifiers and position bias -> refuse the judge, or ask about turns that nobody verified

Its verdicts are feedback of annotator `model`, tier C, each stored once: they make a turn suspect,
no more. Those on verified turns are its measurement. A judge that is refused has nothing stored on
other turns, and what it had there is withdrawn. By hand: `flows run attribute --judge URL`.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import duckdb

from serving.engine import ChatRequest, Engine
from serving.errors import EngineRefused, EngineUnavailable
from serving.records import Feedback, Message, Record
from traces.attribution.agreement import Agreement, agreement
from traces.attribution.judge_prompt import (
    FLIPPED,
    LETTERS,
    PROMPT_DIGEST,
    REFUSED,
    Verdict,
    prompts,
    verdict_of,
)
from traces.attribution.replay_jobs import turns_of
from traces.bundles import TurnBundle
from traces.storage.lake import Lake

SOURCE = "judge"
SAMPLE_TURNS = 200
"""Verified turns that a judge is measured on, where there are so many."""
_CALLS_A_TURN = 2
_TURNS_AT_ONCE = 32
_MAX_TOKENS = 16

Progress = Callable[[int, int], None]
"""Called with engine calls made and the budget."""


class JudgeReport(Record):
    """What a judge was found to be worth, and what it did."""

    judge: str
    """Model and the beginning of the prompt's digest."""
    agreement: Agreement
    refused: str | None
    """Why its verdicts do not count."""
    verdicts: dict[str, int]
    """Unverified turns judged in this run, by `pass`, `fail` and `none`."""
    waiting: int
    """Turns that the budget did not reach."""
    withdrawn: int
    calls: int
    budget: int
    stopped: str | None
    """What the server said when it went away; None if it did not."""


@dataclass(slots=True)
class _Judge:
    engine: Engine
    model: str
    budget: int
    progress: Progress | None
    calls: int = 0
    stopped: str | None = None
    constrained: bool | None = None
    """Whether its server takes a list of letters; None until it has answered at all."""

    @property
    def name(self) -> str:
        return f"{self.model}#{PROMPT_DIGEST[:8]}"

    async def verdict(self, bundle: TurnBundle) -> Verdict:
        """Ask in both orders."""
        said = await asyncio.gather(*(self._ask(messages) for messages in prompts(bundle)))
        return verdict_of(*said)

    async def _ask(self, messages: tuple[Message, ...]) -> str:
        """Ask for one of the letters; of a server that knows no such lists, for an answer."""
        choices = () if self.constrained is False else LETTERS
        try:
            said = await self._call(messages, choices)
        except EngineRefused as refusal:
            if not choices or self.constrained is True or not refusal.of_the_request:
                raise
            said, choices = await self._call(messages, ()), ()
        if self.constrained is None:
            self.constrained = bool(choices)
        return said

    async def _call(self, messages: tuple[Message, ...], choices: tuple[str, ...]) -> str:
        self.calls += 1
        request = ChatRequest(self.model, messages, max_tokens=_MAX_TOKENS, choices=choices)
        try:
            return (await self.engine.chat(request)).message.content
        finally:
            if self.progress is not None:
                self.progress(min(self.calls, self.budget), self.budget)


async def judge_turns(
    home: Path, engine: Engine, model: str, budget: int, progress: Progress | None = None
) -> JudgeReport:
    """Measure a judge and, if it counts, let it judge turns that nobody verified.

    `budget` is the most engine calls of this run. Turns must have been attributed.

    Raises:
        LakeNotFound: if nothing was ingested yet.
        LakeUnavailable: if the lake cannot be written; what was committed before is kept.
    """
    judge = _Judge(engine, model, budget, progress)
    counts = {"pass": 0, "fail": 0, "none": 0}
    waiting = withdrawn = 0
    with Lake.open(home, create=False) as lake:
        await _judge_all(lake, judge, _unasked(lake.connection, _SAMPLE, judge.name))
        measured = agreement(_measured(lake.connection, judge.name))
        refused = measured.refused
        if refused is None:
            turn_ids = _unasked(lake.connection, _UNVERIFIED, judge.name)
            done = await _judge_all(lake, judge, turn_ids)
            waiting = len(turn_ids) - len(done)
            for verdict in done:
                counts[{True: "pass", False: "fail", None: "none"}[verdict.passed]] += 1
        elif judge.stopped is None:
            withdrawn = lake.commit(lambda connection: _withdraw(connection, judge.name))
    return JudgeReport(
        judge=judge.name,
        agreement=measured,
        refused=refused,
        verdicts=counts,
        waiting=waiting,
        withdrawn=withdrawn,
        calls=judge.calls,
        budget=budget,
        stopped=judge.stopped,
    )


_STANDING = """FROM turns t JOIN outcomes o USING (turn_id)
    WHERE t.status = 'ok' AND t.answer IS NOT NULL AND NOT t.canary AND NOT o.truncated"""
# In an order that has nothing to do with what happened: a random sample, the same each time.
_SAMPLE = f"""SELECT t.turn_id {_STANDING} AND o.rule = 'verified'
    ORDER BY md5(t.turn_id) LIMIT {SAMPLE_TURNS}"""
_UNVERIFIED = f"""SELECT t.turn_id {_STANDING} AND o.rule IN ('suspect', 'unjudged', 'unverified')
    ORDER BY o.rule <> 'suspect', t.started_at DESC, t.turn_id"""


def _unasked(connection: duckdb.DuckDBPyConnection, wanted: str, name: str) -> list[str]:
    """Return the wanted turns that this judge was not asked about yet, in order."""
    asked = {
        row[0]
        for row in connection.execute(
            "SELECT target_id FROM feedback WHERE source = $source AND name = $name",
            {"source": SOURCE, "name": name},
        ).fetchall()
    }
    return [row[0] for row in connection.execute(wanted).fetchall() if row[0] not in asked]


async def _judge_all(lake: Lake, judge: _Judge, turn_ids: Sequence[str]) -> list[Verdict]:
    """Ask about turns until the budget is spent or the server is gone; return what was stored.

    Of a server that refuses whatever it is asked nothing is stored: it is asked again.
    """
    done: list[Verdict] = []
    while judge.stopped is None and len(done) < len(turn_ids):
        # Until it has answered, a question may have to be asked without its letters as well.
        each = _CALLS_A_TURN * (2 if judge.constrained is None else 1)
        affordable = (judge.budget - judge.calls) // each
        ids = turn_ids[len(done) : len(done) + min(_TURNS_AT_ONCE, affordable)]
        if not ids:
            break
        bundles = turns_of(lake.connection, ids)
        results = await asyncio.gather(*map(judge.verdict, bundles), return_exceptions=True)
        rows = []
        for bundle, result in zip(bundles, results, strict=True):
            if (
                isinstance(result, EngineRefused)
                and result.of_the_request
                and judge.constrained is not None
            ):
                result = Verdict(None, REFUSED)
            if isinstance(result, Verdict):
                rows.append(_row(bundle.turn.turn_id, judge.name, result))
                done.append(result)
            elif isinstance(result, EngineUnavailable | EngineRefused):
                judge.stopped = str(result)
            else:
                raise result
        _keep(lake, rows, judge.name)
    return done


def _row(turn_id: str, name: str, verdict: Verdict) -> dict[str, object]:
    now = datetime.now(UTC)
    said = Feedback(
        source=SOURCE,
        target_kind="turn",
        target_id=turn_id,
        kind="verifier",
        name=name,
        value=None if verdict.passed is None else float(verdict.passed),
        detail=verdict.why or None,
        created_at=now,
        annotator="model",
    )
    return said.model_dump(mode="json") | {"feedback_id": said.feedback_id, "day": now.date()}


def _keep(lake: Lake, rows: list[dict[str, object]], name: str) -> None:
    """Store verdicts, but for turns that this judge has one on by now."""

    def work(connection: duckdb.DuckDBPyConnection) -> None:
        there = connection.execute(
            "SELECT target_id FROM feedback WHERE source = $source AND name = $name"
            " AND list_contains($ids, target_id)",
            {"source": SOURCE, "name": name, "ids": [row["target_id"] for row in rows]},
        ).fetchall()
        known = {row[0] for row in there}
        new = [row for row in rows if row["target_id"] not in known]
        if new:
            lake.insert_new("feedback", new)

    if rows:
        lake.commit(work)


def _measured(
    connection: duckdb.DuckDBPyConnection, name: str
) -> list[tuple[bool, bool | None, bool]]:
    """Return what verifiers and this judge say of each turn that both spoke of."""
    rows = connection.execute(
        "SELECT o.success, f.value, f.detail FROM feedback f"
        " JOIN outcomes o ON o.turn_id = f.target_id"
        " WHERE f.source = $source AND f.name = $name AND o.rule = 'verified'",
        {"source": SOURCE, "name": name},
    ).fetchall()
    return [
        (success, None if value is None else value >= 1.0, detail == FLIPPED)
        for success, value, detail in rows
    ]


def _withdraw(connection: duckdb.DuckDBPyConnection, name: str) -> int:
    """Remove what a refused judge said of turns that nobody verified; return how much."""
    said = (
        "FROM feedback WHERE source = $source AND name = $name AND target_id NOT IN"
        " (SELECT turn_id FROM outcomes WHERE rule = 'verified')"
    )
    values = {"source": SOURCE, "name": name}
    count = int(connection.execute(f"SELECT count(*) {said}", values).fetchall()[0][0])
    if count:
        connection.execute(f"DELETE {said}", values)
    return count
