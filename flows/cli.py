"""The `flows` command: run the loop or a stage of it, look at what it made, promote, go back.

Exit status: 0 fine, 1 a known error, 2 wrong usage, 3 the gate said no, 4 the loop stopped
itself because rounds in a row brought nothing.
"""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from flows import console
from flows.adapters_command import adapters_app
from flows.config import Settings, describe_settings, load_settings
from flows.console import print_json, print_table, say
from flows.options import (
    Base,
    By,
    Config,
    Engine,
    Expires,
    Home,
    Json,
    OverrideBy,
    Reason,
    Seed,
    check_override_words,
)
from flows.quarantine_command import quarantine_app
from flows.router_command import router_app
from flows.schedule_command import schedule
from flows.serve_command import serve
from flows.slots_command import slots_app
from flows.sql_command import sql
from flows.suites_command import suites_app
from flows.traces_command import traces_app
from serving.errors import MolError
from traces.storage.connections import interrupt_on_signals

GATE_SAID_NO = 3
LOOP_STOPPED = 4

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="The self-improvement loop for Mixture-of-LoRA servers.",
)
datasets_app = typer.Typer(no_args_is_help=True, help="Datasets made from turns.")
runs_app = typer.Typer(no_args_is_help=True, help="Training runs.")
for name, group in (
    ("traces", traces_app),
    ("datasets", datasets_app),
    ("adapters", adapters_app),
    ("runs", runs_app),
    ("slots", slots_app),
    ("router", router_app),
    ("quarantine", quarantine_app),
    ("suites", suites_app),
):
    app.add_typer(group, name=name)

_DOTTED = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command(context_settings=_DOTTED)(serve)
app.command(context_settings=_DOTTED)(schedule)
app.command()(sql)

Slot = Annotated[str | None, typer.Option("--slot", help="Slot to work on, such as L2.")]


class Stage(StrEnum):
    """What `flows run` can run."""

    cycle = "cycle"
    ingest = "ingest"
    attribute = "attribute"
    upkeep = "upkeep"
    curate = "curate"
    train = "train"
    gate = "gate"
    promote = "promote"
    canary = "canary"
    lineage = "lineage"


@app.command(context_settings=_DOTTED)
def run(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STAGE] [PATH] [--SETTING VALUE]...",
            help=f"STAGE: {', '.join(Stage)}; the cycle if none is named. PATH: file, "
            "folder or URL to ingest instead of those configured. Settings: see 'flows config'.",
        ),
    ] = None,
    config: Config = None,
    home: Home = None,
    slot: Slot = None,
    base: Base = None,
    engine: Engine = None,
    seed: Seed = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")
    ] = False,
    format: Annotated[
        str | None, typer.Option(help="Format of the traces; without it their content tells.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Ingest again whenever PATH grows, until Ctrl-C.")
    ] = False,
    replay: Annotated[
        bool,
        typer.Option("--replay", help="With attribute: answer failed turns afresh by every slot."),
    ] = False,
    judge: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="With attribute: an OpenAI-compatible server whose model judges unverified "
            "turns, if it agrees with the verifiers.",
        ),
    ] = None,
    judge_model: Annotated[
        str | None, typer.Option(help="Its model; the first that it lists if none is named.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the loop or one stage; any setting is a dotted flag, as in --training.epochs 3."""
    console.Mode.json = as_json
    stage, path, flags = split_words([*(words or ()), *context.args])
    if path is not None and stage not in (Stage.cycle, Stage.ingest):
        raise typer.BadParameter(
            f"{path!r} is one word too many: '{stage}' takes no PATH, only 'ingest' and 'cycle' do."
        )
    if (judge or judge_model) and stage is not Stage.attribute:
        raise typer.BadParameter("--judge and --judge-model are for 'flows run attribute'.")
    for name, value in (("judge", judge), ("judge-model", judge_model)):
        flags += [f"--attribution.{name}", value] if value is not None else []
    settings = load_settings(
        config,
        flags,
        {
            "home": home,
            "slot": slot,
            "base": base,
            "engine": engine,
            "seed": seed,
            "sources": (path,) if path else None,
            "format": format,
        },
        settle=not dry_run,
    )
    from flows import manual

    if follow:
        if stage is not Stage.ingest or dry_run:
            raise typer.BadParameter("--follow is for 'flows run ingest', without --dry-run.")
        from flows.follow import follow_source

        follow_source(settings)
        return
    if replay and stage is not Stage.attribute:
        raise typer.BadParameter("--replay is for 'flows run attribute'.")
    what = manual.REPLAY if replay else stage.value
    if dry_run:
        _out(manual.plan(settings, what), as_json)
        return
    outcome = manual.run(settings, what)
    if as_json:
        print_json(outcome.value)
    if outcome.gate_said_no:
        raise typer.Exit(GATE_SAID_NO)
    if outcome.loop_stopped:
        raise typer.Exit(LOOP_STOPPED)


@app.command("config")
def show_config(as_json: Json = False) -> None:
    """List every setting with its default and meaning."""
    rows = describe_settings()
    print_json(rows) if as_json else print_table(rows, "")


@app.command()
def promote(
    slot: str,
    override_by: OverrideBy = None,
    reason: Annotated[str | None, typer.Option(help="Why; with --override-by.")] = None,
    expires: Expires = None,
    config: Config = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Make the newest challenger of SLOT its champion.

    It passed the gate, or a person answers for it by --override-by, --reason and --expires.
    """
    from flows import lineage, reports, stages, story

    console.Mode.json = as_json
    said = check_override_words(override_by, reason, expires)
    settings = _settings(config, home)
    load_slot(settings, slot)
    report = reports.latest_report(settings, slot)
    if said:
        stages.override_stage(settings, report, *said)
    result = stages.promote_stage(settings, report)
    lineage.publish_or_say(settings)
    print_json(result.model_dump(mode="json")) if as_json else story.tell_promotion(result)


@app.command()
def rollback(
    slot: str,
    by: By = None,
    reason: Reason = None,
    config: Config = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Put the previous champion of SLOT back; one that did harm only on a person's word."""
    from flows import lineage, stages, story

    console.Mode.json = as_json
    settings = _settings(config, home)
    note = None
    if by is not None or reason is not None:
        from flows.canaries import word_of

        note = word_of(by, reason, "rollback", slot)
    result = stages.rollback_stage(settings, load_slot(settings, slot), note)
    lineage.publish_or_say(settings)
    if as_json:
        print_json(result.model_dump(mode="json"))
        return
    story.tell_promotion(result)
    console.tell("          'flows serve' follows; GET /health of its admin API says if it cannot.")


@datasets_app.command("list")
def list_datasets(config: Config = None, home: Home = None, as_json: Json = False) -> None:
    """List the datasets."""
    from flows import views

    _out(views.datasets(_settings(config, home)), as_json)


@datasets_app.command("show")
def show_dataset(
    digest: str, config: Config = None, home: Home = None, as_json: Json = False
) -> None:
    """Show a dataset's funnel, or with --json its whole manifest."""
    from curation.manifest import load_manifest
    from flows import story

    manifest = load_manifest(_settings(config, home).home, digest)
    print_json(manifest.model_dump(mode="json")) if as_json else story.tell_dataset(manifest)


@runs_app.command("list")
def list_runs(config: Config = None, home: Home = None, as_json: Json = False) -> None:
    """List the training runs and what the gate said."""
    from flows import views

    _out(views.runs(_settings(config, home)), as_json)


@runs_app.command("show")
def show_run(key: str, config: Config = None, home: Home = None, as_json: Json = False) -> None:
    """Show one training run by the beginning of its key."""
    from flows import views

    print_json(views.run(_settings(config, home), key))


def split_words(words: list[str]) -> tuple[Stage, str | None, list[str]]:
    """Tell the stage, the path and the dotted flags of `flows run` apart.

    Raises:
        typer.BadParameter: if the stage is unknown or there is a word too many.
    """
    places: list[str] = []
    flags: list[str] = []
    waiting = iter(words)
    for word in waiting:
        if not word.startswith("--"):
            places.append(word)
            continue
        flags.append(word)
        if "=" not in word:
            flags += [value for value in [next(waiting, None)] if value is not None]
    stage, path, *rest = [*places, None, None]
    if stage is not None and stage not in set(Stage):
        raise typer.BadParameter(f"{stage!r} is not a stage; there are {', '.join(Stage)}.")
    if any(rest):
        raise typer.BadParameter(f"{rest[0]!r} is one word too many after STAGE and PATH.")
    return Stage(stage or Stage.cycle), path, flags


def load_slot(settings: Settings, slot: str) -> str:
    """Return the slot's name if the registry has one of adapters.

    Raises:
        UnknownSlot: naming the slots there are.
        PromotionRefused: if it has a router head.
    """
    from flows import stages
    from promotion.slot_rows import PromotionRefused

    with stages.open_registry(settings) as registry:
        name = registry.slot(slot).slot
        if registry.traits()[name].role == "head":
            raise PromotionRefused(
                f"Slot {name!r} has router heads and no adapters. Run 'flows router train' or "
                "'flows router rollback'."
            )
    return name


def main() -> None:
    """Run the command; known errors become one line and exit status 1."""
    interrupt_on_signals()
    try:
        app()
    except MolError as error:
        say(f"flows: {' '.join(str(error).split())}")
        sys.exit(1)
    except KeyboardInterrupt:
        say("flows: interrupted; run the same command again to go on.")
        sys.exit(130)


def _settings(config: Path | None, home: Path | None) -> Settings:
    return load_settings(config, overrides={"home": home})


def _out(rows: list[dict[str, Any]], as_json: bool) -> None:
    print_json(rows) if as_json else print_table(rows, console.NOTHING)


if __name__ == "__main__":
    main()
