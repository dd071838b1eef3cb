"""Proves the importer of MLflow on traces that MLflow 3.17 wrote (`tests/data/spans/mlflow.jsonl`).

An agent and a lone call over a stub API, traced by `mlflow.openai.autolog`, with assessments. The
older form and the rows of `search_traces` are made here from the same traces.
"""

import base64
import copy
import json
from typing import Any

from import_rows import decoded, lines, rows_of

from traces.importers.rows import Row
from traces.sources.detect import format_of

ALONE, AGENT = lines("spans/mlflow.jsonl")


def hops(value: Any) -> list[dict[str, Any]]:
    return [decoded(row) for row in rows_of(value) if row.table == "hops"]


def feedback(value: Any) -> list[Row]:
    return [row for row in rows_of(value) if row.table == "feedback"]


def skipped(value: Any) -> list[str]:
    return sorted(row.values["reason"] for row in rows_of(value) if row.table == "skipped")


def test_chat_model_spans_are_the_calls() -> None:
    found = hops(AGENT)

    assert len(found) == 5
    assert skipped(AGENT) == ["span_agent", "span_embeddings"]
    first, second, streamed, failed, items = found
    assert [m["content"] for m in first["said"]] == ["You help.", "Weather in Paris?"]
    assert first["completion"]["tool_calls"][0]["arguments"] == '{"city": "Paris"}'
    assert (first["model"], first["served_name"]) == ("support", "support@3fa9c1d2e4b5")
    assert (first["prompt_tokens"], first["completion_tokens"], first["cached_tokens"]) == (
        19,
        5,
        8,
    )
    assert first["params"] == {"max_tokens": 50, "temperature": 0.2}
    assert first["tools"][0]["function"]["name"] == "get_weather"
    assert [m["role"] for m in second["said"]] == ["system", "user", "assistant", "tool"]
    assert 0 < streamed["ttft_s"] < streamed["duration_s"]
    assert (failed["status"], failed["completion"]) == ("engine_error", None)
    assert failed["error"] == "InternalServerError: Error code: 500 - engine exploded"
    assert [m["content"] for m in items["said"]] == ["You help.", "Weather in Rome?"]
    assert items["reasoning"] == "Thinking about rain."


def test_ids_are_hex_and_session_and_user_the_traces() -> None:
    (hop,) = hops(ALONE)

    assert hop["turn_id"] == "mlflow:" + ALONE["info"]["trace_id"].removeprefix("tr-")
    assert hop["span_id"] == "407b4fd10b6518c1"
    assert hop["conversation_id"] == hop["turn_id"].removeprefix("mlflow:")
    assert {(h["conversation_id"], h["user"]) for h in hops(AGENT)} == {("s1", "u1")}


def test_only_assessments_in_force_are_feedback() -> None:
    thumb, expected = feedback(ALONE)
    (judged,) = feedback(AGENT)
    turn = ("turn", "mlflow:" + ALONE["info"]["trace_id"].removeprefix("tr-"))

    assert (thumb.values["target_kind"], thumb.values["target_id"]) == turn
    assert (thumb.values["kind"], thumb.values["value"], thumb.values["annotator"]) == (
        "thumb", 1.0, "human",
    )  # fmt: skip
    assert (thumb.values["detail"], thumb.values["user"]) == ("oh it was right", "u1")
    assert (expected.values["kind"], expected.values["value"]) == ("comment", None)
    assert expected.values["correction"]["content"] == "Rainy in Paris"
    assert (judged.values["kind"], judged.values["annotator"]) == ("verifier", "model")
    assert skipped(ALONE) == ["assessment_overridden"]


def test_an_assessment_of_a_span_is_about_its_call() -> None:
    value = copy.deepcopy(AGENT)
    root, call = value["data"]["spans"][:2]
    told = {"assessment_name": "thumbs", "source": {"source_type": "HUMAN"},
            "feedback": {"value": "no"}, "create_time": "2026-11-30T00:58:14Z"}  # fmt: skip
    value["info"]["assessments"] = [{**told, "span_id": span["span_id"]} for span in (root, call)]

    on_root, on_call = feedback(value)

    assert on_root.values["target_kind"] == "turn"
    assert (on_call.values["target_kind"], on_call.values["target_id"]) == (
        "response", hops(value)[0]["span_id"],
    )  # fmt: skip
    assert on_call.values["value"] == -1.0


def test_a_wrapper_around_a_models_span_is_no_second_call() -> None:
    value = copy.deepcopy(AGENT)
    value["data"]["spans"][0]["attributes"]["mlflow.spanType"] = '"CHAT_MODEL"'

    assert len(hops(value)) == 5
    assert skipped(value) == ["span_agent", "span_embeddings"]


def test_older_forms_tell_of_the_same_calls() -> None:
    value = copy.deepcopy(AGENT)
    info = value["info"]
    old = {
        "info": {"request_id": info["trace_id"], "timestamp_ms": 1, "status": "OK",
                 "request_metadata": info["trace_metadata"], "tags": info["tags"]},
        "data": {"spans": [], "request": "{}", "response": "{}"},
    }  # fmt: skip
    for span in value["data"]["spans"]:
        hop = next((h for h in hops(AGENT) if h["span_id"] == _hex(span["span_id"])), None)
        context = {
            "span_id": "0x" + _hex(span["span_id"]),
            "trace_id": "0x" + _hex(span["trace_id"]),
        }
        old["data"]["spans"].append(
            {"name": span["name"], "context": context, "parent_id": None,
             "start_time": span["start_time_unix_nano"], "end_time": span["end_time_unix_nano"],
             "status_code": span["status"]["code"].removeprefix("STATUS_CODE_"),
             "status_message": "", "attributes": span["attributes"], "events": span["events"]}
        )  # fmt: skip
        assert hop is None or hop["turn_id"].endswith(_hex(span["trace_id"]))
    about = json.dumps(info["trace_metadata"])
    row = {"trace_id": info["trace_id"], "trace_metadata": about,
           "tags": json.dumps(info["tags"]), "assessments": json.dumps(info["assessments"]),
           "spans": json.dumps(value["data"]["spans"]), "request": "cut"}  # fmt: skip
    text = {"trace": json.dumps(AGENT), "trace_id": info["trace_id"]}

    wanted = [hop["hop_id"] for hop in hops(AGENT)]
    for form in (old, row, text):
        assert format_of(form) == "mlflow"
        assert [hop["hop_id"] for hop in hops(form)] == wanted


def test_a_bad_span_or_assessment_is_set_aside_alone() -> None:
    value = copy.deepcopy(AGENT)
    value["data"]["spans"][1]["attributes"]["mlflow.spanInputs"] = '{"messages": [{"role": "x"}]}'
    value["info"]["assessments"].append({"source": None, "feedback": {"value": True}})

    rows = [row for row in rows_of(value) if row.table == "quarantine"]

    assert len(hops(value)) == 4
    assert [row.values["reason"] for row in rows] == ["bad_record", "bad_record"]
    assert len(json.loads(rows[0].values["raw"])["data"]["spans"]) == 1
    assert format_of(json.loads(rows[1].values["raw"])) == "mlflow"


def test_previews_are_never_read() -> None:
    value = copy.deepcopy(ALONE)
    value["info"]["request_preview"] = value["info"]["response_preview"] = "PREVIEW"
    value["info"]["trace_metadata"]["mlflow.traceInputs"] = "PREVIEW"

    assert "PREVIEW" not in str(rows_of(value))


def _hex(text: str) -> str:
    return base64.b64decode(text).hex()
