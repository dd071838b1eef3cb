"""Proves that sources which were rotated, renamed, cut or rewritten are noticed, and lose nothing.

Real files are moved and rewritten between ingests of a real lake.
"""

import csv
from pathlib import Path

import pytest
from source_files import SPOOL, json_lines
from trace_records import tables

from traces.ingest import IngestReport, ingest

LINES = json_lines(SPOOL)
MANY = json_lines(SPOOL[:10])
OTHERS = json_lines(SPOOL[10:])


def counted(home: Path) -> int:
    found = tables(home)
    return sum(len(found[table]) for table in ("hops", "turns", "feedback"))


def noticed(report: IngestReport) -> str:
    return "; ".join(f"{name} {s}" for name, all_ in report.noticed.items() for s in all_)


@pytest.fixture
def log(home: Path, tmp_path: Path) -> Path:
    """A file that was ingested."""
    file = tmp_path / "logs" / "a.jsonl"
    file.parent.mkdir()
    file.write_bytes(MANY)
    report = ingest(home, file)
    assert report.noticed == {}
    return file


def test_a_file_that_grew_or_is_the_same_is_nothing_to_notice(home: Path, log: Path) -> None:
    assert ingest(home, log).noticed == {}
    log.write_bytes(LINES)
    assert ingest(home, log).noticed == {}
    assert counted(home) == len(SPOOL)


def test_rotation_is_noticed_and_both_files_are_read(home: Path, log: Path) -> None:
    log.rename(log.with_name("a.jsonl.1"))
    with log.with_name("a.jsonl.1").open("ab") as file:
        file.write(OTHERS[: OTHERS.index(b"\n") + 1])
    log.write_bytes(OTHERS[OTHERS.index(b"\n") + 1 :])

    report = ingest(home, log.parent)

    assert "a.jsonl begins otherwise" in noticed(report)
    assert "a.jsonl.1 is 'a.jsonl', renamed or copied; read on from byte" in noticed(report)
    assert counted(home) == len(SPOOL)


def test_a_truncated_file_is_noticed_and_what_it_gets_later_is_read(home: Path, log: Path) -> None:
    kept = MANY[: MANY.index(b"\n") + 1]
    log.write_bytes(kept)
    cut = ingest(home, log)
    log.write_bytes(kept + OTHERS)
    grown = ingest(home, log)

    assert f"truncated: {len(MANY):,} bytes of it were read before, {len(kept):,} are left" in (
        noticed(cut)
    )
    assert not cut.added
    assert grown.noticed == {}
    assert counted(home) == len(SPOOL)


def test_a_file_cut_to_nothing_and_written_anew_is_noticed(home: Path, log: Path) -> None:
    log.write_bytes(OTHERS)

    report = ingest(home, log)

    assert "a.jsonl begins otherwise than the file of this name" in noticed(report)
    assert counted(home) == len(SPOOL)


def test_a_file_rewritten_in_its_middle_is_noticed_and_read_again(home: Path, log: Path) -> None:
    first, _, *rest = LINES.splitlines(keepends=True)
    log.write_bytes(b"".join([first, *rest]))

    report = ingest(home, log)

    assert "a.jsonl was rewritten after its first item" in noticed(report)
    assert counted(home) == len(SPOOL)


def test_a_changed_table_is_noticed_and_its_rows_come_once(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    rows = [
        {"id": f"r{n}", "request": '{"model": "m", "messages": []}', "response": "{}"}
        for n in range(3)
    ]
    for count in (2, 3):
        with file.open("w", newline="") as out:
            writer = csv.DictWriter(out, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows[:count])
        report = ingest(home, file)

    assert noticed(report) == "a.csv has changed since it was read; read again as a whole"
