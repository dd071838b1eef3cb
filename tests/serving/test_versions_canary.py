"""Proves the canary's part of the traffic, and tables that are put in place of the one in force.

Real HTTP clients against stub engines that load, list and refuse as vLLM does; adapters are
empty folders.
"""

import asyncio
from pathlib import Path

import pytest
from slot_tables import entry, name_of, simple, table, until, versions_on
from stub_engine import StubEngine, stub_engine

from serving.disk import DiskFull
from serving.slot_table import SlotFile, StaleTable, read_slot_file

A, B, C = (name_of(n) for n in (1, 2, 3))


def canary(home: Path, percent: float) -> SlotFile:
    return table(
        entry(home, "L0"), entry(home, "L2", 1, canary=2, canary_percent=percent, generation=1)
    )


def test_a_canary_gets_its_part_by_conversation(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with versions_on(tmp_path, stub) as versions:
            keys = [f"conversation-{n}" for n in range(4000)]
            taken: list[set[str]] = []
            for percent in (0, 5, 20, 100):
                await versions.apply(canary(tmp_path, percent))
                assert {A, B} <= set(stub.adapters)
                leases = {key: versions.lease(key) for key in keys}
                arm = {key for key, lease in leases.items() if "L2" in lease.canaries}
                assert all((leases[k].names["L2"] == B) == (k in arm) for k in keys)
                assert all(lease.names["L0"] == "base" for lease in leases.values())
                assert {k for k in keys if "L2" in versions.lease(k).canaries} == arm
                taken.append(arm)
            # 4,000 draws of 5 and 20 percent: four standard deviations are 55 and 101.
            assert len(taken[0]) == 0
            assert abs(len(taken[1]) - 200) < 55
            assert abs(len(taken[2]) - 800) < 101
            assert len(taken[3]) == 4000
            assert taken[1] < taken[2]  # who had it keeps it when the part grows

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_two_slots_draw_their_arms_apart(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with versions_on(tmp_path, stub) as versions:
            half = {"canary_percent": 50}
            one = entry(tmp_path, "L1", canary=1, **half)
            two = entry(tmp_path, "L2", canary=2, **half)
            await versions.apply(table(one, two))
            both = [versions.lease(f"c{n}").canaries for n in range(1000)]
            # A quarter each, give or take four standard deviations.
            for wanted in ({"L1", "L2"}, {"L1"}, {"L2"}, set()):
                assert abs(sum(arms == wanted for arms in both) - 250) < 55

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_a_canary_that_ends_is_unloaded_and_one_that_wins_stays(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with versions_on(tmp_path, stub) as versions:
            await versions.apply(canary(tmp_path, 50))
            await versions.apply(simple(tmp_path, 1, generation=2))
            await until(lambda: set(stub.adapters) == {A})
            await versions.apply(canary(tmp_path, 50))
            await versions.apply(simple(tmp_path, 2, generation=3))
            await until(lambda: set(stub.adapters) == {B})
            assert stub.loads == [A, B, B]

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


@pytest.mark.parametrize("key", ["", "\ud800", "x" * 10_000, "\0"])
def test_any_key_draws_an_arm(tmp_path: Path, key: str) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with versions_on(tmp_path, stub) as versions:
            await versions.apply(canary(tmp_path, 50))
            assert versions.lease(key).names["L2"] in (A, B)

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_a_put_table_is_in_force_and_on_disk(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        path = tmp_path / "slots.json"
        async with versions_on(tmp_path, stub) as versions:
            await versions.apply(simple(tmp_path, 1, generation=4))
            wanted = simple(tmp_path, 2, generation=5)
            assert await versions.put(wanted, path) == wanted
            assert read_slot_file(path) == versions.table == wanted
            for stale in (
                simple(tmp_path, 3, generation=4),
                simple(tmp_path, 3, generation=5),
                table(entry(tmp_path, "L2", 3, generation=6)),
            ):
                with pytest.raises(StaleTable):
                    await versions.put(stale, path)
            path.unlink()
            await versions.put(wanted, path)  # the same again is no conflict
            assert read_slot_file(path) == versions.table == wanted

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_a_table_that_cannot_be_written_is_not_in_force(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        (tmp_path / "file").write_bytes(b"")
        async with versions_on(tmp_path, stub) as versions:
            await versions.apply(simple(tmp_path, 1))
            with pytest.raises(DiskFull):
                await versions.put(simple(tmp_path, 2, generation=1), tmp_path / "file" / "s.json")
            assert versions.lease("c").names["L2"] == A
            assert set(stub.adapters) == {A}

    with stub_engine() as stub:
        asyncio.run(scenario(stub))
