"""Proves the importer of LangSmith on what its client sends (`tests/data/langsmith.jsonl`).

The bulk export's Parquet columns, `feedback_stats` and feedback of the API are added here, after
LangSmith's documents and its client's types.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from import_rows import decoded, hop_of, lines, rows_of

from traces.sources.detect import find_sources, parse_item

ROOT, ASKING, ANSWERING, STREAMED, CHAIN_ASKING, CHAIN_ANSWERING, FAILED, COMPLETED = lines(
    "langsmith.jsonl"
)


def signals(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [decoded(made) for made in rows_of(row) if made.table == "feedback"]


def test_a_run_of_a_wrapped_client_is_a_hop() -> None:
    hop = hop_of(ANSWERING)

    assert [m["role"] for m in hop["said"]] == ["system", "user", "assistant", "tool"]
    assert hop["completion"]["content"] == "Rainy, 14 C."
    assert (hop["model"], hop["served_name"]) == ("support", "support@v3")
    assert (hop["response_id"], hop["span_id"]) == ("chatcmpl-2", ANSWERING["id"])
    assert (hop["turn_id"], hop["conversation_id"]) == (f"langsmith:{ROOT['id']}", "s-1")
    assert (hop["prompt_tokens"], hop["completion_tokens"], hop["cached_tokens"]) == (9, 5, 4)
    assert hop["tools"] == ANSWERING["inputs"]["tools"]
    assert hop["params"]["temperature"] == 0.2
    took = datetime.fromisoformat(ANSWERING["end_time"]) - datetime.fromisoformat(
        ANSWERING["start_time"]
    )
    assert hop["duration_s"] == took.total_seconds()


def test_langchains_constructors_are_read_as_openais_messages() -> None:
    asking, answering, plain = hop_of(CHAIN_ASKING), hop_of(CHAIN_ANSWERING), hop_of(ANSWERING)

    assert asking["completion"] == hop_of(ASKING)["completion"]
    assert answering["said"] == plain["said"]
    assert answering["completion"] == plain["completion"]
    assert (asking["prompt_tokens"], asking["cached_tokens"]) == (9, 4)
    assert asking["finish_reason"] == "tool_calls"
    assert (asking["conversation_id"], asking["user"]) == ("s-2", "u-1")


def test_a_streams_first_token_is_its_first_event() -> None:
    hop = hop_of(STREAMED)

    assert (hop["completion"]["content"], hop["status"]) == ("Rainy, 14 C.", "ok")
    assert 0 < hop["ttft_s"] <= hop["duration_s"]


def test_a_failed_run_says_why_without_its_traceback() -> None:
    hop = hop_of(FAILED)

    assert (hop["status"], hop["error"]) == ("engine_error", "RuntimeError('no engine')")
    assert (hop["said"][0]["content"], hop["completion"]) == ("hi", None)


def test_a_run_that_has_not_ended_is_abandoned() -> None:
    started = {k: v for k, v in ANSWERING.items() if k not in ("outputs", "end_time")}

    assert hop_of(started)["status"] == "abandoned"


def test_a_run_of_an_unnamed_model_is_quarantined() -> None:
    (row,) = rows_of(COMPLETED)
    named = {**COMPLETED, "extra": {"invocation_params": {"model": "m"}}}

    assert (row.table, row.values["reason"]) == ("quarantine", "no_model")
    assert hop_of(named)["said"][0]["content"] == "Once"
    assert hop_of(named)["completion"]["content"] == " upon a time"


def test_the_trace_is_found_from_the_order_and_the_time_too() -> None:
    bare = {k: v for k, v in ANSWERING.items() if k not in ("trace_id", "start_time")}

    assert hop_of(bare)["turn_id"] == f"langsmith:{ROOT['id']}"
    assert hop_of(bare)["started_at"] == datetime.fromisoformat(ANSWERING["start_time"])


def test_any_other_run_is_counted_and_what_was_said_of_it_is_about_the_turn() -> None:
    stats = {"user_score": {"n": 2, "avg": 0.0, "sources": ['{"type": "app"}']}, "cost": None}

    skipped, signal = rows_of({**ROOT, "feedback_stats": stats})

    assert (skipped.table, skipped.values) == ("skipped", {"reason": "run_chain"})
    assert (signal.values["target_kind"], signal.values["target_id"]) == (
        "turn",
        f"langsmith:{ROOT['id']}",
    )
    assert (signal.values["kind"], signal.values["value"]) == ("thumb", -1.0)
    assert json.loads(signal.values["detail"])["text"] == '{"n":2}'


@pytest.mark.parametrize(
    ("stats", "kind", "value", "annotator"),
    [
        ({"n": 1, "avg": 1.0}, "verifier", 1.0, None),
        ({"n": 4, "avg": 0.5}, "verifier", 0.5, "model"),
        ({"n": 1, "avg": 0.0, "sources": ['{"type": "model"}']}, "verifier", 0.0, "model"),
        ({"n": 3, "avg": None, "values": {"correct": 2, "wrong": 1}}, "verifier", 1.0, None),
        ({"n": 1, "avg": 4.0}, "comment", None, None),
    ],
)
def test_each_score_name_is_a_signal(
    stats: dict[str, Any], kind: str, value: float | None, annotator: str | None
) -> None:
    (made,) = signals({**ANSWERING, "feedback_stats": {"quality": stats}})

    assert (made["kind"], made["value"], made["annotator"]) == (kind, value, annotator)
    assert (made["target_kind"], made["target_id"]) == ("response", ANSWERING["id"])


def test_a_feedback_of_the_api_is_a_signal() -> None:
    row = {"id": "f", "run_id": ANSWERING["id"], "trace_id": ROOT["id"], "key": "user_score",
           "score": 0, "value": None, "comment": "wrong city", "correction": None,
           "created_at": "2026-11-30T02:00:00+00:00", "feedback_source": {"type": "app",
           "user_id": "u"}}  # fmt: skip

    (thumb,) = signals(row)
    (edit,) = signals({**row, "correction": {"role": "assistant", "content": "Sunny."}})

    assert (thumb["kind"], thumb["value"]) == ("thumb", -1.0)
    assert json.loads(thumb["detail"]) == {"score": 0.0, "text": "wrong city"}
    assert (thumb["user"], thumb["target_id"]) == ("u", f"langsmith:{ROOT['id']}")
    assert thumb["created_at"] == datetime(2026, 11, 30, 2, tzinfo=UTC)
    assert (edit["kind"], edit["correction"]["content"]) == ("edit", "Sunny.")


def test_the_bulk_exports_parquet_gives_the_same_hop(tmp_path: Path) -> None:
    row = ANSWERING
    cells = {k: json.dumps(row[k]) for k in ("inputs", "outputs", "extra")}
    times = {k: datetime.fromisoformat(row[k]) for k in ("start_time", "end_time")}
    plain = {k: row[k] for k in ("id", "trace_id", "dotted_order", "name", "run_type")}
    table = pa.Table.from_pylist([{**plain, **cells, **times, "status": "success", "error": None}])
    (tmp_path / "year=2026").mkdir()
    pq.write_table(table, tmp_path / "year=2026" / "runs.parquet")

    (file,) = find_sources(tmp_path).files
    (batch,) = file.batches((), 10, 1_000_000)
    (made,) = parse_item(batch.items[0], file.context)

    assert file.format == "langsmith"
    assert decoded(made) == hop_of(row)


def test_child_runs_and_pages_are_the_runs_in_them() -> None:
    tree = {**ROOT, "child_runs": [ASKING, ANSWERING]}

    made = rows_of(tree)
    page = rows_of({"runs": [ROOT, ASKING, COMPLETED, 3], "cursors": {"next": None}})

    assert [r.table for r in made] == ["skipped", "hops", "hops"]
    assert [decoded(r) for r in made[1:]] == [hop_of(ASKING), hop_of(ANSWERING)]
    assert [r.table for r in page] == ["skipped", "hops", "quarantine", "quarantine"]
    assert json.loads(page[2].values["raw"]) == {"runs": [COMPLETED]}


def test_a_broken_run_leaves_its_children() -> None:
    broken, child = rows_of({**ROOT, "id": None, "child_runs": [ANSWERING]})

    assert (broken.table, decoded(child)) == ("quarantine", hop_of(ANSWERING))
    assert json.loads(broken.values["raw"]) == {"runs": [{**ROOT, "id": None}]}
