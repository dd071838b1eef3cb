"""Leases: a turn keeps the versions it began with, whatever the slot table says meanwhile.

A `Release` is what one slot table serves. A turn takes a `Lease` of the release in force
and asks the engine under the lease's names only; a release is taken down when no lease of
it is left.
"""

import asyncio
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from serving.slot_table import SlotEntry, SlotFile


class Release:
    """One slot table in service."""

    __slots__ = (
        "_idle", "_pins", "canaries", "digests", "names", "over", "paths", "slots", "table",
    )  # fmt: skip

    def __init__(self, table: SlotFile, base_name: str, home: Path, missing: Iterable[str]) -> None:
        """Serve a table without the slots in `missing`."""
        left_out = frozenset(missing)
        self.table = table
        self.slots = tuple(e for e in engine_slots(table) if e.slot not in left_out)
        self.names: Mapping[str, str] = {e.slot: e.champion or base_name for e in self.slots}
        self.canaries = tuple(
            (e.slot, e.canary, e.canary_percent)
            for e in self.slots
            if e.canary is not None and e.canary_percent > 0
        )
        self.paths = {name: path for e in self.slots for name, path in adapters_of(e, home)}
        """Folder of every adapter that it needs, by served name."""
        self.digests = {name: digest for e in self.slots for name, digest in digests_of(e)}
        """What each of them must be, by served name."""
        self.over = False
        """Its time to drain is up; its names may be gone from the engine."""
        self._pins = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def pins(self) -> int:
        """How often it is in use."""
        return self._pins

    def pin(self) -> None:
        """Count one more use."""
        self._pins += 1
        self._idle.clear()

    def unpin(self) -> None:
        """Count one use less."""
        self._pins -= 1
        if self._pins == 0:
            self._idle.set()

    async def drained(self) -> None:
        """Wait until nobody uses it."""
        await self._idle.wait()

    def row(self, entry: SlotEntry, state: str) -> dict[str, Any]:
        """Return what one of its slots is, for a table."""
        return {
            "slot": entry.slot,
            "name": self.names[entry.slot],
            "canary": entry.canary,
            "canary_percent": entry.canary_percent,
            "state": state,
            "leases": self.pins,
        }


class Lease:
    """One turn's versions: enter it for as long as the engine is asked under its names.

    It may be entered again while it is held for a turn that waits for tool results.
    """

    __slots__ = ("_held", "_release", "canaries", "names")

    def __init__(self, release: Release, key: str, held: dict[str, "Lease"]) -> None:
        """Draw the arm of every slot with a canary; the same key always draws the same."""
        self._release = release
        self._held = held
        names, arms = release.names, release.canaries
        taken: frozenset[str] = frozenset()
        if arms:
            chosen = {slot: name for slot, name, percent in arms if share(slot, key) < percent}
            taken = frozenset(chosen)
            names = {**names, **chosen}
        self.names = names
        """Served name of every slot."""
        self.canaries = taken
        """Slots whose name is the canary's."""

    @property
    def table(self) -> SlotFile:
        """The slot table it was taken from."""
        return self._release.table

    @property
    def slots(self) -> tuple[SlotEntry, ...]:
        """The slots that may be routed to."""
        return self._release.slots

    @property
    def alive(self) -> bool:
        """Whether its names still serve; False once its time to drain is up."""
        return not self._release.over

    def __enter__(self) -> Self:
        self._release.pin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release.unpin()

    def hold(self, turn_id: str) -> None:
        """Keep it for a turn that goes on later, until `release`."""
        before = self._held.get(turn_id)
        if before is self:
            return
        if before is not None:
            before.release(turn_id)
        self._held[turn_id] = self
        self._release.pin()

    def release(self, turn_id: str) -> None:
        """Keep it no longer for this turn; nothing happens if it is not kept."""
        if self._held.get(turn_id) is self:
            del self._held[turn_id]
            self._release.unpin()


def share(slot: str, key: str) -> float:
    """Return where a key falls in 0..100 for a slot, evenly and the same for ever."""
    data = f"{slot}\0{key}".encode(errors="surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big") / 2**64 * 100


def engine_slots(table: SlotFile) -> tuple[SlotEntry, ...]:
    """Return the slots that an engine serves: all but heads."""
    return tuple(entry for entry in table.slots if entry.role != "head")


def adapters_of(entry: SlotEntry, home: Path) -> list[tuple[str, Path]]:
    """Return served name and folder of each adapter that a slot needs."""
    versions = ((entry.champion, entry.path), (entry.canary, entry.canary_path))
    return [(name, home / path) for name, path in versions if name and path]


def digests_of(entry: SlotEntry) -> list[tuple[str, str]]:
    """Return served name and digest of each adapter that a slot needs."""
    versions = ((entry.champion, entry.digest), (entry.canary, entry.canary_digest))
    return [(name, digest) for name, digest in versions if name and digest]


def previous_of(entry: SlotEntry, home: Path) -> dict[str, tuple[Path, str]]:
    """Return folder and digest, by served name, of what a rollback brings back, if told."""
    if not (entry.previous and entry.previous_path and entry.previous_digest):
        return {}
    return {entry.previous: (home / entry.previous_path, entry.previous_digest)}
