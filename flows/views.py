"""What the list and show commands print: rows and texts made from the state on disk."""

from typing import TYPE_CHECKING, Any

from flows import stages
from flows.config import Settings
from flows.console import moment, short_id
from serving.records import short_digest

if TYPE_CHECKING:
    from traces.lookup import TurnFilter
    from traces.read import TurnBundle


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


def turn(found: "TurnBundle") -> dict[str, Any]:
    """Return everything about one turn."""
    return {
        "turn": found.turn.model_dump(mode="json"),
        "hops": [hop.model_dump(mode="json") for hop in found.hops],
        "outcome": found.outcome.model_dump(mode="json"),
        "blame": found.blame.model_dump(mode="json") if found.blame else None,
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


def adapters(settings: Settings, slot: str | None, limit: int) -> list[dict[str, Any]]:
    """Return one row a version."""
    with stages.open_registry(settings) as registry:
        states = {state.slot: state for state in registry.slots()}
        if slot is not None:
            registry.slot(slot)
        rows = registry.versions(slot, limit)
        return [
            {
                "adapter": v.name,
                "slot": v.slot,
                "serves": "champion"
                if states[v.slot].champion == v.digest
                else "previous"
                if states[v.slot].previous == v.digest
                else "canary"
                if states[v.slot].canary == v.digest
                else None,
                "dataset": short_digest(v.manifest_digest) if v.manifest_digest else None,
                "created_at": f"{v.created_at:%Y-%m-%d %H:%M}",
            }
            for v in rows
        ]


def adapter(settings: Settings, which: str) -> dict[str, Any]:
    """Return a version, or a slot's champion, with its report and its time of service."""
    from promotion.gate import list_reports

    with stages.open_registry(settings) as registry:
        states = {state.slot: state for state in registry.slots()}
        state = states.get(which)
        if state is not None and state.champion is None:
            return {"slot": state.slot, "champion": "base", "generation": state.generation}
        version = registry.version(str(state.champion) if state else which)
        history = [t for t in registry.history(version.slot) if t.champion == version.digest]
    reports = [
        {"verdict": r.verdict, "key": r.key, "reasons": list(r.reasons)}
        for r in list_reports(settings.home, version.slot)
        if r.challenger_digest == version.digest
    ]
    return {
        "name": version.name,
        **version.model_dump(mode="json"),
        "gate": reports,
        "served": [t.model_dump(mode="json") for t in history],
    }


def runs(settings: Settings) -> list[dict[str, Any]]:
    """Return one row a training run."""
    from promotion.gate import list_reports
    from training.runs import list_runs

    verdicts = {r.challenger_digest: r.verdict for r in list_reports(settings.home)}
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
