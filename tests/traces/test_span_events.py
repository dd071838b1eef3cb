"""Proves that calls told of in pieces end as one hop, in whatever order the pieces come.

OpenTelemetry's own OpenAI instrumentation wrote the spans and the logs; a client library's second
span of a call is Anthropic's own. Pieces are cut finer here than any exporter would.
"""

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from import_rows import DATA, lines
from trace_records import PROFILE

from traces.attribute import attribute
from traces.ingest import ingest
from traces.storage.lake import Lake

SPANS = DATA / "spans"


def single_records(name: str) -> list[dict[str, Any]]:
    """Return an OTLP file's records, each in an envelope of its own."""
    text = (SPANS / name).read_text("utf-8")
    whole = [json.loads(line) for line in text.splitlines()]
    parts = []
    for envelope in whole:
        for resource in envelope.get("resourceSpans") or envelope["resourceLogs"]:
            for scope in resource.get("scopeSpans") or resource["scopeLogs"]:
                for record in scope.get("spans") or scope["logRecords"]:
                    kinds = ("Spans", "spans") if "spans" in scope else ("Logs", "logRecords")
                    inner = {"scope": scope["scope"], kinds[1]: [record]}
                    about = {"resource": resource["resource"], f"scope{kinds[0]}": [inner]}
                    parts.append({f"resource{kinds[0]}": [about]})
    return parts


def write(path: Path, values: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values), "utf-8")
    return path


def state(home: Path) -> list[tuple[Any, ...]]:
    with Lake.open(home, read_only=True) as lake:
        return lake.connection.execute(
            "SELECT hop_id, span_id, messages, completion, tools, params FROM v_hops ORDER BY ALL"
        ).fetchall()


def turns(home: Path) -> list[tuple[Any, ...]]:
    with Lake.open(home, read_only=True) as lake:
        return lake.connection.execute(
            "SELECT turn_id, hop_ids, request, answer, status FROM turns ORDER BY ALL"
        ).fetchall()


@pytest.mark.parametrize(
    ("spans", "logs", "calls", "events"),
    [
        ("openai_v2_spans.jsonl", "openai_v2_logs.jsonl", 4, 12 + 1),  # and the agent's span
        ("operation_details_spans.json", "operation_details_logs.json", 4, 4),
    ],
)
def test_spans_and_logs_make_whole_calls_in_either_order(
    tmp_path: Path, spans: str, logs: str, calls: int, events: int
) -> None:
    states = []
    for order in itertools.permutations((spans, logs)):
        home = tmp_path / order[0]
        reports = [ingest(home, SPANS / name) for name in (*order, spans)]
        states.append((state(home), turns(home)))
        assert not reports[2].added
        assert sum(r.funnel.get("span_events_added", 0) for r in reports) == events

    assert states[0] == states[1]
    found, joined = states[0]
    assert len(found) == calls
    said = [[m["content"] for m in json.loads(row[2])] for row in found]
    assert ["You help.", "Weather in Paris?"] in said
    answers = [json.loads(row[3])["content"] for row in found if row[3]]
    assert "Rainy, 14 C." in answers
    assert [len(turn[1]) for turn in joined] in ([4], [1, 1, 1, 1])


def test_pieces_one_by_one_in_any_order_end_the_same(tmp_path: Path) -> None:
    pieces = single_records("openai_v2_spans.jsonl") + single_records("openai_v2_logs.jsonl")
    whole = tmp_path / "whole"
    for name in ("openai_v2_spans.jsonl", "openai_v2_logs.jsonl"):
        ingest(whole, SPANS / name)
    wanted = state(whole), turns(whole)

    for order, step in ((pieces[::-1], 5), (pieces[::2] + pieces[1::2], 7)):
        home = tmp_path / f"home{step}"
        for n in range(0, len(order), step):
            ingest(home, write(tmp_path / f"in{step}" / f"{n}.jsonl", order[n : n + step]))
        assert (state(home), turns(home)) == wanted


def test_logs_without_their_span_wait(tmp_path: Path) -> None:
    report = ingest(tmp_path, SPANS / "openai_v2_logs.jsonl")

    assert report.funnel["span_events_added"] == 12
    assert state(tmp_path) == []


def test_a_librarys_own_empty_span_of_a_call_is_left_out(tmp_path: Path) -> None:
    both = [
        piece
        for piece in single_records("openinference_spans.jsonl")
        if "msg_1" in json.dumps(piece)
    ]
    assert len(both) == 2

    for n, order in enumerate((both, both[::-1])):
        home = tmp_path / f"home{n}"
        for m, piece in enumerate((*order, both[n])):
            ingest(home, write(tmp_path / f"in{n}" / f"{m}.jsonl", [piece]))
        (row,) = state(home)
        assert json.loads(row[3])["content"] == "Let me see."
        assert len(turns(home)) == 1


def test_an_empty_span_alone_is_a_call(tmp_path: Path) -> None:
    bare = [p for p in single_records("openai_v2_spans.jsonl") if "chatcmpl-570" in json.dumps(p)]

    report = ingest(tmp_path, write(tmp_path / "in" / "a.jsonl", bare))

    assert report.funnel["hops_added"] == 1
    assert state(tmp_path)[0][2:4] == ("[]", None)


def test_a_whole_span_keeps_its_own_content(tmp_path: Path) -> None:
    line = lines("spans/openllmetry_spans.jsonl")[0]
    span = line["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    record = {"traceId": span["traceId"], "spanId": span["spanId"], "eventName": "gen_ai.choice",
              "timeUnixNano": span["endTimeUnixNano"],
              "body": {"kvlistValue": {"values": [{"key": "content", "value": {
                  "stringValue": "something else"}}]}}}  # fmt: skip
    log = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}
    ingest(tmp_path, write(tmp_path / "in" / "a.jsonl", [line]))
    before = state(tmp_path)

    report = ingest(tmp_path, write(tmp_path / "in" / "b.jsonl", [log]))

    assert report.funnel["span_events_added"] == 1
    assert state(tmp_path) == before


def test_a_word_about_an_agents_span_is_about_its_turn(tmp_path: Path) -> None:
    agent = next(
        p for p in single_records("openinference_spans.jsonl") if _span(p)["name"] == "agent"
    )
    told = {"annotation_name": "user_feedback", "annotator_kind": "HUMAN", "result.score": 0.0,
            "span_id": _span(agent)["spanId"], "updated_at": "2026-11-30T02:00:00Z"}  # fmt: skip
    ingest(tmp_path, write(tmp_path / "in" / "feedback.jsonl", [told]))
    early = attribute(tmp_path, PROFILE)

    ingest(tmp_path, SPANS / "openinference_spans.jsonl")
    late = attribute(tmp_path, PROFILE)

    assert (early.feedback_unmatched, late.feedback_unmatched) == (1, 0)
    with Lake.open(tmp_path, read_only=True) as lake:
        signals = lake.connection.execute(
            "SELECT signals FROM outcomes WHERE turn_id = $id",
            {"id": f"openinference:{_span(agent)['traceId']}"},
        ).fetchall()
    assert "user_feedback" in [signal["name"] for signal in json.loads(signals[0][0])]


def _span(envelope: dict[str, Any]) -> dict[str, Any]:
    return dict(envelope["resourceSpans"][0]["scopeSpans"][0]["spans"][0])
