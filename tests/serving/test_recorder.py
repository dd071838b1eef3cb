"""Proves the recorder: what is put ends in the spool, and ingest reads it as it grows.

Real files, threads, processes and the real ingest; the records are made up. Bad
disks are in `test_recorder_disk.py`.
"""

import json
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trace_records
from trace_records import hop, traffic, turn_of

from serving.config import RecordConfig
from serving.recorder import Recorder
from serving.records import Hop, Record
from traces.ingest import ingest

CONFIG = RecordConfig()
feedback = trace_records.signal


def until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for file in segments(folder) for line in file.read_bytes().splitlines()
    ]


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "home" / "spool"


@pytest.fixture
def recorder(spool: Path) -> Iterator[Recorder]:
    recorder = Recorder(spool, CONFIG)
    recorder.start()
    yield recorder
    recorder.close()


def test_records_of_every_kind_are_written_as_they_are(recorder: Recorder, spool: Path) -> None:
    records = [hop(), turn_of([hop()]), feedback()]

    assert all([recorder.put(record) for record in records])
    assert recorder.close()

    assert [line["kind"] for line in lines(spool)] == ["hop", "turn", "feedback"]
    assert [line["record"] for line in lines(spool)] == [r.model_dump(mode="json") for r in records]
    assert Hop.model_validate(lines(spool)[0]["record"]).hop_id == hop().hop_id
    stats = recorder.stats()
    assert (stats.recorded, stats.dropped, stats.queued, stats.last_error) == (3, {}, 0, None)


def test_ingest_follows_a_segment_that_grows(recorder: Recorder, spool: Path, home: Path) -> None:
    first, second = traffic(2), traffic(4)[10:]
    for record in first:
        recorder.put(record)
    until(lambda: recorder.stats().recorded == len(first))
    before = ingest(home, spool)

    for record in second:
        recorder.put(record)
    until(lambda: recorder.stats().recorded == len(first) + len(second))
    after = ingest(home, spool)

    assert len(segments(spool)) == 1
    assert (before.funnel["hops_in"], before.funnel["hops_added"]) == (6, 6)
    assert (after.funnel["hops_in"], after.funnel["hops_added"]) == (6, 6)
    assert (after.funnel["turns_in"], after.funnel["feedback_added"]) == (2, 2)
    assert (before.quarantined, after.quarantined, after.waiting_bytes) == ({}, {}, 0)


def test_a_callable_builds_its_records_in_the_writer_thread(
    recorder: Recorder, spool: Path
) -> None:
    threads: list[str] = []

    def build() -> Iterator[Record]:
        threads.append(threading.current_thread().name)
        yield hop()
        yield turn_of([hop()])

    assert recorder.put(build)
    assert recorder.close()

    assert [line["kind"] for line in lines(spool)] == ["hop", "turn"]
    assert threads == ["recorder"]


def test_a_callable_that_raises_costs_its_own_records_only(
    recorder: Recorder, spool: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def build() -> Iterator[Record]:
        yield hop()
        raise KeyError("gone")

    recorder.put(build)
    recorder.put(lambda: [Record()])
    recorder.put(turn_of([hop()]))
    assert recorder.close()

    assert [line["kind"] for line in lines(spool)] == ["turn"]
    assert recorder.stats().dropped == {"invalid": 2}
    assert [r.message.splitlines() for r in caplog.records] == [
        ["A record was dropped: KeyError: 'gone'"],
        ["A record was dropped: KeyError: <class 'serving.records.Record'>"],
    ]


def test_a_writer_that_hangs_never_holds_up_a_put(spool: Path) -> None:
    """A disk that hangs stops the writer, as the entry that waits for `free` does here."""
    recorder = Recorder(spool, RecordConfig(queue=100))
    free, stuck = threading.Event(), threading.Event()

    def hang() -> list[Record]:
        stuck.set()
        assert free.wait(60)
        return []

    recorder.start()
    recorder.put(hang)
    assert stuck.wait(20)

    taken = [recorder.put(hop(seq=n)) for n in range(1000)]

    assert taken == [True] * 100 + [False] * 900
    assert recorder.stats().dropped == {"queue_full": 900}
    assert recorder.stats().queued == 101
    assert not recorder.close(timeout_s=0.01)
    free.set()
    assert recorder.close()
    assert [line["record"]["seq"] for line in lines(spool)] == list(range(100))
    assert recorder.stats().queued == 0


def test_many_threads_lose_nothing(recorder: Recorder, spool: Path) -> None:
    def put(thread: int) -> None:
        for n in range(500):
            assert recorder.put(feedback(target_id=f"{thread}-{n}"))

    threads = [threading.Thread(target=put, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.close()

    assert len({line["record"]["target_id"] for line in lines(spool)}) == 4000


def test_segments_end_at_their_size_and_sort_by_time(spool: Path) -> None:
    recorder = Recorder(spool, RecordConfig(segment_bytes=1024))
    recorder.start()
    for n in range(20):
        recorder.put(hop(seq=n))
        until(lambda n=n: recorder.stats().recorded == n + 1)
    assert recorder.close()

    assert len(segments(spool)) > 5
    assert [line["record"]["seq"] for line in lines(spool)] == list(range(20))


def test_a_segment_ends_at_its_age_even_if_nothing_follows(spool: Path) -> None:
    recorder = Recorder(spool, RecordConfig(segment_s=0.2))
    recorder.start()
    recorder.put(hop())
    until(lambda: recorder.stats().recorded == 1)
    until(lambda: open_files(spool) == 0)
    recorder.put(hop(seq=7))
    assert recorder.close()

    assert len(segments(spool)) == 2


def open_files(folder: Path) -> int:
    links = [p.readlink() for p in Path("/proc/self/fd").iterdir() if p.is_symlink()]
    return sum(link.is_relative_to(folder) for link in links)


def test_recorders_share_a_folder_without_a_clash(spool: Path) -> None:
    recorders = [Recorder(spool, CONFIG) for _ in range(8)]
    for n, recorder in enumerate(recorders):
        recorder.start()
        recorder.put(hop(seq=n))
    assert all([recorder.close() for recorder in recorders])

    assert len(segments(spool)) == 8
    assert sorted(line["record"]["seq"] for line in lines(spool)) == list(range(8))


def test_the_spool_is_for_its_owner_only(recorder: Recorder, spool: Path) -> None:
    recorder.put(hop())
    assert recorder.close()

    assert stat.S_IMODE(spool.stat().st_mode) == 0o700
    assert stat.S_IMODE(segments(spool)[0].stat().st_mode) == 0o600


def test_nothing_is_made_before_the_first_record(recorder: Recorder, spool: Path) -> None:
    recorder.close()

    assert not spool.exists()


def test_recording_that_is_off_takes_and_writes_nothing(spool: Path) -> None:
    recorder = Recorder(spool, RecordConfig(enabled=False))
    recorder.start()

    assert not recorder.put(hop())
    assert recorder.close()
    assert not spool.exists()
    assert recorder.stats().dropped == {}


def test_what_comes_after_the_end_is_counted(recorder: Recorder) -> None:
    assert recorder.close()

    assert not recorder.put(hop())
    assert recorder.stats().dropped == {"closed": 1}


def test_a_record_too_long_for_ingest_is_dropped(recorder: Recorder, spool: Path) -> None:
    recorder.put(feedback(detail="x" * (33 << 20)))
    recorder.put(feedback(detail="short"))
    assert recorder.close()

    assert recorder.stats().dropped == {"invalid": 1}
    assert len(lines(spool)) == 1


CHILD = """
import sys
from pathlib import Path
from serving.config import RecordConfig
from serving.recorder import Recorder
from trace_records import hop
recorder = Recorder(Path(sys.argv[1]), RecordConfig(segment_bytes=200_000))
recorder.start()
n = 0
while True:
    if recorder.put(hop(seq=n)):
        n += 1
    if recorder.stats().recorded > 2000:
        print("going", flush=True)
"""


def test_a_killed_process_leaves_whole_lines_and_ingest_goes_on(spool: Path, home: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(spool)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env={"PYTHONPATH": ".:tests"},
    )
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"going\n"
        child.send_signal(signal.SIGKILL)
        child.wait()

    whole = 0
    for file in segments(spool):
        *closed, tail = file.read_bytes().split(b"\n")
        whole += len(closed)
        assert all(json.loads(line)["kind"] == "hop" for line in closed)
        assert tail == b"" or file == segments(spool)[-1]
    report = ingest(home, spool)

    assert whole > 2000
    assert report.funnel["hops_in"] in (whole, whole + 1)
    assert report.quarantined == {}
    after = Recorder(spool, CONFIG)
    after.start()
    after.put(feedback())
    assert after.close()
    assert ingest(home, spool).funnel["feedback_added"] == 1
