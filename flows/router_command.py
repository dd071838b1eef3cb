"""The commands `flows router train|show|rollback|estimate`.

Exit status as of `flows`: 3 if the gate kept the head out.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flows import console
from flows.config import load_settings
from flows.console import print_json, print_table, progress, say, tell
from flows.options import MOST_ROWS, Base, Config, Home, Json, Seed
from flows.router import RouterResult, rollback_stage, show_stage, train_stage
from serving.records import short_digest

if TYPE_CHECKING:
    from flows.router_estimates import PolicyEstimate, RouterEstimates

router_app = typer.Typer(no_args_is_help=True, help="The trained router head.")


@router_app.command("train")
def train_command(
    config: Config = None,
    home: Home = None,
    base: Base = None,
    engine: Annotated[
        str | None,
        typer.Option(help="'embedded', or an address whose /v1/embeddings tells hidden states."),
    ] = None,
    seed: Seed = None,
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


@router_app.command("estimate")
def estimate_command(
    slot: Annotated[
        str | None, typer.Option(help="What if this slot took every request; none: each in turn.")
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="What if this head routed: router@<12 hex>, or a folder.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="SQL", help="Only turns of which this holds, as in \"workload = 'agent.chat'\"."
        ),
    ] = None,
    tier: Annotated[
        Literal["A", "B"] | None,
        typer.Option(help="Count verified (A) or explicit (B) outcomes only; none: both."),
    ] = None,
    min_ess: Annotated[
        float, typer.Option(min=100, max=MOST_ROWS, help="Refuse below so many effective turns.")
    ] = 100.0,
    config: Config = None,
    home: Home = None,
    base: Base = None,
    engine: Annotated[
        str | None, typer.Option(help="For a head: 'embedded', or an address, as in 'train'.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Estimate what another way of routing would have been worth, from explored turns."""
    if slot is not None and head is not None:
        raise typer.BadParameter("Give one of --slot and --head, or neither for every slot.")
    from flows.router_estimates import estimate_stage

    console.Mode.json = as_json
    settings = load_settings(config, overrides={"home": home, "base": base, "engine": engine})
    with progress("embedding requests") as show:
        found = estimate_stage(
            settings, slot, head, where, (tier,) if tier else ("A", "B"), min_ess, show
        )
    print_json(found.model_dump(mode="json")) if as_json else _tell_estimates(found)


def _tell_estimates(found: "RouterEstimates") -> None:
    print_table([_row(policy) for policy in found.policies], console.NOTHING)
    for policy in found.policies:
        if policy.refused:
            tell(f"{policy.policy}: {policy.refused}")
    shares = ", ".join(f"{epsilon:.3g}" for epsilon in found.epsilons)
    say(f"{found.turns:,} turns of routers that explore a share {shares} of theirs.")
    if found.left_out:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in found.left_out.items())
        say(f"Left out: {reasons}.")


def _row(policy: "PolicyEstimate") -> dict[str, Any]:
    """Return a row of the table; the value is the doubly robust estimate."""
    value = policy.value
    names = ("logged", "value", "95%", "gain", "gain 95%", "ips", "snips", "n",
             "conversations", "ess", "versions")  # fmt: skip
    if value is None:
        return {"policy": policy.policy, **dict.fromkeys(names), "versions": policy.versions}
    cells = (
        value.logged.estimate, value.dr.estimate, f"{value.dr.lower:.3f}..{value.dr.upper:.3f}",
        value.gain.estimate, f"{value.gain.lower:+.3f}..{value.gain.upper:+.3f}",
        value.ips.estimate, value.snips.estimate, value.n, value.conversations, round(value.ess),
        policy.versions,
    )  # fmt: skip
    return {"policy": policy.policy, **dict(zip(names, cells, strict=True))}


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
