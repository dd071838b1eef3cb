"""Proves that the watched file is what serves, and that a bad one is reported and harms nothing.

Real files, real HTTP clients against stub engines; adapters are empty folders.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from slot_tables import entry, name_of, simple, table, until, versions_on
from stub_engine import stub_engine

from serving.slot_table import read_slot_file, slot_file_bytes, write_slot_file
from serving.versions import Versions

A, B = name_of(1), name_of(2)
POLL_S = 0.01


@contextlib.asynccontextmanager
async def watching(versions: Versions, path: Path) -> AsyncIterator[None]:
    task = asyncio.create_task(versions.watch(path, POLL_S))
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_each_new_file_is_put_in_force(tmp_path: Path) -> None:
    path = tmp_path / "slots.json"

    async def scenario() -> None:
        with stub_engine() as stub:
            async with versions_on(tmp_path, stub) as versions, watching(versions, path):
                await until(lambda: versions.last_error is not None)
                assert "Cannot read" in str(versions.last_error)
                assert not versions.ready
                for number in (1, 2, 1):
                    write_slot_file(path, simple(tmp_path, number))
                    await until(lambda n=number: versions.table == simple(tmp_path, n))
                    await until(lambda: versions.last_error is None)
                await until(lambda: set(stub.adapters) == {A})

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"slots": [{"slot": "L2", "champion": "/etc/passwd"}]}', b"\xff" * 100],
)
def test_a_broken_file_is_reported_once_and_the_old_table_stays(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "slots.json"

    async def scenario() -> None:
        with stub_engine() as stub:
            write_slot_file(path, simple(tmp_path, 1))
            async with versions_on(tmp_path, stub) as versions, watching(versions, path):
                await until(lambda: versions.ready)
                path.write_bytes(content)
                await until(lambda: versions.last_error is not None)
                await asyncio.sleep(20 * POLL_S)
                assert versions.lease("c").names["L2"] == A
                assert str(path) in str(versions.last_error)
                write_slot_file(path, simple(tmp_path, 2))
                await until(lambda: versions.last_error is None)
                assert versions.lease("c").names["L2"] == B

    with caplog.at_level(logging.ERROR, "serving.versions"):
        asyncio.run(scenario())
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_another_file_of_the_same_content_does_nothing(tmp_path: Path) -> None:
    path = tmp_path / "slots.json"

    async def scenario() -> None:
        with stub_engine() as stub:
            write_slot_file(path, simple(tmp_path, 1))
            async with versions_on(tmp_path, stub) as versions, watching(versions, path):
                await until(lambda: versions.ready)
                asked, lease = len(stub.requests), versions.lease("c")
                write_slot_file(path, simple(tmp_path, 1))
                os.utime(path)
                await asyncio.sleep(20 * POLL_S)
                assert len(stub.requests) == asked
                assert versions.lease("c").names is lease.names

    asyncio.run(scenario())


def test_a_file_edited_in_place_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "slots.json"

    async def scenario() -> None:
        with stub_engine() as stub:
            write_slot_file(path, simple(tmp_path, 1))
            async with versions_on(tmp_path, stub) as versions, watching(versions, path):
                await until(lambda: versions.ready)
                inode = path.stat().st_ino
                path.write_bytes(slot_file_bytes(simple(tmp_path, 2)))
                assert path.stat().st_ino == inode
                await until(lambda: versions.lease("c").names["L2"] == B)

    asyncio.run(scenario())


def test_an_engine_that_starts_later_gets_the_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "slots.json"

    async def scenario() -> None:
        write_slot_file(path, simple(tmp_path, 1))
        with stub_engine() as gone:
            port = int(gone.url.rsplit(":", 1)[1])
        async with versions_on(tmp_path, gone) as versions, watching(versions, path):
            await until(lambda: versions.last_error is not None)
            assert not versions.ready
            with stub_engine(port) as stub:
                await until(lambda: versions.ready)
                assert versions.last_error is None
                assert set(stub.adapters) == {A}

    with caplog.at_level(logging.ERROR, "serving.versions"):
        asyncio.run(scenario())
    assert len(caplog.records) == 1


def test_an_extra_slot_is_tried_again(tmp_path: Path) -> None:
    path, name = tmp_path / "slots.json", name_of(4, "L4")

    async def scenario() -> None:
        with stub_engine() as stub:
            stub.load_status = {name: 500}
            extra = entry(tmp_path, "L4", 4, tier="extra")
            write_slot_file(path, table(entry(tmp_path, "L2", 1), extra))
            async with versions_on(tmp_path, stub) as versions, watching(versions, path):
                await until(lambda: versions.ready)
                await until(lambda: name in str(versions.last_error))
                assert not versions.known("L4")
                stub.load_status = {}
                await until(lambda: versions.known("L4"))
                await until(lambda: versions.last_error is None)

    asyncio.run(scenario())


def test_puts_and_files_end_the_same(tmp_path: Path) -> None:
    """Whoever comes last: what serves is what the file says."""
    path = tmp_path / "slots.json"

    async def scenario() -> None:
        with stub_engine() as stub:
            write_slot_file(path, simple(tmp_path, 1))
            async with versions_on(tmp_path, stub) as versions, watching(versions, path):
                await until(lambda: versions.ready)
                for generation in range(1, 6):
                    wanted = simple(tmp_path, 1 + generation % 2, generation)
                    await asyncio.gather(
                        versions.put(wanted, path),
                        *(versions.apply(read_slot_file(path)) for _ in range(2)),
                    )
                    await until(lambda: versions.table == read_slot_file(path))
                write_slot_file(path, simple(tmp_path, 1, 2))  # an old copy, restored by hand
                await until(lambda: versions.table == simple(tmp_path, 1, 2))

    asyncio.run(scenario())
