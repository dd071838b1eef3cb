"""Slot tables with their adapter folders, and `Versions` over stub engines, for tests."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from stub_engine import StubEngine

from serving.openai_engine import OpenAIEngine
from serving.replicas import Replicas
from serving.slot_table import SlotEntry, SlotFile
from serving.versions import Versions


def name_of(number: int, slot: str = "L2") -> str:
    return f"{slot}@{number:012x}"


def version(home: Path, number: int, prefix: str = "") -> dict[str, Any]:
    """Make an adapter's folder and return the fields that name it, without the slot."""
    digest = f"sha256:{number:012x}" + "f" * 52
    path = f"adapters/{number:012x}"
    (home / path).mkdir(parents=True, exist_ok=True)
    return {f"{prefix}digest": digest, f"{prefix}path": path}


def entry(
    home: Path, slot: str, number: int | None = None, *, canary: int | None = None, **fields: Any
) -> SlotEntry:
    """Return a slot that serves adapter `number`, or the base."""
    if number is not None:
        fields |= {"champion": name_of(number, slot)} | version(home, number)
    if canary is not None:
        fields |= {"canary": name_of(canary, slot)} | version(home, canary, "canary_")
    return SlotEntry(slot=slot, **fields)


def table(*entries: SlotEntry) -> SlotFile:
    return SlotFile(slots=entries)


def simple(home: Path, number: int, generation: int = 0) -> SlotFile:
    """Return a table of a router on the base and L2 with adapter `number`."""
    return table(entry(home, "L0"), entry(home, "L2", number, generation=generation))


@contextlib.asynccontextmanager
async def versions_on(
    home: Path, *stubs: StubEngine, drain_s: float = 60.0, step_s: float = 20.0
) -> AsyncIterator[Versions]:
    """Yield `Versions` over real HTTP clients of these stubs."""
    engines = [OpenAIEngine(stub.url) for stub in stubs]
    engine = Replicas(engines) if len(engines) > 1 else engines[0]
    versions = Versions(engine, home, drain_s=drain_s, step_s=step_s)
    try:
        yield versions
    finally:
        await versions.close()
        await engine.close()


async def until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Wait until something is so; fail if it does not become so."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not become so in time"
        await asyncio.sleep(0.01)
