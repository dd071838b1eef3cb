"""Proves that nobody is answered by a name that was lost before it is there again and proved.

Tiny random models with real adapters behind real sockets, asked as turns and hops ask them; what
engines lose, and what strangers load, is done to them by hand.
"""

import asyncio
import contextlib
import shutil
from pathlib import Path

import pytest
from engine_server import tiny_engine_server
from proved_home import ProvedHome, serving
from slot_tables import simple, until, versions_on
from stub_engine import StubEngine, stub_engine

from serving.engine import ChatRequest
from serving.errors import EngineRefused
from serving.loading import VersionRefused
from serving.openai_engine import OpenAIEngine
from serving.records import Message
from serving.replicas import Replicas
from serving.slot_table import SlotFile, write_slot_file
from serving.versions import Versions
from training.artifact import Version

pytestmark = [
    # PEFT 0.21 reads a property that transformers 5.24 renamed.
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing"),
    pytest.mark.filterwarnings("ignore:.*missing adapter keys"),
]
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def made(base: Path, tmp_path: Path) -> ProvedHome:
    return ProvedHome(tmp_path / "home", base)


def question(name: str) -> ChatRequest:
    return ChatRequest(name, (Message(role="user", content="Hello"),), max_tokens=6)


async def ask(versions: Versions, engine: Replicas, name: str) -> tuple[int, ...] | None:
    """Return what a name answers, as a client asks it; None where it is refused."""
    for _ in range(3):
        try:
            mark = await versions.lost.settled(name)
            answer = await engine.chat(question(name))
        except EngineRefused:
            with contextlib.suppress(VersionRefused):
                await versions.lost.ensure(name, mark)
        except VersionRefused:
            return None
        else:
            if versions.lost.trusts(name, mark):
                return answer.completion_token_ids
    return None


def test_what_came_back_altered_answers_nobody_and_health_says_so(made: ProvedHome) -> None:
    two, evil = made.adapter("L2", 2), made.adapter("L2", 5)

    async def scenario(url: str) -> None:
        async with serving(made, url) as (versions, engine):
            await versions.apply(SlotFile(slots=(made.entry(two),)))
            right = await ask(versions, engine, two.name)
            kept = (made.folder(two) / WEIGHTS).read_bytes()
            shutil.copy(made.folder(evil) / WEIGHTS, made.folder(two) / WEIGHTS)
            await engine.unload_adapter(two.name)
            asked = []
            for _ in range(40):
                asked.append(asyncio.create_task(ask(versions, engine, two.name)))
                await asyncio.sleep(0.02)
            assert set(await asyncio.gather(*asked)) == {None}
            assert "is not what was trained" in str(versions.last_error)
            (made.folder(two) / WEIGHTS).write_bytes(kept)
            while versions.lost.waiting:
                versions.lost.retry()
                await asyncio.sleep(0.05)
            assert await ask(versions, engine, two.name) == right
            assert versions.last_error is None

    with tiny_engine_server(made.home, base=made.base) as url:
        asyncio.run(scenario(url))


def test_a_lost_name_that_a_stranger_loaded_makes_way_for_what_was_trained(
    made: ProvedHome,
) -> None:
    two, evil = made.adapter("L2", 2), made.adapter("L2", 5)

    async def scenario(url: str) -> None:
        async with serving(made, url) as (versions, engine):
            await versions.apply(SlotFile(slots=(made.entry(two),)))
            right = await ask(versions, engine, two.name)
            await engine.unload_adapter(two.name)
            await engine.load_adapter(two.name, made.folder(evil))
            await versions.ensure(two.name)
            assert await ask(versions, engine, two.name) == right

    with tiny_engine_server(made.home, base=made.base) as url:
        asyncio.run(scenario(url))


def test_a_serving_version_that_answers_wrongly_refuses_the_table_at_every_try(
    made: ProvedHome,
) -> None:
    """The command loaded the new version before the flip, so that it is not this process's."""
    one, two, three = made.adapter("L1", 1), made.adapter("L2", 2), made.adapter("L2", 3)
    evil = made.adapter("L1", 6)

    async def scenario(url: str) -> None:
        async with serving(made, url) as (versions, engine):
            await versions.apply(SlotFile(slots=(made.entry(one), made.entry(two))))
            await engine.unload_adapter(one.name)
            await engine.load_adapter(one.name, made.folder(evil))
            await engine.load_adapter(three.name, made.folder(three))
            wanted = SlotFile(slots=(made.entry(one), made.entry(three, generation=1)))
            for _ in range(3):
                with pytest.raises(VersionRefused, match=f"{one.name}' is not what was trained"):
                    await versions.apply(wanted)
                assert versions.lease("c").names["L2"] == two.name
            await versions.ensure(one.name)
            assert await versions.apply(wanted)

    with tiny_engine_server(made.home, base=made.base) as url:
        asyncio.run(scenario(url))


def counted(engine: Replicas) -> list[str]:
    """Return a list that grows by each name that is asked for a probe."""
    asked: list[str] = []
    (only,) = engine.engines
    tell = only.logprobs

    async def logprobs(model: str, *args: object) -> tuple[float, ...]:
        asked.append(model)
        return await tell(model, *args)  # type: ignore[arg-type]

    only.logprobs = logprobs  # type: ignore[method-assign,assignment]
    return asked


def with_previous(made: ProvedHome, new: Version, old: Version, generation: int) -> SlotFile:
    fields = {
        "previous": old.name,
        "previous_digest": old.digest,
        "previous_path": made.entry(old).path,
    }
    return SlotFile(slots=(made.entry(new, generation=generation, **fields),))


@pytest.mark.parametrize("anew", ["gateway", "engine"])
def test_a_rollback_is_a_flip_after_a_start_too(made: ProvedHome, anew: str) -> None:
    two, three = made.adapter("L2", 2), made.adapter("L2", 3)
    path = made.home / "slots.json"

    async def scenario(url: str) -> None:
        async with serving(made, url) as (versions, engine):
            write_slot_file(path, with_previous(made, three, two, 1))
            watch = asyncio.create_task(versions.watch(path, 0.01))
            await until(lambda: versions.ready and not versions._standby.is_due)
            if anew == "engine":
                for name in (two.name, three.name):
                    await engine.unload_adapter(name)
                await versions.ensure(three.name)
                await until(lambda: not versions._standby.is_due)
            assert set(await engine.models()) == {"base", two.name, three.name}
            asked = counted(engine)
            write_slot_file(path, with_previous(made, two, three, 2))
            await until(lambda: versions.lease("c").names["L2"] == two.name)
            assert asked == []
            watch.cancel()
            await asyncio.wait([watch])

    with tiny_engine_server(made.home, base=made.base) as url:
        asyncio.run(scenario(url))


def test_a_replica_that_hangs_keeps_nobody_from_one_that_has_the_name(tmp_path: Path) -> None:
    name = "L2@000000000001"

    async def scenario(one: StubEngine, two: StubEngine) -> None:
        async with versions_on(tmp_path, one, two) as versions:
            await versions.apply(simple(tmp_path, 1))
            two.adapters.clear()
            two.models_delay_s = 60
            await versions.ensure(name)
            assert await versions.lost.settled(name) > 0
            assert versions.lost.waiting

    with stub_engine() as one, stub_engine() as two:
        asyncio.run(scenario(one, two))


def test_a_folder_that_may_not_be_loaded_is_not(tmp_path: Path) -> None:
    """Neither for a table nor when the engine lost it."""
    good = True
    name = "L2@000000000001"

    def verify(*_: object) -> None:
        if not good:
            raise VersionRefused("it was altered")

    async def scenario(stub: StubEngine) -> None:
        nonlocal good
        versions = Versions(OpenAIEngine(stub.url), tmp_path, verify=verify)
        await versions.apply(simple(tmp_path, 1))
        good = False
        with pytest.raises(VersionRefused, match="it was altered"):
            await versions.apply(simple(tmp_path, 2))
        stub.adapters.clear()
        with pytest.raises(VersionRefused, match="it was altered"):
            await versions.ensure(name)
        assert stub.loads == [name]
        assert "it was altered" in str(versions.last_error)
        await versions.close()

    with stub_engine() as stub:
        asyncio.run(scenario(stub))
