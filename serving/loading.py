"""Adapters on the engine's replicas: bring a version everywhere, prove what it is, take it away.

Before an engine reads a folder, whoever knows the versions is asked whether it is that one. A
version whose proof training wrote down is asked for it on every replica by itself; see
`serving.proof`. Only what this process loaded, or serves, is ever unloaded: an adapter that
somebody else put on the engine is left alone. A replica that does not answer is left behind: the
others go on without it, and it gets no call before it has, proved, what is in force.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from serving.engine import ChatRequest, Engine
from serving.errors import EngineRefused, EngineUnavailable, MolError
from serving.proof import Proof, ProofInvalid, Verdict, read_proof
from serving.proving import prove
from serving.records import Message

log = logging.getLogger(__name__)

Verify = Callable[[str, str, Path], object]
"""Raises a `MolError` unless a folder may be served: its name, the digest it must have, itself."""
PROBE = (Message(role="user", content="Hello"),)
_T = TypeVar("_T")
ANSWER_S = 5.0
"""A replica that failed and does not list its models in this time does not answer."""


class VersionRefused(MolError, RuntimeError):
    """A version could not be put in service; what served before still does."""


class VersionNotTrusted(VersionRefused):
    """It is not what was trained, or nobody can tell that it is; loading it again mends nothing."""


class AdapterLoader:
    """Loads and unloads versions on every replica, and remembers which are this process's."""

    def __init__(
        self,
        replicas: Sequence[Engine],
        home: Path,
        base_name: str,
        step_s: float,
        behind: set[int] | None = None,
        withheld: set[tuple[int, str]] | None = None,
        verify: Verify | None = None,
    ) -> None:
        """Work on these engines; each step on one of them may take `step_s` seconds.

        `behind` holds the places of those that get no calls; it is kept here, never all of them.
        `withheld` holds place and name where calls must wait, and is kept here too.
        """
        self._replicas = tuple(replicas)
        self.behind = set() if behind is None else behind
        self.withheld = set() if withheld is None else withheld
        self._verify = verify
        self._home = home
        self._base_name = base_name
        self._step_s = step_s
        self._owned: set[tuple[int, str]] = set()
        self._proved: set[tuple[int, str]] = set()
        self._floors: dict[int, float] = {}
        self._unproved: set[str] = set()

    async def check(self, name: str, path: Path, digest: str) -> None:
        """Ask whether a folder is there and is the version that it is to serve as.

        Raises:
            VersionRefused: if it is not.
        """
        if not await asyncio.to_thread(path.is_dir):
            raise VersionNotTrusted(
                f"The folder {str(path)!r} of {name!r} is missing. Restore it, "
                "or go back with 'flows rollback'."
            )
        if self._verify is not None:
            try:
                await asyncio.to_thread(self._verify, name, digest, path)
            except MolError as error:
                raise VersionNotTrusted(f"{name!r} is not loaded: {error}") from error

    async def provide(self, name: str, path: Path, digest: str) -> None:
        """Make a version answer under its name on every replica that answers.

        Raises:
            VersionRefused: if one of them cannot; what was loaded stays to be forgotten.
        """
        await self.check(name, path, digest)
        _raise_first(await self._on_each(lambda n: self._provide(n, name, path)), name)

    def answers(self, name: str) -> bool:
        """Whether a replica that gets calls may be asked under a name."""
        return any((n, name) not in self.withheld for n in self._in_service())

    def waiting(self) -> list[tuple[int, str]]:
        """Return place and name where calls wait."""
        return sorted((n, name) for n, name in self.withheld if n not in self.behind)

    def lose(self, name: str, alone: bool) -> None:
        """Withhold a name that a replica lost on all of them, as nothing says which it was.

        Nor is anything else on them proved any more, unless it is lost `alone`: an engine that
        was started anew has what somebody loaded since.
        """
        self.withheld |= {(n, name) for n in self._in_service()}
        self._proved = {
            (n, known) for n, known in self._proved if n in self.behind or (alone and known != name)
        }

    def give_up(self, name: str) -> None:
        """Withhold a name no longer, as it serves no more."""
        self.withheld -= {(n, name) for n in range(len(self._replicas))}

    async def restore(self, n: int, name: str, path: Path, digest: str) -> None:
        """Load a version on a replica unless it has it, and prove it anew, whoever loaded it.

        Raises:
            VersionRefused: if it cannot be loaded or proved; it stays withheld there.
        """
        await self.check(name, path, digest)
        proofs, unreadable = await self._proofs({name: digest})
        if unreadable:
            raise VersionNotTrusted(unreadable[name])
        ours = False
        failed: tuple[Verdict, ...] = ()
        try:
            # What somebody else loaded makes way for what the folder holds.
            while not ours:
                ours = await self._load(n, name, path)
                failed = await self._prove(n, proofs)
                if not failed:
                    break
                await self._unload(n, name)
        except (MolError, TimeoutError) as error:
            _raise_first([error], name)
        for verdict in failed:
            raise VersionNotTrusted(verdict.words)
        self.withheld.discard((n, name))

    async def prove(
        self, served: Mapping[str, str], serving: Collection[str] = ()
    ) -> dict[str, str]:
        """Prove what every replica serves under these names, if one of them is new to it.

        Args:
            served: digest by name, of what serves already too: it must answer as before.
            serving: which of them serve already; where one of these is withheld it is not asked.

        Returns:
            Why a name is not proved, where one is not.

        Raises:
            VersionRefused: if no replica can be asked.
        """
        proofs, unreadable = await self._proofs(served)

        def asked(n: int) -> dict[str, Proof]:
            known = {name for place, name in self.withheld if place == n and name in serving}
            return {name: proof for name, proof in proofs.items() if name not in known}

        done = await self._on_each(lambda n: self._prove(n, asked(n), serving))
        _raise_first([one for one in done if isinstance(one, BaseException)], ", ".join(served))
        failed = [one for found in done if not isinstance(found, BaseException) for one in found]
        # What was proved before needs its file no more.
        why = {name: words for name, words in unreadable.items() if not self.proved(name)}
        return why | {verdict.name: verdict.words for verdict in reversed(failed)}

    def proved(self, name: str) -> bool:
        """Whether every replica that gets calls was proved for a name, or no proof was written."""
        everywhere = all((n, name) in self._proved for n in self._in_service())
        return everywhere or name in self._unproved

    async def returned(self) -> list[int]:
        """Return the places of the replicas that were left behind and answer again."""
        places = sorted(self.behind)
        answers = await asyncio.gather(*map(self._answers, places))
        return [n for n, there in zip(places, answers, strict=True) if there]

    async def catch_up(
        self, places: Sequence[int], paths: Mapping[str, Path], served: Mapping[str, str]
    ) -> None:
        """Bring replicas what is in force and prove it; those that have it get calls again."""
        proofs, unreadable = await self._proofs(served)
        for name, path in paths.items():
            try:
                await self.check(name, path, served[name])
            except VersionRefused as refusal:
                unreadable.setdefault(name, str(refusal))
        if unreadable:
            why = next(iter(unreadable.values()))
            log.warning("%s still get no calls: %s", ", ".join(map(self._called, places)), why)
            return
        done = await asyncio.gather(
            *(self._catch_up(n, paths, proofs) for n in places), return_exceptions=True
        )
        for n, error in zip(places, done, strict=True):
            if error is not None:
                why = str(error) or repr(error)
                log.warning("%s still gets no calls: %s", self._called(n), why)
                continue
            self.behind.discard(n)
            self.withheld -= {(n, name) for name in paths}
            log.warning("%s has what is in force and gets calls again", self._called(n))

    def adopt(self, names: Collection[str], new: Collection[str]) -> None:
        """Take responsibility for names that serve from now on, whoever loaded them.

        The `new` ones were just provided and proved.
        """
        self._owned |= {(n, name) for n in range(len(self._replicas)) for name in names}
        self.withheld -= {(n, name) for n in range(len(self._replicas)) for name in new}

    def leftovers(self, keep: Collection[str]) -> frozenset[str]:
        """Return this process's names that are not to be kept."""
        return frozenset(name for _, name in self._owned if name not in keep)

    async def forget(self, keep: Collection[str]) -> None:
        """Unload this process's names that are not to be kept; what fails is tried next time."""
        gone = [
            (n, name)
            for n, name in sorted(self._owned)
            if name not in keep and n not in self.behind
        ]
        await asyncio.gather(*(self._unload(n, name) for n, name in gone))

    def _in_service(self) -> list[int]:
        return [n for n in range(len(self._replicas)) if n not in self.behind]

    async def _on_each(self, work: Callable[[int], Awaitable[_T]]) -> list[_T | BaseException]:
        """Do something on every replica that gets calls, and leave behind those fallen silent.

        Where none answers, all stay, and what they raised is returned.
        """
        places = self._in_service()
        done = await asyncio.gather(*map(work, places), return_exceptions=True)
        doubtful = [
            n
            for n, result in zip(places, done, strict=True)
            if isinstance(result, EngineUnavailable | TimeoutError)
        ]
        answers = await asyncio.gather(*map(self._answers, doubtful))
        silent = {n for n, there in zip(doubtful, answers, strict=True) if not there}
        if len(silent) == len(places):
            return done
        for n in silent:
            log.warning("%s does not answer and gets no calls until it does", self._called(n))
            self.behind.add(n)
            self._floors.pop(n, None)
            self._proved = {(m, name) for m, name in self._proved if m != n}
        return [result for n, result in zip(places, done, strict=True) if n not in silent]

    async def _answers(self, n: int) -> bool:
        try:
            async with asyncio.timeout(min(ANSWER_S, self._step_s)):
                await self._replicas[n].models()
        except (EngineUnavailable, TimeoutError):
            return False
        except MolError:
            pass  # a refusal is an answer
        return True

    async def _catch_up(
        self, n: int, paths: Mapping[str, Path], proofs: Mapping[str, Proof]
    ) -> None:
        for name, path in paths.items():
            await self._provide(n, name, path)
        for verdict in await self._prove(n, proofs):
            raise VersionRefused(verdict.words)

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

    async def _proofs(self, served: Mapping[str, str]) -> tuple[dict[str, Proof], dict[str, str]]:
        """Read the proofs that there are, and why one cannot be read; say once where none is."""

        def read(digest: str) -> Proof | str | None:
            try:
                return read_proof(self._home, digest)
            except ProofInvalid as error:
                return str(error)

        def read_all() -> dict[str, Proof | str | None]:
            return {name: read(digest) for name, digest in served.items()}

        found = await asyncio.to_thread(read_all)
        lacking = {name for name, proof in found.items() if proof is None}
        for name in sorted(lacking - self._unproved):
            log.warning("%r serves without proof: training wrote none down for it", name)
        self._unproved = (self._unproved - served.keys()) | lacking
        return (
            {name: proof for name, proof in found.items() if isinstance(proof, Proof)},
            {name: why for name, why in found.items() if isinstance(why, str)},
        )

    async def _prove(
        self, n: int, proofs: Mapping[str, Proof], serving: Collection[str] = ()
    ) -> tuple[Verdict, ...]:
        """Return what is not proved on a replica; ask only if a name is new to it."""
        if all((n, name) in self._proved for name in proofs):
            return ()
        async with asyncio.timeout(self._step_s):
            found = await prove(self._replicas[n], proofs, self._base_name, self._floors.get(n))
        proved = {(n, v.name) for v in found.verdicts if v.outcome == "proved"}
        failed = {verdict.name for verdict in found.failed}
        if self._base_name not in failed:
            self._floors.setdefault(n, found.floor)
            # A new name beside which another one fails may be the reason why.
            if failed.isdisjoint(serving):
                self._proved |= proved
        self._proved -= {(n, name) for name in failed}
        log.info(
            "%s: %d of %d names proved in %.1f s, noise floor %.2g nats a token",
            self._called(n), len(proved), len(proofs), found.seconds, found.floor,
        )  # fmt: skip
        return tuple(
            replace(verdict, words=f"On {self._called(n)}: {verdict.words}")
            for verdict in found.failed
        )

    async def _load(self, n: int, name: str, path: Path) -> bool:
        """Load a name unless the replica has it; say whether it had not."""
        engine = self._replicas[n]
        async with asyncio.timeout(self._step_s):
            if name in await engine.models():
                return False
            self._proved.discard((n, name))
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
        return True

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
            self._proved.discard((n, name))

    def _called(self, n: int) -> str:
        return f"engine {getattr(self._replicas[n], 'label', n)!r}"


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
