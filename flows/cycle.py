"""MAIN: one turn of the loop. Traces in; if the evidence holds, a better adapter out.

    ingest -> attribute -> choose the slot that needs it most -> curate -> train -> gate -> promote

A finished cycle leaves a record under `cycles/`, keyed by the lake's turns and by all
settings that matter, so that a second run over the same traces stops at once. By hand:
`flows run`; scheduled: a Prefect deployment of this flow.
"""

import time
from pathlib import Path
from typing import Any

from prefect import flow

from curation.build import NotEnoughExamples
from flows import lineage, stages, story, tasks
from flows.config import Settings
from flows.console import tell
from serving.disk import write_atomic
from serving.records import Record, content_id


class CycleResult(Record):
    """How a cycle ended."""

    key: str
    """Content id of the lake's turns with what became of them, and the settings."""
    snapshot_id: int
    slot: str | None = None
    """Slot that was trained; None if none needed it."""
    verdict: str | None = None
    """The gate's; None if it was not asked."""
    promoted: bool = False
    """Whether the challenger serves because of this cycle."""
    message: str
    report_key: str | None = None
    heldout_before: float | None = None
    """Champion's mean score on the primary suite."""
    heldout_after: float | None = None
    n: int | None = None
    seed: int
    cycle_s: dict[str, float]
    """Seconds of each stage that ran."""


@flow(name="cycle", validate_parameters=False)
def cycle(settings: Settings) -> CycleResult:
    """Run the loop once over the settings' sources."""
    from traces.joins.mark import learning_mark

    seconds: dict[str, float] = {}

    def timed(name: str, task: Any, *arguments: Any) -> Any:
        started = time.monotonic()
        result = task(settings, *arguments)
        seconds[name] = round(time.monotonic() - started, 2)
        return result

    stages.prepare_registry(settings)
    reports = timed("ingest", tasks.ingest)
    for report in reports:
        story.tell_ingest(report)
    attributed = timed("attribute", tasks.attribute)
    story.tell_attribute(attributed)

    key = content_id([learning_mark(settings.home), settings.learning_digest])
    done = find_cycle(settings.home, key)
    if done is not None:
        tell(f"NOTHING NEW since this was last run. {done.message}")
        return _end(settings, done)
    result = CycleResult(
        key=key,
        snapshot_id=attributed.snapshot_id,
        message="No slot has enough evidence against it; nothing to learn.",
        seed=settings.seed,
        cycle_s={},
    )
    for slot in stages.rank_slots(settings, attributed.by_slot):
        try:
            manifest = timed("curate", tasks.curate, slot)
        except NotEnoughExamples as shortage:
            result = result.model_copy(update={"message": str(shortage)})
            continue
        story.tell_dataset(manifest)
        trained = timed("train", tasks.train, manifest)
        story.tell_training(trained)
        report = timed("gate", tasks.gate, slot, trained.digest)
        story.tell_gate(report)
        compared = report.primary.comparison
        result = result.model_copy(
            update={
                "slot": slot,
                "verdict": report.verdict,
                "report_key": report.key,
                "message": f"The gate says {report.verdict}: {report.reasons[0]}",
                "heldout_before": compared.mean_champion if compared else None,
                "heldout_after": compared.mean_challenger if compared else None,
                "n": report.n,
            }
        )
        if report.verdict == "PASS":
            promoted = timed("promote", tasks.promote, report)
            story.tell_promotion(promoted)
            result = result.model_copy(update={"promoted": True, "message": promoted.message})
        break
    if result.slot is None:
        tell(f"STOP      {result.message}")
    result = result.model_copy(update={"cycle_s": seconds})
    write_atomic(_path(settings.home, key), result.model_dump_json(indent=2).encode())
    _write_settings(settings, key)
    return _end(settings, result)


def find_cycle(home: Path, key: str) -> CycleResult | None:
    """Return the finished cycle with this key, if there is one."""
    try:
        return CycleResult.model_validate_json(_path(home, key).read_bytes())
    except FileNotFoundError:
        return None


def _end(settings: Settings, result: CycleResult) -> CycleResult:
    lineage.publish_or_say(settings)
    with stages.open_registry(settings) as registry:
        story.tell_serving(registry)
    story.tell_next(settings, result.slot)
    return result


def _path(home: Path, key: str) -> Path:
    return home / "cycles" / f"{key.removeprefix('sha256:')}.json"


def _write_settings(settings: Settings, key: str) -> None:
    path = _path(settings.home, key).with_suffix(".settings.json")
    write_atomic(path, settings.model_dump_json(indent=2).encode())
