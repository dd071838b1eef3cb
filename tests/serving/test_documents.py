"""Proves the store of documents: what was put is got, from memory, the file and after a kill.

Real SQLite files, threads and processes; nothing is faked.
"""

import asyncio
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from serving.documents import Documents

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "conversations.sqlite"


@pytest.fixture
def documents(path: Path) -> Iterator[Documents]:
    documents = Documents(path)
    yield documents
    documents.close()


def get(documents: Documents, key: str) -> bytes | None:
    return asyncio.run(documents.get(key))


def rows(path: Path) -> dict[str, bytes]:
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT key, document FROM documents").fetchall()
    return {key.decode(): document for key, document in found}


def test_what_was_put_is_got_at_once_and_the_last_one_wins(documents: Documents) -> None:
    for n in range(50):
        documents.put("c", b"%d" % n)
        assert get(documents, "c") == b"%d" % n

    assert get(documents, "other") is None


def test_documents_outlive_the_process_that_put_them(path: Path) -> None:
    first = Documents(path)
    first.put("a", b"1")
    first.put("b", b"")
    first.put("c", b"3")
    first.delete("c")
    assert first.close()

    second = Documents(path)
    assert [get(second, key) for key in "abc"] == [b"1", b"", None]
    assert second.close()
    assert rows(path) == {"a": b"1", "b": b""}


def test_a_deleted_document_is_gone_from_memory_and_the_file(
    documents: Documents, path: Path
) -> None:
    documents.put("a", b"1")
    assert documents.flush()
    documents.delete("a")

    assert get(documents, "a") is None
    assert documents.flush()
    assert get(documents, "a") is None
    assert rows(path) == {}


def test_any_text_is_a_key(documents: Documents) -> None:
    for key in ("", "\0", "\ud800", "名" * 1000):
        documents.put(key, key.encode("utf-8", "surrogatepass") + b"!")
    assert documents.flush()

    assert documents.stats().failures == 0
    assert get(documents, "\ud800") == b"\xed\xa0\x80!"


@pytest.mark.parametrize(("most", "most_bytes"), [(10, 1 << 30), (10_000, 1_000)])
def test_memory_is_bounded_and_the_rest_is_read_from_the_file(
    path: Path, most: int, most_bytes: int
) -> None:
    documents = Documents(path, max_in_memory=most, max_in_memory_bytes=most_bytes)
    for n in range(300):
        documents.put(f"k{n}", b"%0100d" % n)
    assert documents.flush()

    assert documents.stats().in_memory == 10
    assert documents.stats().in_memory_bytes == 1000
    assert [get(documents, f"k{n}") for n in range(300)] == [b"%0100d" % n for n in range(300)]
    assert documents.stats().in_memory_bytes == 1000
    assert documents.close()


def test_what_is_not_on_disk_yet_never_leaves_memory(path: Path) -> None:
    documents = Documents(path, max_in_memory=5)
    for n in range(3000):
        documents.put(f"k{n}", b"%d" % n)
        assert get(documents, f"k{n // 2}") == b"%d" % (n // 2)

    assert documents.close()
    assert len(rows(path)) == 3000


def test_a_read_that_is_overtaken_by_a_put_never_brings_back_the_old_one(path: Path) -> None:
    documents = Documents(path, max_in_memory=1)

    async def race() -> None:
        for n in range(50):
            documents.put("c", b"old %d" % n)
            documents.put("other", b"")
            assert await asyncio.to_thread(documents.flush)
            read = asyncio.create_task(documents.get("c"))
            await asyncio.sleep(0)
            documents.put("c", b"new %d" % n)
            assert await read in (b"old %d" % n, b"new %d" % n)
            assert await documents.get("c") == b"new %d" % n
            assert await asyncio.to_thread(documents.flush)
            assert await documents.get("c") == b"new %d" % n

    asyncio.run(race())
    assert documents.close()


def test_many_readers_and_writers_agree(path: Path) -> None:
    documents = Documents(path, max_in_memory=20)

    async def user(n: int) -> None:
        for turn in range(30):
            documents.put(f"u{n}", b"%d" % turn)
            await asyncio.sleep(0.001)
            assert await documents.get(f"u{n}") == b"%d" % turn

    async def everyone() -> None:
        await asyncio.gather(*(user(n) for n in range(100)))

    asyncio.run(everyone())
    assert documents.close()
    assert rows(path) == {f"u{n}": b"29" for n in range(100)}


def test_what_was_put_before_a_time_is_forgotten(documents: Documents, path: Path) -> None:
    for n in range(2500):
        documents.put(f"old{n}", b"x")
    documents.put("again", b"1")
    assert documents.flush()
    limit = datetime.now(UTC) + timedelta(microseconds=1)
    documents.put("again", b"2")
    documents.put("new", b"x")

    documents.forget(limit)

    assert get(documents, "old0") is None
    assert documents.flush()
    assert get(documents, "old1") is None
    assert rows(path) == {"again": b"2", "new": b"x"}


def test_forgetting_reaches_what_is_not_on_disk_yet_and_never_the_future(
    documents: Documents, path: Path
) -> None:
    documents.put("a", b"1")
    documents.forget(datetime.now(UTC) + timedelta(days=1))
    documents.put("b", b"2")

    assert get(documents, "a") is None
    assert documents.flush()
    assert (get(documents, "a"), get(documents, "b")) == (None, b"2")
    assert rows(path) == {"b": b"2"}


def test_the_file_is_for_its_owner_only(documents: Documents, path: Path) -> None:
    documents.put("a", b"1")
    assert documents.flush()

    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert len(modes) == 4
    assert set(modes.values()) == {0o600}


CHILD = """
import sys
from pathlib import Path
from serving.documents import Documents
documents = Documents(Path(sys.argv[1]))
for n in range(2000):
    documents.put(f"k{n % 1500}", b"%d" % n)
assert documents.flush()
print("flushed", flush=True)
n = 0
while True:
    documents.put(f"later{n}", b"x" * 1000)
    n += 1
"""


def test_a_killed_process_has_lost_nothing_that_was_flushed(path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, cwd=REPOSITORY
    )
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"flushed\n"
        child.send_signal(signal.SIGKILL)
        child.wait()

    documents = Documents(path)
    found = [get(documents, f"k{n}") for n in range(1500)]
    assert found == [b"%d" % (n + 1500 if n < 500 else n) for n in range(1500)]
    assert documents.close()
