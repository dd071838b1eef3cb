"""Canaries over settings: look at them, begin one, hold a slot, compare with the forecast.

No Prefect here. Everything that a slot serves changes through the registry; what was seen is in
the reports, and a forecast that was borne out or not is kept under `forecasts/`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flows import stages
from flows.config import Settings
from flows.console import tell
from serving.errors import MolError

if TYPE_CHECKING:
    from promotion.canary.rollout import RolloutReport
    from promotion.gate import GateReport
    from promotion.promote import PromotionResult


class CanaryFailed(MolError, RuntimeError):
    """Some slots could not be looked at; the others were."""


class PersonUnnamed(MolError, ValueError):
    """A person's word needs a name and a reason."""


def canary_stage(settings: Settings) -> "list[RolloutReport]":
    """Look at the canary or the new champion of one slot, or of all, and do what follows.

    What goes wrong in one slot is its report, so that harm in the others ends all the same.

    Raises:
        UnknownSlot: naming the slots there are.
    """
    from promotion.canary.rollout import RolloutReport, run_canary

    reports = []
    for slot in _slots(settings):
        try:
            report = run_canary(
                settings.home,
                slot,
                settings.canary,
                verify_of=lambda name, digest: stages.artifact_check(settings, name, digest),
                registry_url=settings.registry.url,
            )
        except MolError as error:
            report = RolloutReport(slot=slot, status="failed", message=str(error))
        reports.append(report)
    return reports


def look(settings: Settings) -> "list[RolloutReport]":
    """Return what `canary_stage` would see, without doing anything."""
    from promotion.canary.rollout import look_at

    names = _slots(settings)
    with stages.open_registry(settings) as registry:
        return [look_at(settings.home, slot, settings.canary, registry) for slot in names]


def anything_to_watch(settings: Settings) -> bool:
    """Return whether a slot has a canary, or a champion that came by the gate not long ago.

    `slots.json` says what the registry says afterwards.
    """
    from promotion.canary.forecast import kept_forecast
    from promotion.canary.trials import promoted_of, rollout_of
    from promotion.promote import export_slots

    names = _slots(settings)
    with stages.open_registry(settings) as registry:
        # A run that was killed before it wrote the file left there what it had ended.
        export_slots(settings.home, registry)
        for slot in names:
            promoted = promoted_of(registry.log.moves(slot, newest=2))
            known = promoted and kept_forecast(settings.home, promoted.report_key)
            if rollout_of(registry.log.canary(slot)) or (promoted and not (known and known.whole)):
                return True
    return False


def watch(settings: Settings) -> "list[RolloutReport]":
    """Settle what came of the traffic, look at every canary and tell what was found.

    Where nothing is to be watched, nothing is done.

    Raises:
        CanaryFailed: naming the slots that could not be looked at, after the others were.
    """
    from flows import story, tasks
    from traces.errors import LakeNotFound

    if not anything_to_watch(settings):
        tell("CANARY    no canary, and no champion that came by the gate: nothing to watch")
        return []
    try:
        tasks.attribute(settings)
    except LakeNotFound:
        tell("CANARY    nothing was ingested yet")
    reports = tasks.canary(settings)
    story.tell_canaries(reports)
    failed = [report.slot for report in reports if report.status == "failed"]
    if failed:
        raise CanaryFailed(
            f"The canaries of {', '.join(map(repr, failed))} could not be looked at or moved; the "
            "lines above say why. Mend it and run 'flows run canary' again."
        )
    return reports


def begin_stage(settings: Settings, report: "GateReport") -> "PromotionResult":
    """Give the challenger of a passed report the first step of its slot's traffic."""
    return begin(settings, report, settings.canary.steps[0])


def begin(settings: Settings, report: "GateReport", percent: float) -> "PromotionResult":
    """Give a report's challenger a part of the traffic; say what is known of it from before."""
    from promotion.canary.rollout import known_before
    from promotion.promote import begin_canary

    url = settings.registry.url
    verify = stages.artifact_check(settings, report.slot, report.challenger_digest)
    result = begin_canary(settings.home, report, percent, verify=verify, registry_url=url)
    try:
        known = known_before(settings.home, report.slot, settings.canary, url)
    except MolError as error:
        # It has begun all the same, and whoever looks at it next finds the same.
        known = f"What is known of it from before could not be read: {error}"
    if known is None:
        return result
    return result.model_copy(update={"message": f"{result.message} {known}"})


def hold(settings: Settings, slot: str, by: str | None, reason: str | None, held: bool) -> str:
    """Keep a slot from growing by a named person's word, or release it; return it in words.

    Raises:
        PersonUnnamed: if name or reason are missing.
        UnknownSlot: naming the slots there are.
    """
    note = {"held": held, **word_of(by, reason, "--release" if not held else "--hold", slot)}
    with stages.open_registry(settings) as registry:
        registry.remark(slot, "hold", note)
    return f"Slot {slot!r} is {'held' if held else 'released'} by {by!r}: {reason}"


def resume(settings: Settings, slot: str, by: str | None, reason: str | None) -> str:
    """Let the loop go on with a slot that it left alone, by a named person's word.

    Raises:
        PersonUnnamed: if name or reason are missing.
        UnknownSlot: naming the slots there are.
    """
    note = {"resumes": True, **word_of(by, reason, "resume", slot)}
    with stages.open_registry(settings) as registry:
        registry.remark(slot, "hold", note)
    return f"The loop goes on with slot {slot!r} by the word of {by!r}: {reason}"


def rows(reports: "list[RolloutReport]") -> Iterator[dict[str, Any]]:
    """Yield a row a guard, and one for a slot where nothing runs."""
    for report in reports:
        row = {
            "slot": report.slot,
            "version": report.version,
            "beside": report.beside,
            "percent": report.percent,
            "status": report.status,
        }
        for guard in report.guards:
            seen = {"pairs": guard.pairs, "harm": guard.harm, "evidence": guard.wealth}
            yield {**row, "guard": guard.guard, **seen}
        if not report.guards:
            yield {**row, "guard": None, "pairs": None, "harm": None, "evidence": None}


def _slots(settings: Settings) -> list[str]:
    """Return the slots to look at: all but router heads, which no engine loads."""
    with stages.open_registry(settings) as registry:
        if settings.slot is not None:
            return [registry.slot(settings.slot).slot]
        return [slot for slot, traits in registry.traits().items() if traits.role != "head"]


def word_of(by: str | None, reason: str | None, what: str, slot: str) -> dict[str, str]:
    """Return a person's word on a slot as the log keeps it.

    Raises:
        PersonUnnamed: if name or reason are missing.
    """
    if not (by and by.strip() and reason and reason.strip()):
        raise PersonUnnamed(
            f"{what!r} of slot {slot!r} is a person's word and needs a name and a reason, got "
            f"{by!r} and {reason!r}. Give both: '--by NAME --reason TEXT'."
        )
    return {"by": by.strip(), "reason": reason.strip()}
