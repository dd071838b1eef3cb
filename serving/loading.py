"""Adapters on the engine's replicas: bring a version everywhere, prove it answers, take it away.

Only what this process loaded, or serves, is ever unloaded: an adapter that somebody else
put on the engine is left alone.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from pathlib import Path

from serving.engine import ChatRequest, Engine
from serving.errors import EngineRefused, MolError
from serving.records import Message

log = logging.getLogger(__name__)

PROBE = (Message(role="user", content="Hello"),)


class VersionRefused(MolError, RuntimeError):
    """A version could not be put in service; what served before still does."""


class AdapterLoader:
    """Loads and unloads versions on every replica, and remembers which are this process's."""

    def __init__(self, replicas: Sequence[Engine], step_s: float) -> None:
        """Work on these engines; each step on one of them may take `step_s` seconds."""
        self._replicas = tuple(replicas)
        self._step_s = step_s
        self._owned: set[tuple[int, str]] = set()

    async def provide(self, name: str, path: Path) -> None:
        """Make a version answer under its name on every replica.

        Raises:
            VersionRefused: if one of them cannot; what was loaded stays to be forgotten.
        """
        done = await asyncio.gather(
            *(self._provide(n, name, path) for n in range(len(self._replicas))),
            return_exceptions=True,
        )
        _raise_first(done, name)

    async def restore(self, name: str, path: Path) -> None:
        """Load a version where it is missing, for example after an engine was started anew.

        Raises:
            VersionRefused: if no replica has it afterwards.
        """
        done = await asyncio.gather(
            *(self._load(n, name, path) for n in range(len(self._replicas))),
            return_exceptions=True,
        )
        if all(isinstance(result, BaseException) for result in done):
            _raise_first(done, name)

    def adopt(self, names: Collection[str]) -> None:
        """Take responsibility for names that serve from now on, whoever loaded them."""
        self._owned |= {(n, name) for n in range(len(self._replicas)) for name in names}

    def leftovers(self, keep: Collection[str]) -> frozenset[str]:
        """Return this process's names that are not to be kept."""
        return frozenset(name for _, name in self._owned if name not in keep)

    async def forget(self, keep: Collection[str]) -> None:
        """Unload this process's names that are not to be kept; what fails is tried next time."""
        gone = [(n, name) for n, name in sorted(self._owned) if name not in keep]
        await asyncio.gather(*(self._unload(n, name) for n, name in gone))

    async def _provide(self, n: int, name: str, path: Path) -> None:
        await self._load(n, name, path)
        async with asyncio.timeout(self._step_s):
            answer = await self._replicas[n].chat(
                ChatRequest(model=name, messages=PROBE, max_tokens=1)
            )
        if answer.served_name != name:
            raise VersionRefused(
                f"Asked for {name!r}, {self._called(n)} answered as {answer.served_name!r}. "
                "Name an engine that serves adapters under their own names."
            )

    async def _load(self, n: int, name: str, path: Path) -> None:
        engine = self._replicas[n]
        async with asyncio.timeout(self._step_s):
            if name in await engine.models():
                return
            # Before the call: one that timed out may have been loaded all the same.
            self._owned.add((n, name))
            try:
                await engine.load_adapter(name, path)
            except EngineRefused:
                self._owned.discard((n, name))
                # Somebody else may have loaded it meanwhile; the list below tells.
                if name not in await engine.models():
                    raise
            if name not in await engine.models():
                raise VersionRefused(
                    f"{self._called(n)} loaded {name!r}, but does not list it. "
                    "Look at its log; it may have too little room for adapters."
                )

    async def _unload(self, n: int, name: str) -> None:
        engine = self._replicas[n]
        try:
            async with asyncio.timeout(self._step_s):
                try:
                    await engine.unload_adapter(name)
                except EngineRefused:
                    if name in await engine.models():
                        raise
        except (MolError, TimeoutError) as error:
            log.warning("%s keeps %r for now: %s", self._called(n), name, error)
        else:
            self._owned.discard((n, name))

    def _called(self, n: int) -> str:
        return f"engine {getattr(self._replicas[n], 'base_url', n)!r}"


def _raise_first(results: Sequence[BaseException | None], name: str) -> None:
    for error in results:
        if isinstance(error, VersionRefused):
            raise error
        if isinstance(error, TimeoutError):
            raise VersionRefused(
                f"{name!r} was not loaded in time. Look at the engine's log."
            ) from error
        if isinstance(error, MolError):
            raise VersionRefused(f"Cannot serve {name!r}: {error}") from error
        if error is not None:
            raise error
