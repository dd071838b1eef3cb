"""`flows run` by hand: the cycle or one stage as a Prefect flow, and the plan of a dry run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows import lineage, stages
from flows.config import Settings
from flows.console import tell
from flows.prefect_server import prefect_api
from serving.disk import DiskFull
from traces.storage.lake_address import address_of, settle_address

REPLAY = "replay"
"""The stage `attribute` with `--replay`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run made, ready for JSON, and whether it ended without a challenger that may serve."""

    value: Any
    gate_said_no: bool = False
    """The gate refused one."""
    loop_stopped: bool = False
    """None was made, because rounds before brought nothing."""


def run(settings: Settings, stage: str) -> Outcome:
    """Run the cycle or one stage under Prefect.

    What is wrong with the input is said before anything starts.
    """
    check(settings, stage)
    make_home(settings.home)
    settle_address(settings.home, settings.lake)
    with prefect_api(settings.home):
        if stage == "cycle":
            from flows.cycle import cycle

            before = set((settings.home / "cycles").glob("*"))
            result = cycle(settings)
            new = set((settings.home / "cycles").glob("*")) != before
            return Outcome(
                result.model_dump(mode="json"),
                new and result.verdict not in (None, "PASS"),
                result.stopped,
            )
        from prefect import flow

        outcome = flow(name=stage, validate_parameters=False)(_STAGES[stage])(settings)
    if stage in _TAUGHT:
        lineage.publish_or_say(settings)
    return outcome


def check(settings: Settings, stage: str) -> None:
    """Refuse input that the stage could not work with; nothing is changed.

    Raises:
        MolError: the first thing that is wrong, and what to do about it.
    """
    from promotion.suites.build import primary_suite
    from traces.sources.detect import check_format, find_sources
    from traces.sources.locations import local_path
    from training.artifact import BaseNotFound

    address_of(settings.home, settings.lake)
    profile = stages.profile_in_force(settings)
    if settings.slot is not None:
        profile.slot(settings.slot)
        if stage in ("cycle", "curate", "train", "gate"):
            primary_suite(profile, settings.slot, settings.suites)
    elif stage in ("curate", "train", "gate", "promote"):
        raise stages.NothingMade(
            f"Which slot? Name one of {', '.join(profile.labels)} with '--slot'."
        )
    if stage in ("cycle", "ingest"):
        check_format(settings.format)
        for source in stages.named_sources(settings):
            # What is behind a URL is known once it has been fetched.
            path = local_path(source)
            if path is not None:
                find_sources(path, settings.format)
    answers_here = stage == REPLAY and settings.engine == stages.EMBEDDED
    needs_base = answers_here or stage in ("cycle", "train", "gate")
    if needs_base and not (settings.base / "config.json").is_file():
        raise BaseNotFound(
            f"No base model in {str(settings.base)!r}. Fetch the default one with "
            "'python -m infra.base_model', or name a Hugging Face folder with '--base'."
        )


def make_home(home: Path) -> None:
    """Make the folder of the loop's state.

    Raises:
        DiskFull: if it cannot be made.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskFull(
            f"Cannot make the folder {str(home)!r}: {error.strerror}. Choose another with '--home'."
        ) from error


def _ingest(settings: Settings) -> Outcome:
    from flows import story, tasks

    reports = tasks.ingest(settings)
    for report in reports:
        story.tell_ingest(report)
    return Outcome([report.model_dump(mode="json") for report in reports])


def _attribute(settings: Settings) -> Outcome:
    from flows import story, tasks
    from flows.judging import refuse_stopped

    report = tasks.attribute(settings)
    story.tell_attribute(report)
    refuse_stopped(report.judge)
    return Outcome(report.model_dump(mode="json"))


def _replay(settings: Settings) -> Outcome:
    """Blame tells what is worth replaying, and follows from what the replay finds."""
    from flows import story, tasks
    from flows.replaying import refuse_stopped

    tasks.attribute(settings)
    replayed = tasks.replay(settings)
    story.tell_replay(replayed)
    report = tasks.attribute(settings)
    story.tell_attribute(report)
    refuse_stopped(replayed)
    value = report.model_dump(mode="json")
    return Outcome(value | {"replay": replayed.model_dump(mode="json")})


def _upkeep(settings: Settings) -> Outcome:
    from flows import story, tasks

    report = tasks.upkeep(settings)
    story.tell_upkeep(report)
    return Outcome(report.model_dump(mode="json"))


def _curate(settings: Settings) -> Outcome:
    from flows import story, tasks

    manifest = tasks.curate(settings, str(settings.slot))
    story.tell_dataset(manifest)
    return Outcome(manifest.model_dump(mode="json"))


def _train(settings: Settings) -> Outcome:
    from flows import story, tasks

    stages.prepare_registry(settings)
    trained = tasks.train(settings, stages.latest_manifest(settings, str(settings.slot)))
    story.tell_training(trained)
    return Outcome(trained.model_dump(mode="json"))


def _gate(settings: Settings) -> Outcome:
    from flows import story, tasks

    stages.prepare_registry(settings)
    slot = str(settings.slot)
    report = tasks.gate(settings, slot, stages.latest_run(settings, slot).digest)
    story.tell_gate(report)
    return Outcome(report.model_dump(mode="json"), report.verdict != "PASS")


def _promote(settings: Settings) -> Outcome:
    from flows import story, tasks
    from flows.reports import latest_report

    result = tasks.promote(settings, latest_report(settings, str(settings.slot)))
    story.tell_promotion(result)
    return Outcome(result.model_dump(mode="json"))


def _canary(settings: Settings) -> Outcome:
    from flows import canaries

    reports = canaries.watch(settings)
    return Outcome([report.model_dump(mode="json") for report in reports])


def _lineage(settings: Settings) -> Outcome:
    changed = lineage.publish(settings)
    tell(f"LINEAGE   {changed or 'no'} rows brought into the lake")
    return Outcome({"changed": changed})


_STAGES: dict[str, Callable[[Settings], Outcome]] = {
    "ingest": _ingest,
    "attribute": _attribute,
    REPLAY: _replay,
    "upkeep": _upkeep,
    "curate": _curate,
    "train": _train,
    "gate": _gate,
    "promote": _promote,
    "canary": _canary,
    "lineage": _lineage,
}
_TAUGHT = frozenset({"curate", "train", "gate", "promote", "canary"})
"""Stages after which the lake is told what the registry and the datasets say."""


def plan(settings: Settings, stage: str) -> list[dict[str, Any]]:
    """Return what a run would do, one row a step, without changing anything.

    Raises:
        MolError: if the run could not start.
    """
    from traces.sources.detect import find_sources
    from traces.sources.locations import local_path, shown

    check(settings, stage)
    if stage == "upkeep":
        from flows import story

        report = stages.upkeep_stage(settings, dry_run=True)
        return [{"stage": stage, "would": what} for what in story.upkeep_lines(report)]
    order = ["ingest", "attribute", "curate", "train", "gate", "promote", "lineage"]
    steps: list[dict[str, Any]] = []
    sources = stages.named_sources(settings) if stage in ("cycle", "ingest") else ()
    for source in sources:
        path = local_path(source)
        if path is None:
            steps.append({"stage": "ingest", "would": f"fetch {shown(source)}"})
            continue
        found = find_sources(path, settings.format)
        size = sum(file.size_bytes for file in found.files)
        what = f"{len(found.files)} files of {source} as {found.format}, {size:,} bytes"
        steps.append({"stage": "ingest", "would": what})
    target = f"slot {settings.slot}" if settings.slot else "the slot with the most blame"
    t, s = settings.training, settings.suites
    steps += [
        {"stage": "attribute", "would": f"settle outcomes and blame in {settings.home}"},
        {
            "stage": REPLAY,
            "would": f"answer failed turns afresh with every slot on {settings.engine}, at most "
            f"{settings.attribution.replay_budget} engine calls",
        },
        {"stage": "curate", "would": f"make a dataset of {target}"},
        {"stage": "train", "would": f"{t.method}, r={t.r}, {t.epochs} epochs on {settings.base}"},
        {
            "stage": "gate",
            "would": f"ask {s.primary} items of the primary suite on {settings.engine}",
        },
        {"stage": "promote", "would": "if the gate says PASS, make the challenger champion"},
        {
            "stage": "canary",
            "would": "end canaries and new champions that do harm; "
            + ("let the others grow" if settings.canary.auto_advance else "say which may grow"),
        },
        {"stage": "lineage", "would": "tell the lake who serves and what each version learned"},
    ]
    wanted = order if stage == "cycle" else ["attribute", REPLAY] if stage == REPLAY else [stage]
    return [step for step in steps if step["stage"] in wanted]
