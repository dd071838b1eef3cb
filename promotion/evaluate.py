"""Run suites on an engine: both arms answer the same prompts, a check scores every answer.

In: suites, and for each arm the served name of every slot. Out: a `SuiteRun` for each
suite. Finished runs are kept under `evals/`, keyed by everything an answer depends on,
so that a killed gate goes on where it was and the embedded engine's champion is not asked twice.

The sets are sealed: no answer is kept, only its score and its digest, and the folder is for its
owner alone (mode 0700). Nothing but sums over a suite leaves it, in the gate's report.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from promotion.drift import AnswerShape, answer_shape
from promotion.paired import InvalidScores
from promotion.slices import SuiteScores
from promotion.suites.suite import Item, Played, Suite
from serving.disk import write_atomic
from serving.engine import Engine
from serving.records import Message, Record, content_id

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with answers that came and their total."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How often and how the challenged slot's items are answered; other slots' once, greedily."""

    slot: str
    temperature: float
    seeds: tuple[int, ...]
    """One a sample, the same for both arms; each item derives its own from it."""


class SuiteRun(Record):
    """One arm's answers to one suite, item by item, without their text."""

    suite: str
    scores: tuple[float | None, ...]
    """Means over the samples; None where the scorer could not judge, which is nobody's failure."""
    answer_ids: tuple[str, ...]
    """Digest of all that was answered to each item; equal answers have equal ones."""
    shape: AnswerShape


async def run_suites(
    home: Path,
    engine: Engine,
    suites: Sequence[Suite],
    names: Mapping[str, str],
    engine_id: str | None,
    progress: Progress | None = None,
    sampling: Sampling | None = None,
) -> dict[str, SuiteRun]:
    """Answer and score every suite with the versions in `names` (slot to served name).

    `engine_id` tells engines and base models apart whose answers may differ; without one nothing
    is kept.

    Raises:
        InvalidScores: if a scorer gives what is not in [0, 1]; nothing of its suite is kept.
    """
    drawn = {suite.name: sampling if _sampled(suite, sampling) else None for suite in suites}
    total = sum(_answers(suite, drawn[suite.name]) for suite in suites)
    done = 0

    def answered(answers: int = 1) -> None:
        nonlocal done
        done += answers
        if progress:
            progress(done, total)

    async def run(suite: Suite) -> SuiteRun:
        how = drawn[suite.name]
        path = None
        if engine_id is not None:
            asked = [] if how is None else [how.temperature, list(how.seeds)]
            key = content_id([engine_id, dict(names), suite.digest, *asked])
            path = _folder(home) / f"{key.removeprefix('sha256:')}.json"
        made = None if path is None else _kept(path)
        if made is not None:
            answered(_answers(suite, how))
            return made
        made = await _run(engine, suite, names[suite.slot], answered, how)
        if path is not None and None not in made.scores:  # the next time it may be able to
            write_atomic(path, made.model_dump_json().encode(), mode=0o600)
        return made

    # All at once: the engine batches what belongs together.
    runs = await asyncio.gather(*map(run, suites))
    return {suite.name: run for suite, run in zip(suites, runs, strict=True)}


async def ask_moved_alone(
    engine: Engine,
    suites: Sequence[Suite],
    changed_slot: str,
    names: Sequence[Mapping[str, str]],
    runs: Sequence[dict[str, SuiteRun]],
) -> None:
    """Ask bystanders again whose answers differ between the arms, one request at a time.

    What shares a batch decides how kernels round, and a near tie of two tokens then falls either
    way. Alone, and with its prompts in the prefix cache, an artifact repeats itself, or it has
    moved. `names` and `runs` are those of champion and challenger; new runs take their place.
    """
    for suite in suites:
        before, after = (run[suite.name] for run in runs)
        if suite.slot == changed_slot or before.answer_ids == after.answer_ids:
            continue
        log.warning("%s: answers changed within batches; asked again, one at a time", suite.name)
        alone = asyncio.Semaphore(1)
        for arm in (0, 0, 1):  # the first fills the prefix cache
            model = names[arm][suite.slot]
            runs[arm][suite.name] = await _run(engine, suite, model, lambda: None, None, alone)


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
        all_items = list(zip(suite.items, before.scores, after.scores, strict=True))
        judged = [
            (item, old, new) for item, old, new in all_items if old is not None and new is not None
        ]
        paired.append(
            SuiteScores(
                suite=suite.name,
                slot=suite.slot,
                item_ids=tuple(item.item_id for item, _, _ in judged),
                clusters=tuple(item.cluster for item, _, _ in judged),
                champion=tuple(old for _, old, _ in judged),
                challenger=tuple(new for _, _, new in judged),
                identical=before.answer_ids == after.answer_ids,
                unchanged=suite.slot != changed_slot,
                kind=suite.kind,
                unjudged=len(suite.items) - len(judged),
                unjudged_challenger=tuple(
                    (item.cluster, old)
                    for item, old, new in all_items
                    if old is not None and new is None
                ),
            )
        )
    return paired


async def _run(
    engine: Engine,
    suite: Suite,
    model: str,
    answered: Callable[[], None],
    sampling: Sampling | None,
    at_once: asyncio.Semaphore | None = None,
) -> SuiteRun:
    async def play(item: Item, seed: int | None) -> Played:
        own = None if seed is None else _item_seed(seed, item)
        temperature = 0.0 if sampling is None else sampling.temperature
        async with at_once or contextlib.nullcontext():
            played = await item.run(engine, model, temperature, own)
        answered()
        return played

    seeds: tuple[int | None, ...] = (None,) if sampling is None else sampling.seeds
    flat = await asyncio.gather(*(play(item, seed) for item in suite.items for seed in seeds))
    by_item = [flat[at : at + len(seeds)] for at in range(0, len(flat), len(seeds))]
    tokens = sum(played.completion_tokens for played in flat) / max(1, len(flat))
    for played in flat:
        if played.check.value is not None and not 0 <= played.check.value <= 1:  # nor NaN
            raise InvalidScores(
                f"A score of suite {suite.name!r} is {played.check.value!r}, which is not in "
                "[0, 1]. Correct the suite's scorer and run the command again."
            )
    return SuiteRun(
        suite=suite.name,
        scores=tuple(_mean([played.check.value for played in samples]) for samples in by_item),
        answer_ids=tuple(_answer_id(samples) for samples in by_item),
        shape=answer_shape([m for played in flat for m in played.answers], tokens),
    )


def _sampled(suite: Suite, sampling: Sampling | None) -> bool:
    return sampling is not None and suite.slot == sampling.slot


def _answers(suite: Suite, sampling: Sampling | None) -> int:
    return len(suite.items) * (1 if sampling is None else len(sampling.seeds))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _item_seed(seed: int, item: Item) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {item.item_id}".encode()).digest()[:4], "big")


def _answer_id(samples: Sequence[Played]) -> str:
    return content_id([[_said(message) for message in played.answers] for played in samples])


def _said(answer: Message) -> list[object]:
    """An answer without the ids that engines give to tool calls at random."""
    return [answer.content, [[call.name, call.arguments] for call in answer.tool_calls]]


def _folder(home: Path) -> Path:
    """Return the folder of kept runs, which only its owner may look into."""
    folder = home / "evals"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def _kept(path: Path) -> SuiteRun | None:
    try:
        return SuiteRun.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
