"""The commands `flows slots list|add|set|canary|resume`."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from flows import console, slots
from flows.config import load_settings
from flows.console import print_json, print_table
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
    check_override_words,
)

slots_app = typer.Typer(no_args_is_help=True, help="Slots and what each of them serves.")

Name = Annotated[str, typer.Argument(metavar="SLOT", help="Its name, such as L4.")]
Description = Annotated[str | None, typer.Option(help="What the router is told about it.")]
System = Annotated[str | None, typer.Option(help="System prompt, where the profile has none.")]
Rule = Annotated[
    str | None,
    typer.Option(help="Words and phrases, separated by commas, that ask for it; '!' overrides."),
]
Tools = Annotated[
    bool | None,
    typer.Option("--offers-tools/--no-tools", help="Whether it gets the client's tools."),
]


class Tier(StrEnum):
    """How much the server depends on a slot."""

    core = "core"
    extra = "extra"


TierOption = Annotated[
    Tier | None, typer.Option(help="An 'extra' slot that cannot be loaded is left out.")
]


@slots_app.command("list")
def list_slots(config: Config = None, home: Home = None, as_json: Json = False) -> None:
    """List the slots with what they serve, as the registry says."""
    _show(slots.rows(load_settings(config, overrides={"home": home})), as_json)


@slots_app.command("add")
def add_slot(
    slot: Name,
    description: Annotated[str, typer.Option(help="What the router is told about it.")],
    system: Annotated[str, typer.Option(help="System prompt of its answers.")],
    rule: Rule = None,
    tier: TierOption = None,
    offers_tools: Tools = None,
    config: Config = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Add a slot; it serves the base until a version of it is promoted."""
    settings = load_settings(config, overrides={"home": home})
    traits = _given(description, system, rule, tier, offers_tools)
    _show(slots.add(settings, slot, traits), as_json)


@slots_app.command("set")
def set_slot(
    slot: Name,
    description: Description = None,
    system: System = None,
    rule: Rule = None,
    tier: TierOption = None,
    offers_tools: Tools = None,
    config: Config = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Change what a slot is for; what is not named stays."""
    settings = load_settings(config, overrides={"home": home})
    changes = _given(description, system, rule, tier, offers_tools)
    if not changes:
        raise typer.BadParameter("Name at least one thing to change, such as --description.")
    _show(slots.configure(settings, slot, changes), as_json)


@slots_app.command("canary")
def canary(
    slot: Name,
    adapter: Annotated[
        str | None, typer.Argument(help="A name like L2@3fa9c1d2e4b5 that the gate has judged.")
    ] = None,
    percent: Annotated[
        float | None, typer.Option(min=0, max=100, help="Part of the traffic; 0 ends it.")
    ] = None,
    status: Annotated[bool, typer.Option("--status", help="What the guards have seen.")] = False,
    hold: Annotated[bool, typer.Option("--hold", help="Let nothing grow in the slot.")] = False,
    release: Annotated[bool, typer.Option("--release", help="End a hold.")] = False,
    end: Annotated[bool, typer.Option("--end", help="Give the champion all traffic back.")] = False,
    by: Annotated[
        str | None, typer.Option(help="Who holds or releases the slot; with --reason.")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why; with --by or --override-by.")] = None,
    override_by: OverrideBy = None,
    expires: Expires = None,
    base: Base = None,
    engine: Engine = None,
    config: Config = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Give a version a part of a slot's traffic, hold the slot, or end that.

    It passed the gate, or a person answers for it by --override-by, --reason and --expires.
    """
    from flows import canaries, lineage, story

    console.Mode.json = as_json
    overrides = {"home": home, "base": base, "engine": engine, "slot": slot}
    settings = load_settings(config, overrides=overrides)
    end = end or percent == 0
    if sum((status, hold, release, end, bool(adapter or percent))) != 1:
        raise typer.BadParameter(
            "Name the adapter and its --percent, or one of --status, --hold, --release and --end."
        )
    override = None
    if override_by is not None or expires is not None:
        override = check_override_words(override_by, reason, expires)
    if override and not adapter:
        raise typer.BadParameter("--override-by begins a canary; name the adapter, too.")
    if not (hold or release) and (by is not None or (reason is not None and not override)):
        raise typer.BadParameter(
            "--by and --reason are for --hold and --release, and --reason for --override-by; "
            "nothing else keeps them."
        )
    if status:
        _show(list(canaries.rows(canaries.look(settings))), as_json)
        return
    if hold or release:
        _say(canaries.hold(settings, slot, by, reason, hold), slot, as_json)
        return
    if end:
        result = slots.end_canary(settings, slot)
    elif adapter is None or percent is None:
        raise typer.BadParameter("Name the adapter and its --percent, or --end.")
    else:
        result = slots.begin_canary(settings, slot, adapter, percent, override)
    lineage.publish_or_say(settings)
    print_json(result.model_dump(mode="json")) if as_json else story.tell_promotion(result)


@slots_app.command("resume")
def resume(
    slot: Name,
    by: By = None,
    reason: Reason = None,
    config: Config = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Let the loop go on with a slot that it left alone, because rounds brought nothing."""
    from flows import canaries

    console.Mode.json = as_json
    settings = load_settings(config, overrides={"home": home, "slot": slot})
    _say(canaries.resume(settings, slot, by, reason), slot, as_json)


def _given(
    description: str | None,
    system: str | None,
    rule: str | None,
    tier: Tier | None,
    offers_tools: bool | None,
) -> dict[str, Any]:
    said = {
        "description": description,
        "system": system,
        "routing_rule": rule,
        "tier": tier.value if tier else None,
        "offers_tools": offers_tools,
    }
    return {name: value for name, value in said.items() if value is not None}


def _say(message: str, slot: str, as_json: bool) -> None:
    print_json({"slot": slot, "message": message}) if as_json else console.tell(message)


def _show(rows: list[dict[str, Any]], as_json: bool) -> None:
    print_json(rows) if as_json else print_table(rows, "No slots.")
