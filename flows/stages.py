"""The stages of the loop as plain functions over settings. No Prefect here.

Each finds its finished output by content and returns it, so that a killed loop, run
again, goes on where it was and ends in the same state.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.config import Settings, Source
from serving.errors import MolError
from serving.records import content_id, short_digest
from serving.slot_table import SlotEntry, SlotFile, effective_profile, traits_of
from serving.slots import Profile, load_profile

if TYPE_CHECKING:
    from curation.manifest import Manifest
    from promotion.gate import GateReport
    from promotion.promote import PromotionResult
    from promotion.registry import Registry
    from promotion.suites.suite import Suite
    from serving.engine import Engine
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


def rank_slots(settings: Settings, by_slot: dict[str, dict[str, int]]) -> list[str]:
    """Return the slots worth retraining: those that failed the most users' turns first.

    One without a suite is left out: nothing could say whether a new version is better.
    """
    from promotion.suites.suite import has_suite

    profile = profile_in_force(settings)
    if settings.slot is not None:
        return [profile.slot(settings.slot).name]
    blamed = {s: counts["blamed"] for s, counts in by_slot.items() if has_suite(profile, s)}
    enough = [slot for slot in blamed if blamed[slot] >= settings.policy.min_blamed]
    return sorted(enough, key=lambda slot: (-blamed[slot], slot))


def curate_stage(settings: Settings, slot: str) -> "Manifest":
    """Make the slot's dataset, with every request of the gate's suites sealed off."""
    from curation.build import build
    from curation.examples import prompt_id

    profile = profile_in_force(settings)
    profile.slot(slot)
    sealed = frozenset(
        prompt_id(item.text) for suite in _suites(settings, profile, slot) for item in suite.items
    )
    return build(settings.home, slot, profile, settings.curation, sealed)


def train_stage(
    settings: Settings,
    manifest: "Manifest",
    progress: Callable[[int, int, float], None] | None = None,
) -> "TrainedAdapter":
    """Train the slot's adapter on its dataset and enter the version in the registry."""
    from training.train import train

    trained = train(
        settings.home, manifest, settings.base, settings.train_config, progress=progress
    )
    with open_registry(settings) as registry:
        _register(settings, registry, trained.digest, dict(trained.metrics))
    return trained


def gate_stage(
    settings: Settings, slot: str, challenger: str, progress: Progress | None = None
) -> "GateReport":
    """Compare the challenger with the slot's champion on the suites; keep the report."""
    from promotion.gate import GateIdentity, judge, list_reports, save_report
    from training.artifact import adapter_folder, base_digest, read_version, verify_adapter

    profile = profile_in_force(settings)
    suites = _suites(settings, profile, slot)
    base = base_digest(settings.base)
    verify_adapter(adapter_folder(settings.home, challenger), settings.base, base)
    with open_registry(settings) as registry:
        # Others, such as the router head, are no adapters that an engine loads.
        states = [state for state in registry.slots() if state.slot in profile.labels]
        champions = {state.slot: state.champion for state in states}
        current = champions[slot]
    suites_digest = content_id([suite.digest for suite in suites])
    for report in list_reports(settings.home, slot):
        same = (report.challenger_digest, report.base_digest, report.suites_digest, report.seed)
        asked = (challenger, base, suites_digest, settings.seed)
        judged = (report.alpha, report.margin, report.min_items)
        rules = (settings.gate.alpha, settings.gate.margin, settings.gate.min_items)
        promoted = report.verdict == "PASS" and current == challenger
        if same == asked and judged == rules and (report.champion_digest == current or promoted):
            return report
    identity = GateIdentity(
        slot=slot,
        champion_digest=current,
        challenger_digest=challenger,
        base_digest=base,
        suites_digest=suites_digest,
        seed=settings.seed,
        manifest_digest=read_version(adapter_folder(settings.home, challenger)).manifest_digest,
        code_version=code_version(),
    )
    scores = asyncio.run(_both_arms(settings, suites, slot, champions, challenger, base, progress))
    report = judge(scores[0], scores[1:], settings.gate, identity)
    save_report(settings.home, report)
    if report.verdict != "PASS" and challenger != current:
        asyncio.run(_withdraw(settings, slot, challenger))
    return report


def promote_stage(settings: Settings, report: "GateReport") -> "PromotionResult":
    """Make the challenger of a passed report champion, loaded in the engine before it is named."""
    from promotion.promote import promote

    verify = artifact_check(settings, report.slot, report.challenger_digest)
    return promote(settings.home, report, verify=verify, registry_url=settings.registry)


def artifact_check(settings: Settings, slot: str, digest: str) -> Callable[[Path], None]:
    """Return the check of a folder that is about to serve: whole, for this base, and loadable."""
    from training.artifact import base_digest, verify_adapter

    base = base_digest(settings.base)

    def verify(path: Path) -> None:
        verify_adapter(path, settings.base, base)
        if settings.engine != EMBEDDED:
            asyncio.run(_load_on_server(settings, slot, digest))

    return verify


def rollback_stage(settings: Settings, slot: str) -> "PromotionResult":
    """Put the slot's previous champion back."""
    from promotion.promote import rollback
    from training.artifact import base_digest, verify_adapter

    base = base_digest(settings.base)
    return rollback(
        settings.home,
        slot,
        verify=lambda path: verify_adapter(path, settings.base, base),
        registry_url=settings.registry,
    )


def prepare_registry(settings: Settings) -> None:
    """Declare the profile's slots; one that never served gets its first adapter, if any."""
    from promotion.promote import export_slots
    from training.artifact import import_adapter

    with open_registry(settings) as registry:
        for state in registry.slots():
            folder = (settings.first_adapters or Path("none")) / state.slot
            if settings.first_adapters and state.generation == 0 and folder.is_dir():
                version = import_adapter(settings.home, folder, state.slot, settings.base)
                _register(settings, registry, version.digest, {})
                registry.bootstrap(state.slot, version.digest)
        export_slots(settings.home, registry)


def open_registry(settings: Settings) -> "Registry":
    """Open the registry with the profile's slots declared."""
    from promotion.registry import Registry

    profile = load_profile(settings.profile)
    slots = {slot.name: traits_of(profile, slot) for slot in profile.slots}
    return Registry.open(settings.registry or settings.home, slots)


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


def latest_report(settings: Settings, slot: str) -> "GateReport":
    """Return the gate's report about the slot's newest training run."""
    from promotion.gate import list_reports

    digest = latest_run(settings, slot).digest
    for report in list_reports(settings.home, slot):
        if report.challenger_digest == digest:
            return report
    raise NothingMade(
        f"The gate has not judged {slot}@{short_digest(digest)}. "
        f"Run 'flows run gate --slot {slot}'."
    )


def _suites(settings: Settings, profile: Profile, slot: str) -> "list[Suite]":
    from promotion.suites.suite import build_suites

    sizes = settings.suites
    return build_suites(profile, slot, sizes.primary, sizes.guard, sizes.bystander, settings.seed)


def _register(
    settings: Settings, registry: "Registry", digest: str, metrics: dict[str, Any]
) -> None:
    from promotion.state import RegisteredVersion
    from training.artifact import adapter_folder, read_version

    version = read_version(adapter_folder(settings.home, digest))
    registry.register(
        RegisteredVersion(
            slot=version.slot,
            digest=version.digest,
            base_digest=version.base_digest,
            manifest_digest=version.manifest_digest,
            run_key=version.run_key,
            metrics=metrics,
            path=str(adapter_folder(Path(), version.digest)),
            created_at=datetime.now(UTC),
        )
    )


async def _both_arms(
    settings: Settings,
    suites: "list[Suite]",
    slot: str,
    champions: dict[str, str | None],
    challenger: str,
    base: str,
    progress: Progress | None,
) -> "list[Any]":
    from promotion.evaluate import pair, run_suites

    engine, engine_id = open_engine(settings, base)
    total = 2 * sum(len(suite.items) for suite in suites)
    try:
        before = {s: await load_version(settings, engine, s, champions[s]) for s in champions}
        after = before | {slot: await load_version(settings, engine, slot, challenger)}
        runs = []
        for arm, names in enumerate((before, after)):
            offset = arm * total // 2

            def say(done: int, _: int, offset: int = offset) -> None:
                if progress:
                    progress(offset + done, total)

            runs.append(await run_suites(settings.home, engine, suites, names, engine_id, say))
    finally:
        await engine.close()
    return pair(suites, runs[0], runs[1], slot)


async def _load_on_server(settings: Settings, slot: str, digest: str) -> None:
    from serving.openai_engine import OpenAIEngine

    engine = OpenAIEngine(settings.engine)
    try:
        await load_version(settings, engine, slot, digest)
    finally:
        await engine.close()


async def _withdraw(settings: Settings, slot: str, digest: str) -> None:
    """Unload a challenger that did not pass from a server; the embedded engine is gone already."""
    from serving.openai_engine import OpenAIEngine
    from serving.records import AdapterVersion

    if settings.engine == EMBEDDED:
        return
    engine = OpenAIEngine(settings.engine)
    try:
        await engine.unload_adapter(AdapterVersion(slot=slot, digest=digest).name)
    finally:
        await engine.close()


def open_engine(settings: Settings, base: str) -> "tuple[Engine, str]":
    """Return the engine of the settings, and what tells it and its base apart from others."""
    if settings.engine == EMBEDDED:
        from serving.embedded import EmbeddedEngine

        return EmbeddedEngine(settings.base), f"embedded {base}"
    from serving.openai_engine import OpenAIEngine

    # All items are asked at once: the limit of a call must not count its wait for the others.
    return OpenAIEngine(settings.engine, concurrency=32), f"{settings.engine} {base}"


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
