"""Proves what the store of documents does with a bad file and a full disk.

Real files and a file-size limit of a child process; nothing is faked.
"""

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from serving.documents import Documents
from serving.errors import MolError

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "conversations.sqlite"


def problem(path: Path) -> str:
    with pytest.raises(MolError) as caught:
        Documents(path)
    text = str(caught.value)
    assert "\n" not in text
    assert repr(str(path)) in text
    return text


def filled(path: Path) -> bytes:
    documents = Documents(path)
    for n in range(500):
        documents.put(f"k{n}", b"%0500d" % n)
    assert documents.close()
    return path.read_bytes()


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_text("notes of mine\n" * 500)

    assert "file is not a database" in problem(path)
    assert path.read_text() == "notes of mine\n" * 500


def test_another_program_s_database_is_refused_and_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE photos (name TEXT)")
    before = path.read_bytes()

    assert "another program's database" in problem(path)
    assert path.read_bytes() == before


def test_a_truncated_file_is_refused(path: Path) -> None:
    data = filled(path)
    path.write_bytes(data[: len(data) // 2])

    assert "malformed" in problem(path)


def test_a_file_with_damage_inside_is_refused(path: Path) -> None:
    data = filled(path)
    pages = len(data) // 4096
    for page in range(3, pages, 5):
        data = data[: page * 4096] + b"\xff" * 4096 + data[(page + 1) * 4096 :]
    path.write_bytes(data)

    problem(path)


def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE schema_version SET version = 99")
        connection.commit()

    assert "its version is 99, this program's 1" in problem(path)


def test_a_folder_in_the_way_is_refused(path: Path) -> None:
    path.mkdir()

    assert "Is a directory" in problem(path)


def test_a_file_in_use_is_refused_and_free_again_after_its_end(path: Path) -> None:
    first = Documents(path)
    assert "in use by another server" in problem(path)

    assert first.close()
    assert Documents(path).close()


def test_damage_that_comes_later_is_a_known_error_of_the_read(path: Path) -> None:
    documents = Documents(path, max_in_memory=1)
    for n in range(500):
        documents.put(f"k{n}", b"%0500d" % n)
    assert documents.flush()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE documents")

    with pytest.raises(MolError, match="no such table"):
        asyncio.run(documents.get("k0"))
    documents.close()


LIMITED = """
import asyncio, json, resource, sys, time
from dataclasses import asdict
from pathlib import Path
import serving.documents
from serving.documents import Documents
serving.documents.PAUSE_S = 0.01
documents = Documents(Path(sys.argv[1]), max_in_memory=10)
documents.put("before", b"1")
assert documents.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
for n in range(300):
    documents.put(f"k{n}", b"x" * 2000)
documents.put("k0", b"changed")
documents.delete("before")
deadline = time.monotonic() + 30
while documents.stats().failures < 3:
    assert time.monotonic() < deadline
    time.sleep(0.01)
assert not documents.flush(0.05)
full = asdict(documents.stats())
got = [asyncio.run(documents.get(k)) for k in ("before", "k0", "k1")]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert documents.flush()
last = asdict(documents.stats())
assert documents.close()
print(json.dumps([full, [g and g.decode()[:7] for g in got], last]))
"""


def test_a_full_disk_fails_no_put_and_is_caught_up_with_later(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    full, got, last = json.loads(done.stdout)

    assert full["unsaved"] > 200
    assert full["in_memory"] >= full["unsaved"]
    assert full["last_error"] in ("database or disk is full", "disk I/O error")
    assert got == [None, "changed", "xxxxxxx"]
    assert (last["unsaved"], last["last_error"], last["in_memory"]) == (0, None, 10)
    documents = Documents(path)
    found = [asyncio.run(documents.get(f"k{n}")) for n in range(300)]
    assert found == [b"changed"] + [b"x" * 2000] * 299
    assert asyncio.run(documents.get("before")) is None
    assert documents.close()


def test_closing_does_not_wait_for_ever_for_a_bad_disk(path: Path) -> None:
    documents = Documents(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE documents")
    documents.put("a", b"1")

    assert not documents.close(timeout_s=0.2)
    assert documents.stats().unsaved == 1
