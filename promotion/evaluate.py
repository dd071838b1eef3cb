"""Run suites on an engine: both arms answer the same prompts, a check scores every answer.

In: suites, and for each arm the served name of every slot. Out: a `SuiteRun` for each
suite. Finished runs are kept under `evals/`, keyed by everything an answer depends on,
so that a killed gate goes on where it was and a champion is not asked twice.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from promotion.gate import SuiteScores
from promotion.suites.suite import Item, Suite
from serving.disk import write_atomic
from serving.engine import ChatRequest, Engine
from serving.records import Message, Record, content_id

Progress = Callable[[int, int], None]
"""Called with answered items and their total."""


class SuiteRun(Record):
    """One arm's answers to one suite, item by item."""

    suite: str
    answers: tuple[Message, ...]
    scores: tuple[float | None, ...]
    """None where the verifier could not judge, which is nobody's failure."""
    details: tuple[str, ...]
    completion_tokens: int


async def run_suites(
    home: Path,
    engine: Engine,
    suites: Sequence[Suite],
    names: Mapping[str, str],
    engine_id: str,
    progress: Progress | None = None,
) -> dict[str, SuiteRun]:
    """Answer and score every suite with the versions in `names` (slot to served name).

    `engine_id` tells engines and base models apart whose answers may differ.
    """
    total, done = sum(len(suite.items) for suite in suites), 0

    def answered() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, total)

    async def run(suite: Suite) -> SuiteRun:
        key = content_id([engine_id, dict(names), suite.digest])
        path = home / "evals" / f"{key.removeprefix('sha256:')}.json"
        made = _kept(path)
        if made is None:
            made = await _run(engine, suite, names[suite.slot], answered)
            if None not in made.scores:  # the next time it may be able to
                write_atomic(path, made.model_dump_json().encode())
        else:
            for _ in suite.items:
                answered()
        return made

    # All at once: the engine batches what belongs together.
    runs = await asyncio.gather(*map(run, suites))
    return {suite.name: run for suite, run in zip(suites, runs, strict=True)}


def pair(
    suites: Sequence[Suite],
    champion: Mapping[str, SuiteRun],
    challenger: Mapping[str, SuiteRun],
    changed_slot: str,
) -> list[SuiteScores]:
    """Put both arms' scores side by side, in the order of `suites`; only what both were given."""
    paired = []
    for suite in suites:
        before, after = champion[suite.name], challenger[suite.name]
        judged = [
            (item, old, new)
            for item, old, new in zip(suite.items, before.scores, after.scores, strict=True)
            if old is not None and new is not None
        ]
        paired.append(
            SuiteScores(
                suite=suite.name,
                slot=suite.slot,
                item_ids=tuple(item.item_id for item, _, _ in judged),
                clusters=tuple(item.cluster for item, _, _ in judged),
                champion=tuple(old for _, old, _ in judged),
                challenger=tuple(new for _, _, new in judged),
                identical=_texts(before) == _texts(after),
                unchanged=suite.slot != changed_slot,
            )
        )
    return paired


async def _run(engine: Engine, suite: Suite, model: str, answered: Callable[[], None]) -> SuiteRun:
    async def answer(item: Item) -> tuple[Message, int]:
        result = await engine.chat(
            ChatRequest(
                model=model,
                messages=item.messages,
                tools=item.tools,
                max_tokens=item.max_tokens,
                choices=item.choices,
                continue_final=bool(item.choices),
            )
        )
        answered()
        return result.message, result.completion_tokens

    answers = await asyncio.gather(*[answer(item) for item in suite.items])
    checks = await asyncio.to_thread(
        lambda: [item.check(a) for item, (a, _) in zip(suite.items, answers, strict=True)]
    )
    return SuiteRun(
        suite=suite.name,
        answers=tuple(message for message, _ in answers),
        scores=tuple(None if check.passed is None else float(check.passed) for check in checks),
        details=tuple(check.detail for check in checks),
        completion_tokens=sum(tokens for _, tokens in answers),
    )


def _kept(path: Path) -> SuiteRun | None:
    try:
        return SuiteRun.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def _texts(run: SuiteRun) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    """Answers without the ids that engines give to tool calls at random."""
    return [(a.content, tuple((c.name, c.arguments) for c in a.tool_calls)) for a in run.answers]
