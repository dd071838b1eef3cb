"""What `flows adapters` says and does: versions, their lineage, differences, the log.

In: the settings and names. Out: rows and values ready for a table or JSON.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flows import stages
from flows.config import Settings
from serving.errors import InvalidAdapterName
from serving.records import short_digest

if TYPE_CHECKING:
    from promotion.registry import Registry
    from promotion.state import RegisteredVersion, SlotState

_SOME = 5
"""How many rows and turns `show` names."""


def rows(settings: Settings, slot: str | None, limit: int) -> list[dict[str, Any]]:
    """Return one row a version, newest first."""
    with stages.open_registry(settings) as registry:
        states = {state.slot: state for state in registry.slots()}
        gone = registry.log.withdrawn(slot)
        return [
            {
                "adapter": version.name,
                "slot": version.slot,
                "serves": _serves(states[version.slot], version.digest),
                "rolled_back": f"{gone[version.digest].at:%Y-%m-%d %H:%M}"
                if version.digest in gone
                else None,
                "dataset": short_digest(version.manifest_digest)
                if version.manifest_digest
                else None,
                "signed": version.signer[:12] if version.signer else None,
                "created_at": f"{version.created_at:%Y-%m-%d %H:%M}",
            }
            for version in registry.versions(slot, limit)
        ]


def find(settings: Settings, registry: "Registry", which: str) -> "RegisteredVersion | None":
    """Return the version that `which` means; None for a slot that serves the bare base.

    It is a slot (its champion), an adapter's name or digest, or the id of a turn, response,
    hop or conversation in the lake (the version that answered).

    Raises:
        UnknownAdapter: if there is none.
    """
    from promotion.version_rows import UnknownAdapter

    state = next((state for state in registry.slots() if state.slot == which), None)
    if state is not None:
        return registry.version(state.champion) if state.champion else None
    try:
        return registry.version(which)
    except (UnknownAdapter, InvalidAdapterName):
        answered = _answered_by(settings, which)
        if answered is None:
            raise
        return registry.version(answered)


def details(settings: Settings, which: str) -> dict[str, Any]:
    """Return a version with its signature, its report, its service, and what it learned from."""
    from flows.adapter_trust import check_version
    from flows.reports import founded_judgements

    with stages.open_registry(settings) as registry:
        version = find(settings, registry, which)
        if version is None:
            state = registry.slot(which)
            return {"slot": state.slot, "champion": "base", "generation": state.generation}
        state = registry.slot(version.slot)
        served = registry.history(version.slot, version.digest, newest=50)
        gone = registry.log.withdrawn(version.slot).get(version.digest)
        signature = check_version(settings, registry, version)
        reports = [
            {"verdict": r.verdict, "key": r.key, "reasons": list(r.reasons)}
            for r in founded_judgements(settings, registry, version.slot)
            if r.challenger_digest == version.digest
        ]
    return {
        "name": version.name,
        **version.model_dump(mode="json"),
        "serves": _serves(state, version.digest),
        "rolled_back": gone.model_dump(mode="json", exclude={"slot", "digest"}) if gone else None,
        "signature": signature.found,
        "gate": reports,
        "served": [tenure.model_dump(mode="json") for tenure in served],
        "lineage": _lineage(settings, version),
    }


def lessons(settings: Settings, which: str) -> list[dict[str, Any]]:
    """Return the rows of the dataset that a version learned from, each with its turn."""
    with stages.open_registry(settings) as registry:
        version = find(settings, registry, which)
    return [] if version is None else list(_lessons(settings, version))


def difference(settings: Settings, a: str, b: str) -> dict[str, Any]:
    """Return in what two versions differ, and how far their weights are apart.

    Raises:
        NotComparable: if both are one version.
        UnknownAdapter: if one is not in the registry, or is the bare base.
    """
    from flows.reports import founded_reports
    from promotion.version_diff import differences, weight_distances

    with stages.open_registry(settings) as registry:
        first, second = (version_named(settings, registry, which) for which in (a, b))
    weights = weight_distances(settings.home, first, second)
    reports = {
        version.digest: report
        for version in (first, second)
        for report in founded_reports(settings, version.slot, version.digest)
    }
    found = differences(settings.home, first, second, reports)
    return {
        "a": first.name,
        "b": second.name,
        "differences": [row.model_dump(mode="json") for row in found],
        "weights": [row.model_dump() | {"relative": row.relative} for row in weights],
    }


def log(settings: Settings, slot: str | None, limit: int) -> list[dict[str, Any]]:
    """Return the newest events of the log, oldest first: what changed, by whom, why."""
    with stages.open_registry(settings) as registry:
        if slot is not None:
            registry.slot(slot)
        events = registry.events(slot, newest=limit)
    return [
        {
            "event": event.seq,
            "at": f"{event.at:%Y-%m-%d %H:%M:%S}",
            "slot": event.slot,
            "kind": event.kind,
            "serves": event.state.champion_name or "base",
            "canary": event.state.canary_name,
            "percent": event.state.canary_percent or None,
            "report": event.report_key[:12] if event.report_key else None,
            "by": event.note.get("by"),
            "reason": event.note.get("reason"),
        }
        for event in events
    ]


def version_named(settings: Settings, registry: "Registry", which: str) -> "RegisteredVersion":
    """Return the version that `which` means, as `find` does.

    Raises:
        UnknownAdapter: if there is none, or the slot serves the bare base.
    """
    from promotion.version_rows import UnknownAdapter

    version = find(settings, registry, which)
    if version is None:
        raise UnknownAdapter(
            f"Slot {which!r} serves the bare base model, which is no adapter. Name a version; "
            "'flows adapters list' has them."
        )
    return version


def _serves(state: "SlotState", digest: str) -> str | None:
    parts = {state.champion: "champion", state.previous: "previous", state.canary: "canary"}
    return parts.get(digest)


def _answered_by(settings: Settings, which: str) -> str | None:
    """Return the served name of what answered a turn, None if the lake knows none of this id."""
    from traces.errors import LakeNotFound, TurnNotFound
    from traces.lookup import find_turns

    try:
        turns = [story.bundle.turn for story in find_turns(settings.home, which)]
    except (LakeNotFound, TurnNotFound):
        return None
    return next((f"{t.slot}@{t.digest}" for t in reversed(turns) if t.slot and t.digest), None)


def _lineage(settings: Settings, version: "RegisteredVersion") -> dict[str, Any] | None:
    """Return run, dataset, and how many rows of how many turns; None for an imported one."""
    from curation.manifest import find_manifest

    if version.manifest_digest is None:
        return None
    manifest = find_manifest(settings.home, version.manifest_digest)
    if manifest is None:
        return {"run": version.run_key, "dataset": version.manifest_digest, "rows": None}
    taught = list(_lessons(settings, version))
    turns = list(dict.fromkeys(row["turn"] for row in taught))
    return {
        "run": version.run_key,
        "dataset": manifest.digest,
        "snapshot": manifest.snapshot_id,
        "splits": manifest.splits,
        "trains_on": manifest.mix,
        "rows": len(taught),
        "turns": len(turns),
        "some_turns": turns[:_SOME],
    }


def _lessons(settings: Settings, version: "RegisteredVersion") -> Iterator[dict[str, Any]]:
    from curation.manifest import find_manifest, read_examples

    digest = version.manifest_digest
    manifest = find_manifest(settings.home, digest) if digest else None
    for row in read_examples(settings.home, manifest, None) if manifest else ():
        yield {
            "row": row.example_id,
            "split": row.split,
            "duty": row.duty,
            "source": row.source,
            "turn": row.turn_id,
            "hop": row.hop_id,
        }
