"""What the list and show commands print: rows and texts made from the state on disk."""

import json
from typing import Any

from flows import stages
from flows.config import Settings
from serving.records import Hop, Message, short_digest


def turns(settings: Settings, limit: int, slot: str | None, short: bool) -> list[dict[str, Any]]:
    """Return the latest turns; `short` for a table."""
    from traces.read import list_turns

    rows = list_turns(settings.home, limit, slot)
    if not short:
        return rows
    return [
        {
            "turn": short_digest(row["turn_id"]),
            "at": f"{row['started_at']:%Y-%m-%d %H:%M}",
            "user": row["user_id"],
            "slot": row["slot"],
            "outcome": {True: "success", False: "failure", None: "-"}[row["success"]],
            "blame": row["blame"],
            "request": row["request"][:70],
        }
        for row in rows
    ]


def turn(settings: Settings, turn_id: str) -> dict[str, Any]:
    """Return everything about one turn."""
    from traces.read import show_turn

    found = show_turn(settings.home, turn_id)
    return {
        "turn": found.turn.model_dump(mode="json"),
        "hops": [hop.model_dump(mode="json") for hop in found.hops],
        "outcome": found.outcome.model_dump(mode="json"),
        "blame": found.blame.model_dump(mode="json") if found.blame else None,
    }


def turn_text(settings: Settings, turn_id: str) -> str:
    """Render one turn as a person wants to read it."""
    from traces.read import show_turn
    from traces.standing import superseded_hops

    found = show_turn(settings.home, turn_id)
    t, outcome, blame = found.turn, found.outcome, found.blame
    result = {True: "success", False: "failure", None: "no verdict"}[outcome.success]
    lines = [
        f"turn {short_digest(t.turn_id)} of {t.conversation_id}, {t.started_at:%Y-%m-%d %H:%M} UTC",
        f"user {t.user}: {t.request}",
        f"{t.decision} to {t.slot}, status {t.status}{f': {t.error}' if t.error else ''}",
        f"outcome: {result} ({outcome.rule}{f', tier {outcome.tier}' if outcome.tier else ''})",
    ]
    if t.supersedes:
        lines.append(f"asked again; supersedes turn {short_digest(t.supersedes)}")
    if blame:
        lines.append(f"blame: {blame.label}, confidence {blame.confidence:.2f}: {blame.evidence}")
    if outcome.correction:
        lines.append(f"the user wanted: {_message(outcome.correction)}")
    replaced = superseded_hops(found.hops)
    for hop in found.hops:
        lines += ["", *_hop(hop, hop.hop_id in replaced)]
    return "\n".join(lines)


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


def _hop(hop: Hop, superseded: bool) -> list[str]:
    head = f"[{hop.role}] {hop.served_name or hop.model}, {hop.status}"
    head += ", superseded by a later attempt" if superseded else ""
    head += ", a further attempt" if hop.supersedes else ""
    if hop.prompt_tokens is not None:
        head += f", {hop.prompt_tokens} + {hop.completion_tokens} tokens, {hop.duration_s:.2f} s"
    lines = [head + (f": {hop.error}" if hop.error else "")]
    lines += [f"    {message.role}: {_message(message)}" for message in hop.messages]
    if hop.completion is not None:
        lines.append(f"  > {_message(hop.completion)}")
    return lines


def _message(message: Message) -> str:
    calls = [f"{call.name}({_arguments(call.arguments)})" for call in message.tool_calls]
    return " ".join(filter(None, [message.content.replace("\n", "\n      "), *calls]))


def _arguments(text: str) -> str:
    try:
        raw = json.loads(text)
    except ValueError:
        return text
    if not isinstance(raw, dict):
        return text
    return ", ".join(f"{key}={value!r}" for key, value in raw.items())
