"""Names that an engine lost, for example by being started anew, until they are there and proved.

    mark = await lost.settled(name)        # waits while the name is not to be trusted
    ... ask the engine under it ...
    lost.trusts(name, mark)                # or else it was lost meanwhile: ask again
    await lost.ensure(name, mark)          # the engine said that it has no such name

Each replica gets the name back by itself, and calls go on with the first that has it. Where it is
not what was trained, it is withheld, and tried again ever more seldom.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from serving.loading import AdapterLoader, VersionNotTrusted, VersionRefused

log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.2
MAX_RETRY_S = 30.0
"""Longest wait between two tries of what an engine refused, or was refused."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a replica has not got a name back."""

    words: str
    by_engine: bool
    """An engine that is only starting is asked again with the next call."""
    not_before: float
    """When it is tried again without a call, or with one where it is not the engine's failure."""
    tries: int


class LostNames:
    """Brings lost names back; one event loop uses it."""

    def __init__(
        self,
        loader: AdapterLoader,
        version: Callable[[str], tuple[Path, str]],
        base_name: str,
    ) -> None:
        """`version` returns folder and digest of a name, or raises VersionRefused."""
        self._loader = loader
        self._version = version
        self._base_name = base_name
        self._losses: Counter[str] = Counter()
        self._tasks: dict[tuple[int, str], asyncio.Task[None]] = {}
        self._failures: dict[tuple[int, str], _Failure] = {}

    @property
    def losses(self) -> int:
        """How often a name was lost."""
        return self._losses.total()

    @property
    def waiting(self) -> bool:
        """Whether a replica that gets calls has not got all its names back."""
        return bool(self._loader.waiting())

    @property
    def why(self) -> str | None:
        """What keeps names from coming back; None if nothing does."""
        failures = map(self._failures.get, self._loader.waiting())
        words = dict.fromkeys(failure.words for failure in failures if failure)
        return " ".join(words) or None

    async def settled(self, name: str) -> int:
        """Wait until a name may be asked; return a mark of what it is now.

        Raises:
            VersionRefused: if it serves no more, or no replica has it, proved.
        """
        if self._loader.withheld and not self._loader.answers(name):
            await self._back(name)
        return self._losses[name]

    def trusts(self, name: str, mark: int) -> bool:
        """Whether what was asked under a name since `mark` was asked of what was proved."""
        return self._losses[name] == mark

    async def ensure(self, name: str, mark: int | None = None) -> None:
        """Have a name loaded and proved again that was lost since `mark`; None says just now.

        Raises:
            VersionRefused: if it serves no more, or no replica has it afterwards, proved.
        """
        if name == self._base_name:
            return
        if mark is None or self.trusts(name, mark):
            self.lose(name)
        await self._back(name)

    def lose(self, name: str, alone: bool = False) -> None:
        """Withhold a name and begin to bring it back; `alone` casts no doubt on the others.

        Raises:
            VersionRefused: if it serves no more.
        """
        self._version(name)
        self._losses[name] += 1
        self._loader.lose(name, alone)
        self._begin(name)

    def retry(self) -> None:
        """Begin anew with what failed, where its time has come; forget what serves no more."""
        for name in {name for _, name in self._loader.waiting()}:
            try:
                self._begin(name, asked=False)
            except VersionRefused:
                self._loader.give_up(name)
                self._failures = {k: f for k, f in self._failures.items() if k[1] != name}

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _back(self, name: str) -> None:
        """Wait until one replica has a name back."""
        if not self._loader.answers(name):
            self._begin(name)
        while not self._loader.answers(name):
            # Many requests wait for one load; one of them that is given up does not end it.
            under_way = [task for (_, known), task in self._tasks.items() if known == name]
            if not under_way:
                raise VersionRefused(self.why or f"{name!r} is lost, and nobody brings it back.")
            await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)

    def _begin(self, name: str, asked: bool = True) -> None:
        """Restore a name wherever it is withheld and nobody is at it."""
        path, digest = self._version(name)
        now = asyncio.get_running_loop().time()
        for place in [place for place in self._loader.waiting() if place[1] == name]:
            failure = self._failures.get(place)
            early = failure is not None and now < failure.not_before
            if place in self._tasks or (early and not (asked and failure and failure.by_engine)):
                continue
            task = asyncio.create_task(self._loader.restore(place[0], name, path, digest))
            self._tasks[place] = task
            task.add_done_callback(partial(self._done, place))

    def _done(self, place: tuple[int, str], task: asyncio.Task[None]) -> None:
        del self._tasks[place]
        if task.cancelled():
            return
        error, before = task.exception(), self._failures.pop(place, None)
        if not isinstance(error, Exception):
            return
        words = str(error) or repr(error)
        if before is None or before.words != words:
            log.error("Could not load %r again: %s", place[1], words)
        tries = before.tries + 1 if before else 0
        wait_s = min(FIRST_RETRY_S * 2 ** min(tries, 10), MAX_RETRY_S)
        by_engine = not isinstance(error, VersionNotTrusted)
        not_before = asyncio.get_running_loop().time() + wait_s
        self._failures[place] = _Failure(words, by_engine, not_before, tries)
