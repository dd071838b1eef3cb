"""Counterfactual replay over settings: the engine, the registry's versions, the run. No Prefect.

Slots answer with what the registry says they serve now, the slot that had answered with the
version that served then, where its folder is still there. Each is proved before it is asked.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING

from flows import stages
from flows.config import Settings
from serving.errors import (
    AdapterNotServable,
    EngineRefused,
    EngineUnavailable,
    InvalidAdapterName,
    MolError,
)

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
        SignatureRefused: if one is unsigned or altered.
        NotProved: if the engine answers as something else; nothing is asked.
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
    from promotion.promote import check_artifact
    from serving.records import AdapterVersion

    labels = stages.profile_in_force(settings).labels
    with stages.open_registry(settings) as registry:
        found = {s.slot: s.champion for s in registry.slots() if s.slot in labels}
        versions = {d: registry.version(d) for d in found.values() if d}
        folders = {d: settings.home / version.path for d, version in versions.items()}
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
    with stages.open_registry(settings) as registry:
        for version in versions.values():
            check_artifact(settings.home, registry, version)
    return found


async def _replay(
    settings: Settings,
    champions: dict[str, str | None],
    base: str,
    progress: stages.Progress | None,
) -> "ReplayReport":
    from promotion.proof import prove_served
    from serving.records import short_digest
    from traces.attribution.replay import replay
    from traces.attribution.replay_jobs import Pool, Version
    from training.proofs import ensure_proofs

    ensure_proofs(settings.home, settings.base, [d for d in champions.values() if d is not None])
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
        await prove_served(
            settings.home, engine, {loaded[slot].name: digest for slot, digest in champions.items()}
        )
        former = _Former(settings, engine)
        pool = Pool(engine, loaded, Version("base", None), former.version)
        profile = stages.profile_in_force(settings)
        try:
            return await replay(
                settings.home, pool, profile, settings.attribution,
                seed=settings.seed, progress=progress,
            )  # fmt: skip
        finally:
            await former.unload(there)
    finally:
        await engine.close()


class _Former:
    """Versions that served once: found in the registry, loaded when they are asked for."""

    def __init__(self, settings: Settings, engine: "Engine") -> None:
        self._settings, self._engine = settings, engine
        self._found: dict[str, Version | None] = {}
        self._loaded: set[str] = set()

    async def version(self, slot: str, digest: str) -> "Version | None":
        """Return the version of a slot with these 12 hex digits.

        None where it is gone, altered since it was signed, or is not what the engine answers as.
        """
        name = f"{slot}@{digest}"
        if name not in self._found:
            self._found[name] = await self._load(name, slot, digest)
        return self._found[name]

    async def _load(self, name: str, slot: str, digest: str) -> "Version | None":
        from promotion.promote import check_artifact
        from promotion.proof import NotProved, prove_served
        from promotion.slot_rows import PromotionRefused
        from promotion.version_rows import UnknownAdapter
        from traces.attribution.replay_jobs import Version
        from training.proofs import ensure_proofs

        gone = (UnknownAdapter, InvalidAdapterName, PromotionRefused, AdapterNotServable)
        try:
            with stages.open_registry(self._settings) as registry:
                version = registry.version(name)
                check_artifact(self._settings.home, registry, version)
            ensure_proofs(self._settings.home, self._settings.base, [version.digest])
            await stages.load_version(self._settings, self._engine, slot, version.digest)
            self._loaded.add(name)
            await prove_served(self._settings.home, self._engine, {name: version.digest})
        except (*gone, EngineRefused, NotProved):
            return None
        return Version(name, digest)

    async def unload(self, kept: set[str]) -> None:
        """Take what was loaded here out of a server again; what it had before stays."""
        if self._settings.engine == stages.EMBEDDED:
            return
        for name in self._loaded:
            if name not in kept:
                # An engine that went away has nothing to take out.
                with contextlib.suppress(EngineRefused, EngineUnavailable):
                    await self._engine.unload_adapter(name)
