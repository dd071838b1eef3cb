"""Proves the importer of OpenTelemetry data on what real instrumentations wrote.

`tests/data/spans` holds spans and logs of OpenLLMetry (old and new attributes), OpenTelemetry's
own OpenAI instrumentation and the Vercel AI SDK; attributes that those do not write are written
here after the conventions.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from import_rows import DATA, damaged, decoded, lines, rows_as, rows_of

from traces.importers import otlp
from traces.importers.rows import Row
from traces.storage.tables import TABLES, arrow_table

SPANS = DATA / "spans"
TRACE, SPAN = "5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174"
OLD = json.loads((SPANS / "openllmetry_old.json").read_text("utf-8"))
NEW = lines("spans/openllmetry_spans.jsonl")
VERCEL = json.loads((SPANS / "vercel_ai.json").read_text("utf-8"))


def value_of(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [value_of(item) for item in value]}}
        case dict():
            return {"kvlistValue": {"values": pairs(value)}}
    return {"stringValue": value}


def pairs(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value_of(value)} for key, value in attributes.items()]


def envelope(attributes: dict[str, Any], events: Any = (), **span: Any) -> dict[str, Any]:
    made = {
        "traceId": TRACE, "spanId": SPAN, "name": "chat support", "kind": 3, "status": {},
        "startTimeUnixNano": "1764432000000000000", "endTimeUnixNano": "1764432001500000000",
        "attributes": pairs({"gen_ai.operation.name": "chat", "gen_ai.request.model": "support",
                             **attributes}),
        "events": list(events), **span,
    }  # fmt: skip
    return {"resourceSpans": [{"scopeSpans": [{"spans": [made]}]}]}


def log(name: str, body: Any = None, **attributes: Any) -> dict[str, Any]:
    record = {
        "timeUnixNano": "1764432002000000000", "traceId": TRACE, "spanId": SPAN, "eventName": name,
        "body": value_of(body) if body is not None else {}, "attributes": pairs(attributes),
    }  # fmt: skip
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}


def hops(rows: list[Row]) -> list[dict[str, Any]]:
    return [decoded(row) for row in rows if row.table == "hops"]


def the_hop(value: Any) -> dict[str, Any]:
    (hop,) = hops(rows_of(value))
    return hop


def reasons(rows: list[Row]) -> list[str]:
    return [row.values["reason"] for row in rows if row.table == "skipped"]


def test_old_flattened_prompts_and_new_messages_are_the_same_calls() -> None:
    old = hops(rows_of(OLD))
    new = [hop for line in NEW for hop in hops(rows_of(line))]
    wanted = [
        hop for hop in old if hop["model"] == "support" and hop["said"][0]["role"] == "system"
    ]

    for hop in wanted[:2]:
        (same,) = [h for h in new if h["response_id"] == hop["response_id"]]
        alike = ("said", "completion", "tools", "finish_reason", "prompt_tokens",
                 "completion_tokens", "cached_tokens", "served_name", "params")  # fmt: skip
        assert {name: hop[name] for name in alike} == {name: same[name] for name in alike}
    first, second = wanted[:2]
    assert [m["content"] for m in first["said"]] == ["You help.", "Weather in Paris?"]
    assert first["completion"]["tool_calls"][0]["arguments"] == '{"city": "Paris"}'
    assert first["tools"][0]["function"]["name"] == "get_weather"
    assert [m["role"] for m in second["said"]] == ["system", "user", "assistant", "tool"]
    assert second["completion"]["content"] == "Rainy, 14 C."
    assert (second["prompt_tokens"], second["completion_tokens"], second["cached_tokens"]) == (
        19,
        5,
        8,
    )


def test_ids_in_base64_are_those_in_hex() -> None:
    hop = hops(rows_of(OLD))[0]
    (raw,) = [
        span
        for resource in OLD["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
        if span["spanId"] == "96AvGLDMLVs="
    ]

    assert hop["span_id"] == "f7a02f18b0cc2d5b"
    assert raw["traceId"].endswith("==")
    assert len(bytes.fromhex(hop["turn_id"].removeprefix("otlp:"))) == 16


def test_a_streams_answer_and_its_first_token_are_there() -> None:
    (hop,) = [h for line in NEW for h in hops(rows_of(line)) if h["response_id"] == "chatcmpl-246"]

    assert hop["completion"]["content"] == "Rainy, 14 C."
    assert 0 < hop["ttft_s"] < hop["duration_s"]


def test_a_failed_call_says_why() -> None:
    (hop,) = [h for line in NEW for h in hops(rows_of(line)) if h["model"] == "broken"]

    assert (hop["status"], hop["completion"]) == ("engine_error", None)
    assert hop["error"] == "InternalServerError: Error code: 500 - engine exploded"
    assert hop["said"][1]["content"] == "Weather in Paris?"


def test_reasoning_and_blocks_of_other_providers_are_read() -> None:
    found = {h["response_id"]: h for line in NEW for h in hops(rows_of(line)) if h["completion"]}

    assert found["resp_1"]["reasoning"] == "Thinking about rain."
    assert found["resp_1"]["completion"]["tool_calls"][0]["name"] == "get_weather"
    assert found["msg_1"]["said"][0] == {
        "role": "system", "content": "You help.", "tool_calls": [], "tool_call_id": None,
    }  # fmt: skip
    assert found["msg_1"]["finish_reason"] == "tool_calls"


def test_spans_that_are_no_call_are_counted() -> None:
    rows = [row for line in NEW for row in rows_of(line)]

    assert sorted(reasons(rows)) == ["span_agent", "span_embeddings"]
    assert {h["workload"] for h in hops(rows)} == {"travel-desk"}


def test_the_vercel_sdks_inner_spans_are_the_calls() -> None:
    rows = [row for span in VERCEL for row in rows_of(span)]

    talk, stream = hops(rows)
    assert sorted(reasons(rows)) == ["span_agent", "span_agent", "span_embeddings"]
    assert [m["content"] for m in talk["said"]] == [
        "You are a helpful assistant.", "What is 2 + 2?", "2 + 2 equals 4.", "And what is 3 + 3?",
    ]  # fmt: skip
    assert talk["completion"]["content"] == "3 + 3 equals 6."
    assert (talk["prompt_tokens"], talk["completion_tokens"]) == (50, 9)
    assert stream["completion"]["content"].startswith("In code’s embrace")
    assert stream["ttft_s"] == pytest.approx(0.4268535)
    assert stream["started_at"].timestamp() == pytest.approx(1770132000.598)
    assert talk["workload"] == "test-generate-text-messages"


def test_a_tool_call_of_the_vercel_sdk_is_read() -> None:
    calls = [{"toolCallId": "c1", "toolName": "weather", "input": '{"city":"Paris"}'}]
    tools = ['{"type":"function","name":"weather","inputSchema":{"type":"object"}}']
    attributes = {
        "ai.operationId": "ai.generateText.doGenerate", "ai.model.id": "m",
        "ai.prompt.tools": tools, "ai.prompt.messages": '[{"role":"user","content":"W?"}]',
        "ai.response.toolCalls": json.dumps(calls), "ai.response.finishReason": "tool-calls",
        "ai.usage.inputTokens": 3,
    }  # fmt: skip

    hop = the_hop({**VERCEL[0], "attributes": attributes})

    assert hop["completion"]["tool_calls"] == [
        {"id": "c1", "name": "weather", "arguments": '{"city":"Paris"}'}
    ]
    assert hop["tools"][0]["function"]["parameters"] == {"type": "object"}
    assert (hop["finish_reason"], hop["prompt_tokens"]) == ("tool_calls", 3)


def test_every_attribute_has_its_place() -> None:
    parts = [{"type": "text", "content": "Hi"}]
    hop = the_hop(
        envelope(
            {
                "gen_ai.system_instructions": [{"type": "text", "content": "Be brief."}],
                "gen_ai.input.messages": [{"role": "user", "parts": parts}],
                "gen_ai.output.messages": json.dumps(
                    [{"role": "assistant", "parts": parts, "finish_reason": "length"}]
                ),
                "gen_ai.response.model": "support@v3", "gen_ai.response.id": "chatcmpl-1",
                "gen_ai.conversation.id": "s1", "user.id": "u1", "mol.workload": "agent.chat",
                "mol.task": "t1", "gen_ai.request.temperature": 0.2,
                "gen_ai.request.stop_sequences": ["\n"], "gen_ai.usage.input_tokens": 9,
                "gen_ai.usage.cache_read.input_tokens": 4, "gen_ai.usage.output_tokens": 2,
                "gen_ai.response.time_to_first_chunk": 0.25, "mol.route.propensity": 0.5,
            }
        )
    )  # fmt: skip

    assert [(m["role"], m["content"]) for m in hop["said"]] == [
        ("system", "Be brief."),
        ("user", "Hi"),
    ]
    assert hop["completion"]["content"] == "Hi"
    wanted = {
        "source": "otlp", "turn_id": f"otlp:{TRACE}", "conversation_id": "s1", "user": "u1",
        "workload": "agent.chat", "task": "t1", "model": "support", "served_name": "support@v3",
        "response_id": "chatcmpl-1", "span_id": SPAN, "finish_reason": "length", "status": "ok",
        "prompt_tokens": 9, "completion_tokens": 2, "cached_tokens": 4, "ttft_s": 0.25,
        "duration_s": 1.5, "seq": 1764432000000000, "propensity": 0.5, "role": "answer",
        "params": {"temperature": 0.2, "stop": ["\n"]},
    }  # fmt: skip
    assert {name: hop[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("attributes", "served"),
    [
        (
            {"mol.adapter.name": "L2", "mol.adapter.digest": "sha256:3fa9c1d2e4b5aa"},
            "L2@3fa9c1d2e4b5",
        ),
        ({"mol.adapter.name": "support", "mol.adapter.version": "v3"}, "support@v3"),
        ({"gen_ai.response.model": "support"}, "support"),
        ({}, None),
    ],
)
def test_the_version_that_answered_is_the_served_name(
    attributes: dict[str, Any], served: str | None
) -> None:
    assert the_hop(envelope(attributes))["served_name"] == served


def test_content_may_stand_in_events_of_the_span() -> None:
    def event(name: str, **attributes: Any) -> dict[str, Any]:
        return {
            "name": name,
            "timeUnixNano": "1764432000000000001",
            "attributes": pairs(attributes),
        }

    old = [
        event("gen_ai.content.prompt", **{"gen_ai.prompt": '[{"role":"user","content":"W?"}]'}),
        event("gen_ai.content.completion",
              **{"gen_ai.completion": '[{"role":"assistant","content":"R."}]'}),
    ]  # fmt: skip
    parts = [
        event("gen_ai.user.message", content='[{"text": "W?"}]'),
        event("gen_ai.choice", message='[{"text": "R."}]', finish_reason="end_turn"),
    ]
    azure = [
        event("gen_ai.user.message", **{"gen_ai.event.content": '{"role":"user","content":"W?"}'}),
        event("gen_ai.choice", **{"gen_ai.event.content":
              '{"message":{"content":"R."},"finish_reason":"stop","index":0}'}),
    ]  # fmt: skip

    for events in (old, parts, azure):
        hop = the_hop(envelope({}, events))
        assert [m["content"] for m in hop["said"]] == ["W?"]
        assert hop["completion"]["content"] == "R."


def test_of_several_choices_the_first_is_the_answer() -> None:
    answers = [{"role": "assistant", "content": text} for text in ("one", "two")]
    said = {"gen_ai.output.messages": json.dumps(answers)}

    assert (
        the_hop(envelope({**said, "gen_ai.request.choice.count": 2}))["completion"]["content"]
        == "one"
    )


def test_json_that_a_user_wrote_stays_text() -> None:
    text = '[{"a": 1}]'
    hop = the_hop(envelope({"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": text}))

    assert hop["said"][0]["content"] == text


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ({"gen_ai.evaluation.score.value": 0.0, "gen_ai.evaluation.score.label": "down"},
         ("thumb", -1.0, "human")),
        ({"gen_ai.evaluation.score.value": 1, "gen_ai.evaluation.score.label": "pass"},
         ("verifier", 1.0, None)),
        ({"gen_ai.evaluation.score.value": 0.8, "gen_ai.evaluation.score.label": "pass"},
         ("verifier", 1.0, None)),
        ({"gen_ai.evaluation.score.value": 0.8}, ("verifier", 0.8, "model")),
        ({"gen_ai.evaluation.score.value": 0.8, "mol.annotator": "human"}, ("thumb", 1.0, "human")),
        ({"gen_ai.evaluation.score.value": 4}, ("comment", None, None)),
        ({"gen_ai.evaluation.explanation": "Nice."}, ("comment", None, None)),
    ],
)  # fmt: skip
def test_an_evaluation_is_feedback(told: dict[str, Any], wanted: tuple[Any, ...]) -> None:
    (row,) = rows_of(log("gen_ai.evaluation.result", **{"gen_ai.evaluation.name": "x", **told}))

    assert row.table == "feedback"
    assert (row.values["kind"], row.values["value"], row.values["annotator"]) == wanted
    assert (row.values["target_kind"], row.values["target_id"]) == ("response", SPAN)


def test_an_evaluation_finds_its_target_by_response_span_or_trace() -> None:
    named = {"gen_ai.evaluation.name": "x", "gen_ai.evaluation.score.value": 1}
    by_response = log("gen_ai.evaluation.result", **named, **{"gen_ai.response.id": "chatcmpl-1"})
    by_trace = log("gen_ai.evaluation.result", **named)
    del by_trace["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]["spanId"]
    on_span = envelope({}, [{"name": "gen_ai.evaluation.result", "attributes": pairs(named)}])

    targets = [
        (row.values["target_kind"], row.values["target_id"])
        for value in (by_response, by_trace, on_span)
        for row in rows_of(value)
        if row.table == "feedback"
    ]
    assert targets == [("response", "chatcmpl-1"), ("turn", f"otlp:{TRACE}"), ("response", SPAN)]


def test_one_bad_span_is_set_aside_alone_and_can_be_mended() -> None:
    value = envelope({})
    spans = value["resourceSpans"][0]["scopeSpans"][0]["spans"]
    spans.append({**spans[0], "traceId": "", "spanId": "aaaaaaaaaaaaaaaa"})
    spans.append({**spans[0], "startTimeUnixNano": "soon"})
    narrator = '[{"role": "narrator", "content": "x"}]'
    spans.append({**spans[0], "attributes": [
        *spans[0]["attributes"], *pairs({"gen_ai.input.messages": narrator})]})  # fmt: skip

    rows = rows_of(value)

    assert [row.table for row in rows] == ["hops", "quarantine", "quarantine", "quarantine"]
    assert [row.values["reason"] for row in rows[1:]] == ["bad_record"] * 3
    mended = json.loads(rows[1].values["raw"])
    mended["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["traceId"] = TRACE
    assert [row.table for row in rows_as("otlp", mended)] == ["hops"]


@pytest.mark.parametrize("file", sorted(SPANS.glob("*.json*")), ids=lambda file: file.name)
def test_damaged_envelopes_give_rows_and_never_an_error(file: Path) -> None:
    text = file.read_text("utf-8")
    whole = json.loads(text) if file.suffix == ".json" else None
    items = whole if isinstance(whole, list) else [whole] if whole else lines(f"spans/{file.name}")
    format = "mlflow" if file.name == "mlflow.jsonl" else "openinference"

    for seed, item in enumerate(items[:4]):
        for value in damaged(item, seed, 30):
            rows = rows_as(format, value)
            for row in rows:
                assert row.table in (*TABLES, "skipped")
                if row.table in TABLES and row.table != "quarantine":
                    assert arrow_table(row.table, [row.values]).num_rows == 1


def test_metrics_between_spans_are_counted() -> None:
    assert reasons(rows_as("otlp", {"resourceMetrics": []})) == ["other_signal"]


def test_other_items_are_not_taken_for_ours() -> None:
    others = [{"messages": []}, {"attributes": {}, "context": "x"}, {"resourceSpans": {}}, [], None,
              {"request": {}, "response": {}}, {"info": {}, "data": {"spans": []}}]  # fmt: skip

    assert not any(otlp.recognises(value) for value in others)


def test_the_whole_published_file_has_four_calls(shared_data: Path) -> None:
    spans = json.loads(
        (shared_data / "openinference" / "vercel-v6-all-spans.json").read_text("utf-8")
    )
    rows = [row for span in spans for row in rows_of(span)]

    assert len(spans) == 10
    assert len(hops(rows)) == 4
    assert len(reasons(rows)) == 6
    assert all(hop["said"] and hop["completion"]["content"] for hop in hops(rows))
