"""Proves that a followed folder is ingested as it grows, and only what changed is looked at.

The steps of following are taken one by one; the loop itself runs in a thread.
"""

import threading
from pathlib import Path

from source_files import SPOOL, json_lines
from trace_records import tables

from traces.follow import Follower, follow
from traces.ingest import IngestReport

LINES = json_lines(SPOOL).splitlines(keepends=True)


def test_each_step_takes_what_came_since_the_last(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    follower = Follower(home, folder)
    assert follower.step() is None
    assert "holds no file" in str(follower.waiting)

    (folder / "a.jsonl").write_bytes(LINES[0][:20])
    assert follower.step() is None
    assert "no complete line yet" in str(follower.waiting)

    (folder / "a.jsonl").write_bytes(b"".join(LINES[:5]) + LINES[5][:30])
    first = follower.step()
    assert first is not None
    assert first.waiting_bytes == 30
    assert follower.step() is None
    assert follower.waiting is None

    (folder / "a.jsonl").rename(folder / "a.jsonl.1")
    (folder / "a.jsonl").write_bytes(b"".join(LINES[10:]))
    with (folder / "a.jsonl.1").open("ab") as file:
        file.write(LINES[5][30:] + b"".join(LINES[6:10]))
    second = follower.step()
    assert second is not None
    assert second.noticed.keys() == {"a.jsonl", "a.jsonl.1"}
    assert follower.step() is None
    assert sum(map(len, tables(home, "hops", "turns", "feedback").values())) == len(SPOOL)


def test_following_goes_on_until_it_is_told_to_stop(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    reports: list[IngestReport] = []
    waits: list[str] = []
    came = threading.Event()
    stop = threading.Event()

    def tell(report: IngestReport) -> None:
        reports.append(report)
        came.set()

    thread = threading.Thread(
        target=follow, args=(Follower(home, file), stop, tell, waits.append, 0.05)
    )
    thread.start()
    try:
        for part in (LINES[:3], LINES[3:]):
            with file.open("ab") as out:
                out.write(b"".join(part))
            assert came.wait(50)
            came.clear()
    finally:
        stop.set()
        thread.join(50)
    assert not thread.is_alive()
    assert [len(waits), len(reports)] == [len(set(waits)), 2]
