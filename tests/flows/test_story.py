"""Proves that what ingest and attribution tell is whole, and short where there is much of it.

Files and lake are real; the records are made up.
"""

from pathlib import Path

import pytest
from trace_records import hop

from flows import story
from traces.attribute import AttributeReport
from traces.ingest import ingest


def spool(path: Path, *lines: str) -> Path:
    path.write_text("".join(lines), encoding="utf-8")
    return path


def a_hop(seq: int) -> str:
    return f'{{"kind":"hop","record":{hop(seq=seq).model_dump_json()}}}\n'


def test_files_that_are_no_traces_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    spool(folder / "spool.jsonl", a_hop(1))
    for number in range(7):
        (folder / f"note-{number}.txt").write_text("nothing of ours\n", encoding="utf-8")

    story.tell_ingest(ingest(tmp_path / "home", folder))

    told = "".join(capsys.readouterr())
    assert "(native, 1 file)" in told
    assert "left out: note-0.txt is not" in told
    assert "note-6.txt" not in told
    assert "and 2 more files like these" in told


def test_a_torn_line_alone_is_not_called_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = spool(tmp_path / "spool.jsonl", a_hop(1))
    home = tmp_path / "home"
    ingest(home, source)
    source.write_text(a_hop(1) + a_hop(2)[:40], encoding="utf-8")

    story.tell_ingest(ingest(home, source))

    told = "".join(capsys.readouterr())
    assert "nothing new" in told
    assert "ingested before" not in told
    assert "waiting: 40 bytes" in told


def test_slots_with_most_harm_are_named_and_the_others_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    slots = {f"agent-{n}": {"turns": 1, "failed": 0, "blamed": 0} for n in range(30)}
    slots["culprit"] = {"turns": 5, "failed": 3, "blamed": 2}
    report = AttributeReport(
        turns=35, outcomes={}, rules={}, blame={}, by_slot=slots, apart={"canary": 2},
        feedback_unmatched=0, changed=0, snapshot_id=1,
    )  # fmt: skip

    story.tell_attribute(report)

    told = "".join(capsys.readouterr())
    assert "culprit: 5 turns, 3 failed, 2 blamed on it" in told
    assert "no failures of who serves: 2 canary" in told
    assert told.count("agent-") == 11
    assert "agent-0: 1 turn, 0 failed" in told
    assert "and 19 slots with fewer failures" in told
