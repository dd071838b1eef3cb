"""Proves that ten flips under constant load fail nothing and mix nothing.

Workers send turns of three hops through a real HTTP client to stub engines that refuse a name
that is not loaded with 404, as vLLM does. Nothing is retried here: every refusal would show.
"""

import asyncio
import contextlib
import itertools
from dataclasses import dataclass, field
from pathlib import Path

from slot_tables import entry, name_of, simple, table, until, versions_on
from stub_engine import Answer, StubEngine, stub_engine

from serving.engine import ChatRequest, Engine
from serving.openai_engine import OpenAIEngine
from serving.records import Message
from serving.versions import Versions

WORKERS = 12
HOPS = 3


@dataclass
class Load:
    """What the workers saw."""

    versions: Versions
    engines: list[Engine]
    turns: list[tuple[int, list[str]]] = field(default_factory=list)
    """For each turn the flips done when it began, and the name that answered each hop."""
    flips: int = 0
    stop: bool = False

    async def work(self, worker: int) -> None:
        for number in itertools.count():
            if self.stop:
                return
            key, flips = f"{worker}-{number}", self.flips
            lease = self.versions.lease(key)
            with lease:
                answered = [await self.hop(lease.names["L2"], key, 0)]
                if number % 3 == 0:  # waits for a tool result, then goes on
                    lease.hold(key)
            if number % 3 == 0:
                await asyncio.sleep(0.002)
                lease = self.versions.lease_of(key)
                assert lease is not None
            with lease:
                answered += [await self.hop(lease.names["L2"], key, n) for n in range(1, HOPS)]
                lease.release(key)
            self.turns.append((flips, answered))

    async def hop(self, name: str, key: str, number: int) -> str:
        engine = self.engines[number % len(self.engines)]
        messages = (Message(role="user", content=key),)
        return (await engine.chat(ChatRequest(model=name, messages=messages))).served_name


async def ten_flips(home: Path, stubs: list[StubEngine]) -> Load:
    for stub in stubs:
        stub.default = Answer(delay_s=0.003)
    async with versions_on(home, *stubs) as versions, contextlib.AsyncExitStack() as stack:
        engines: list[Engine] = [OpenAIEngine(stub.url) for stub in stubs]
        for engine in engines:
            stack.push_async_callback(engine.close)
        await versions.apply(simple(home, 0))
        load = Load(versions, engines)
        async with asyncio.TaskGroup() as group:
            for worker in range(WORKERS):
                group.create_task(load.work(worker))
            for flip in range(1, 11):
                before = len(load.turns)
                await until(lambda n=before: len(load.turns) > n + WORKERS)
                # Back and forth among four versions, so that some come again while they drain.
                await versions.apply(simple(home, (0, 1, 0, 2, 3)[flip % 5], flip))
                load.flips = flip
            before = len(load.turns)
            await until(lambda: len(load.turns) > before + WORKERS)
            load.stop = True
        last = name_of((0, 1, 0, 2, 3)[10 % 5])
        await until(lambda: all(set(stub.adapters) == {last} for stub in stubs))
    return load


def test_ten_flips_under_load_fail_no_request_and_mix_no_turn(tmp_path: Path) -> None:
    with stub_engine() as one, stub_engine() as two:
        load = asyncio.run(ten_flips(tmp_path, [one, two]))

    assert len(load.turns) > 10 * WORKERS
    assert [names for _, names in load.turns if len(set(names)) != 1] == []
    assert all(len(names) == HOPS for _, names in load.turns)
    # Whoever begins after a flip never gets what was replaced before it.
    numbers = [0] + [(0, 1, 0, 2, 3)[flip % 5] for flip in range(1, 11)]
    late = [
        (flips, names[0])
        for flips, names in load.turns
        if names[0] not in {name_of(n) for n in numbers[flips : flips + 2]}
    ]
    assert late == []
    assert {names[0] for _, names in load.turns} == {name_of(n) for n in range(4)}
    assert one.unloads
    assert set(one.loads) == set(two.loads) == {name_of(n) for n in range(4)}


def test_a_canary_that_comes_and_goes_under_load_moves_no_running_turn(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> Load:
        stub.default = Answer(delay_s=0.002)
        async with versions_on(tmp_path, stub) as versions:
            engine = OpenAIEngine(stub.url)
            await versions.apply(simple(tmp_path, 1))
            load = Load(versions, [engine])
            async with asyncio.TaskGroup() as group:
                for worker in range(WORKERS):
                    group.create_task(load.work(worker))
                for generation in range(1, 11):
                    before = len(load.turns)
                    await until(lambda n=before: len(load.turns) > n + WORKERS)
                    on = {"canary": 2, "canary_percent": 50} if generation % 2 else {}
                    both = entry(tmp_path, "L2", 1, generation=generation, **on)
                    await versions.apply(table(entry(tmp_path, "L0"), both))
                load.stop = True
            await engine.close()
            return load

    with stub_engine() as stub:
        load = asyncio.run(scenario(stub))

    assert [names for _, names in load.turns if len(set(names)) != 1] == []
    assert {names[0] for _, names in load.turns} == {name_of(1), name_of(2)}
