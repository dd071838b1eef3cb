"""Proves the importer of OpenInference on what its instrumentors and Phoenix themselves wrote.

`openinference_spans.jsonl` is an agent over a stub API, instrumented, with feedback on the trace,
on a span by link, and on the session; the Phoenix files are Phoenix's exports of the same spans.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from import_rows import DATA, decoded, lines, rows_of

from traces.importers.rows import Row
from traces.ingest import ingest
from traces.sources.detect import format_of
from traces.storage.lake import Lake

SPANS = DATA / "spans"
LINES = lines("spans/openinference_spans.jsonl")
ROWS = [row for line in LINES for row in rows_of(line)]
ALIKE = (
    "said", "completion", "tools", "params", "model", "served_name", "response_id",
    "conversation_id", "finish_reason", "user", "status", "error", "prompt_tokens",
    "completion_tokens", "cached_tokens", "reasoning", "turn_id",
)  # fmt: skip


def hops(rows: list[Row]) -> dict[str, dict[str, Any]]:
    return {
        row.values["span_id"]: decoded(row)
        for row in rows
        if row.table == "hops" and row.values["source"] == "openinference"
    }


def signals(rows: list[Row]) -> list[tuple[Any, ...]]:
    names = ("target_kind", "target_id", "kind", "name", "value", "annotator", "user")
    return sorted(
        tuple(row.values[name] for name in names) for row in rows if row.table == "feedback"
    )


def llm(**attributes: Any) -> dict[str, Any]:
    """A span as an SDK dumps it."""
    return {
        "name": "llm", "context": {"trace_id": "0x" + "ab" * 16, "span_id": "0x" + "cd" * 8},
        "start_time": "2025-11-29T16:00:00Z", "end_time": "2025-11-29T16:00:01Z",
        "attributes": {"openinference.span.kind": "LLM", "llm.model_name": "support@v3",
                       **attributes},
    }  # fmt: skip


def test_an_instrumented_agents_calls_are_hops() -> None:
    found = list(hops(ROWS).values())

    assert len(found) == 7
    first = next(hop for hop in found if hop["response_id"] == "chatcmpl-373")
    assert [m["content"] for m in first["said"]] == ["You help.", "Weather in Paris?"]
    assert first["completion"]["tool_calls"][0]["arguments"] == '{"city": "Paris"}'
    assert (first["model"], first["served_name"]) == ("support", "support@3fa9c1d2e4b5")
    assert (first["conversation_id"], first["user"]) == ("s1", "u1")
    assert (first["prompt_tokens"], first["completion_tokens"], first["cached_tokens"]) == (
        19,
        5,
        8,
    )
    assert first["params"] == {"max_tokens": 50, "temperature": 0.2}
    assert first["finish_reason"] == "tool_calls"
    streamed = next(hop for hop in found if hop["response_id"] == "chatcmpl-246")
    assert streamed["said"][0]["content"].startswith("Streamed?[image image/png sha256:")
    assert streamed["completion"]["content"] == "Rainy, 14 C."
    items = next(hop for hop in found if hop["response_id"] == "resp_1")
    assert (items["completion"]["content"], items["reasoning"]) == (
        "Looking.",
        "Thinking about rain.",
    )
    assert items["completion"]["tool_calls"][0]["id"] == "call_9"
    failed = next(hop for hop in found if hop["model"] == "broken")
    assert (failed["status"], failed["completion"]) == ("engine_error", None)
    assert "engine exploded" in failed["error"]


def test_a_call_in_blocks_is_not_told_twice() -> None:
    (hop,) = [hop for hop in hops(ROWS).values() if hop["response_id"] == "msg_1"]

    assert [call["id"] for call in hop["completion"]["tool_calls"]] == ["toolu_1"]
    assert hop["completion"]["content"] == "Let me see."


def test_feedback_reaches_what_it_is_about_once() -> None:
    (target,) = [h for h in hops(ROWS).values() if h["said"][0]["content"] == "Once more?"]
    agent = next(h for h in hops(ROWS).values() if h["response_id"] == "chatcmpl-373")

    assert signals(ROWS) == [
        ("conversation", "s1", "thumb", "resolved", 1.0, "human", "u1"),
        ("response", target["span_id"], "thumb", "thumbs", -1.0, "human", "u1"),
        ("turn", agent["turn_id"], "verifier", "helpful", 0.4, "model", None),
    ]


def test_phoenix_exports_tell_of_the_same_calls() -> None:
    frame = [row for cells in pq.read_table(SPANS / "phoenix_spans.parquet").to_pylist()
             for row in rows_of(json.loads(json.dumps(cells, default=str)))]  # fmt: skip
    spans = json.loads((SPANS / "phoenix_spans.json").read_text("utf-8"))
    listed = [row for span in spans for row in rows_of(span)]
    wanted = hops(ROWS)

    for rows in (frame, listed):
        # Phoenix makes a call of a library's own, empty span too.
        found = {span_id: hop for span_id, hop in hops(rows).items() if hop["said"]}
        assert found.keys() == wanted.keys()
        for span_id, hop in found.items():
            assert {n: hop[n] for n in ALIKE} == {n: wanted[span_id][n] for n in ALIKE}
            assert abs(hop["seq"] - wanted[span_id]["seq"]) <= 1  # Phoenix rounds its times


def test_phoenix_annotations_are_feedback() -> None:
    (cells,) = pq.read_table(SPANS / "phoenix_annotations.parquet").to_pylist()
    (row,) = rows_of(json.loads(json.dumps(cells, default=str)))
    nested = {"name": "user_feedback", "annotator_kind": "HUMAN", "span_id": cells["span_id"],
              "result": {"label": "thumbs-down", "score": 0.0, "explanation": "wrong"},
              "updated_at": cells["updated_at"]}  # fmt: skip

    assert signals([row]) == signals(rows_of(nested))
    assert signals([row]) == [
        ("response", cells["span_id"], "thumb", "user_feedback", -1.0, "human", None)
    ]
    assert json.loads(row.values["detail"]) == {
        "label": "thumbs-down", "score": 0.0, "text": "wrong",
    }  # fmt: skip


def test_every_export_of_the_same_spans_gives_each_call_once(home: Path) -> None:
    files = ("openinference_spans.jsonl", "phoenix_spans.parquet", "phoenix_spans.json")
    counts = []
    for name in (*files, files[0]):
        report = ingest(home, SPANS / name)
        assert (report.format, report.quarantined) == ("openinference", {})
        with Lake.open(home, read_only=True) as lake:
            rows = lake.connection.execute("SELECT count(*), count(DISTINCT span_id) FROM hops")
            counts.append(rows.fetchone())

    assert counts == [(7, 7)] * 4


@pytest.mark.parametrize("word", ["annotation", "evaluation"])
@pytest.mark.parametrize(
    ("scope", "target"),
    [
        ("", ("response", "cd" * 8)),
        ("trace.", ("turn", "openinference:" + "ab" * 16)),
        ("session.", ("conversation", "s9")),
    ],
)
def test_both_words_mean_the_same_in_every_scope(
    word: str, scope: str, target: tuple[str, str]
) -> None:
    told = {"name": "thumbs", "score": 1.0, "annotator_kind": "HUMAN"}
    flat = {f"{scope}{word}s.0.{word}.{name}": value for name, value in told.items()}

    rows = rows_of(llm(**{"session.id": "s9"}, **flat))

    assert signals(rows) == [(*target, "thumb", "thumbs", 1.0, "human", None)]
    assert len(hops(rows)) == 1


def test_feedback_on_a_root_span_is_about_its_trace() -> None:
    span = llm(**{"annotations.0.annotation.name": "thumbs", "annotations.0.annotation.score": 0})
    span["attributes"]["openinference.span.kind"] = "AGENT"

    assert signals(rows_of(span))[0][:2] == ("turn", "openinference:" + "ab" * 16)


def test_a_carrier_with_two_links_says_nothing_that_can_be_placed() -> None:
    link = {"context": {"trace_id": "0x" + "ab" * 16, "span_id": "0x" + "cd" * 8}}
    span = llm(**{"annotations.0.annotation.name": "thumbs", "annotations.0.annotation.score": 0})
    del span["attributes"]["openinference.span.kind"]
    span["links"] = [link, link]

    (row,) = rows_of(span)
    assert (row.table, row.values["reason"]) == ("quarantine", "bad_record")
    assert "has 2 links, not one" in row.values["detail"]


def test_a_call_without_messages_falls_back_on_input_and_output() -> None:
    plain = llm(**{"input.value": "Hi", "output.value": "Hello"})
    body = llm(
        **{
            "input.value": '{"messages": [{"role": "user", "content": "Hi"}]}',
            "output.value": '{"id": "r1", "choices": [{"message": {"content": "Hello"}}]}',
            "input.mime_type": "application/json",
            "output.mime_type": "application/json",
        }
    )

    for value in (plain, body):
        (hop,) = hops(rows_of(value)).values()
        assert [m["content"] for m in hop["said"]] == ["Hi"]
        assert hop["completion"]["content"] == "Hello"


def test_otlp_with_openinference_spans_is_known_by_them() -> None:
    assert format_of(LINES[0]) == "openinference"
    assert format_of(lines("spans/openllmetry_spans.jsonl")[0]) == "otlp"
