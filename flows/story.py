"""What each stage did, in words: the funnel, the reasons, what serves now."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flows.config import Settings
from flows.console import Mode, tell
from serving.records import short_digest

if TYPE_CHECKING:
    from curation.manifest import Manifest
    from promotion.canary.rollout import RolloutReport
    from promotion.drift import Drift
    from promotion.gate import GateReport
    from promotion.promote import PromotionResult
    from promotion.registry import Registry
    from promotion.state import SlotState
    from traces.attribute import AttributeReport
    from traces.attribution.judge import JudgeReport
    from traces.attribution.replay import ReplayReport
    from traces.ingest import IngestReport
    from traces.storage.upkeep import UpkeepReport
    from training.runs import TrainedAdapter

_KINDS = ("hops", "turns", "feedback", "requests")
_MANY = 5
"""Files that are named one by one."""
_SLOTS = 12
"""Slots that are named one by one; other people's traces have one for every agent."""


def tell_ingest(report: "IngestReport") -> None:
    """Tell what came in."""
    files = _many(report.files, "file")
    tell(f"INGEST    {report.source} ({report.format}, {files})")
    f = report.funnel
    if not report.added:
        before = report.all_known or any(f[f"{kind}_known"] for kind in _KINDS)
        tell(f"          nothing new{': all of it was ingested before' if before else ''}")
    mixed = len(report.formats) > 1
    for format, funnel in report.formats.items():
        if mixed:
            tell(f"          {format}: {_many(funnel['files'], 'file')}")
        _tell_funnel(funnel, "  " if mixed else "")
    _tell_some([f"{name} {'; '.join(seen)}" for name, seen in report.noticed.items()])
    if f.get("turns_joined") or f.get("turns_updated"):
        tell(f"          turns joined from hops: {f.get('turns_joined', 0)} new, "
             f"{f.get('turns_updated', 0)} updated")  # fmt: skip
    if report.quarantined:
        tell(f"          set aside: {_counts(report.quarantined)} ('flows quarantine list')")
    if report.waiting_bytes:
        tell(f"          waiting: {report.waiting_bytes} bytes of an unfinished last line")
    _tell_some([f"left out: {name} {reason}" for name, reason in report.skipped.items()])


def _tell_funnel(funnel: Mapping[str, int], indent: str) -> None:
    for kind in _KINDS:
        if funnel[f"{kind}_in"]:
            came, added, known = (funnel[f"{kind}_{n}"] for n in ("in", "added", "known"))
            old = funnel.get(f"{kind}_expired", 0)
            late = f", {old} of days that have left the lake" if old else ""
            tell(f"          {indent}{kind}: {came} in, {added} new, {known} known already{late}")
    parts = {step.removeprefix("skipped_"): n for step, n in funnel.items() if "skipped_" in step}
    if parts:
        tell(f"          {indent}no records of ours: {_counts(parts)}")


def _tell_some(lines: Sequence[str]) -> None:
    """Tell the first few lines; a folder may have thousands."""
    for line in lines[:_MANY]:
        tell(f"          {line}")
    if len(lines) > _MANY:
        tell(f"          and {len(lines) - _MANY} more files like these (--json lists them)")


def tell_followed(report: "IngestReport") -> None:
    """Tell what came in while following, or print it as a line of JSON."""
    if Mode.json:
        print(report.model_dump_json(), flush=True)
    else:
        tell_ingest(report)


def tell_attribute(report: "AttributeReport") -> None:
    """Tell who is responsible."""
    tell(f"ATTRIBUTE {report.turns} turns: {_counts(report.outcomes)}")
    tell(f"          blame of what failed: {_counts(report.blame) or 'none'}")
    if report.apart:
        tell(f"          no failures of who serves: {_counts(report.apart)}")
    if report.signals:
        tell(f"          {report.signals}")
    if report.judge:
        tell_judge(report.judge)
    worst = sorted(report.by_slot, key=lambda name: _by_harm(report.by_slot[name]))
    for slot in sorted(worst[:_SLOTS]):
        n = report.by_slot[slot]
        turns = _many(n["turns"], "turn")
        tell(f"          {slot}: {turns}, {n['failed']} failed, {n['blamed']} blamed on it")
    if len(worst) > _SLOTS:
        tell(f"          and {len(worst) - _SLOTS} slots with fewer failures (--json lists them)")


def tell_judge(report: "JudgeReport") -> None:
    """Tell what a judge was found to be worth, and what it said."""
    measured = report.agreement
    if report.stopped is not None:
        tell(f"          the judge stopped: {report.stopped}")
    if not measured.turns and report.refused is None:
        return
    if report.refused is not None:
        tell(f"          judge {report.judge} is refused: {report.refused}")
        return
    tell(f"          judge {report.judge}: kappa {measured.kappa:.2f} "
         f"[{measured.kappa_low_95:.2f}, {measured.kappa_high_95:.2f}] on {measured.judged} "
         f"verified turns, {measured.flip_share:.0%} follow the options' order")  # fmt: skip
    tell(f"          it judged {_counts(report.verdicts)}; {report.waiting} wait for another run "
         "(--attribution.judge-budget)")  # fmt: skip


def tell_replay(report: "ReplayReport") -> None:
    """Tell what fresh answers of all slots say about failed turns."""
    tell(f"REPLAY    {_many(report.replayed, 'failed turn')} answered afresh by every slot, "
         f"{report.calls} of {report.budget} engine calls")  # fmt: skip
    if report.verdicts:
        tell(f"          verdicts: {_counts(report.verdicts)}")
        tell(f"          asked of the slot that had answered: {_counts(report.versions)} version")
    if report.samples_left_out:
        tell(f"          answers that say nothing: {_counts(report.samples_left_out)}")
    tell(f"          preference pairs: {report.pairs} new")
    if report.left_out:
        tell(f"          not replayed: {_counts(report.left_out)}")
    if report.waiting:
        tell(f"          waiting for another run: {_many(report.waiting, 'turn')} "
             "(--attribution.replay-budget)")  # fmt: skip


def _by_harm(counts: Mapping[str, int]) -> tuple[int, int, int]:
    return -counts["blamed"], -counts["failed"], -counts["turns"]


def tell_upkeep(report: "UpkeepReport") -> None:
    """Tell what upkeep did to the lake."""
    first, *rest = upkeep_lines(report)
    tell(f"UPKEEP    {first}")
    for text in rest:
        tell(f"          {text}")


def upkeep_lines(report: "UpkeepReport") -> list[str]:
    """Return what upkeep did, or would do, a line a step."""
    s = report.snapshots
    lines = [
        f"{table}: {n['before']} rows, {n['deleted']} older than {report.kept_since} deleted, "
        f"{n['kept']} kept"
        for table, n in report.rows.items()
        if n["deleted"]
    ]
    about = "about " if report.dry_run else ""
    size = f"{report.bytes_before / 1e6:.1f} MB"
    size += "" if report.dry_run else f" -> {report.bytes_after / 1e6:.1f} MB"
    return [
        *(lines or ["no rows are too old"]),
        f"files: {report.files_before} -> {about}{report.files_after}, {size}",
        f"snapshots: {s['before']}, {s['expired']} expired, {s['kept']} young, "
        f"{s['kept_for_datasets']} kept for datasets",
        f"removed: {report.files_removed} files that nothing refers to, "
        f"{report.orphans_removed} that killed commits had left",
    ]


def tell_dataset(manifest: "Manifest") -> None:
    """Tell what became a training row, and why the rest did not."""
    tell(f"CURATE    {manifest.slot}: dataset {short_digest(manifest.digest)}")
    for stage, entered, kept, dropped in manifest.funnel():
        why = f" ({_counts(dropped)})" if dropped else ""
        tell(f"          {stage}: {entered} in, {kept} kept, {entered - kept} dropped{why}")
    tell(f"          {_counts(manifest.splits)}; trains on {_counts(manifest.mix)}")


def tell_training(run: "TrainedAdapter") -> None:
    """Tell what was trained."""
    m = run.metrics
    tell(
        f"TRAIN     {run.adapter.name}: {m['rows']:.0f} rows, {m['supervised_tokens']:.0f} tokens "
        f"to learn, {m['steps']:.0f} steps in {m['seconds']:.0f} s, loss {m['train_loss']:.3f}"
    )
    if run.drops:
        tell(f"          left out: {_counts(run.drops)}")


def tell_gate(report: "GateReport") -> None:
    """Tell the verdict and its reasons."""
    champion = (
        f"{report.slot}@{short_digest(report.champion_digest)}"
        if report.champion_digest
        else "base"
    )
    challenger = f"{report.slot}@{short_digest(report.challenger_digest)}"
    tell(f"GATE      {report.verdict}: challenger {challenger} against champion {champion}")
    if report.sealed_set is not None:
        spent = f"tested at {report.alpha_k:.4f} of {report.alpha:g}"
        tell(f"          attempt {report.attempt} on sealed set {report.sealed_set}, {spent}")
    for result in (report.primary, *report.guards):
        c = result.comparison
        scores = (
            f"{c.mean_champion:.3f} -> {c.mean_challenger:.3f}, "
            f"difference {c.effect:+.3f} [{c.lower:+.3f}, {c.upper:+.3f}]"
            if c
            else "answered as before"
            if result.unchanged and result.identical
            else "not compared"
        )
        kind = "primary" if result is report.primary else "guard"
        tell(f"          {result.suite} ({kind}, n={result.n}): {scores} {result.status}")
    if report.drift is not None:
        _tell_drift(report.drift)
    for reason in report.reasons:
        tell(f"          - {reason}")


def _tell_drift(drift: "Drift") -> None:
    """Tell how far both arms are from the base and how they answer."""
    arms = {
        "challenger": (drift.challenger, drift.answers_challenger),
        "champion": (drift.champion, drift.answers_champion),
    }
    for arm, (distance, shape) in arms.items():
        kl = "" if distance is None else f"KL from the base {distance.kl:.3f} nats a token, "
        pairs = "" if shape.distinct_2 is None else f", {shape.distinct_2:.0%} of word pairs differ"
        tell(f"          {arm}: {kl}{shape.tokens:.1f} tokens an answer{pairs}")


def tell_promotion(result: "PromotionResult") -> None:
    """Tell what changed in the registry."""
    tell(f"PROMOTE   {result.message}")


def tell_canaries(reports: "Sequence[RolloutReport]") -> None:
    """Tell how canaries and new champions fare, and what was done about it."""
    for report in reports:
        if report.status == "none":
            continue
        part = "" if report.percent is None else f" at {report.percent:g}%"
        what = f"{report.version}{part} beside {report.beside}" if report.version else report.slot
        tell(f"CANARY    {what}: {report.status}")
        tell(f"          {report.message}")
        seen = [
            f"{guard.guard.replace('_', ' ')} {100 * guard.harm:+.1f} points of {guard.pairs}"
            for guard in report.guards
            if guard.pairs
        ]
        if seen:
            tell(f"          worse by: {', '.join(seen)} (evidence of harm {report.evidence:.2g}, "
                 f"enough {report.threshold:.0f})")  # fmt: skip
        if report.hold is not None:
            tell(f"          held by {report.hold.by!r}: {report.hold.reason}")
        if report.forecast is not None:
            tell(f"          {report.forecast.message}")


def tell_serving(registry: "Registry") -> None:
    """Tell what serves now."""
    tell("SERVES    " + ", ".join(_served(state) for state in registry.slots()))


def tell_next(settings: Settings, slot: str | None) -> None:
    """Tell how to look further."""
    home = "" if settings.home == Settings().home else f" --home {settings.home}"
    named = f" {slot}" if slot else ""
    tell("LOOK      flows traces list      flows adapters show" + named + "      flows runs list")
    tell(f"          flows sql{home} 'FROM v_blame'")


def _served(state: "SlotState") -> str:
    canary = f" ({state.canary_percent:g}% {state.canary_name})" if state.canary else ""
    return f"{state.slot}: {state.champion_name or 'base'}{canary}"


def _many(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {what}" for what, n in counts.items() if n)
