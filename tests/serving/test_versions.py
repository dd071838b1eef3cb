"""Proves how a slot table takes effect: each slot whole or not at all, gently on running turns.

Real HTTP clients against stub engines that load, list and refuse as vLLM does; adapters are
empty folders.
"""

import asyncio
from pathlib import Path

import pytest
from slot_tables import entry, name_of, simple, table, until, versions_on
from stub_engine import Answer, StubEngine, stub_engine

from serving.head import HeadInvalid
from serving.loading import VersionRefused
from serving.openai_engine import OpenAIEngine
from serving.slot_table import SlotFile
from serving.versions import Versions

A, B, C = (name_of(n) for n in (1, 2, 3))


def test_a_table_is_loaded_probed_and_in_force(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with versions_on(tmp_path, stub) as versions:
            assert not versions.ready
            assert await versions.apply(simple(tmp_path, 1))
            assert versions.ready
            assert stub.adapters == {A: str((tmp_path / "adapters" / f"{1:012x}").resolve())}
            assert [(chat.model, chat.body["max_tokens"]) for chat in stub.chats] == [(A, 1)]
            with versions.lease("anybody") as lease:
                assert lease.names == {"L0": "base", "L2": A}
                assert lease.canaries == frozenset()
            assert [e.slot for e in versions.profile_slots] == ["L0", "L2"]
            assert [versions.known(n) for n in ("L0", "L2", "L4", A, "base", "")] == [
                True, True, False, False, False, False,
            ]  # fmt: skip

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_the_same_table_again_asks_the_engine_nothing(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with versions_on(tmp_path, stub) as versions:
            await versions.apply(simple(tmp_path, 1))
            asked = len(stub.requests)
            assert not await versions.apply(simple(tmp_path, 1))
            assert len(stub.requests) == asked

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_a_turn_keeps_its_version_and_the_next_gets_the_new_one(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with versions_on(tmp_path, stub) as versions:
            await versions.apply(simple(tmp_path, 1))
            with versions.lease("c") as old:
                await versions.apply(simple(tmp_path, 2))
                with versions.lease("c") as new:
                    assert (old.names["L2"], new.names["L2"]) == (A, B)
                # Everything that could unload has had its chance by then.
                await versions.apply(simple(tmp_path, 3))
                assert A in stub.adapters
                assert old.alive
            await until(lambda: set(stub.adapters) == {C})
            assert stub.unloads == [B, A]

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_a_turn_that_waits_for_tool_results_keeps_its_version(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with versions_on(tmp_path, stub) as versions:
            await versions.apply(simple(tmp_path, 1))
            with versions.lease("c") as lease:
                lease.hold("turn")
                lease.hold("turn")
            await versions.apply(simple(tmp_path, 2))
            await versions.apply(simple(tmp_path, 3))
            await until(lambda: stub.unloads == [B])
            resumed = versions.lease_of("turn")
            assert resumed is not None
            with resumed as again:
                assert again.names["L2"] == A
                again.release("turn")
                assert A in stub.adapters
            await until(lambda: set(stub.adapters) == {C})
            assert versions.lease_of("turn") is None
            assert versions.held == 0
            again.release("turn")  # once more does no harm

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_a_drain_ends_in_time_and_its_turns_learn_of_it(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with versions_on(tmp_path, stub, drain_s=0.05) as versions:
            await versions.apply(simple(tmp_path, 1))
            with versions.lease("c") as lease:
                lease.hold("turn")
                await versions.apply(simple(tmp_path, 2))
                await until(lambda: set(stub.adapters) == {B})
                assert not lease.alive
                assert versions.lease_of("turn") is None
                with pytest.raises(VersionRefused, match="serves no more"):
                    await versions.ensure(A)
            assert A not in stub.adapters

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_going_back_to_a_version_that_drains_keeps_it(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with versions_on(tmp_path, stub) as versions:
            await versions.apply(simple(tmp_path, 1))
            with versions.lease("c"):
                await versions.apply(simple(tmp_path, 2))
                await versions.apply(simple(tmp_path, 1, generation=2))
            await until(lambda: set(stub.adapters) == {A})
            assert stub.loads == [A, B]
            assert stub.unloads == [B]

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


@pytest.mark.parametrize("trouble", ["load", "unlisted", "another name", "refused chat", "folder"])
def test_a_table_put_with_a_version_that_cannot_serve_changes_nothing(
    tmp_path: Path, trouble: str
) -> None:
    def spoilt(asked) -> Answer | None:
        if asked.model != B:
            return None
        if trouble == "another name":
            return Answer(served_name="base")
        return Answer(status=500) if trouble == "refused chat" else None

    async def scenario(stub: StubEngine) -> None:
        async with versions_on(tmp_path, stub) as versions:
            await versions.apply(simple(tmp_path, 1))
            wanted = table(
                entry(tmp_path, "L0", 7, generation=1), entry(tmp_path, "L2", 2, generation=1)
            )
            stub.reply = spoilt
            stub.load_status = {B: 500} if trouble == "load" else {}
            if trouble == "folder":
                (tmp_path / "adapters" / f"{2:012x}").rmdir()
            if trouble == "unlisted":
                wanted = simple(tmp_path, 2, generation=1)
                stub.forget_loads = True
            with pytest.raises(VersionRefused, match=B) as refusal:
                await versions.put(wanted, tmp_path / "slots.json")
            assert "\n" not in str(refusal.value)
            assert versions.table == simple(tmp_path, 1)
            assert versions.lease("c").names == {"L0": "base", "L2": A}
            assert set(stub.adapters) == {A}

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_a_slot_that_cannot_change_holds_up_no_other(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with versions_on(tmp_path, stub) as versions:
            l1 = entry(tmp_path, "L1", 7)
            await versions.apply(table(l1, entry(tmp_path, "L2", 1)))
            harmful = entry(tmp_path, "L2", 2, previous=A, generation=1)
            await versions.apply(table(l1, harmful))
            bad, new = name_of(8, "L1"), name_of(9, "L4")
            stub.load_status = {bad: 500, new: 500}
            canary = entry(tmp_path, "L1", 7, canary=8, canary_percent=5, generation=1)
            back = entry(tmp_path, "L2", 1, previous=B, generation=2)
            wanted = table(canary, back, entry(tmp_path, "L4", 9))
            for _ in range(2):
                with pytest.raises(VersionRefused, match="Unchanged: 'L1', 'L4'") as refusal:
                    await versions.apply(wanted)
                assert bad in str(refusal.value)
                assert versions.table == table(l1, back)
                assert versions.lease("c").names == {"L1": name_of(7, "L1"), "L2": A}
            stub.load_status = {}
            assert await versions.apply(wanted)
            assert versions.table == wanted

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_a_head_that_cannot_be_used_holds_up_no_other_slot(tmp_path: Path) -> None:
    def check(table: SlotFile) -> None:
        head = table.get("router")
        if head is not None and head.champion == name_of(9, "router"):
            raise HeadInvalid("it is damaged")

    async def scenario(stub: StubEngine) -> None:
        versions = Versions(OpenAIEngine(stub.url), tmp_path, check=check)
        old, bad = (entry(tmp_path, "router", n, role="head") for n in (8, 9))
        await versions.apply(table(entry(tmp_path, "L2", 2), old))
        with pytest.raises(VersionRefused, match="damaged Unchanged: 'router'"):
            await versions.apply(table(entry(tmp_path, "L2", 1), bad))
        assert versions.table == table(entry(tmp_path, "L2", 1), old)
        with pytest.raises(HeadInvalid, match="damaged"):
            await versions.put(
                table(
                    entry(tmp_path, "L2", 2, generation=1),
                    bad.model_copy(update={"generation": 1}),
                ),
                tmp_path / "slots.json",
            )
        assert versions.lease("c").names == {"L2": A}
        await versions.close()

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_an_extra_slot_that_fails_is_left_out_until_it_loads(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with versions_on(tmp_path, stub) as versions:
            wanted = table(entry(tmp_path, "L2", 1), entry(tmp_path, "L4", 4, tier="extra"))
            name = name_of(4, "L4")
            stub.load_status = {name: 500}
            assert await versions.apply(wanted)
            assert versions.ready
            assert list(versions.missing) == ["L4"]
            assert name in versions.missing["L4"]
            assert versions.lease("c").names == {"L2": A}
            assert not versions.known("L4")
            assert [e.slot for e in versions.profile_slots] == ["L2"]
            assert not await versions.apply(wanted)
            stub.load_status = {}
            assert await versions.apply(wanted)
            assert versions.missing == {}
            assert versions.lease("c").names == {"L2": A, "L4": name}

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_a_head_is_not_the_engines_business(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with versions_on(tmp_path, stub) as versions:
            head = entry(tmp_path, "router", 9, role="head")
            await versions.apply(table(entry(tmp_path, "L2", 1), head))
            with versions.lease("c") as lease:
                assert lease.names == {"L2": A}
                assert lease.table.get("router") == head
            assert stub.loads == [A]

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_tables_asked_for_at_once_take_effect_one_after_the_other(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with versions_on(tmp_path, stub) as versions:
            numbers = [1, 2, 3, 1, 2, 3, 2]
            await asyncio.gather(*(versions.apply(simple(tmp_path, n)) for n in numbers))
            assert versions.lease("c").names["L2"] == B
            await until(lambda: set(stub.adapters) == {B})
            assert set(stub.unloads) == {A, C}

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_a_change_that_is_given_up_leaves_no_trace(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with versions_on(tmp_path, stub) as versions:
            await versions.apply(simple(tmp_path, 1))
            stub.reply = lambda asked: Answer(delay_s=30) if asked.model == B else None
            task = asyncio.create_task(versions.apply(simple(tmp_path, 2)))
            await until(lambda: B in stub.adapters)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert versions.table == simple(tmp_path, 1)
            await versions.apply(simple(tmp_path, 3))
            await until(lambda: set(stub.adapters) == {C})

    with stub_engine() as stub:
        asyncio.run(scenario(stub))
