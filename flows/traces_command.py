"""The commands `flows traces list|show`: turns in the lake."""

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from flows import console
from flows.config import load_settings
from flows.console import print_json, print_table
from flows.options import Config, Home, Json, Limit

traces_app = typer.Typer(no_args_is_help=True, help="Turns in the lake.")


_SPANS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@traces_app.command("list")
def list_traces(
    limit: Limit = 20,
    slot: Annotated[str | None, typer.Option(help="Slot that answered, such as L2.")] = None,
    workload: Annotated[str | None, typer.Option(help="Workload, such as agent.chat.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only turns that failed.")] = False,
    blame: Annotated[
        str | None, typer.Option(metavar="CLASS", help="Blame: router, adapter, adapter:L1, ...")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="A UTC date or time, or a span back: 2026-11-03, 7d, 12h.")
    ] = None,
    config: Config = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """List the latest turns with outcome and blame."""
    from flows import views
    from traces.lookup import TurnFilter

    settings = load_settings(config, overrides={"home": home})
    only = TurnFilter(slot, workload, failed, blame, parse_since(since) if since else None)
    rows = views.turns(settings, limit, only, short=not as_json)
    nothing = "No such turn." if only != TurnFilter() else console.NOTHING
    print_json(rows) if as_json else print_table(rows, nothing)


@traces_app.command("show")
def show_trace(
    which: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="A turn's id or its beginning, the id of a response or hop, or a conversation.",
        ),
    ],
    full: Annotated[bool, typer.Option("--full", help="Cut nothing, leave nothing out.")] = False,
    config: Config = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show a turn, or a conversation's turns, as they went: hop by hop, with blame and lineage."""
    from flows import views
    from traces.lookup import find_turns

    stories = find_turns(load_settings(config, overrides={"home": home}).home, which)
    if as_json:
        turns = [views.turn(story) for story in stories]
        print_json(turns if len(turns) > 1 else turns[0])
        return
    from rich.console import Console

    from flows.turn_page import turn_lines

    page = Console(highlight=False, markup=False, soft_wrap=not sys.stdout.isatty())
    for number, story in enumerate(stories):
        if number:
            page.rule(style="dim")
        for line in turn_lines(story, full):
            page.print(line)


def parse_since(text: str) -> datetime:
    """Return the moment that `--since` names; a date or time without a zone is UTC.

    Raises:
        typer.BadParameter: if it is neither a date, a time nor a span.
    """
    span = re.fullmatch(r"(\d{1,6})([mhdw])", text)
    try:
        if span is not None:
            return datetime.now(UTC) - timedelta(**{_SPANS[span[2]]: int(span[1])})
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(
            f"'--since' is a date or time (2026-11-03, 2026-11-03T12:00) or a span back from now "
            f"(30m, 12h, 7d, 2w), of year 1 at the earliest, not {text!r}."
        ) from error
