"""Several servers with the same base and adapters, as one engine.

Calls of equal affinity go to the same replica, whose prefix cache knows their beginning;
a later attempt goes to the next one. A replica that goes away moves only its own share.
"""

import asyncio
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from serving.engine import ChatRequest, ChatResult, OnDelta
from serving.errors import EngineRefused
from serving.openai_engine import OpenAIEngine
from serving.upstream import Forwarded


class Replicas:
    """An `Engine` over several.

    Source: rendezvous hashing (Thaler and Ravishankar 1998): an affinity's order of replicas
    is that of the hashes of (affinity, address), so it depends on nothing that is kept.
    """

    def __init__(self, engines: Sequence[OpenAIEngine]) -> None:
        """Take at least one engine; a single one costs nothing extra."""
        assert engines, "a server needs an engine"
        self.engines = tuple(engines)
        self.behind: set[int] = set()
        """Places of those that get no calls until they have what is in force; never all."""
        self.withheld: set[tuple[int, str]] = set()
        """Place and name where calls must wait: it was lost there and is not proved again."""
        self._next = itertools.count()

    def order(self, affinity: str, model: str = "") -> tuple[OpenAIEngine, ...]:
        """Return the replicas in the order in which `affinity` tries them.

        Without an affinity they take turns. Where a model is withheld it is not asked, unless
        no other is left.
        """
        places = [n for n in range(len(self.engines)) if n not in self.behind]
        have = [n for n in places if (n, model) not in self.withheld]
        engines = tuple(self.engines[n] for n in have or places)
        if len(engines) == 1:
            return engines
        if not affinity:
            start = next(self._next) % len(engines)
            return engines[start:] + engines[:start]
        return tuple(sorted(engines, key=lambda engine: _weight(affinity, engine.base_url)))

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        """Ask the replica of the request's affinity and attempt."""
        return await self._pick(request.affinity, request.attempt, request.model).chat(
            request, on_delta
        )

    def forward(
        self,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        affinity: str = "",
        attempt: int = 0,
        model: str = "",
        timeout_s: float | None = None,
    ) -> Forwarded:
        """Return a POST to the replica of this affinity and attempt; `async with` sends it."""
        engine = self._pick(affinity, attempt, model)
        return engine.forward(path, body, headers, timeout_s=timeout_s)

    async def embed(self, text: str) -> tuple[float, ...]:
        """Ask any replica: the base is the same everywhere."""
        return await self._pick("", 0).embed(text)

    async def logprobs(
        self, model: str, token_ids: Sequence[int], first: int = 1
    ) -> tuple[float, ...]:
        """Ask one replica, the next in turn; a proof asks each of `engines` by itself."""
        return await self._pick("", 0).logprobs(model, token_ids, first)

    async def models(self) -> tuple[str, ...]:
        """Return the names that every replica serves, in the first one's order."""
        first, *others = (await self.names_by_replica()).values()
        return tuple(name for name in first if all(name in other for other in others))

    async def names_by_replica(self) -> dict[str, tuple[str, ...]]:
        """Return what each replica serves, by its address.

        Raises:
            EngineUnavailable: if one cannot be asked.
        """
        # Waits for all, also if one fails: nothing runs on behind an error.
        found = await asyncio.gather(
            *(engine.models() for engine in self.engines), return_exceptions=True
        )
        served = {}
        for engine, names in zip(self.engines, found, strict=True):
            if isinstance(names, BaseException):
                raise names
            served[engine.base_url] = names
        return served

    async def load_adapter(self, name: str, path: Path) -> None:
        """Load a name on every replica that has not got it; on all or on none.

        Raises:
            EngineRefused: if one refuses, or all have it already.
            EngineUnavailable: if one cannot be reached.
        """
        have = await self.names_by_replica()
        lacking = [engine for engine in self.engines if name not in have[engine.base_url]]
        targets = lacking or list(self.engines)
        outcomes = await asyncio.gather(
            *(engine.load_adapter(name, path) for engine in targets), return_exceptions=True
        )
        problems = [outcome for outcome in outcomes if outcome is not None]
        if not problems:
            return
        # One that refused has not loaded it; one that fell silent may have.
        undo = [
            engine
            for engine, outcome in zip(targets, outcomes, strict=True)
            if not isinstance(outcome, EngineRefused)
        ]
        await asyncio.gather(
            *(engine.unload_adapter(name) for engine in undo), return_exceptions=True
        )
        raise problems[0]

    async def unload_adapter(self, name: str) -> None:
        """Make every replica forget a name; one that has not got it is no problem.

        Raises:
            EngineRefused: if one refuses, or none has it.
            EngineUnavailable: if one cannot be reached; the others have forgotten it.
        """
        outcomes = await asyncio.gather(
            *(engine.unload_adapter(name) for engine in self.engines), return_exceptions=True
        )
        problems = [outcome for outcome in outcomes if outcome is not None]
        missing = [p for p in problems if isinstance(p, EngineRefused) and p.status == 404]
        serious = [problem for problem in problems if problem not in missing]
        if serious:
            raise serious[0]
        if len(missing) == len(self.engines):
            raise missing[0]

    async def health(self) -> list[bool]:
        """Whether each replica answers, in their order."""
        return list(await asyncio.gather(*(engine.healthy() for engine in self.engines)))

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(engine.close() for engine in self.engines))

    def _pick(self, affinity: str, attempt: int, model: str = "") -> OpenAIEngine:
        order = self.order(affinity, model)
        # Without an affinity the next turn is another replica's already.
        return order[attempt % len(order) if affinity else 0]


def _weight(affinity: str, address: str) -> bytes:
    return hashlib.blake2b(f"{affinity}\0{address}".encode(), digest_size=8).digest()
