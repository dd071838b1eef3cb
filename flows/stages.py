"""The stages of the loop as plain functions over settings. No Prefect here.

Each finds its finished output by content and returns it, so that a killed loop, run
again, goes on where it was and ends in the same state.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flows.config import Settings, Source
from flows.registering import register_adapter
from serving.errors import MolError
from serving.records import short_digest
from serving.slot_table import SlotEntry, SlotFile, effective_profile, traits_of
from serving.slots import Profile, load_profile

if TYPE_CHECKING:
    from curation.manifest import Manifest
    from promotion.gate import GateReport
    from promotion.promote import PromotionResult
    from promotion.registry import Registry
    from serving.engine import Engine
    from serving.replicas import Replicas
    from traces.attribute import AttributeReport
    from traces.ingest import IngestReport
    from traces.storage.upkeep import UpkeepReport
    from training.runs import TrainedAdapter

EMBEDDED = "embedded"
"""`Settings.engine` for the engine in this process."""

Progress = Callable[[int, int], None]
"""Called with what is done and the total."""


class NothingToIngest(MolError, ValueError):
    """No source of traces is named."""


class NothingMade(MolError, LookupError):
    """A stage needs what an earlier one has not made yet."""


class DatasetStale(MolError, ValueError):
    """A dataset holds what must not be learned from any more."""


def ingest_stage(settings: Settings, progress: Progress | None = None) -> "list[IngestReport]":
    """Bring every source into the lake."""
    from traces.ingest import ingest

    return [
        ingest(settings.home, source, settings.format, progress=progress)
        for source in named_sources(settings)
    ]


def named_sources(settings: Settings) -> tuple[Source, ...]:
    """Return the sources; where none are named, what `flows serve` writes: spool and OTLP data.

    Raises:
        NothingToIngest: if there are none.
    """
    if settings.sources:
        return settings.sources
    spool = settings.serve.record.folder or settings.home / "spool"
    otlp = settings.serve.otlp.folder or settings.home / "otlp"
    found = tuple(folder for folder in (spool, otlp) if folder.is_dir())
    if not found:
        raise NothingToIngest(
            f"No traces are named, and 'flows serve' has recorded none in {str(spool)!r}. Give a "
            "file or folder, as in 'flows run ingest PATH', or list them under 'sources' in the "
            "configuration."
        )
    return found


def attribute_stage(settings: Settings, progress: Progress | None = None) -> "AttributeReport":
    """Settle outcomes and blame."""
    from traces.attribute import attribute

    return attribute(settings.home, profile_in_force(settings), progress, settings.attribution)


def upkeep_stage(
    settings: Settings, progress: Progress | None = None, *, dry_run: bool = False
) -> "UpkeepReport":
    """Keep the lake small and quick; what datasets were made from stays readable."""
    from curation.manifest import list_manifests
    from traces.storage.upkeep import upkeep

    used = {manifest.snapshot_id for manifest in list_manifests(settings.home)}
    return upkeep(settings.home, settings.lake, used, dry_run=dry_run, progress=progress)


def blamed_turns(settings: Settings, report: "AttributeReport") -> dict[str, int]:
    """Return the turns blamed on each slot, without those of versions that were rolled back.

    Such a version serves no more and its turns teach nothing, so they are no reason to train.
    """
    from traces.attribute import blamed_of

    gone = withdrawn_versions(settings)
    theirs = blamed_of(settings.home, gone) if gone else {}
    return {slot: n["blamed"] - theirs.get(slot, 0) for slot, n in report.by_slot.items()}


def rank_slots(settings: Settings, blamed: dict[str, int]) -> list[str]:
    """Return the slots worth retraining: those that failed the most users' turns first.

    One without a suite is left out: nothing could say whether a new version is better.
    """
    from promotion.suites.build import has_suite

    profile = profile_in_force(settings)
    if settings.slot is not None:
        return [profile.slot(settings.slot).name]
    judged = [slot for slot in blamed if has_suite(profile, slot, settings.suites)]
    enough = [slot for slot in judged if blamed[slot] >= settings.policy.min_blamed]
    return sorted(enough, key=lambda slot: (-blamed[slot], slot))


def curate_stage(settings: Settings, slot: str) -> "Manifest":
    """Make the slot's dataset, without any request of a suite, whatever its set."""
    from curation.build import build
    from promotion.suites.build import asked_prompts, build_suites

    profile = profile_in_force(settings)
    profile.slot(slot)
    asked = asked_prompts(build_suites(profile, slot, settings.seed, settings.suites))
    gone = withdrawn_versions(settings)
    return build(settings.home, slot, profile, settings.curation, asked, gone)


def train_stage(
    settings: Settings,
    manifest: "Manifest",
    progress: Callable[[int, int, float], None] | None = None,
) -> "TrainedAdapter":
    """Train the slot's adapter on its dataset and enter the version in the registry.

    Raises:
        DatasetStale: if a version that it learns from was rolled back since it was made.
    """
    from training.train import train

    _refuse_stale(settings, manifest)
    trained = train(
        settings.home, manifest, settings.base, settings.train_config, progress=progress
    )
    with open_registry(settings) as registry:
        register_adapter(settings, registry, trained.digest, dict(trained.metrics))
    return trained


def _refuse_stale(settings: Settings, manifest: "Manifest") -> None:
    """Refuse a dataset with turns of a version that was rolled back after it was made.

    Or with later ones of conversations that such a version took part in.
    """
    from curation.manifest import read_examples
    from traces.arms import turns_of

    gone = withdrawn_versions(settings)
    if not gone:
        return
    taught = {row.turn_id for row in read_examples(settings.home, manifest, None)}
    theirs = turns_of(settings.home, taught, gone)
    if theirs:
        raise DatasetStale(
            f"Dataset {short_digest(manifest.digest)!r} holds {len(theirs)} turns of versions that "
            "were rolled back since it was made, or that came after one in its conversation. Make "
            f"a new one with 'flows run curate --slot {manifest.slot}'."
        )


def promote_stage(settings: Settings, report: "GateReport") -> "PromotionResult":
    """Make the challenger of a passed report champion, loaded in the engine before it is named."""
    from promotion.promote import promote

    verify = artifact_check(settings, report.slot, report.challenger_digest)
    return promote(settings.home, report, verify=verify, registry_url=settings.registry.url)


def override_stage(
    settings: Settings, report: "GateReport", by: str, reason: str, expires: str
) -> None:
    """Record a person's word for a report that cannot promote; promoting is a step of its own.

    Raises:
        OverrideRefused: if it needs none, or person, reason or date are not what they must be.
    """
    from promotion.overrides import grant_override, parse_expiry

    where = settings.registry.url or settings.home
    grant_override(where, report, by=by, reason=reason, expires_at=parse_expiry(expires))


def artifact_check(settings: Settings, slot: str, digest: str) -> Callable[[Path], None]:
    """Return the check of a folder that is about to serve: whole, for this base, and loadable."""
    from training.artifact import base_digest, verify_adapter

    base = base_digest(settings.base)

    def verify(path: Path) -> None:
        verify_adapter(path, settings.base, base)
        if settings.engine != EMBEDDED:
            asyncio.run(_load_on_server(settings, slot, digest))

    return verify


def rollback_stage(
    settings: Settings, slot: str, note: dict[str, str] | None = None
) -> "PromotionResult":
    """Put the slot's previous champion back; `note` says by whom and why, for the log.

    Raises:
        VersionWithdrawn: if that was rolled back for harm, and `note` names nobody.
    """
    from promotion.promote import rollback
    from training.artifact import read_version, verify_adapter

    return rollback(
        settings.home,
        slot,
        # It has served: its own bytes are looked at, not half a gigabyte of the base's.
        verify=lambda path: verify_adapter(path, None, read_version(path).base_digest),
        registry_url=settings.registry.url,
        note=note,
    )


def withdrawn_versions(settings: Settings) -> frozenset[str]:
    """Return the versions that were rolled back, by the 12 hex digits that turns bear."""
    with open_registry(settings) as registry:
        return frozenset(map(short_digest, registry.log.withdrawn()))


def prepare_registry(settings: Settings) -> None:
    """Declare the profile's slots; one that never served gets its first adapter, if any.

    One with a canary, and one that a person holds, stays as it is; the latter is said.
    """
    from flows.console import say
    from promotion.promote import bootstrap, check_copy, export_slots
    from training.artifact import import_adapter
    from training.proofs import ensure_proofs

    imported = []
    with open_registry(settings) as registry:
        check_copy(settings.home, registry)
        for state in registry.slots() if settings.first_adapters else ():
            folder = (settings.first_adapters or Path()) / state.slot
            if state.never_served and state.canary is None and folder.is_dir():
                hold = registry.log.hold(state.slot)
                if hold is not None:
                    say(f"  {state.slot!r} is held by {hold.by!r} and gets no first adapter")
                    continue
                version = import_adapter(settings.home, folder, state.slot, settings.base)
                imported.append(version.digest)
                register_adapter(settings, registry, version.digest, {})
                bootstrap(settings.home, registry, state.slot, version.digest)
        ensure_proofs(settings.home, settings.base, imported)
        export_slots(settings.home, registry)


def open_registry(settings: Settings) -> "Registry":
    """Open the registry with the profile's slots declared."""
    from promotion.registry import Registry

    profile = load_profile(settings.profile)
    slots = {slot.name: traits_of(profile, slot) for slot in profile.slots}
    return Registry.open(settings.registry.url or settings.home, slots)


def profile_in_force(settings: Settings) -> Profile:
    """Return the profile with the registry's slots in it: what is served, taught and judged."""
    from promotion.promote import read_slots

    profile, table = load_profile(settings.profile), read_slots(settings.home)
    # One that the profile has newly is declared when the registry is opened next.
    new = [SlotEntry(slot=name) for name in profile.labels if table.get(name) is None]
    return effective_profile(profile, SlotFile(slots=(*table.slots, *new)))


def latest_manifest(settings: Settings, slot: str) -> "Manifest":
    """Return the slot's dataset of the newest snapshot."""
    from curation.manifest import list_manifests

    made = [m for m in list_manifests(settings.home) if m.slot == slot]
    if not made:
        raise NothingMade(
            f"No dataset of slot {slot!r}. Make one with 'flows run curate --slot {slot}'."
        )
    return max(made, key=lambda m: (m.snapshot_id, (settings.home / m.path).stat().st_mtime_ns))


def latest_run(settings: Settings, slot: str) -> "TrainedAdapter":
    """Return the slot's newest training run."""
    from training.runs import list_runs, run_folder

    made = [run for run in list_runs(settings.home) if run.slot == slot]
    if not made:
        raise NothingMade(
            f"No adapter of slot {slot!r} was trained. Run 'flows run train --slot {slot}'."
        )
    return max(made, key=lambda run: run_folder(settings.home, run.run_key).stat().st_mtime_ns)


async def _load_on_server(settings: Settings, slot: str, digest: str) -> None:
    """Load a version on the server that serves, and prove that it is what was trained."""
    from promotion.proof import prove_served
    from training.proofs import ensure_proofs

    ensure_proofs(settings.home, settings.base, [digest])
    engine = open_server(settings)
    try:
        name = await load_version(settings, engine, slot, digest)
        await prove_served(settings.home, engine, {name: digest})
    finally:
        await engine.close()


def open_engine(settings: Settings, base: str) -> "tuple[Engine, str]":
    """Return the engine of the settings, and what tells it and its base apart from others.

    This program's version is part of it: scores kept by another may be another scorer's.
    """
    version = f"mol-loop {code_version()}"
    if settings.engine == EMBEDDED:
        from serving.embedded import EmbeddedEngine

        return EmbeddedEngine(settings.base), f"embedded {base} {version}"
    return open_server(settings), f"{settings.engine} {base} {version}"


def open_server(settings: Settings) -> "Replicas":
    """Return the server of the settings: one, or several replicas as one."""
    from serving.addresses import engine_key
    from serving.openai_engine import OpenAIEngine
    from serving.replicas import Replicas

    key = engine_key()
    # All items are asked at once: the limit of a call must not count its wait for the others.
    return Replicas([OpenAIEngine(url, concurrency=32, key=key) for url in settings.replicas])


async def load_version(settings: Settings, engine: "Engine", slot: str, digest: str | None) -> str:
    """Have the engine load a version unless it has it; return the name to ask for."""
    from serving.records import AdapterVersion
    from training.artifact import adapter_folder

    if digest is None:
        return "base"
    name = AdapterVersion(slot=slot, digest=digest).name
    if name not in await engine.models():
        await engine.load_adapter(name, adapter_folder(settings.home, digest))
    return name


def code_version() -> str:
    """Return the version of this program, as reports name it."""
    import importlib.metadata

    return importlib.metadata.version("mol-loop")
