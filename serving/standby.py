"""What rollbacks would bring back, kept on the engine and proved, so that each is one flip.

A flip leaves the version of before there. After a start, of this process or of an engine, it is
brought in the background, and what serves is proved anew where an engine lost a name.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from serving.errors import MolError
from serving.leases import Release, previous_of
from serving.loading import AdapterLoader
from serving.lost import LostNames

log = logging.getLogger(__name__)


class StandBy:
    """The versions that rollbacks would bring back; whoever calls it holds the table's lock."""

    def __init__(self, loader: AdapterLoader, lost: LostNames, home: Path, base_name: str) -> None:
        self._loader = loader
        self._lost = lost
        self._home = home
        self._base_name = base_name
        self._previous: dict[str, tuple[Path, str]] = {}
        self._tried: set[str] = set()
        """Those of them that the engine has, proved, or could not be brought to have."""
        self._losses_seen = 0

    @property
    def names(self) -> frozenset[str]:
        """What is not to be unloaded."""
        return frozenset(self._previous)

    @property
    def is_due(self) -> bool:
        """Whether there is something to bring or to prove."""
        return self._lost.losses != self._losses_seen or not self._previous.keys() <= self._tried

    def flipped(self, old: Release, new: Release) -> None:
        """Take note of what may come back after a flip; what just served is there."""
        known: dict[str, tuple[Path, str]] = {}
        for entry in new.slots:
            known |= previous_of(entry, self._home)
        known |= self._previous
        known |= {name: (path, old.digests[name]) for name, path in old.paths.items()}
        backs = {entry.previous for entry in new.slots}
        self._previous = {name: version for name, version in known.items() if name in backs}
        self._tried = (self._tried | old.paths.keys()) & self._previous.keys()

    def begin_anew(self) -> None:
        """Look at all of them again: a replica has returned."""
        self._tried.clear()

    async def bring(self, serving: Mapping[str, str]) -> None:
        """Do what is due, once each; `serving` are the digests in force, by name."""
        if self._lost.losses != self._losses_seen:
            self.begin_anew()
            await self._prove_again(serving)
            self._losses_seen = self._lost.losses
        for name in self._previous.keys() - self._tried:
            path, digest = self._previous[name]
            try:
                await self._loader.provide(name, path, digest)
                why = (await self._loader.prove({name: digest})).get(name)
            except MolError as error:
                why = str(error)
            self._tried.add(name)
            if why is not None:
                del self._previous[name]
                log.warning("%r is not ready for a rollback: %s", name, why)

    async def _prove_again(self, serving: Mapping[str, str]) -> None:
        """Ask for what serves; what is not there, or is not what was trained, is lost too."""
        try:
            failed = await self._loader.prove(serving, serving)
            if self._base_name in failed:
                log.error("%s", failed[self._base_name])
            elif failed:
                for name in failed:
                    self._lost.lose(name, alone=True)
                await self._loader.prove(serving, serving)
        except MolError as error:
            log.warning("What serves could not be proved again: %s", error)
