"""Proves that ingest takes each line once and loses none, whatever is done to the files.

Real DuckLake lakes in `tmp_path`; the traffic is made up, the records are real.
What happens to one that is killed is in `test_crashes`.
"""

import gzip
import random
import subprocess
import sys
from pathlib import Path

import pytest
from trace_records import hop, line, says, tables, traffic, turn_of, write_spool

from traces.errors import InputRefused, LakeUnavailable
from traces.ingest import ingest
from traces.read import read_turns
from traces.storage.lake import Lake

REPOSITORY = Path(__file__).parents[2]


def test_every_record_of_a_spool_lands(home: Path, tmp_path: Path) -> None:
    report = ingest(home, write_spool(tmp_path / "s.jsonl", traffic(6)))

    assert report.format == "native"
    assert report.funnel["hops_added"] == 18
    assert report.funnel["turns_added"] == 6
    assert report.funnel["feedback_added"] == 6
    assert report.added


def test_the_same_bytes_again_add_nothing_and_make_no_commit(home: Path, tmp_path: Path) -> None:
    spool = write_spool(tmp_path / "s.jsonl", traffic(3))
    first = ingest(home, spool)

    again = ingest(home, spool)

    assert not again.added
    assert again.snapshot_id == first.snapshot_id


def test_a_moved_and_compressed_copy_adds_nothing(home: Path, tmp_path: Path) -> None:
    spool = write_spool(tmp_path / "s.jsonl", traffic(3))
    first = ingest(home, spool)
    copy = tmp_path / "elsewhere.jsonl.gz"
    copy.write_bytes(gzip.compress(spool.read_bytes()))

    again = ingest(home, copy)

    assert not again.added
    assert again.snapshot_id == first.snapshot_id


def test_shuffled_and_split_lines_add_no_rows(home: Path, tmp_path: Path) -> None:
    records = traffic(6)
    ingest(home, write_spool(tmp_path / "s.jsonl", records))
    before = tables(home)
    random.Random(1).shuffle(records)
    folder = tmp_path / "parts"
    folder.mkdir()
    write_spool(folder / "a.jsonl", records[:10])
    write_spool(folder / "b.jsonl", records[10:])

    report = ingest(home, folder)

    assert not report.added
    assert tables(home) == before


def test_files_put_together_add_no_rows(home: Path, tmp_path: Path) -> None:
    parts = [traffic(4), traffic(8)[20:]]
    files = [write_spool(tmp_path / f"{n}.jsonl", part) for n, part in enumerate(parts)]
    for file in files:
        ingest(home, file)
    before = tables(home)
    whole = tmp_path / "whole.jsonl"
    whole.write_bytes(b"".join(file.read_bytes() for file in reversed(files)))

    report = ingest(home, whole)

    assert not report.added
    # The first part is known as a prefix, the second by its ids.
    assert report.funnel["hops_known"] == 12
    assert tables(home) == before


def test_small_files_share_a_commit(home: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    for n in range(6):
        shared = {"conversation_id": f"c{n}", "turn_id": f"t{n}"}
        write_spool(tmp_path / "made" / f"{n}.jsonl", [hop(seq=n, **shared)])
    ingest(home, tmp_path / "made" / "0.jsonl")
    with Lake.open(home) as lake:
        before = lake.snapshot_id()

    report = ingest(home, tmp_path / "made")

    assert report.funnel["hops_added"] == 5
    # One for the hops, one for the join.
    assert report.snapshot_id == before + 2
    assert not ingest(home, tmp_path / "made").added


def test_a_growing_file_is_followed_and_its_torn_line_waits(home: Path, tmp_path: Path) -> None:
    lines = [line(record).encode() + b"\n" for record in traffic(4)]
    spool = tmp_path / "s.jsonl"
    spool.write_bytes(b"".join(lines[:9]) + lines[9][:100])
    first = ingest(home, spool)
    spool.write_bytes(b"".join(lines))

    second = ingest(home, spool)

    assert first.waiting_bytes == 100
    assert first.quarantined == second.quarantined == {}
    assert second.waiting_bytes == 0
    assert second.funnel["hops_in"] < 12
    assert len(tables(home, "hops")["hops"]) == 12


def test_a_torn_line_followed_by_more_is_quarantined(home: Path, tmp_path: Path) -> None:
    lines = [line(record).encode() + b"\n" for record in traffic(2)]
    spool = tmp_path / "s.jsonl"
    spool.write_bytes(lines[0] + lines[1][:50] + b"\n" + b"".join(lines[2:]))

    report = ingest(home, spool)

    (row,) = tables(home, "quarantine")["quarantine"]
    assert report.quarantined == {"not_json": 1}
    assert row[1:4] == ("s.jsonl", len(lines[0]), "not_json")
    assert row[5] == lines[1][:50] + b"\n"
    assert report.funnel["hops_added"] == 5


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"\x00\xff\xfe binary", "not_json"),
        (b"[1, 2]", "not_an_object"),
        (b'{"kind": "holiday", "record": {}}', "unknown_kind"),
        (b'{"kind": "hop", "record": {"source": "mol"}}', "bad_record"),
        (b'{"kind": "hop", "x": NaN}', "not_json"),
        (b"[" * 100_000, "not_json"),
    ],
)
def test_a_bad_line_is_kept_with_its_reason_and_the_file_goes_on(
    home: Path, tmp_path: Path, bad: bytes, reason: str
) -> None:
    lines = [line(record).encode() for record in traffic(2)]
    spool = tmp_path / "s.jsonl"
    spool.write_bytes(b"\n".join([lines[0], bad, *lines[1:]]) + b"\n")

    report = ingest(home, spool)

    assert report.quarantined == {reason: 1}
    assert report.funnel["hops_added"] == 6
    assert ingest(home, spool).quarantined == {}


@pytest.mark.parametrize("field", [{"seq": 10**30}, {"schema_version": 2}])
def test_a_record_the_lake_cannot_hold_is_quarantined(
    home: Path, tmp_path: Path, field: dict[str, int]
) -> None:
    report = ingest(home, write_spool(tmp_path / "s.jsonl", [hop(), hop(**field)]))

    assert report.funnel["quarantined"] == 1
    assert report.funnel["hops_added"] == 1


def test_odd_characters_survive(home: Path, tmp_path: Path) -> None:
    text = 'nul \0, quote ", newline \n, line separator \u2028, emoji \U0001f600'
    seen = hop(completion=says(text))

    ingest(home, write_spool(tmp_path / "s.jsonl", [seen]))

    (bundle,) = read_turns(home)
    assert bundle.hops == (seen,)


def test_a_file_without_a_final_newline_is_taken_whole(home: Path, tmp_path: Path) -> None:
    spool = write_spool(tmp_path / "s.jsonl", traffic(1))
    spool.write_bytes(spool.read_bytes().rstrip(b"\n"))

    report = ingest(home, spool)

    assert report.waiting_bytes == 0
    assert report.funnel["feedback_added"] == 1


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b"", "is empty"),
        ("a.jsonl", b"hello\nworld\n", "not JSON lines"),
        ("a.jsonl", b"\x89PNG\r\n\x00\x00", "binary"),
        ("a.jsonl", b'{"a": 1}\n', "unknown format"),
        ("a.jsonl", b'{"kind": "hop", "sour', "no complete line"),
        ("a.jsonl.gz", b"\x1f\x8bgarbage that is no gzip", "gzip"),
    ],
)
def test_input_that_is_no_trace_is_refused_and_no_lake_is_made(
    home: Path, tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(InputRefused, match=words):
        ingest(home, tmp_path / name)

    assert not home.exists()


def test_an_empty_folder_and_a_missing_path_are_refused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(InputRefused, match="holds no file"):
        ingest(home, tmp_path / "empty")
    with pytest.raises(InputRefused, match="No such file"):
        ingest(home, tmp_path / "missing")
    with pytest.raises(InputRefused, match="native"):
        ingest(home, write_spool(tmp_path / "s.jsonl", traffic(1)), format="mindlab")


def test_a_truncated_gzip_waits_and_a_corrupt_one_says_so(home: Path, tmp_path: Path) -> None:
    packed = gzip.compress(write_spool(tmp_path / "s.jsonl", traffic(40)).read_bytes())
    spool = tmp_path / "t.jsonl.gz"
    spool.write_bytes(packed[: len(packed) // 2])
    cut = ingest(home, spool)
    spool.write_bytes(packed)
    whole = ingest(home, spool)
    broken = bytearray(packed)
    broken[-6] ^= 0xFF  # the checksum at the end
    spool.write_bytes(broken)
    corrupt = ingest(home, spool)

    assert cut.quarantined == whole.quarantined == {}
    assert 0 < cut.funnel["hops_added"] < 120
    assert cut.funnel["hops_added"] + whole.funnel["hops_added"] == 120
    assert corrupt.quarantined == {"corrupt_file": 1}


def test_turns_that_were_not_recorded_are_joined_from_their_hops(
    home: Path, tmp_path: Path
) -> None:
    records = traffic(4)
    ingest(home, write_spool(tmp_path / "a.jsonl", records))
    bare = tmp_path / "other"
    ingest(bare, write_spool(tmp_path / "b.jsonl", traffic(4, recorded=False)))

    recorded = [bundle.turn for bundle in read_turns(home)]
    joined = [bundle.turn for bundle in read_turns(bare)]

    for ours, theirs in zip(joined, recorded, strict=True):
        same = {"user": "u1", "duration_s": theirs.duration_s}
        assert ours.model_copy(update=same) == theirs


def test_a_recorded_turn_replaces_the_one_joined_before_it_came(home: Path, tmp_path: Path) -> None:
    hops = [hop("route", "L0"), hop(), hop("summary")]
    spool = write_spool(tmp_path / "s.jsonl", hops[:2])
    early = ingest(home, spool)
    write_spool(spool, [*hops, turn_of(hops)])

    ingest(home, spool)

    assert early.funnel["turns_joined"] == 1
    (bundle,) = read_turns(home)
    assert bundle.turn == turn_of(hops)


def test_progress_ends_at_the_whole_size(home: Path, tmp_path: Path) -> None:
    spool = write_spool(tmp_path / "s.jsonl", traffic(10))
    seen: list[tuple[int, int]] = []

    ingest(home, spool, progress=lambda done, total: seen.append((done, total)), batch_lines=7)

    assert len(seen) > 5
    assert seen[-1] == (spool.stat().st_size, spool.stat().st_size)


_CHILD = """
import sys
from pathlib import Path
from traces.ingest import ingest
print("ready", flush=True)
ingest(Path(sys.argv[1]), Path(sys.argv[2]), batch_lines=20)
"""


def child(home: Path, spool: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(home), str(spool)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_two_ingests_at_once_take_each_line_once(home: Path, tmp_path: Path) -> None:
    spool = write_spool(tmp_path / "s.jsonl", traffic(60))

    with child(home, spool) as one, child(home, spool) as two:
        errors = [process.communicate(timeout=100)[1] for process in (one, two)]

    assert [one.returncode, two.returncode] == [0, 0], errors
    assert len(tables(home, "hops")["hops"]) == 180
    assert len(tables(home, "turns")["turns"]) == 60


_FULL = """
import resource, signal, sys
from pathlib import Path
from traces.errors import LakeUnavailable
from traces.ingest import ingest
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    ingest(Path(sys.argv[1]), Path(sys.argv[2]))
except LakeUnavailable as error:
    print(error)
"""


def test_a_full_disk_is_one_clear_error_and_changes_nothing(home: Path, tmp_path: Path) -> None:
    ingest(home, write_spool(tmp_path / "a.jsonl", traffic(1)))
    before = tables(home)
    noise = random.Random(3).randbytes(200_000).hex()
    spool = write_spool(tmp_path / "b.jsonl", [hop(completion=says(noise))])

    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(home), str(spool)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "cannot be used" in done.stdout, done.stderr
    assert tables(home) == before
    assert ingest(home, spool).funnel["hops_added"] == 1


def test_a_corrupt_catalog_is_one_clear_error(home: Path, tmp_path: Path) -> None:
    spool = write_spool(tmp_path / "s.jsonl", traffic(1))
    ingest(home, spool)
    (home / "lake" / "catalog.sqlite").write_bytes(b"garbage" * 1000)

    with pytest.raises(LakeUnavailable, match="not a lake catalog"):
        ingest(home, spool)
