"""Tell the lake what the registry and the datasets know, so that lineage is a query.

In: a home's registry, gate reports and datasets. Out: the lake's tables `adapters`,
`tenures` and `lessons`. Safe at any time and any number of times: only what differs is
written. It runs after curate, train, gate and promote; by hand: `flows run lineage`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flows import stages
from flows.config import Settings
from flows.console import say
from serving.errors import MolError
from serving.records import content_id, short_digest

if TYPE_CHECKING:
    from curation.manifest import Manifest
    from promotion.gate import GateReport
    from promotion.state import Event, RegisteredVersion

_ALL = 1_000_000_000


def publish(settings: Settings) -> int:
    """Bring the lake's copies up to date; return how many rows changed.

    Raises:
        LakeNotFound: if nothing was ingested yet.
    """
    from curation.manifest import list_manifests
    from promotion.gate import list_reports
    from traces import provenance

    known = provenance.known_datasets(settings.home)
    new = [m for m in list_manifests(settings.home) if m.digest not in known]
    with stages.open_registry(settings) as registry:
        versions, events = registry.versions(limit=_ALL), registry.events()
    return provenance.publish(
        settings.home,
        {
            "adapters": adapter_rows(versions, events, list_reports(settings.home)),
            "tenures": tenure_rows(events),
        },
        {"lessons": [row for manifest in new for row in _lesson_rows(settings, manifest)]},
    )


def publish_or_say(settings: Settings) -> None:
    """Publish after a stage; what goes wrong is said and undoes nothing of the stage."""
    from traces.errors import LakeNotFound

    try:
        publish(settings)
    except LakeNotFound:
        return
    except MolError as error:
        say(f"  lineage is not up to date: {error} 'flows run lineage' tries again.")


def adapter_rows(
    versions: "Iterable[RegisteredVersion]",
    events: "Iterable[Event]",
    reports: "Iterable[GateReport]",
) -> list[dict[str, Any]]:
    """Return a row a version, with the report that promoted it, else its newest one."""
    used = {event.report_key for event in events if event.report_key is not None}
    judged: dict[str, GateReport] = {}
    for report in reports:
        before = judged.get(report.challenger_digest)
        if before is None or before.key not in used:
            judged[report.challenger_digest] = report
    return [_adapter_row(version, judged.get(version.digest)) for version in versions]


def _adapter_row(version: "RegisteredVersion", report: "GateReport | None") -> dict[str, Any]:
    return {
        "digest": version.digest,
        "slot": version.slot,
        "version": short_digest(version.digest),
        "base_digest": version.base_digest,
        "manifest_digest": version.manifest_digest,
        "run_key": version.run_key,
        "created_at": version.created_at,
        "gate_verdict": report.verdict if report else None,
        "gate_report": report.key if report else None,
        "judged_against": report.champion_digest if report else None,
    }


def tenure_rows(events: "Iterable[Event]") -> list[dict[str, Any]]:
    """Return a row for each time a version was a slot's champion or its canary, from the log."""
    rows: list[dict[str, Any]] = []
    running: dict[tuple[str, str], dict[str, Any]] = {}
    for event in events:
        state = event.state
        canary = (state.canary, state.canary_percent / 100) if state.canary else None
        for kind, now in (("champion", (state.champion, 1.0)), ("canary", canary)):
            open_row = running.get((event.slot, kind))
            served = None if open_row is None else (open_row["digest"], open_row["traffic"])
            if served == now:
                continue
            if open_row is not None:
                open_row["until"] = event.at
                del running[event.slot, kind]
            # A slot that was only configured serves the base as it did before.
            if now is not None and not (open_row is None and now[0] is None):
                row = _tenure_row(event, kind, *now)
                rows.append(row)
                running[event.slot, kind] = row
    return rows


def _tenure_row(event: "Event", kind: str, digest: str | None, traffic: float) -> dict[str, Any]:
    generation = event.state.generation
    return {
        "tenure_id": content_id([event.slot, generation, kind]),
        "slot": event.slot,
        "digest": digest,
        "version": short_digest(digest) if digest else None,
        "kind": kind,
        "traffic": traffic,
        "since": event.at,
        "until": None,
        "began_by": event.kind,
        "generation": generation,
        "gate_report": event.report_key,
    }


def _lesson_rows(settings: Settings, manifest: "Manifest") -> list[dict[str, Any]]:
    from curation.manifest import read_examples

    return [
        {
            "lesson_id": content_id([manifest.digest, row.example_id]),
            "manifest_digest": manifest.digest,
            "slot": row.slot,
            "example_id": row.example_id,
            "turn_id": row.turn_id,
            "hop_id": row.hop_id,
            "split": row.split,
            "duty": row.duty,
            "source": row.source,
            "weight": row.weight,
        }
        for row in read_examples(settings.home, manifest, None)
    ]
