"""Proves that a file or folder is whole under its name or not there, on a disk that fills up.

The full disk is a real one of 256 KB (a tmpfs; needs root), or else a real limit on file size
in a child process.
"""

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.disk import DiskFull, new_folder, write_atomic
from serving.errors import MolError

REPOSITORY = Path(__file__).parents[2]
BIG = b"x" * 1_000_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that holds less than a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if not mounted:
        resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, before[1]))
    yield disk
    if mounted:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_readable_to_others_in_folders_that_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.json"

    write_atomic(path, b"{}")

    assert path.read_bytes() == b"{}"
    assert path.stat().st_mode & 0o777 == 0o644
    assert names(path.parent) == ["file.json"]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([65 + n]) * 200_000 for n in range(4)]
    write_atomic(path, contents[0])
    torn: list[int] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            data = path.read_bytes()
            if data not in contents:
                torn.append(len(data))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(3):
        for data in contents:
            write_atomic(path, data)
    stop.set()
    reader.join()

    assert torn == []


def test_a_full_disk_leaves_the_old_file_and_nothing_else(small_disk: Path) -> None:
    path = small_disk / "file"
    write_atomic(path, b"old")

    with pytest.raises(DiskFull) as refusal:
        write_atomic(path, BIG)

    assert path.read_bytes() == b"old"
    assert names(small_disk) == ["file"]
    assert is_clear(refusal.value, path)


def test_a_full_disk_leaves_no_folder(small_disk: Path) -> None:
    def fill() -> None:
        with new_folder(small_disk / "set") as folder:
            (folder / "small").write_bytes(b"fits")
            (folder / "big").write_bytes(BIG)

    with pytest.raises(DiskFull) as refusal:
        fill()

    assert names(small_disk) == []
    assert is_clear(refusal.value, small_disk / "set")


def is_clear(error: DiskFull, path: Path) -> bool:
    text = str(error)
    return (
        isinstance(error, MolError)
        and isinstance(error, OSError)
        and repr(str(path)) in text
        and ("No space left" in text or "too large" in text)
        and "--home" in text
        and len(text.splitlines()) == 1
    )


def test_a_place_that_cannot_be_a_folder_is_a_known_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(DiskFull, match=r"Not a directory|File exists"):
        write_atomic(tmp_path / "file" / "x", b"")
    with (
        pytest.raises(DiskFull, match=r"Not a directory|File exists"),
        new_folder(tmp_path / "file" / "x"),
    ):
        pass


def test_a_folder_appears_with_all_its_files(tmp_path: Path) -> None:
    with new_folder(tmp_path / "a" / "set") as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "rows").write_bytes(b"rows")
        assert not (tmp_path / "a" / "set").exists()

    assert (tmp_path / "a" / "set" / "deep" / "rows").read_bytes() == b"rows"
    assert names(tmp_path / "a") == ["set"]


def test_an_exception_leaves_no_folder_and_passes_as_it_is(tmp_path: Path) -> None:
    def break_off() -> None:
        with new_folder(tmp_path / "set") as folder:
            (folder / "rows").write_bytes(b"rows")
            raise KeyError("rows")

    with pytest.raises(KeyError):
        break_off()

    assert names(tmp_path) == []


def test_an_input_that_is_not_there_is_no_full_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), new_folder(tmp_path / "set"):
        (tmp_path / "missing").read_bytes()

    assert names(tmp_path) == []


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "rows").write_bytes(b"first")

    with new_folder(tmp_path / "set") as folder:
        (folder / "rows").write_bytes(b"second")

    assert (tmp_path / "set" / "rows").read_bytes() == b"first"
    assert names(tmp_path) == ["set"]


def test_a_kill_in_the_middle_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from serving.disk import new_folder
with new_folder(Path(sys.argv[1])) as folder:
    (folder / "rows").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "set")]

    done = subprocess.run(command, cwd=REPOSITORY)

    assert done.returncode == -9
    assert not (tmp_path / "set").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from serving.disk import new_folder

with new_folder(Path(sys.argv[1])) as folder:
    (folder / "half").write_bytes(b"done")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_and_a_living_one_s_is_not(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "set")], check=False)
    assert len(names(tmp_path)) == 1
    with new_folder(tmp_path / "set"):
        during = names(tmp_path)
        write_atomic(tmp_path / "other", b"")
        with new_folder(tmp_path / "set"):
            assert set(during) < set(names(tmp_path))

    assert names(tmp_path) == ["other", "set"]
    assert len(during) == 1
