"""A home with published adapters of the tiny base and their proofs, for tests."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from engine_calls import make_adapter

from serving.openai_engine import OpenAIEngine
from serving.proof import Proof, read_proof
from serving.replicas import Replicas
from serving.slot_table import SlotEntry
from serving.versions import Versions
from training.artifact import Version, adapter_folder, import_adapter
from training.proofs import ensure_proofs


@dataclass(frozen=True)
class ProvedHome:
    """Where adapters and proofs lie."""

    home: Path
    base: Path

    def adapter(self, slot: str, seed: int, *, proof: bool = True) -> Version:
        """Publish an adapter that says something else than the base, with its proof."""
        folder = make_adapter(self.home / f"made-{slot}-{seed}", self.base, seed)
        version = import_adapter(self.home, folder, slot, self.base)
        if proof:
            ensure_proofs(self.home, self.base, [version.digest])
        return version

    def folder(self, version: Version) -> Path:
        return adapter_folder(self.home, version.digest)

    def proof(self, version: Version) -> Proof:
        found = read_proof(self.home, version.digest)
        assert found is not None
        return found

    def entry(self, version: Version, **fields: object) -> SlotEntry:
        """Return a slot that serves the version."""
        path = str(self.folder(version).relative_to(self.home))
        named = {"champion": version.name, "digest": version.digest, "path": path}
        return SlotEntry(slot=version.slot, **named | fields)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def serving(made: ProvedHome, *urls: str) -> AsyncIterator[tuple[Versions, Replicas]]:
    """Yield what serves a home's versions on the engines at these addresses."""
    engine = Replicas([OpenAIEngine(url) for url in urls])
    versions = Versions(engine, made.home)
    try:
        yield versions, engine
    finally:
        await versions.close()
        await engine.close()
