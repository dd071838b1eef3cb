"""Tell the lake what the registry and the datasets know, so that lineage is a query.

In: a home's registry, gate reports and datasets. Out: the lake's tables `adapters`,
`tenures` and `lessons`. Safe at any time and any number of times: only what differs is
written. It runs after curate, train, gate and promote; by hand: `flows run lineage`.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from flows import stages
from flows.config import Settings
from flows.console import say
from serving.errors import MolError
from serving.records import content_id, short_digest

if TYPE_CHECKING:
    from curation.manifest import Manifest
    from promotion.judgements import Judgement
    from promotion.registry import Registry
    from promotion.state import Event, RegisteredVersion
    from traces.provenance import Published

_ALL = 1_000_000_000


def publish(settings: Settings) -> int:
    """Bring the lake's copies up to date; return how many rows changed.

    What is news is read, not the whole registry; all of it where the lake's copy is not a
    beginning of it, as after a change of registries.

    Raises:
        LakeNotFound: if nothing was ingested yet.
    """
    from curation.manifest import list_manifests
    from flows.reports import founded_judgements
    from traces import provenance

    known = provenance.published(settings.home)
    new = [m for m in list_manifests(settings.home) if m.digest not in known.datasets]
    lessons = [row for manifest in new for row in _lesson_rows(settings, manifest)]
    with stages.open_registry(settings) as registry:
        reports = founded_judgements(settings, registry)
        news = _news(registry, known, reports)
        if news is not None:
            return provenance.publish(settings.home, {}, {"lessons": lessons}, news)
        versions, events = registry.versions(limit=_ALL), registry.events()
    used = {event.report_key for event in events if event.report_key is not None}
    whole = {"adapters": adapter_rows(versions, used, reports), "tenures": tenure_rows(events)}
    return provenance.publish(settings.home, whole, {"lessons": lessons})


def _news(
    registry: "Registry", known: "Published", reports: "Sequence[Judgement]"
) -> dict[str, list[dict[str, Any]]] | None:
    """Return the rows that may be news to the lake; None if its copy is of something else."""
    count, made = registry.made_since(known.newest)
    before = known.adapters - known.at_newest
    states = registry.slots()
    ahead = any(known.generations.get(s.slot, 0) > s.generation for s in states)
    if ahead or count - len(made) != before:
        return None
    tenures: list[dict[str, Any]] = []
    for state in states:
        unseen = state.generation - known.generations.get(state.slot, 0)
        running = [dict(row) for row in known.running if row["slot"] == state.slot]
        events = registry.events(state.slot, newest=unseen) if unseen else ()
        tenures += tenure_rows(events, running)
    used = known.reports | {row["gate_report"] for row in tenures}
    versions = {version.digest: version for version in made}
    for digest in {report.challenger_digest for report in reports} - versions.keys():
        version = registry.registered(digest)
        versions |= {digest: version} if version is not None else {}
    return {"adapters": adapter_rows(versions.values(), used, reports), "tenures": tenures}


def publish_or_say(settings: Settings) -> None:
    """Tell lake and mirror after a stage; what goes wrong is said and undoes nothing of it."""
    from flows.adapter_copies import mirror_or_say
    from traces.errors import LakeNotFound

    mirror_or_say(settings)
    try:
        publish(settings)
    except LakeNotFound:
        return
    except MolError as error:
        say(f"  lineage is not up to date: {error} 'flows run lineage' tries again.")


def adapter_rows(
    versions: "Iterable[RegisteredVersion]",
    used: Collection[str],
    reports: "Iterable[Judgement]",
) -> list[dict[str, Any]]:
    """Return a row a version, with its report that is among the `used`, else its newest one."""
    judged: dict[str, Judgement] = {}
    for report in reports:
        before = judged.get(report.challenger_digest)
        if before is None or before.key not in used:
            judged[report.challenger_digest] = report
    return [_adapter_row(version, judged.get(version.digest)) for version in versions]


def _adapter_row(version: "RegisteredVersion", report: "Judgement | None") -> dict[str, Any]:
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


def tenure_rows(
    events: "Iterable[Event]", before: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Return a row for each time a version was a slot's champion or its canary, from the log.

    Where the log goes on from an earlier part, `before` are that part's tenures that had not
    ended; they come back, ended or not.
    """
    rows = list(before)
    running = {(row["slot"], row["kind"]): row for row in rows}
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
