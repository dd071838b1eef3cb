"""Proves that what was set aside keeps its bytes, and comes back once it can be read.

Real lakes; the records are the spool's, broken here.
"""

import json
import shutil
from pathlib import Path

import pytest
from source_files import SPOOL, chunk, json_lines
from trace_records import tables

from traces.errors import LakeNotFound
from traces.ingest import ingest
from traces.quarantine import (
    Chosen,
    FixRefused,
    RecordNotFound,
    count,
    find,
    fix,
    listed,
    replay,
)
from traces.storage.lake import Lake

HOP = next(r for r in SPOOL if r["kind"] == "hop")
BAD = [
    b'{"kind": "hop", "record": {"password": "hunter2"}}\n',
    b"\xff\xfe \x1b[31m no JSON\n",
    json.dumps({**HOP, "kind": "hob"}).encode() + b"\n",
]


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home into which a file with three bad lines was ingested; not to be changed."""
    folder = tmp_path_factory.mktemp("ingested")
    good = json_lines(SPOOL[:2]).splitlines(keepends=True)
    (folder / "a.jsonl").write_bytes(good[0] + b"".join(BAD) + good[1])
    report = ingest(folder / "home", folder / "a.jsonl")
    assert report.quarantined == {"bad_record": 1, "not_json": 1, "unknown_kind": 1}
    return folder / "home"


@pytest.fixture
def broken(ingested: Path, home: Path) -> Path:
    """A home of this test with three bad lines in quarantine."""
    return Path(shutil.copytree(ingested, home))


def only(home: Path, reason: str) -> str:
    (row,) = listed(home, Chosen(reason=reason))
    return str(row["quarantine_id"])


def test_records_are_counted_and_listed_without_their_contents(broken: Path) -> None:
    counts = count(broken)
    rows = listed(broken)

    assert [(c["source"], c["reason"], c["format"], c["records"]) for c in counts] == [
        ("a.jsonl", reason, "native", 1) for reason in ("bad_record", "not_json", "unknown_kind")
    ]
    assert sum(c["bytes"] for c in counts) == sum(map(len, BAD))
    first = len(json_lines(SPOOL[:1]))
    assert [r["position"] for r in rows] == [
        first, first + len(BAD[0]), first + len(BAD[0]) + len(BAD[1])
    ]  # fmt: skip
    assert "hunter2" not in str(rows)
    assert "hunter2" not in find(broken, only(broken, "bad_record")).detail
    assert listed(broken, Chosen(source="b.jsonl")) == count(broken, Chosen(format="otlp")) == []


def test_a_record_is_shown_with_its_exact_bytes_by_the_beginning_of_its_id(broken: Path) -> None:
    id = only(broken, "not_json")

    assert find(broken, id).raw == BAD[1]
    assert find(broken, id.removeprefix("sha256:")[:12]).raw == BAD[1]
    for unknown in ("zz", "", "sha256:"):
        with pytest.raises(RecordNotFound, match="quarantine list"):
            find(broken, unknown)


def test_a_mended_record_takes_the_place_of_the_broken_one(broken: Path) -> None:
    hops = len(tables(broken, "hops")["hops"])
    record = {**HOP["record"], "seq": 77}

    report = fix(
        broken, only(broken, "not_json"), json.dumps({"kind": "hop", "record": record}).encode()
    )

    assert (report.moved, report.added) == (1, {"hops": 1})
    assert len(tables(broken, "hops")["hops"]) == hops + 1
    assert [c["reason"] for c in count(broken)] == ["bad_record", "unknown_kind"]


def test_a_record_that_is_mended_badly_stays_and_nothing_changes(broken: Path) -> None:
    before = tables(broken)

    for mended in (b"", b"[1]", BAD[0]):
        with pytest.raises(FixRefused, match="Nothing was changed"):
            fix(broken, only(broken, "bad_record"), mended)

    assert tables(broken) == before


def test_replay_reads_the_bytes_again_and_moves_what_is_fine_now(broken: Path) -> None:
    """An older version is stood in for by a row that it might have refused."""
    refused = json.dumps({**HOP, "record": {**HOP["record"], "seq": 9}}).encode()
    for id, format in (("sha256:01", "native"), ("sha256:02", None)):
        _put(broken, id, refused.replace(b'"seq": 9', f'"seq": {id[-1]}'.encode()), format)

    report = replay(broken)

    assert (report.read, report.moved, report.added) == (5, 2, {"hops": 2})
    assert report.left == {"bad_record": 1, "not_json": 1, "unknown_kind": 1}
    assert count(broken, Chosen(reason="old_reason")) == []
    again = replay(broken)
    assert (again.read, again.moved, again.added) == (3, 0, {})


def test_replay_keeps_todays_reason_of_what_is_refused_again(broken: Path) -> None:
    _put(broken, "sha256:01", b'{"kind": "hop", "record": {"x": 1}}', "native")
    _put(broken, "sha256:02", b'{"what": "is this"}', None)
    _put(broken, "sha256:03", b"", "native", reason="corrupt_file")

    report = replay(broken, Chosen(source="old.jsonl"))

    assert (report.read, report.moved) == (3, 0)
    assert report.left == {"bad_record": 1, "unknown_format": 1, "corrupt_file": 1}
    assert {r["reason"] for r in listed(broken, Chosen(source="old.jsonl"))} == set(report.left)


def test_a_streamed_answer_is_replayed_from_its_lines(broken: Path) -> None:
    stream = [chunk("x", "Hi"), chunk("x", "", "stop")]
    _put(broken, "sha256:01", b"data: " + b"\n\ndata: ".join(json_lines(stream).splitlines()), None)

    assert replay(broken, Chosen(source="old.jsonl")).added == {"hops": 1}


def test_where_nothing_was_ingested_there_is_no_quarantine(home: Path) -> None:
    with pytest.raises(LakeNotFound):
        count(home)


def _put(home: Path, id: str, raw: bytes, format: str | None, reason: str = "old_reason") -> None:
    row = {"quarantine_id": id, "source": "old.jsonl", "position": 0, "reason": reason,
           "detail": "", "raw": raw, "format": format}  # fmt: skip
    with Lake.open(home) as lake:
        lake.commit(lambda _: lake.insert_new("quarantine", [row]))
