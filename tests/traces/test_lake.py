"""Proves the lake: its declared schema, its snapshots, and its errors. Real DuckLake; no fakes."""

from pathlib import Path

import pyarrow as pa
import pytest
from trace_records import traffic, write_spool

from serving.records import Feedback, Hop, Record, Turn
from traces.attribution.blame import Blame
from traces.attribution.outcomes import Outcome
from traces.errors import LakeNotFound, LakeUnavailable
from traces.ingest import ingest
from traces.read import read_turns
from traces.storage.lake import Lake
from traces.storage.tables import TABLES, arrow_schema, ddl, readable

GOLDEN_BLAME = """CREATE TABLE blame (
  "turn_id" VARCHAR NOT NULL,
  "klass" VARCHAR NOT NULL,
  "slot" VARCHAR,
  "confidence" DOUBLE NOT NULL,
  "evidence" VARCHAR NOT NULL,
  "right_slot" VARCHAR,
  "code_version" VARCHAR NOT NULL,
  "hop_id" VARCHAR,
  "method" VARCHAR,
  "verdict" VARCHAR,
  "rule" VARCHAR
)"""

GOLDEN_COLUMNS = {
    "hops": (
        "hop_id schema_version source conversation_id turn_id user seq role model served_name "
        "message_ids tools params completion response_id finish_reason status error propensity "
        "confidence prompt_tokens completion_tokens cached_tokens prompt_token_ids "
        "completion_token_ids started_at duration_s ttft_s harness_digest canary reasoning "
        "supersedes harness_version span_id workload task day"
    ),
    "turns": (
        "turn_id schema_version source conversation_id user position request answer slot digest "
        "decision status error hop_ids response_ids started_at duration_s canary supersedes origin "
        "workload task tail day"
    ),
    "feedback": (
        "feedback_id schema_version source target_kind target_id kind name value correction "
        "detail user created_at annotator reference day"
    ),
    "messages": "day message_id role body",
    "requests": "request_id source started_at body",
    "span_events": "event_id source trace_id span_id name seq occurred_at body day",
    "outcomes": "turn_id success tier rule signals correction truncated",
    "blame": (
        "turn_id klass slot confidence evidence right_slot code_version hop_id method verdict rule"
    ),
    "replays": "turn_id slot digest samples successes config code_version created_at",
    "preferences": "pair_id turn_id slot digest hop_id chosen rejected source created_at",
    "quarantine": "quarantine_id source position reason detail raw format",
    "offsets": "source_id name consumed_bytes consumed_digest format",
    "adapters": (
        "digest slot version base_digest manifest_digest run_key created_at gate_verdict "
        "gate_report judged_against"
    ),
    "tenures": (
        "tenure_id slot digest version kind traffic since until began_by generation gate_report"
    ),
    "lessons": (
        "lesson_id manifest_digest slot example_id turn_id hop_id split duty source weight"
    ),
    "lake_version": "version",
    "upkeep": "day snapshot_id kept_since",
}


def test_the_schema_is_the_pinned_one() -> None:
    assert ddl("blame") == GOLDEN_BLAME
    assert {t: " ".join(c.name for c in columns) for t, columns in TABLES.items()} == GOLDEN_COLUMNS


def test_arrow_and_sql_types_agree() -> None:
    schema = arrow_schema("turns")

    assert schema.field("hop_ids").type == pa.list_(pa.string())
    assert schema.field("started_at").type == pa.timestamp("us", tz="UTC")
    assert not schema.field("turn_id").nullable


@pytest.mark.parametrize(
    ("table", "record"),
    [
        ("v_hops", Hop),
        ("turns", Turn),
        ("feedback", Feedback),
        ("outcomes", Outcome),
        ("blame", Blame),
    ],
)
def test_every_field_of_a_record_has_a_column(table: str, record: type[Record]) -> None:
    assert set(record.model_fields) <= {column.name for column in readable(table)}


def test_opening_twice_makes_no_commit(home: Path) -> None:
    with Lake.open(home) as lake:
        first = lake.snapshot_id()
    with Lake.open(home) as lake:
        assert lake.snapshot_id() == first


def test_a_failed_commit_leaves_nothing(home: Path) -> None:
    with Lake.open(home) as lake:
        before = lake.snapshot_id()

        def work(connection: object) -> None:
            lake.connection.execute("DELETE FROM hops")
            lake.connection.execute(
                "INSERT INTO requests VALUES ('a', 'b', TIMESTAMPTZ '2026-01-01', '{}')"
            )
            raise KeyError("no")

        with pytest.raises(KeyError):
            lake.commit(work)

        assert lake.snapshot_id() == before


@pytest.mark.parametrize("read_only", [False, True])
def test_a_lake_of_an_older_version_gets_the_new_columns(home: Path, read_only: bool) -> None:
    with Lake.open(home) as lake:
        lake.connection.execute("ALTER TABLE hops DROP COLUMN confidence")
    with Lake.open(home, read_only=read_only) as lake:
        names = [c[0] for c in lake.connection.execute("SELECT * FROM hops").description]

    assert "confidence" in names


def test_reading_before_the_first_ingest_says_what_to_do(home: Path) -> None:
    with pytest.raises(LakeNotFound, match="flows run ingest"):
        list(read_turns(home))


def test_a_lost_data_file_is_one_clear_error(home: Path, tmp_path: Path) -> None:
    ingest(home, write_spool(tmp_path / "s.jsonl", traffic(40)))
    for file in (home / "lake" / "data").rglob("*.parquet"):
        file.unlink()

    with pytest.raises(LakeUnavailable, match="cannot be used"):
        list(read_turns(home))
