"""A canary's way to all traffic, and back: 5 -> 20 -> 50 -> 100 % of the conversations.

In: a home, a slot, the lake. Out: a `RolloutReport`, and at most one change in the registry.
What runs is read from the registry's events each time, and what came of it from the lake;
nothing is kept beside them. So a run may be killed anywhere and repeated: done twice, the same
thing is done once.

What happens by itself, after the issue's "automatic rollback only, never automatic promotion
past a person's hold; too little data is insufficient":

- Harm ends the canary, or brings the previous champion back, whatever anybody set, even if that
  did harm before. The version is marked rolled back in the log, with reason and numbers.
- Growth waits for a person's word, unless `auto_advance` says that it need not. Then a step
  comes when `min_pairs` pairs with an outcome came since the last one and the evidence of harm
  is small; the last step promotes by the gate report that began the canary.
- A version that a person's override let in grows as one that passed, as long as the override lasts.
- A hold by a named person stops growth and promotion, by itself or by hand, until it is released.
  It never stops a rollback.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from promotion.canary.config import CanaryConfig
from promotion.canary.evidence import canary_evidence, sides_of, with_openings
from promotion.canary.forecast import Forecast, compare_with, keep_forecast, kept_forecast
from promotion.canary.guards import Evidence, evidence_against
from promotion.canary.harm import GuardState, Verdict
from promotion.canary.trials import Promoted, Rollout, promoted_of, rollout_of
from promotion.gate import CorruptReport, UnknownReport, load_report
from promotion.promote import Verify, check_artifact, export_slots
from promotion.registry import Registry
from promotion.slot_rows import SlotHeld, StaleGeneration
from promotion.standing import Hold
from promotion.state import BASE, Override, SlotState
from serving.records import AdapterVersion, Record

Status = Literal[
    "none", "insufficient", "doubtful", "ready", "held", "advanced", "promoted", "rolled_back",
    "watched", "settled", "failed",
]  # fmt: skip
"""`ready` waits for a person's word, `watched` is a champion since its promotion, `settled` one
that was watched for long enough, `failed` one that could not be looked at or moved."""
VerifyOf = Callable[[str, str], Verify]
"""From a slot and a digest to the check of that artifact's folder."""

BY = "canary"
"""Who changes a slot here, as the log says."""
_TRIES = 5


class RolloutReport(Record):
    """What was seen of a slot's canary, or of its new champion, and what was done."""

    slot: str
    status: Status
    message: str
    changed: bool = False
    version: str | None = None
    """Served name of the version that was looked at."""
    beside: str | None = None
    """Served name, or `base`, of what it was compared with."""
    percent: float | None = None
    pairs: int = 0
    """With an outcome, since the last step."""
    min_pairs: int = 0
    evidence: float = 1.0
    threshold: float = 0.0
    guards: tuple[GuardState, ...] = ()
    hold: Hold | None = None
    forecast: Forecast | None = None
    """Of a new champion: what the gate said of it, and what came."""


def run_canary(
    home: Path,
    slot: str,
    config: CanaryConfig,
    *,
    verify_of: VerifyOf,
    registry_url: str | None = None,
) -> RolloutReport:
    """Look at a slot's canary, or at its new champion, and do what is to be done.

    Raises:
        UnknownSlot: naming the slots there are.
        PromotionRefused: if the version may not grow, or cannot go back, for another reason.
    """
    with Registry.open(registry_url or home) as registry:
        for last in (*[False] * (_TRIES - 1), True):
            try:
                report = _look_and_act(home, registry, slot, config, verify_of)
            except (StaleGeneration, SlotHeld):
                # Somebody changed the slot meanwhile: look again.
                if last:
                    raise
            else:
                break
        export_slots(home, registry)
    # Last: with it the watch may be over, which it is not while harm still has to go.
    if report.forecast is not None:
        keep_forecast(home, report.forecast)
    return report


def look_at(home: Path, slot: str, config: CanaryConfig, registry: Registry) -> RolloutReport:
    """Return what `run_canary` sees, without doing anything."""
    state, hold = registry.slot(slot), registry.log.hold(slot)
    rollout = rollout_of(registry.log.canary(slot))
    if rollout is not None:
        evidence = canary_evidence(home, rollout, state.champion, config)
        return _seen(state, rollout, evidence, hold, config, _lapsed(home, registry, rollout))
    promoted = promoted_of(registry.log.moves(slot, newest=2))
    if promoted is None:
        return RolloutReport(
            slot=slot, status="none", message=f"Slot {slot!r} has no canary.", hold=hold
        )
    return _watched(home, promoted, hold, config)


def known_before(
    home: Path, slot: str, config: CanaryConfig, registry_url: str | None = None
) -> str | None:
    """Return in words what earlier trials told of the canary that runs; None if it had none."""
    with Registry.open(registry_url or home) as registry:
        rollout, champion = rollout_of(registry.log.canary(slot)), registry.slot(slot).champion
    if rollout is None or len(rollout.trials) == 1:
        return None
    verdict = canary_evidence(home, rollout, champion, config).verdict
    return f"{_trials_say(rollout)}: {_guard_says(verdict)}."


def _look_and_act(
    home: Path, registry: Registry, slot: str, config: CanaryConfig, verify_of: VerifyOf
) -> RolloutReport:
    state = registry.slot(slot)
    report = look_at(home, slot, config, registry)
    if report.status == "rolled_back":
        return _go_back(home, registry, state, report)
    if report.status == "ready" and config.auto_advance:
        return _grow(home, registry, state, report, config, verify_of)
    return report


def _go_back(
    home: Path, registry: Registry, state: SlotState, report: RolloutReport
) -> RolloutReport:
    """Take the traffic from a version that does harm, and say so in the log.

    What comes back has served: its signature covers its bytes, and no engine is asked first,
    for one that does not answer must not keep harm in traffic. It comes back even if it was taken
    out for harm in its time, as the champion does more; the report says so.
    """
    gone, message = state.canary or state.champion, report.message
    note = {
        "by": BY,
        "rolled_back": gone,
        "reason": report.message,
        "evidence": round(report.evidence, 3),
        "threshold": report.threshold,
        "guards": [_rounded(guard) for guard in report.guards],
    }
    if state.canary is not None:
        registry.end_canary(state.slot, state.generation, note)
    else:
        if state.previous not in (None, BASE):
            version = registry.version(str(state.previous))
            check_artifact(home, registry, version)
            harm = registry.log.harm(state.slot, version.digest)
            if harm is not None:
                message += (
                    f" {version.name!r} is back, which was itself rolled back for harm at "
                    f"{harm.at:%Y-%m-%d %H:%M %Z}: {harm.reason}"
                )
        registry.rollback(state.slot, state.generation, note)
    return report.model_copy(update={"changed": True, "message": message})


def _grow(
    home: Path,
    registry: Registry,
    state: SlotState,
    seen: RolloutReport,
    config: CanaryConfig,
    verify_of: VerifyOf,
) -> RolloutReport:
    """Give a canary its next step, or all traffic, on the word of the report that began it."""
    rollout = rollout_of(registry.log.canary(state.slot))
    if rollout is None or rollout.report_key is None:
        return seen
    report = load_report(home, rollout.report_key)
    override = registry.log.override(report)
    if override is not None and override.is_over:
        return seen  # which says that a new one is wanted
    version = registry.version(rollout.digest)
    check_artifact(home, registry, version, verify_of(state.slot, version.digest))
    percent = config.after(rollout.percent)
    if percent >= 100:
        registry.promote(state.slot, version.digest, state.generation, report, override)
        words = f"{version.name!r} is champion of {state.slot!r} now: {_pairs_say(seen)}"
        done: Status = "promoted"
    else:
        note = {"by": BY, "reason": _pairs_say(seen)}
        registry.begin_canary(
            state.slot, version.digest, percent, report, state.generation,
            override=override, note=note,
        )  # fmt: skip
        words = f"{version.name!r} gets {percent:g}% of {state.slot!r} now: {_pairs_say(seen)}"
        done = "advanced"
    return seen.model_copy(update={"status": done, "message": words, "changed": True})


def _seen(
    state: SlotState,
    rollout: Rollout,
    evidence: Evidence,
    hold: Hold | None,
    config: CanaryConfig,
    lapsed: Override | None,
) -> RolloutReport:
    verdict, pairs = evidence.verdict, evidence.pairs_since(rollout.step_at)
    name, after = rollout.name, config.after(rollout.percent)
    before = f" {_trials_say(rollout)}." if len(rollout.trials) > 1 else ""
    status: Status
    if verdict.harmful:
        status, words = "rolled_back", _harm(name, state.champion_name or BASE, verdict)
    elif pairs < config.min_pairs:
        status = "insufficient"
        words = (
            f"{pairs} of {config.min_pairs} pairs with an outcome at {rollout.percent:g}%; "
            "too few to go on."
        )
    elif verdict.evidence >= verdict.threshold**0.5:
        status = "doubtful"
        words = f"{_guard_says(verdict)}; it may do harm, so it does not grow."
    elif hold is not None:
        status, words = "held", f"Held by {hold.by!r}: {hold.reason}"
    else:
        status = "ready"
        words = f"{pairs} pairs show no harm; {_next_step(rollout, after, lapsed)}"
    return RolloutReport(
        slot=rollout.slot,
        status=status,
        message=words + before + _openings_say(evidence),
        version=name,
        beside=state.champion_name or BASE,
        percent=rollout.percent,
        pairs=pairs,
        min_pairs=config.min_pairs,
        evidence=verdict.evidence,
        threshold=verdict.threshold,
        guards=verdict.guards,
        hold=hold,
    )


def _next_step(rollout: Rollout, after: float, lapsed: Override | None) -> str:
    """Return in words by which command a person gives a canary its next step."""
    command = (
        f"flows promote {rollout.slot}"
        if after >= 100
        else f"flows slots canary {rollout.slot} {rollout.name} --percent {after:g}"
    )
    if lapsed is None:
        return f"'{command}' gives it {after:g}%."
    return (
        f"but the override of {lapsed.by!r} expired at {lapsed.expires_at:%Y-%m-%d %H:%M %Z}, and "
        f"only a new one lets it grow: '{command} --override-by NAME --reason TEXT --expires DATE' "
        f"gives it {after:g}%."
    )


def _lapsed(home: Path, registry: Registry, rollout: Rollout) -> Override | None:
    """Return the override that a canary grows by, if it has expired; None if it needs none."""
    try:
        override = registry.log.override(load_report(home, rollout.report_key or ""))
    except (UnknownReport, CorruptReport):
        return None  # whoever lets it grow is told; harm ends it all the same
    return override if override is not None and override.is_over else None


def _watched(
    home: Path, promoted: Promoted, hold: Hold | None, config: CanaryConfig
) -> RolloutReport:
    """Return how a champion does since its promotion, beside the one before and the forecast."""
    name = AdapterVersion(slot=promoted.slot, digest=promoted.digest).name
    beside = BASE
    if promoted.previous is not None:
        beside = AdapterVersion(slot=promoted.slot, digest=promoted.previous).name
    known = kept_forecast(home, promoted.report_key)
    report = RolloutReport(
        slot=promoted.slot,
        status="settled",
        message="It was watched for long enough; no harm was shown.",
        version=name,
        beside=beside,
        percent=100.0,
        hold=hold,
        forecast=known,
    )
    if known is not None and known.whole:
        return report
    before, now = sides_of(home, promoted, config)
    sides = ((before.units, before.judged), (now.units, now.judged))
    evidence = with_openings(evidence_against(*sides, config), now.turns)
    verdict, pairs = evidence.verdict, len(evidence.times)
    words = f"{pairs} conversations with an outcome since it is champion; no harm is shown."
    seen = {
        "status": "rolled_back" if verdict.harmful else "watched",
        "message": (_harm(name, beside, verdict) if verdict.harmful else words)
        + _openings_say(evidence),
        "pairs": pairs,
        "evidence": verdict.evidence,
        "threshold": verdict.threshold,
        "guards": verdict.guards,
    }
    try:
        judged = load_report(home, promoted.report_key)
    except (UnknownReport, CorruptReport):
        return report.model_copy(update=seen)
    successes = [[1 - unit.failures for unit in side.judged] for side in (before, now)]
    forecast = compare_with(promoted, judged, *successes, whole=now.whole)
    return report.model_copy(update=seen | {"forecast": forecast})


def _harm(name: str, beside: str, verdict: Verdict) -> str:
    return (
        f"{name!r} does harm beside {beside!r}: {_guard_says(verdict)}, "
        f"{verdict.threshold:.0f} to 1 is enough."
    )


def _guard_says(verdict: Verdict) -> str:
    worst = verdict.worst
    return (
        f"{worst.guard.replace('_', ' ')} {100 * worst.harm:+.1f} points over {worst.pairs} pairs, "
        f"evidence {verdict.evidence:.3g} to 1"
    )


def _trials_say(rollout: Rollout) -> str:
    return (
        f"It was on trial before, since {rollout.began_at:%Y-%m-%d %H:%M %Z}, and that evidence "
        "goes on"
    )


def _openings_say(evidence: Evidence) -> str:
    """Return in words what of the traffic counts little, with a space before; else nothing."""
    if not evidence.nameless_turns:
        return ""
    return (
        f" {evidence.nameless_turns} turns named neither conversation nor user: by how they begin, "
        f"they count as {evidence.openings}."
    )


def _pairs_say(seen: RolloutReport) -> str:
    return f"{seen.pairs} pairs show no harm (evidence {seen.evidence:.2g} to 1)."


def _rounded(guard: GuardState) -> dict[str, Any]:
    return guard.model_dump() | {
        "harm": round(guard.harm, 6),
        "wealth": float(f"{guard.wealth:.6g}"),
    }
