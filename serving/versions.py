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
from collections.abc import Awaitable, Callable, Collection, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from serving.engine import Engine
from serving.errors import MolError
from serving.leases import Lease, Release, adapters_of, digests_of, engine_slots
from serving.loading import AdapterLoader, Verify, VersionRefused
from serving.lost import MAX_RETRY_S, LostNames
from serving.slot_table import SlotEntry, SlotFile, check_newer, read_slot_file, write_slot_file
from serving.standby import StandBy

log = logging.getLogger(__name__)

Commit = Callable[[], Awaitable[object]]


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
        verify: Verify | None = None,
    ) -> None:
        """Serve adapters of a home folder.

        One load or probe may take `step_s` seconds; `check` raises a `MolError` for a table
        that cannot be served for other reasons, `verify` for a version that must not be loaded.
        Without `verify` the table alone says what serves.
        """
        self._home = home
        self._base_name = base_name
        self._drain_s = drain_s
        self._check, self._verify = check, verify
        replicas = getattr(engine, "engines", (engine,))
        behind, withheld = getattr(engine, "behind", None), getattr(engine, "withheld", None)
        self._loader = AdapterLoader(replicas, home, base_name, step_s, behind, withheld, verify)
        self.lost = LostNames(self._loader, self._version, base_name)
        """Says when a name may be asked; whoever asks the engine asks here first."""
        self._current = Release(SlotFile(slots=()), base_name, home, ())
        self._draining: list[Release] = []
        self._standby = StandBy(self._loader, self.lost, home, base_name)
        self._held: dict[str, Lease] = {}
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.ready = False
        """Whether a table has taken effect."""
        self.missing: dict[str, str] = {}
        """Extra slots that could not be loaded, with the reason."""
        self.file_error: str | None = None
        """Why the watched file is not in force; None if it is."""

    @property
    def last_error(self) -> str | None:
        """What is wrong with the watched file, or with what an engine lost; None if nothing is."""
        return self.file_error or self.lost.why

    @property
    def verified(self) -> bool:
        """Whether somebody is asked before a version is loaded."""
        return self._verify is not None

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
            check_newer(self.table, table)
            await self._apply(table, partial(asyncio.to_thread, write_slot_file, path, table))
            return self.table

    async def ensure(self, name: str) -> None:
        """Load a name again that the engine lost just now, for example by being started anew.

        Raises:
            VersionRefused: if it serves no more, or no replica has it afterwards, proved.
        """
        await self.lost.ensure(name)

    async def watch(self, path: Path, poll_s: float = 0.1) -> None:
        """Put the table in a file in force whenever it changes; runs until it is cancelled.

        A file that is broken or refused leaves everything as it is, and is reported once. What
        the engine refused is tried again, ever more seldom.
        """
        seen: object = ()
        tries, next_at = 0, 0.0
        background: asyncio.Task[None] | None = None
        clock = asyncio.get_running_loop().time
        while True:
            found = await asyncio.to_thread(_signature, path)
            if found != seen:
                seen, tries = found, 0
                if background is not None:
                    background.cancel()
            if tries == 0 or (self._unfinished() and clock() >= next_at):
                tries += 1
                await self._follow(path)
                await self._catch_up()
                next_at = clock() + min(poll_s * 2 ** min(tries, 10), MAX_RETRY_S)
            self.lost.retry()
            if self._standby.is_due and (background is None or background.done()):
                background = self._in_background(self._stand_by())
            await asyncio.sleep(poll_s)

    def describe(self) -> list[dict[str, Any]]:
        """Return one row a slot, and one a slot of each replaced table that still serves turns."""
        rows = [self._current.row(entry, "serves") for entry in self._current.slots]
        for release in self._draining:
            rows += [
                release.row(entry, "drains")
                for entry in release.slots
                if release.names[entry.slot] != self._current.names.get(entry.slot)
            ]
        return rows

    async def close(self) -> None:
        """End what drains in the background; adapters stay on the engine for the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.lost.close()

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
        failed = await self._loader.prove(release.digests, self._current.paths)
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
        digests = dict(digests_of(entry))
        for name, path in adapters_of(entry, self._home):
            if name not in self._current.paths:
                await self._loader.provide(name, path, digests[name])

    def _flip(self, release: Release, missing: dict[str, str]) -> None:
        """Put a release in force; no turn sees a moment between the two."""
        old, self._current = self._current, release
        self.ready, self.missing = True, missing
        self._loader.adopt(release.paths, release.paths.keys() - old.paths.keys())
        self._standby.flipped(old, release)
        self._draining.append(old)
        self._in_background(self._drain(old))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

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
        return {*serving, *self._standby.names}

    def _version(self, name: str) -> tuple[Path, str]:
        for release in (self._current, *self._draining):
            if name in release.paths:
                return release.paths[name], release.digests[name]
        raise VersionRefused(
            f"{name!r} serves no more; now it is {', '.join(self._current.paths) or 'the base'}. "
            "Begin the turn again."
        )

    def _unfinished(self) -> bool:
        refused = self.file_error is not None
        left = self._loader.behind or self._loader.leftovers(self._needed())
        return refused or bool(self.missing) or bool(left)

    async def _catch_up(self) -> None:
        """Let replicas that were left behind take part again, once they have what is in force."""
        returned = await self._loader.returned()
        if returned:
            async with self._lock:
                release = self._current
                await self._loader.catch_up(returned, release.paths, release.digests)
                self._standby.begin_anew()

    async def _stand_by(self) -> None:
        """Bring what rollbacks would bring back, until the next table comes."""
        async with self._lock:
            await self._standby.bring(self._current.digests)
            await self._collect()

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
        if problem is not None and problem != self.file_error:
            log.error("%s", problem, exc_info=failure)
        self.file_error = problem


def _signature(path: Path) -> object:
    """Return what changes when a file does; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
