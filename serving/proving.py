"""Ask an engine for the proof of what it serves: the probes, under every name, in one batch.

In: an engine, by itself where there are replicas, and the proofs of the names it serves. Out: a
verdict a name. With names that were asked before, it takes a fraction: their probes are in the
prefix cache, which is where a wrong version would hide.
"""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from serving.engine import Engine
from serving.errors import EngineRefused, EngineUnavailable
from serving.proof import FLOORS, Proof, Told, Verdict, compare, distance, noise_floor

AT_ONCE = 4
"""Probes asked at the same time, each a handful of requests to a server."""


@dataclass(frozen=True, slots=True)
class Proving:
    """What an engine's names were found to be."""

    verdicts: tuple[Verdict, ...]
    floor: float
    """Noise floor of the engine, nats a token; the least where several kinds of probes were
    asked."""
    seconds: float

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """What is not proved."""
        return tuple(v for v in self.verdicts if v.outcome != "proved")


async def prove(
    engine: Engine,
    served: Mapping[str, Proof],
    base_name: str = "base",
    known_floor: float | None = None,
) -> Proving:
    """Prove that an engine answers under each name as the artifact of its proof does.

    Args:
        engine: one engine; replicas are asked one by one.
        served: a proof for every name, those that are there already among them.
        base_name: under which the engine serves the bare base.
        known_floor: the noise floor of before; a base that is farther off now has changed.

    Raises:
        EngineUnavailable: if it cannot be asked.
    """
    started, verdicts, floors = time.monotonic(), [], []
    for probes in dict.fromkeys(proof.probes_digest for proof in served.values()):
        alike = {name: p for name, p in served.items() if p.probes_digest == probes}
        found, floor = await _prove_alike(engine, alike, base_name, known_floor)
        verdicts += found
        floors.append(floor)
    return Proving(tuple(verdicts), min(floors, default=0.0), time.monotonic() - started)


async def _prove_alike(
    engine: Engine, served: Mapping[str, Proof], base_name: str, known_floor: float | None
) -> tuple[list[Verdict], float]:
    """Prove names with the same probes: the base alone, then all of them among each other."""
    first = next(iter(served.values()))
    alone = (await _ask(engine, [base_name], first))[base_name]
    if not isinstance(alone, tuple):
        raise EngineUnavailable(f"The engine cannot be proved, its base does not answer: {alone}")
    told = await _ask(engine, [base_name, *served], first)
    company, floor = told[base_name], noise_floor(alone, first.base_logprobs)
    verdicts = []
    for name, proof in served.items():
        answers = told[name]
        if isinstance(answers, tuple):
            others = {repr(n): p.logprobs for n, p in served.items() if n != name}
            verdicts.append(compare(name, proof, answers, floor, others))
        else:
            verdicts.append(Verdict(name, "failed", f"{name!r} does not answer: {answers}"))
    # What bfloat16 does to it, an engine may; a base that is farther off is another one.
    known = FLOORS * min(floor, first.rounding, math.inf if known_floor is None else known_floor)
    base = {"alone": alone} | ({"among adapters": company} if isinstance(company, tuple) else {})
    return verdicts + _base_verdicts(base_name, first.base_logprobs, base, known), floor


def _base_verdicts(
    name: str, reference: Told, told: Mapping[str, Told], known: float
) -> list[Verdict]:
    """Return a verdict on the base where it is farther from its reference than its noise.

    vLLM's CPU build (0.32) gives it the adapter in the last of its slots when a batch has
    adapters too, once `--max-loras` have been loaded.
    """
    found = []
    for how, answers in told.items():
        off = distance(answers, reference)
        if off > known:
            words = f"{name!r} is not the base that was trained on: asked {how}, it is {off:.2g} "
            words += f"nats a token from it, {known:.2g} would be noise. Start the engine anew."
            found.append(Verdict(name, "failed", words, off, known))
    return found


async def _ask(
    engine: Engine, names: Sequence[str], proof: Proof
) -> dict[str, Told | EngineRefused]:
    """Return what the engine tells under each name about a proof's probes, or why it refuses.

    Probe by probe, so that names share batches, and few at once, so that users need not wait.
    """
    free = asyncio.Semaphore(AT_ONCE)

    async def ask(name: str, ids: tuple[int, ...], place: int) -> tuple[float, ...]:
        async with free:
            return await engine.logprobs(name, ids, place)

    questions = [(name, *question) for question in proof.questions for name in names]
    # Waits for all, also if one fails: nothing runs on behind an error.
    found = await asyncio.gather(*(ask(*q) for q in questions), return_exceptions=True)
    told: dict[str, Told | EngineRefused] = {}
    for (name, *_), answer in zip(questions, found, strict=True):
        before = told.get(name, ())
        if isinstance(answer, BaseException) and not isinstance(answer, EngineRefused):
            raise answer
        if isinstance(before, tuple):
            told[name] = answer if isinstance(answer, EngineRefused) else (*before, answer)
    return told
