"""Proves the importer of Langfuse: observations and scores in the forms exports and API have.

All rows are written here after Langfuse's field reference and its client's types; the same rows
go through real JSON lines, CSV and Parquet files.
"""

import csv
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from import_rows import decoded, hop_of, rows_as, rows_of
from logged_calls import camel, generation, score

from traces.sources.detect import find_sources, parse_item

CALLS = [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]


def feedback_of(row: dict[str, Any]) -> dict[str, Any]:
    (made,) = rows_of(row)
    assert made.table == "feedback", made.values
    return decoded(made)


def test_a_generation_is_a_hop_of_its_traces_turn() -> None:
    hop = hop_of(generation())

    assert (hop["said"][0]["content"], hop["completion"]["content"]) == (
        "Weather in Paris?",
        "Rainy.",
    )
    assert (hop["turn_id"], hop["conversation_id"]) == ("langfuse:t1", "s1")
    assert (hop["span_id"], hop["user"], hop["workload"]) == ("o1", "u1", "chat")
    assert hop["model"] == "support@v3"
    assert (hop["prompt_tokens"], hop["completion_tokens"], hop["cached_tokens"]) == (9, 5, 4)
    assert (hop["duration_s"], hop["ttft_s"]) == (1.5, 0.25)
    assert hop["started_at"] == datetime(2025, 11, 29, 16, tzinfo=UTC)
    assert hop["tools"][0]["function"] == {
        "name": "weather",
        "description": "d",
        "parameters": {"type": "object"},
    }
    assert hop["params"] == {
        "temperature": 0.2,
        "langfuse": {"total_cost": 0.25, "updated_at": "2025-11-29T16:00:02.000000+00:00"},
    }


def test_the_apis_form_is_the_same_hop() -> None:
    row = camel(generation()) | {
        "startTime": "2025-11-29T16:00:00.000Z", "endTime": "2025-11-29T16:00:01.500Z",
        "completionStartTime": "2025-11-29T16:00:00.250Z", "parentObservationId": None,
        "updatedAt": "2025-11-29T16:00:02.000Z",
        "input": json.loads(generation()["input"]), "output": json.loads(generation()["output"]),
        "modelParameters": {"temperature": 0.2},
    }  # fmt: skip

    assert hop_of(row) == hop_of(generation())


def test_a_file_of_any_kind_gives_the_same_hop(tmp_path: Path) -> None:
    row = generation()
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "a.json").write_text(json.dumps([row], indent=1))
    flat = {k: v if isinstance(v, str) or v is None else json.dumps(v) for k, v in row.items()}
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(flat))
        writer.writeheader()
        writer.writerow(flat)
    maps = {"usage_details": pa.map_(pa.string(), pa.int64()),
            "tool_definitions": pa.map_(pa.string(), pa.string())}  # fmt: skip
    columns = {
        k: pa.array([v], maps.get(k, pa.list_(pa.string()) if k == "tool_calls" else None))
        for k, v in row.items()
    }
    times = ("start_time", "end_time", "completion_start_time", "updated_at")
    for name in times:
        columns[name] = pa.array([datetime.fromisoformat(row[name])], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")

    found = find_sources(tmp_path)
    hops = {
        file.path.suffix: decoded(r)
        for file in found.files
        for batch in file.batches((), 10, 1_000_000)
        for item in batch.items
        for r in parse_item(item, file.context)
    }

    assert found.format == "langfuse"
    assert sorted(hops) == [".csv", ".json", ".jsonl", ".parquet"]
    assert all(hop == hop_of(row) for hop in hops.values())


def test_an_error_and_a_call_that_has_not_ended() -> None:
    failed = hop_of(generation(level="ERROR", status_message="no engine", output=""))
    running = hop_of(generation(end_time=None, output=""))

    assert (failed["status"], failed["error"]) == ("engine_error", "no engine")
    assert (running["status"], running["completion"]) == ("abandoned", None)


def test_tool_calls_of_a_column_of_their_own() -> None:
    hop = hop_of(generation(output="", tool_calls=[json.dumps(call) for call in CALLS]))

    assert [c["name"] for c in hop["completion"]["tool_calls"]] == ["weather"]


@pytest.mark.parametrize(
    "given",
    [
        "Weather?",
        json.dumps({"messages": [{"role": "user", "content": "Weather?"}]}),
        json.dumps([{"role": "user", "content": [{"type": "text", "text": "Weather?"}]}]),
        json.dumps({"role": "user", "content": "Weather?"}),
        json.dumps({"args": [], "kwargs": {"messages": [{"role": "user", "content": "Weather?"}]}}),
        json.dumps([{"type": "human", "data": {"content": "Weather?"}}]),
        json.dumps(
            [
                {
                    "role": "user",
                    "additional_kwargs": {},
                    "blocks": [{"block_type": "text", "text": "Weather?"}],
                }
            ]
        ),
        json.dumps({"contents": [{"role": "user", "parts": [{"text": "Weather?"}]}]}),
    ],
)
def test_an_input_of_any_shape(given: str) -> None:
    assert [(m["role"], m["content"]) for m in hop_of(generation(input=given))["said"]] == [
        ("user", "Weather?")
    ]


GEMINI_CALL = {"functionCall": {"name": "weather", "args": {}}}


@pytest.mark.parametrize(
    "output",
    [
        {"candidates": [{"content": {"role": "model", "parts": [{"text": "Let me look."},
                                                                GEMINI_CALL]}}]},
        {"text": "Let me look.", "toolCalls": [{"toolCallId": "c", "toolName": "weather"}]},
        ["Let me look.", {"toolCallId": "c", "toolName": "weather", "args": "{}"}],
    ],
)  # fmt: skip
def test_a_call_is_found_in_an_output_of_any_shape(output: Any) -> None:
    said = hop_of(generation(output=json.dumps(output)))["completion"]

    assert said["content"] == "Let me look."
    assert [(c["name"], c["arguments"]) for c in said["tool_calls"]] == [("weather", "{}")]


def test_geminis_system_instruction_and_counts_are_read() -> None:
    asked = {"systemInstruction": {"parts": [{"text": "Be brief."}]}, "contents": "Weather?"}
    counts = {"promptTokenCount": 3, "candidatesTokenCount": 4, "cachedContentTokenCount": 1}
    answered = {"candidates": [{"content": {"parts": [{"text": "Rain."}]}, "finishReason": "STOP"}],
                "usageMetadata": counts}  # fmt: skip

    hop = hop_of(generation(input=asked, output=answered, usage_details={}))

    assert [m["content"] for m in hop["said"]] == ["Be brief.", "Weather?"]
    assert (hop["prompt_tokens"], hop["completion_tokens"], hop["cached_tokens"]) == (3, 4, 1)
    assert hop["finish_reason"] == "stop"


@pytest.mark.parametrize("kind", ["SPAN", "EVENT", "TOOL", "AGENT", "EMBEDDING"])
def test_an_observation_that_is_no_call_is_counted(kind: str) -> None:
    (row,) = rows_of(generation(type=kind))

    assert (row.table, row.values) == ("skipped", {"reason": f"observation_{kind.lower()}"})


@pytest.mark.parametrize(
    ("changes", "kind", "value", "annotator"),
    [
        ({"value": 0.5, "source": "EVAL"}, "verifier", 0.5, "model"),
        ({"value": 1, "source": "ANNOTATION"}, "thumb", 1.0, "human"),
        ({"value": "0", "data_type": "BOOLEAN", "source": "ANNOTATION"}, "thumb", -1.0, "human"),
        ({"value": 0, "data_type": "BOOLEAN", "string_value": "False"}, "verifier", 0.0, None),
        ({"value": 0, "name": "user-feedback"}, "thumb", -1.0, "human"),
        ({"value": 4, "source": "ANNOTATION"}, "comment", None, "human"),
        ({"value": 1, "data_type": "CATEGORICAL", "string_value": "bad", "source": "ANNOTATION"},
         "thumb", -1.0, "human"),
        ({"value": 1, "data_type": "CATEGORICAL", "string_value": "blue"}, "comment", None, None),
        ({"value": 0, "data_type": "TEXT", "string_value": "Too long."}, "comment", None, None),
    ],
)  # fmt: skip
def test_a_score_is_a_signal(
    changes: dict[str, Any], kind: str, value: float | None, annotator: str | None
) -> None:
    made = feedback_of(score(**changes))

    assert (made["kind"], made["value"], made["annotator"]) == (kind, value, annotator)
    assert made["created_at"] == datetime(2025, 11, 29, 16, 5, tzinfo=UTC)


def test_a_texts_words_and_a_comment_are_kept() -> None:
    text = feedback_of(score(value=0, data_type="TEXT", string_value="Too long.", comment="Again"))

    assert text["detail"] == "Too long.\nAgain"
    assert feedback_of(score(comment="wrong city"))["detail"] == "wrong city"


@pytest.mark.parametrize(
    ("changes", "target"),
    [
        ({}, ("turn", "langfuse:t1")),
        ({"trace_id": None}, ("response", "o1")),
        ({"trace_id": "", "observation_id": "", "session_id": "s1"}, ("conversation", "s1")),
    ],
)
def test_a_score_finds_what_it_is_about(changes: dict[str, Any], target: tuple[str, str]) -> None:
    made = feedback_of(score(**changes))

    assert (made["target_kind"], made["target_id"]) == target


def test_a_score_of_a_dataset_run_is_counted() -> None:
    row = score(trace_id=None, observation_id=None, dataset_run_id="d1")

    assert [r.values for r in rows_of(row)] == [{"reason": "score_of_no_call"}]


def test_a_correction_is_an_edit() -> None:
    made = feedback_of(score(data_type="CORRECTION", value=0, string_value="Sunny."))

    assert (made["kind"], made["correction"]["content"]) == ("edit", "Sunny.")


def test_a_trace_of_the_api_passes_its_session_on() -> None:
    call = {k: v for k, v in camel(generation()).items() if k not in ("sessionId", "userId")}
    bad = {"id": "o2", "type": "GENERATION", "startTime": "2025-11-29T16:00:00Z"}
    trace = {"id": "t1", "timestamp": "2025-11-29T16:00:00Z", "htmlPath": "/t1", "name": "chat",
             "sessionId": "s1", "userId": "u1", "observations": [call, bad],
             "scores": [camel(score())]}  # fmt: skip

    hop, refused, signal = rows_of(trace)

    assert decoded(hop)["conversation_id"] == "s1"
    assert decoded(hop)["user"] == "u1"
    assert (refused.table, refused.values["reason"]) == ("quarantine", "no_model")
    assert json.loads(refused.values["raw"])["observations"] == [bad]
    assert signal.table == "feedback"
    assert rows_as("langfuse", json.loads(refused.values["raw"]))[0].table == "quarantine"


def test_a_page_of_the_api_is_its_elements() -> None:
    page = {"data": [generation(), score(), 3], "meta": {"page": 1}}

    assert [row.table for row in rows_of(page)] == ["hops", "feedback", "quarantine"]


def test_a_legacy_trace_alone_is_counted() -> None:
    trace = {"id": "t1", "timestamp": "2025-11-29 16:00:00.000000", "project_id": "p", "name": "x"}

    assert [r.values for r in rows_of(trace)] == [{"reason": "trace"}]
