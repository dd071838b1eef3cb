"""What the list and show commands print: rows and texts made from the state on disk."""

from typing import TYPE_CHECKING, Any

from flows import stages
from flows.config import Settings
from flows.console import moment, short_id
from serving.records import short_digest

if TYPE_CHECKING:
    from traces.lookup import TurnFilter, TurnStory


def turns(settings: Settings, limit: int, only: "TurnFilter", short: bool) -> list[dict[str, Any]]:
    """Return the latest turns; `short` for a table."""
    from traces.lookup import list_turns

    rows = list_turns(settings.home, limit, only)
    if not short:
        return rows
    return [
        {
            "turn": short_id(row["turn_id"]),
            "at": moment(row["started_at"]),
            "user": row["user_id"],
            "slot": row["slot"],
            "outcome": {True: "success", False: "failure", None: "-"}[row["success"]],
            "blame": row["blame"],
            "request": row["request"][:70],
        }
        for row in rows
    ]


def turn(story: "TurnStory") -> dict[str, Any]:
    """Return everything about one turn, with what its version learned and what it taught."""
    found = story.bundle
    return {
        "turn": found.turn.model_dump(mode="json"),
        "hops": [hop.model_dump(mode="json") for hop in found.hops],
        "outcome": found.outcome.model_dump(mode="json"),
        "blame": found.blame.model_dump(mode="json") if found.blame else None,
        "version": story.learned,
        "taught": list(story.taught),
    }


def datasets(settings: Settings) -> list[dict[str, Any]]:
    """Return one row a dataset."""
    from curation.manifest import list_manifests

    return [
        {
            "dataset": short_digest(m.digest),
            "slot": m.slot,
            "snapshot": m.snapshot_id,
            "train": m.splits.get("train", 0),
            "holdout": m.splits.get("holdout", 0),
            "dropped": sum(m.drops.values()),
        }
        for m in list_manifests(settings.home)
    ]


def runs(settings: Settings) -> list[dict[str, Any]]:
    """Return one row a training run."""
    from flows.reports import founded_reports
    from training.runs import list_runs

    verdicts = {r.challenger_digest: r.verdict for r in founded_reports(settings)}
    return [
        {
            "run": short_digest(run.run_key),
            "adapter": run.adapter.name,
            "dataset": short_digest(run.manifest_digest),
            "rows": int(run.metrics["rows"]),
            "loss": run.metrics["train_loss"],
            "seconds": run.metrics["seconds"],
            "seed": run.seed,
            "gate": verdicts.get(run.digest),
        }
        for run in list_runs(settings.home)
    ]


def run(settings: Settings, key: str) -> dict[str, Any]:
    """Return one training run."""
    from training.runs import list_runs

    wanted = key.removeprefix("sha256:")
    found = [
        run
        for run in list_runs(settings.home)
        if run.run_key.removeprefix("sha256:").startswith(wanted)
    ]
    if len(found) != 1:
        raise stages.NothingMade(
            f"{len(found)} training runs begin with {key!r}. Run 'flows runs list' for their keys."
        )
    return found[0].model_dump(mode="json")
