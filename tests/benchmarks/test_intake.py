"""Proves that the intake benchmark measures what it says, at a size that ends in seconds.

Everything is real; ClickHouse and Phoenix, which need environments of their own, are left out.
No figure is compared with another: a test machine is never quiet.
"""

import json
from pathlib import Path

import pytest

from benchmarks import intake, intake_clickhouse, intake_queries
from benchmarks.intake_data import hop_dicts, write_spool
from serving.records import Hop
from traces.analytics.questions import QUESTIONS

KEYS = {
    "hops_per_s", "vs_read_json", "vs_phoenix", "reingest_added", "query_p50_ms",
    "vs_clickhouse", "bytes_per_hop",
}  # fmt: skip


def test_the_made_up_hops_are_as_the_recorder_writes_them() -> None:
    for raw in hop_dicts(16):
        assert Hop.model_validate(raw).model_dump(mode="json") == raw


def test_a_spool_holds_the_hops_it_says(tmp_path: Path) -> None:
    spool = tmp_path / "spool.jsonl"
    hops = write_spool(spool, 50)

    kinds = [json.loads(line)["kind"] for line in spool.read_bytes().splitlines()]
    assert kinds.count("hop") == hops >= 50
    assert kinds.count("turn") == hops // 2


def test_ten_of_the_pages_questions_are_asked_of_both() -> None:
    assert len(intake_clickhouse.QUERIES) == 10
    assert intake_clickhouse.QUERIES.keys() <= {q.name for q in QUESTIONS if q.at_scale}


def test_answers_differ_where_a_digit_does() -> None:
    ours = [("L1", 0.1234567891, None)]

    assert intake_queries.same_rows(ours, [["L1", 0.12345678911, None]])
    assert not intake_queries.same_rows(ours, [["L1", 0.12345679, None]])
    assert not intake_queries.same_rows(ours, [["L1", 0.1234567891, 0]])
    assert not intake_queries.same_rows(ours, [])


@pytest.mark.slow
def test_the_smallest_run_loses_and_doubles_nothing(tmp_path: Path) -> None:
    words = ["--quick", "--hops", "200", "--query-hops", "1200", "--folder", str(tmp_path)]

    report = intake.measure(intake.parse(words))

    assert report.keys() >= KEYS
    assert intake.is_sound(report)
    assert report["spools"][0]["hops"] == 200
    assert report["vs_phoenix"] is report["vs_clickhouse"] is None
    assert not list(tmp_path.iterdir())
