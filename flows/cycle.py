"""MAIN: one turn of the loop. Traces in; if the evidence holds, a better adapter out.

    ingest -> attribute -> choose the slot that needs it most -> curate -> train -> gate -> promote

With `[canary] start` the last step begins a canary instead, which `flows run canary` lets grow.
A slot on which rounds brought nothing is left alone (`flows.rounds`), and one whose canary is
still on trial waits for it.

A finished cycle leaves a record under `cycles/`, keyed by the lake's turns and by all
settings that matter, so that a second run over the same traces stops at once. By hand:
`flows run`; scheduled: a Prefect deployment of this flow.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import flow
from pydantic import AwareDatetime, ValidationError

from curation.build import NotEnoughExamples
from flows import lineage, rounds, stages, story, tasks
from flows.config import Settings
from flows.console import tell
from flows.gate_checks import check_rules
from flows.sealed import why_not_trained
from serving.addresses import without_secrets
from serving.disk import write_atomic
from serving.errors import MolError
from serving.records import Record, content_id

if TYPE_CHECKING:
    from promotion.gate import GateReport


class CorruptCycle(MolError, ValueError):
    """The record of a cycle is damaged."""


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
    """Whether the challenger serves because of this cycle, all traffic or a canary's."""
    stopped: bool = False
    """Whether nothing was tried because rounds before it brought nothing, or no sealed set is left
    to judge it."""
    message: str
    report_key: str | None = None
    heldout_before: float | None = None
    """Champion's mean score on the primary suite."""
    heldout_after: float | None = None
    n: int | None = None
    seed: int
    cycle_s: dict[str, float]
    """Seconds of each stage that ran."""
    # Records of earlier code lack these.
    ended_at: AwareDatetime | None = None
    blamed: int | None = None
    """Turns blamed on the slot."""
    learning: str | None = None
    """Digest of the settings that decide what is learned and how it is judged."""


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
    check_rules(settings)  # not after hours of training
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
    blamed = stages.blamed_turns(settings, attributed)
    for slot in stages.rank_slots(settings, blamed):
        waits = _on_trial(settings, slot)
        stops = rounds.why_stopped(settings, slot, blamed.get(slot, 0))
        if waits or stops:
            tell(f"WAIT      {waits or stops}")
            result = result.model_copy(
                update={"message": waits or stops, "stopped": result.stopped or not waits}
            )
            continue
        try:
            manifest = timed("curate", tasks.curate, slot)
        except NotEnoughExamples as shortage:
            result = result.model_copy(update={"message": str(shortage)})
            continue
        story.tell_dataset(manifest)
        spent = why_not_trained(settings, manifest)
        if spent:
            tell(f"WAIT      {spent}")
            result = result.model_copy(update={"message": spent, "stopped": True})
            continue
        trained = timed("train", tasks.train, manifest)
        story.tell_training(trained)
        report = timed("gate", tasks.gate, slot, trained.digest)
        story.tell_gate(report)
        compared = report.primary.comparison
        result = result.model_copy(
            update={
                "slot": slot,
                "stopped": False,
                "blamed": blamed.get(slot, 0),
                "verdict": report.verdict,
                "report_key": report.key,
                "message": f"The gate says {report.verdict}: {report.reasons[0]}",
                "heldout_before": compared.mean_champion if compared else None,
                "heldout_after": compared.mean_challenger if compared else None,
                "n": report.n,
            }
        )
        if report.verdict == "PASS":
            serves, words = rolled_out(settings, report, timed)
            result = result.model_copy(update={"promoted": serves, "message": words})
        break
    if result.slot is None:
        tell(f"STOP      {result.message}")
        if result.stopped:
            # No record: a person's word lets the same traces be tried again.
            return _end(settings, result)
    told = {"cycle_s": seconds, "ended_at": datetime.now(UTC), "learning": settings.learning_digest}
    result = result.model_copy(update=told)
    write_atomic(_path(settings.home, key), result.model_dump_json(indent=2).encode())
    _write_settings(settings, key)
    return _end(settings, result)


def find_cycle(home: Path, key: str) -> CycleResult | None:
    """Return the finished cycle with this key, if there is one.

    Raises:
        CorruptCycle: if its record is damaged.
    """
    path = _path(home, key)
    return read_cycle(path) if path.is_file() else None


def read_cycle(path: Path) -> CycleResult:
    """Return the record of a finished cycle.

    Raises:
        CorruptCycle: if it is damaged.
    """
    try:
        return CycleResult.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise CorruptCycle(
            f"The record of a cycle {str(path)!r} is damaged: {error.errors()[0]['msg']}. "
            "Delete it and run the command again; that round then no longer counts."
        ) from error


def _on_trial(settings: Settings, slot: str) -> str | None:
    """Return what a slot waits for if it has a canary: another one would take its place."""
    with stages.open_registry(settings) as registry:
        state = registry.slot(slot)
    if state.canary is None:
        return None
    return f"{state.canary_name} is still on trial in {slot!r}; 'flows run canary' decides."


def rolled_out(
    settings: Settings, report: "GateReport", timed: Callable[..., Any]
) -> tuple[bool, str]:
    """Give a passed challenger its traffic; return whether it has any now, and in words.

    It has none where a person holds the slot, where it was rolled back before, or where a later
    attempt at the gate did not pass.

    Raises:
        PromotionRefused: if it was refused for another reason, as a canary that began meanwhile.
    """
    from promotion.slot_rows import PromotionRefused, ReportOutdated, SlotHeld, VersionWithdrawn

    waits = _on_trial(settings, report.slot)
    if waits is not None:  # which began while this cycle trained
        raise PromotionRefused(f"{waits} Run 'flows run' again then.")
    begins = settings.canary.start
    try:
        done = timed(
            *(("canary", tasks.begin_canary) if begins else ("promote", tasks.promote)), report
        )
    # Any other refusal, as when somebody changed the slot meanwhile, is no word against the
    # challenger: it ends this run without a record, and the next one tries again.
    except (SlotHeld, VersionWithdrawn, ReportOutdated) as refusal:
        tell(f"HELD      {refusal}")
        return False, str(refusal)
    story.tell_promotion(done)
    return True, done.message


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
    # Sources may be URLs with a user or a signature in them.
    write_atomic(path, without_secrets(settings.model_dump_json(indent=2)).encode())
