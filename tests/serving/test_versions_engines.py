"""Proves how versions come to and go from engines: replicas, strangers, restarts, hanging ones.

Real HTTP clients against stub engines that load, list and refuse as vLLM does; adapters are
empty folders.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from slot_tables import entry, name_of, simple, table, until, versions_on
from stub_engine import Answer, StubEngine, stub_engine

from serving.engine import ChatRequest
from serving.loading import VersionRefused
from serving.openai_engine import OpenAIEngine
from serving.records import Message
from serving.replicas import Replicas
from serving.slot_table import SlotFile, write_slot_file
from serving.versions import Versions

A, B, C = (name_of(n) for n in (1, 2, 3))


def test_one_replica_that_fails_refuses_the_table_for_all(tmp_path: Path) -> None:
    async def scenario(one: StubEngine, two: StubEngine) -> None:
        async with versions_on(tmp_path, one, two) as versions:
            await versions.apply(simple(tmp_path, 1))
            assert set(one.adapters) == set(two.adapters) == {A}
            assert [len(stub.chats) for stub in (one, two)] == [1, 1]
            two.load_status = {B: 400}
            with pytest.raises(VersionRefused, match=B):
                await versions.apply(simple(tmp_path, 2))
            assert set(one.adapters) == set(two.adapters) == {A}
            assert one.loads == [A, B]
            assert versions.lease("c").names["L2"] == A
            two.load_status = {}
            await versions.apply(simple(tmp_path, 2))
            await until(lambda: set(one.adapters) == set(two.adapters) == {B})

    with stub_engine() as one, stub_engine() as two:
        asyncio.run(scenario(one, two))


@contextlib.asynccontextmanager
async def watched(
    home: Path, stubs: list[StubEngine], step_s: float = 20.0
) -> AsyncIterator[tuple[Versions, Replicas]]:
    """Yield replicas and their versions, which follow `slots.json`."""
    engine = Replicas([OpenAIEngine(stub.url) for stub in stubs])
    versions = Versions(engine, home, drain_s=0.05, step_s=step_s)
    task = asyncio.create_task(versions.watch(home / "slots.json", 0.01))
    try:
        yield versions, engine
    finally:
        task.cancel()
        await asyncio.wait([task])
        await versions.close()
        await engine.close()


async def serve_then_replace(home: Path, versions: Versions) -> None:
    """Have version 1 serve, then 2, with 1 as what a rollback brings back."""
    for number, previous in ((1, None), (2, A)):
        slot = entry(home, "L2", number, previous=previous, generation=number)
        write_slot_file(home / "slots.json", table(slot))
        await until(lambda n=number: versions.lease("c").names.get("L2") == name_of(n))


def gone_back(home: Path) -> SlotFile:
    return table(entry(home, "L2", 1, previous=B, generation=3))


async def ask_all(engine: Replicas, name: str) -> None:
    for n in range(20):
        question = (Message(role="user", content="Hello"),)
        answer = await engine.chat(ChatRequest(name, question, affinity=f"c{n}"))
        assert answer.served_name == name


def test_a_rollback_reaches_the_replicas_that_answer(tmp_path: Path) -> None:
    async def scenario(one: StubEngine, running: contextlib.ExitStack) -> None:
        two = running.enter_context(stub_engine())
        port = int(two.url.rsplit(":", 1)[1])
        async with watched(tmp_path, [one, two]) as (versions, engine):
            await serve_then_replace(tmp_path, versions)
            await asyncio.to_thread(running.close)
            write_slot_file(tmp_path / "slots.json", gone_back(tmp_path))
            await until(lambda: versions.lease("c").names["L2"] == A)
            assert versions.last_error is None
            assert engine.behind == {1}
            await ask_all(engine, A)
            # It comes back empty, and refuses the version at first.
            back = running.enter_context(stub_engine(port))
            back.load_status = {A: 500}
            await until(lambda: A in back.loads)
            await ask_all(engine, A)
            assert back.chats == []
            assert engine.behind == {1}
            back.load_status = {}
            await until(lambda: not engine.behind)
            assert A in back.adapters
            await ask_all(engine, A)
            assert len(back.chats) > 1
            # In the background it is brought what a rollback of the rollback needs.
            await until(lambda: set(back.adapters) == {A, B})

    with stub_engine() as one, contextlib.ExitStack() as running:
        asyncio.run(scenario(one, running))


def test_a_replica_that_hangs_is_left_behind_once_and_comes_back(tmp_path: Path) -> None:
    async def scenario(one: StubEngine, two: StubEngine) -> None:
        async with watched(tmp_path, [one, two], step_s=0.5) as (versions, engine):
            await serve_then_replace(tmp_path, versions)
            two.models_delay_s = 60
            write_slot_file(tmp_path / "slots.json", gone_back(tmp_path))
            await until(lambda: versions.lease("c").names["L2"] == A)
            assert engine.behind == {1}
            two.models_delay_s = 0
            await until(lambda: not engine.behind)
            await until(lambda: set(two.adapters) == {A, B})

    with stub_engine() as one, stub_engine() as two:
        asyncio.run(scenario(one, two))


def test_a_replica_that_answers_and_is_slow_with_a_version_refuses_the_table(
    tmp_path: Path,
) -> None:
    async def scenario(one: StubEngine, two: StubEngine) -> None:
        async with versions_on(tmp_path, one, two, step_s=0.5) as versions:
            await versions.apply(simple(tmp_path, 1))
            two.reply = lambda asked: Answer(delay_s=60) if asked.model == B else None
            with pytest.raises(VersionRefused, match="in time"):
                await versions.apply(simple(tmp_path, 2))
            assert versions.lease("c").names["L2"] == A

    with stub_engine() as one, stub_engine() as two:
        asyncio.run(scenario(one, two))


def test_where_no_replica_answers_the_table_is_refused(tmp_path: Path) -> None:
    async def scenario(one: StubEngine, two: StubEngine) -> None:
        async with versions_on(tmp_path, one, two) as versions:
            with pytest.raises(VersionRefused, match="No answer from the engine"):
                await versions.apply(simple(tmp_path, 1))
            assert not versions.ready

    with stub_engine() as one, stub_engine() as two:
        pass
    asyncio.run(scenario(one, two))


def test_what_the_engine_has_already_is_adopted_and_strangers_are_left_alone(
    tmp_path: Path,
) -> None:
    async def scenario(stub: StubEngine) -> None:
        stub.adapters = {A: "x", C: "a challenger of somebody else", "other": "y"}
        async with versions_on(tmp_path, stub) as versions:
            await versions.apply(simple(tmp_path, 1))
            assert stub.loads == []
            assert [chat.model for chat in stub.chats] == [A]
            await versions.apply(simple(tmp_path, 2))
            await until(lambda: set(stub.adapters) == {B, C, "other"})
            assert stub.unloads == [A]

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_what_somebody_else_loaded_survives_its_refusal(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        stub.adapters = {B: "x"}
        async with versions_on(tmp_path, stub) as versions:
            await versions.apply(simple(tmp_path, 1))
            stub.reply = lambda asked: Answer(status=500) if asked.model == B else None
            with pytest.raises(VersionRefused):
                await versions.apply(simple(tmp_path, 2))
            assert set(stub.adapters) == {A, B}
            assert stub.unloads == []

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_what_could_not_be_unloaded_goes_with_the_next_change(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine, running: contextlib.ExitStack) -> None:
        port = int(stub.url.rsplit(":", 1)[1])
        async with versions_on(tmp_path, stub) as versions:
            await versions.apply(simple(tmp_path, 1))
            with versions.lease("c") as lease:
                await versions.apply(simple(tmp_path, 2))
                await asyncio.to_thread(running.close)
            await until(lambda: not lease.alive)
            back = running.enter_context(stub_engine(port))
            back.adapters = dict(stub.adapters)
            assert set(back.adapters) == {A, B}
            await versions.apply(simple(tmp_path, 3))
            await until(lambda: set(back.adapters) == {C})

    with contextlib.ExitStack() as running:
        asyncio.run(scenario(running.enter_context(stub_engine()), running))


def test_many_that_miss_a_name_load_it_once(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with versions_on(tmp_path, stub) as versions:
            await versions.apply(simple(tmp_path, 1))
            stub.adapters.clear()  # as an engine that was started anew
            impatient = asyncio.create_task(versions.ensure(A))
            others = [asyncio.create_task(versions.ensure(A)) for _ in range(20)]
            await asyncio.sleep(0)
            impatient.cancel()
            await asyncio.gather(*others)
            assert stub.loads == [A, A]
            assert A in stub.adapters
            asked = len(stub.requests)
            await versions.ensure("base")
            assert len(stub.requests) == asked
            with pytest.raises(VersionRefused, match="serves no more"):
                await versions.ensure(C)

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_one_replica_is_enough_to_ensure_a_name(tmp_path: Path) -> None:
    async def scenario(one: StubEngine, two: StubEngine) -> None:
        async with versions_on(tmp_path, one, two) as versions:
            await versions.apply(simple(tmp_path, 1))
            one.adapters.clear()
            two.adapters.clear()
            two.load_status = {A: 500}
            await versions.ensure(A)
            assert (A in one.adapters, A in two.adapters) == (True, False)
            one.adapters.clear()
            one.load_status = {A: 500}
            with pytest.raises(VersionRefused, match=A):
                await versions.ensure(A)

    with stub_engine() as one, stub_engine() as two:
        asyncio.run(scenario(one, two))


def test_an_engine_that_hangs_refuses_the_table_in_time(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with versions_on(tmp_path, stub, step_s=0.3) as versions:
            stub.reply = lambda asked: Answer(delay_s=60)
            with pytest.raises(VersionRefused, match="in time"):
                await versions.apply(simple(tmp_path, 1))
            assert stub.adapters == {}

    with stub_engine() as stub:
        asyncio.run(scenario(stub))
