"""The commands `flows router train|show|rollback`.

Exit status as of `flows`: 3 if the gate kept the head out.
"""

from pathlib import Path
from typing import Annotated

import typer

from flows import console
from flows.config import load_settings
from flows.console import print_json, print_table, progress, tell
from flows.router import RouterResult, rollback_stage, show_stage, train_stage
from serving.records import short_digest

router_app = typer.Typer(no_args_is_help=True, help="The trained router head.")

Config = Annotated[Path | None, typer.Option("--config", help="TOML file with settings.")]
Home = Annotated[Path | None, typer.Option("--home", help="Folder of the loop's state [.mol].")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


@router_app.command("train")
def train_command(
    config: Config = None,
    home: Home = None,
    base: Annotated[Path | None, typer.Option(help="Folder of the frozen base model.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="'embedded', or an address whose /v1/embeddings tells hidden states."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the training.")] = None,
    as_json: Json = False,
) -> None:
    """Train a head on the lake's turns; put it in force if it routes better than now."""
    from flows.cli import GATE_SAID_NO

    console.Mode.json = as_json
    settings = load_settings(
        config, overrides={"home": home, "base": base, "engine": engine, "seed": seed}
    )
    with progress("embedding requests") as show:
        result = train_stage(settings, show)
    print_json(result.model_dump(mode="json")) if as_json else _tell(result)
    if not result.in_force:
        raise typer.Exit(GATE_SAID_NO)


@router_app.command("show")
def show_command(config: Config = None, home: Home = None, as_json: Json = False) -> None:
    """List the heads, oldest first, and which of them is in force."""
    rows = show_stage(load_settings(config, overrides={"home": home}))
    print_json(rows) if as_json else print_table(rows, "No head yet. Run 'flows router train'.")


@router_app.command("rollback")
def rollback_command(config: Config = None, home: Home = None, as_json: Json = False) -> None:
    """Put the previous head back, or none if there was none."""
    from flows import story

    console.Mode.json = as_json
    result = rollback_stage(load_settings(config, overrides={"home": home}))
    print_json(result.model_dump(mode="json")) if as_json else story.tell_promotion(result)


def _tell(result: RouterResult) -> None:
    m = result.metrics
    tell(
        f"{result.head}: {m['train']:.0f} rows, {m['holdout']:.0f} held out: accuracy "
        f"{m['accuracy']:.3f} (the commonest slot alone {m['majority']:.3f}), "
        f"log loss {m['log_loss']:.3f}, calibration error {m['ece']:.3f}"
    )
    tell(f"gate {short_digest(result.report)}: {result.verdict}")
    for reason in result.reasons:
        tell(f"  {reason}")
    tell(result.message)
