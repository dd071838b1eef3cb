"""Which version of each slot serves: the slot table in force, changed under load.

    versions = Versions(engine, home)
    await versions.apply(table)          # load, prove, flip; the old one drains behind
    with versions.lease(conversation) as lease:
        ... ask the engine under lease.names["L2"] ...

Each slot of a table takes effect as a whole or not at all, all of them in one step: a slot whose
version cannot be served keeps what it has, and holds up no other's. The first table, and one that
is `put`, takes effect as a whole or not at all. A turn keeps the names it began with until
it ends, or until `drain_s` after they were replaced; then they are unloaded, but for the ones
that a rollback would bring back. One event loop uses it; nothing but this class changes what
serves.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from serving.engine import Engine
from serving.errors import MolError
from serving.leases import Lease, Release, adapters_of, digests_of, engine_slots
from serving.loading import AdapterLoader, VersionRefused
from serving.slot_table import SlotEntry, SlotFile, read_slot_file, write_slot_file

log = logging.getLogger(__name__)

MAX_RETRY_S = 30.0
"""Longest wait between two tries of a table that the engine refused."""

Commit = Callable[[], Awaitable[object]]


class StaleTable(MolError, RuntimeError):
    """A slot table was made from another one than is in force."""


class Versions:
    """The slot table in force and the leases of it."""

    def __init__(
        self,
        engine: Engine,
        home: Path,
        base_name: str = "base",
        drain_s: float = 300.0,
        *,
        step_s: float = 120.0,
        check: Callable[[SlotFile], object] | None = None,
    ) -> None:
        """Serve adapters of a home folder.

        One load or probe may take `step_s` seconds; `check` raises a `MolError` for a table
        that cannot be served for other reasons.
        """
        self._home = home
        self._base_name = base_name
        self._drain_s = drain_s
        self._check = check
        replicas = getattr(engine, "engines", (engine,))
        behind = getattr(engine, "behind", None)
        self._loader = AdapterLoader(replicas, home, base_name, step_s, behind)
        self._current = Release(SlotFile(slots=()), base_name, home, ())
        self._draining: list[Release] = []
        self._previous: dict[str, Path] = {}
        self._held: dict[str, Lease] = {}
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._restoring: dict[str, asyncio.Task[None]] = {}
        self.ready = False
        """Whether a table has taken effect."""
        self.missing: dict[str, str] = {}
        """Extra slots that could not be loaded, with the reason."""
        self.last_error: str | None = None
        """Why the watched file is not in force; None if it is."""

    @property
    def table(self) -> SlotFile:
        """The slot table in force."""
        return self._current.table

    @property
    def profile_slots(self) -> tuple[SlotEntry, ...]:
        """The slots that may be routed to, in order of the table."""
        return self._current.slots

    @property
    def held(self) -> int:
        """Turns under way, or waiting for tool results, with their versions kept."""
        return len(self._held)

    def lease(self, key: str) -> Lease:
        """Return the versions for a new turn; one key (a conversation) always draws one arm."""
        return Lease(self._current, key, self._held)

    def lease_of(self, turn_id: str) -> Lease | None:
        """Return the lease held for a turn, None if there is none; `alive` tells if it serves."""
        return self._held.get(turn_id)

    def known(self, name: str) -> bool:
        """Whether a client may ask for a slot by this name."""
        return name in self._current.names

    async def apply(self, table: SlotFile) -> bool:
        """Put a table in force; return False if it was already.

        Raises:
            VersionRefused: if a version cannot be served. Its slot serves what it did, the others
                what the table says; nothing has changed if no table was in force.
        """
        async with self._lock:
            return await self._apply(table, None)

    async def put(self, table: SlotFile, path: Path) -> SlotFile:
        """Put a table in force that was made from the one in force, and write it to `path`.

        Raises:
            StaleTable: if a slot moved since, or one is missing; nothing has changed.
            VersionRefused, DiskFull: if it cannot be served or written; nothing has changed.
        """
        async with self._lock:
            _check_newer(self.table, table)
            await self._apply(table, partial(asyncio.to_thread, write_slot_file, path, table))
            return self.table

    async def ensure(self, name: str) -> None:
        """Load a name again that the engine lost, for example by being started anew.

        Raises:
            VersionRefused: if it serves no more, or no replica has it afterwards.
        """
        if name == self._base_name:
            return
        task = self._restoring.get(name)
        if task is None:
            task = asyncio.create_task(self._loader.restore(name, *self._version(name)))
            self._restoring[name] = task
            task.add_done_callback(partial(self._restored, name))
        # Many requests wait for one load; one of them that is given up does not end it.
        await asyncio.shield(task)

    async def watch(self, path: Path, poll_s: float = 0.1) -> None:
        """Put the table in a file in force whenever it changes; runs until it is cancelled.

        A file that is broken or refused leaves everything as it is, and is reported once. What
        the engine refused is tried again, ever more seldom.
        """
        seen: object = ()
        tries, next_at = 0, 0.0
        clock = asyncio.get_running_loop().time
        while True:
            found = await asyncio.to_thread(_signature, path)
            if found != seen:
                seen, tries = found, 0
            if tries == 0 or (self._unfinished() and clock() >= next_at):
                tries += 1
                await self._follow(path)
                await self._catch_up()
                next_at = clock() + min(poll_s * 2 ** min(tries, 10), MAX_RETRY_S)
            await asyncio.sleep(poll_s)

    def describe(self) -> list[dict[str, Any]]:
        """Return one row a slot, and one a slot of each replaced table that still serves turns."""
        rows = [_row(self._current, e, "serves", self._base_name) for e in self._current.slots]
        for release in self._draining:
            rows += [
                _row(release, e, "drains", self._base_name)
                for e in release.slots
                if release.names[e.slot] != self._current.names.get(e.slot)
            ]
        return rows

    async def close(self) -> None:
        """End what drains in the background; adapters stay on the engine for the next start."""
        tasks = [*self._tasks, *self._restoring.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _apply(self, table: SlotFile, commit: Commit | None) -> bool:
        """Load and verify, then flip in one step; the lock is held."""
        if self.ready and table == self.table and not self.missing:
            if commit is not None:
                await commit()
            return False
        whole = commit is not None or not self.ready
        missing: dict[str, str] = {}
        refused = await asyncio.to_thread(self._check_heads, table, whole)
        try:
            for entry in engine_slots(table):
                try:
                    await self._provide(entry)
                except VersionRefused as refusal:
                    if entry.tier == "core" and whole:
                        raise
                    (refused if entry.tier == "core" else missing)[entry.slot] = str(refusal)
            await self._prove(self._release(table, missing, refused), missing, refused)
            if refused and whole:
                raise VersionRefused(" ".join(refused.values()))
            release = self._release(table, missing, refused)
            if refused:
                await asyncio.to_thread(self._check_heads, release.table, True)
            if commit is not None:
                await commit()
        except MolError:
            await self._collect()
            raise
        left_out = missing.keys() != self.missing.keys()
        changed = left_out or not self.ready or release.table != self.table
        if changed:
            self._flip(release, missing)
        self.missing = missing
        if refused:
            await self._collect()
            kept = ", ".join(map(repr, refused))
            raise VersionRefused(f"{' '.join(refused.values())} Unchanged: {kept}.")
        return changed

    def _release(
        self, table: SlotFile, missing: dict[str, str], refused: Collection[str]
    ) -> Release:
        """Return a table's release, in which refused slots have what they had, if anything."""
        slots = []
        for entry in table.slots:
            kept = self.table.get(entry.slot) if entry.slot in refused else entry
            if kept is not None:
                slots.append(kept)
                if kept is not entry and entry.slot in self.missing:
                    missing[entry.slot] = self.missing[entry.slot]
        return Release(SlotFile(slots=tuple(slots)), self._base_name, self._home, missing)

    async def _prove(
        self, release: Release, missing: dict[str, str], refused: dict[str, str]
    ) -> None:
        """Prove what a release would serve; add the slots that must be left out, or stay."""
        failed = await self._loader.prove(release.digests)
        own = {name: why for name, why in failed.items() if name not in self._current.paths}
        base = own.pop(self._base_name, None)
        # Of the base, or of what serves already: whatever is not proved yet may have caused it.
        others = next((why for name, why in failed.items() if name not in own), base)
        for entry in release.slots:
            names = [name for name, _ in digests_of(entry)]
            for why in (own[name] for name in names if name in own):
                (refused if entry.tier == "core" else missing)[entry.slot] = why
            if others is not None and not all(map(self._loader.proved, names)):
                refused.setdefault(entry.slot, others)
        if others is not None and not refused:
            raise VersionRefused(others)

    def _check_heads(self, table: SlotFile, whole: bool) -> dict[str, str]:
        """Return the new heads of a table that cannot be used, with the reason."""
        try:
            if self._check is not None:
                self._check(table)
        except MolError as error:
            new = [e.slot for e in table.slots if e.role == "head" and e != self.table.get(e.slot)]
            if whole or not new:
                raise
            return dict.fromkeys(new, str(error))
        return {}

    async def _provide(self, entry: SlotEntry) -> None:
        for name, path in adapters_of(entry, self._home):
            if name in self._current.paths:
                continue
            if not await asyncio.to_thread(path.is_dir):
                raise VersionRefused(
                    f"The folder {str(path)!r} of {name!r} is missing. Restore it, "
                    "or go back with 'flows rollback'."
                )
            await self._loader.provide(name, path)

    def _flip(self, release: Release, missing: dict[str, str]) -> None:
        """Put a release in force; no turn sees a moment between the two."""
        old, self._current = self._current, release
        self.ready, self.missing = True, missing
        self._loader.adopt(release.paths)
        # A rollback must not wait for a load: what a slot would go back to stays where it is.
        there = self._previous | old.paths
        backs = {entry.previous for entry in release.slots}
        self._previous = {name: path for name, path in there.items() if name in backs}
        self._draining.append(old)
        task = asyncio.create_task(self._drain(old))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self, release: Release) -> None:
        """Wait for a release's turns, not longer than allowed; then unload what only it needs."""
        try:
            async with asyncio.timeout(self._drain_s):
                await release.drained()
        except TimeoutError:
            log.warning(
                "%d turns still used versions replaced %g s ago", release.pins, self._drain_s
            )
        release.over = True
        self._draining.remove(release)
        for turn_id, lease in list(self._held.items()):
            if not lease.alive:
                lease.release(turn_id)
        async with self._lock:
            await self._collect()

    async def _collect(self) -> None:
        """Unload what no release in force or draining needs; the lock is held."""
        await self._loader.forget(self._needed())

    def _needed(self) -> set[str]:
        serving = (name for r in (self._current, *self._draining) for name in r.paths)
        return {*serving, *self._previous}

    def _version(self, name: str) -> tuple[Path, str]:
        for release in (self._current, *self._draining):
            if name in release.paths:
                return release.paths[name], release.digests[name]
        raise VersionRefused(
            f"{name!r} serves no more; now it is {', '.join(self._current.paths) or 'the base'}. "
            "Begin the turn again."
        )

    def _restored(self, name: str, task: asyncio.Task[None]) -> None:
        del self._restoring[name]
        if not task.cancelled() and task.exception() is not None:
            log.warning("Could not load %r again: %s", name, task.exception())

    def _unfinished(self) -> bool:
        refused = self.last_error is not None
        left = self._loader.behind or self._loader.leftovers(self._needed())
        return refused or bool(self.missing) or bool(left)

    async def _catch_up(self) -> None:
        """Let replicas that were left behind take part again, once they have what is in force."""
        returned = await self._loader.returned()
        if returned:
            async with self._lock:
                release = self._current
                await self._loader.catch_up(returned, release.paths, release.digests)

    async def _follow(self, path: Path) -> None:
        """Try to put the file's table in force once."""
        problem, failure = None, None
        try:
            await self.apply(await asyncio.to_thread(read_slot_file, path))
            problem = "; ".join(self.missing.values()) or None
            async with self._lock:
                await self._collect()
        except MolError as error:
            problem = str(error)
        except Exception as error:  # whatever it is, what serves goes on serving
            problem, failure = f"{type(error).__name__}: {error}", error
        if problem is not None and problem != self.last_error:
            log.error("%s", problem, exc_info=failure)
        self.last_error = problem


def _signature(path: Path) -> object:
    """Return what changes when a file does; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _check_newer(old: SlotFile, new: SlotFile) -> None:
    """Raise StaleTable unless `new` follows on `old`, slot by slot."""
    for entry in old.slots:
        other = new.get(entry.slot)
        if other is None:
            raise StaleTable(
                f"The table has no slot {entry.slot!r}, which is in force at generation "
                f"{entry.generation!r}. Read the table again and change that one."
            )
        if other != entry and other.generation <= entry.generation:
            raise StaleTable(
                f"Slot {entry.slot!r} is in force at generation {entry.generation!r}; a change "
                f"of it needs a higher one than {other.generation!r}. Read the table again."
            )


def _row(release: Release, entry: SlotEntry, state: str, base_name: str) -> dict[str, Any]:
    return {
        "slot": entry.slot,
        "name": entry.champion or base_name,
        "canary": entry.canary,
        "canary_percent": entry.canary_percent,
        "state": state,
        "leases": release.pins,
    }
