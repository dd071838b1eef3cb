"""Counterfactual replay over settings: the engine, the registry's versions, the run. No Prefect.

Slots answer with what the registry says they serve now, the slot that had answered with the
version that served then, where its folder is still there.
"""

import asyncio
from typing import TYPE_CHECKING

from flows import stages
from flows.config import Settings
from serving.errors import AdapterNotServable, EngineRefused, MolError

if TYPE_CHECKING:
    from serving.engine import Engine
    from traces.attribution.replay import ReplayReport
    from traces.attribution.replay_jobs import Version


class NothingServes(MolError, LookupError):
    """No slot serves an adapter, so that a replay has nothing to compare."""


class AdapterMissing(MolError, FileNotFoundError):
    """A champion's folder is gone."""


class ReplayStopped(MolError, ConnectionError):
    """The engine went away; what was asked before is kept."""


def replay_stage(settings: Settings, progress: stages.Progress | None = None) -> "ReplayReport":
    """Replay failed turns on the engine of the settings.

    Raises:
        NothingServes: if every slot serves the bare base.
        AdapterMissing: if a champion's folder is gone.
        EngineUnavailable, EngineRefused: if the engine is not there or loads no adapters.
        LakeNotFound: if nothing was ingested yet.
    """
    stages.prepare_registry(settings)
    champions = _champions(settings)
    base = ""
    if settings.engine == stages.EMBEDDED:
        from training.artifact import base_digest

        base = base_digest(settings.base)
    return asyncio.run(_replay(settings, champions, base, progress))


def refuse_stopped(report: "ReplayReport") -> None:
    """Say so if the engine went away in the middle.

    Raises:
        ReplayStopped: telling what was kept.
    """
    if report.stopped is not None:
        raise ReplayStopped(
            f"{report.stopped} The {report.replayed} turns replayed before are kept; run "
            "'flows run attribute --replay' again to go on."
        )


def _champions(settings: Settings) -> dict[str, str | None]:
    """Return what each slot of the profile serves, by its whole digest."""
    from serving.records import AdapterVersion

    labels = stages.profile_in_force(settings).labels
    with stages.open_registry(settings) as registry:
        found = {s.slot: s.champion for s in registry.slots() if s.slot in labels}
        folders = {d: settings.home / registry.version(d).path for d in found.values() if d}
    if not folders:
        raise NothingServes(
            "No slot serves an adapter, so that all would answer with the bare base model. Run "
            "'flows run' until one is promoted, or name 'first_adapters' in the configuration."
        )
    for slot, digest in found.items():
        if digest is not None and not folders[digest].is_dir():
            name = AdapterVersion(slot=slot, digest=digest).name
            raise AdapterMissing(
                f"Slot {slot!r} serves {name!r}, but its folder {str(folders[digest])!r} is "
                f"missing. Restore it, or go back with 'flows rollback {slot}'."
            )
    return found


async def _replay(
    settings: Settings,
    champions: dict[str, str | None],
    base: str,
    progress: stages.Progress | None,
) -> "ReplayReport":
    from serving.records import short_digest
    from traces.attribution.replay import replay
    from traces.attribution.replay_jobs import Pool, Version

    engine, _ = stages.open_engine(settings, base)
    try:
        there = set(await engine.models())
        loaded = {
            slot: Version(
                await stages.load_version(settings, engine, slot, digest),
                None if digest is None else short_digest(digest),
            )
            for slot, digest in champions.items()
        }
        former = _Former(settings, engine)
        pool = Pool(engine, loaded, Version("base", None), former.version)
        profile = stages.profile_in_force(settings)
        report = await replay(
            settings.home, pool, profile, settings.attribution,
            seed=settings.seed, progress=progress,
        )  # fmt: skip
        await former.unload(there)
        return report
    finally:
        await engine.close()


class _Former:
    """Versions that served once: found in the registry, loaded when they are asked for."""

    def __init__(self, settings: Settings, engine: "Engine") -> None:
        self._settings, self._engine = settings, engine
        self._found: dict[str, Version | None] = {}

    async def version(self, slot: str, digest: str) -> "Version | None":
        """Return the version of a slot with these 12 hex digits, None where it is gone."""
        name = f"{slot}@{digest}"
        if name not in self._found:
            self._found[name] = await self._load(name, slot, digest)
        return self._found[name]

    async def _load(self, name: str, slot: str, digest: str) -> "Version | None":
        from promotion.version_rows import UnknownAdapter
        from traces.attribution.replay_jobs import Version

        try:
            with stages.open_registry(self._settings) as registry:
                version = registry.version(name)
            await stages.load_version(self._settings, self._engine, slot, version.digest)
        except (UnknownAdapter, AdapterNotServable, EngineRefused):
            return None
        return Version(name, digest)

    async def unload(self, kept: set[str]) -> None:
        """Take what was loaded here out of a server again; what it had before stays."""
        if self._settings.engine == stages.EMBEDDED:
            return
        for name, version in self._found.items():
            if version is not None and name not in kept:
                await self._engine.unload_adapter(name)
