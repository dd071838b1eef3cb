"""Proves that a bad disk costs records, never answers: full, limited, removed, in the way.

The disks are real: a file-size limit and a tiny tmpfs of a child process, and
folders that go away. Nothing is faked.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trace_records import hop

import serving.recorder
from serving.config import RecordConfig
from serving.recorder import Recorder
from traces.ingest import ingest

REPOSITORY = Path(__file__).parents[2]

PRELUDE = """
import json, os, resource, sys, time
from pathlib import Path
from serving.config import RecordConfig
from serving.recorder import Recorder
from trace_records import hop, user
import serving.recorder
serving.recorder.PAUSE_S = 0.01
spool = Path(sys.argv[1])
recorder = Recorder(spool, RecordConfig())
recorder.start()
def settled(count):
    deadline = time.monotonic() + 30
    while (s := recorder.stats()).recorded + sum(s.dropped.values()) < count or s.queued:
        assert time.monotonic() < deadline, s
        time.sleep(0.01)
    return s
def put(first, count):
    for n in range(first, first + count):
        assert recorder.put(hop(seq=n, messages=(user("x" * 3000),)))
"""

LIMITED = """
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
put(0, 10)
first = settled(10)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))
put(10, 5)
small = settled(15)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
put(15, 5)
last = settled(20)
recorder.close()
print(json.dumps([[s.recorded, s.dropped, s.last_error] for s in (first, small, last)]))
"""

FULL = """
from dataclasses import asdict
put(0, 200)
full = settled(200)
fill = [p.stat().st_size for p in sorted(spool.iterdir())]
for p in spool.parent.glob("ballast"):
    p.unlink()
put(200, 5)
last = settled(205)
recorder.close()
lines = [line for p in sorted(spool.iterdir()) for line in p.read_bytes().split(b"\\n")]
whole = [json.loads(line)["record"]["seq"] for line in lines if line]
print(json.dumps([asdict(full), asdict(last), fill, whole]))
"""


def child(script: str, spool: Path, *before: str) -> Any:
    done = subprocess.run(
        [*before, sys.executable, "-c", PRELUDE + script, str(spool)],
        cwd=REPOSITORY,
        env={"PYTHONPATH": ".:tests"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def test_a_file_that_takes_no_more_keeps_its_whole_lines_and_the_next_one_goes_on(
    tmp_path: Path, home: Path
) -> None:
    spool = tmp_path / "spool"
    first, small, last = child(LIMITED, spool)

    # Two lines of about 3.6 kB fit below 10 kB, so ten take five files.
    assert first == [10, {}, None]
    assert small[:2] == [10, {"disk": 5}]
    assert small[2].startswith("File too large")
    assert last == [15, {"disk": 5}, None]
    files = [file.read_bytes() for file in sorted(spool.iterdir())]
    assert [data.count(b"\n") for data in files] == [2, 2, 2, 2, 2, 5]
    assert all(data.endswith(b"\n") for data in files)
    report = ingest(home, spool)
    assert (report.funnel["hops_added"], report.quarantined, report.waiting_bytes) == (15, {}, 0)


@pytest.fixture
def tiny_disk() -> list[str]:
    """The start of a command that runs with 128 kB of disk at `/mnt`; needs user namespaces."""
    script = (
        "mount -t tmpfs -o size=128k tmpfs /mnt && head -c 60000 /dev/zero > /mnt/ballast"
        ' && exec "$@"'
    )
    command = ["unshare", "-rm", "sh", "-c", script, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"]).returncode:
        pytest.skip("this machine lets no process mount a disk of its own")
    return command


def test_a_full_disk_is_counted_and_forgotten_when_it_has_space_again(tiny_disk: list[str]) -> None:
    full, last, sizes, whole = child(FULL, Path("/mnt/spool"), *tiny_disk)

    assert 5 < full["recorded"] < 30
    assert full["dropped"] == {"disk": 200 - full["recorded"]}
    assert full["last_error"].startswith("No space left on device")
    assert 0 not in sizes
    assert last["recorded"] == full["recorded"] + 5
    assert last["dropped"] == full["dropped"]
    assert last["last_error"] is None
    assert whole == [*range(full["recorded"]), *range(200, 205)]


def test_a_removed_folder_is_made_again(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    recorder = Recorder(spool, RecordConfig())
    recorder.start()
    recorder.put(hop(seq=0))
    until(lambda: recorder.stats().recorded == 1)
    shutil.rmtree(spool)

    recorder.put(hop(seq=1))
    assert recorder.close()

    (segment,) = spool.iterdir()
    assert json.loads(segment.read_bytes())["record"]["seq"] == 1
    assert recorder.stats().dropped == {}


def test_a_folder_that_cannot_be_made_drops_after_a_few_tries_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving.recorder, "PAUSE_S", 0.01)
    in_the_way = tmp_path / "spool"
    in_the_way.write_text("a file")
    recorder = Recorder(in_the_way, RecordConfig())
    recorder.start()
    for n in range(3):
        recorder.put(hop(seq=n))
        until(lambda n=n: recorder.stats().dropped.get("disk") == n + 1)

    assert recorder.stats().last_error == f"{os.strerror(errno.EEXIST)}: {in_the_way}"
    assert len(caplog.records) == 1
    in_the_way.unlink()
    recorder.put(hop(seq=3))
    until(lambda: recorder.stats().recorded == 1)
    assert recorder.stats().last_error is None
    assert recorder.close()


def test_closing_does_not_wait_for_a_bad_disk(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file")
    recorder = Recorder(tmp_path / "spool", RecordConfig())
    recorder.start()
    for n in range(2000):
        recorder.put(hop(seq=n))

    assert recorder.close(timeout_s=30)
    assert recorder.stats().dropped == {"disk": 2000}
