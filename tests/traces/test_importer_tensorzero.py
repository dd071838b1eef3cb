"""Proves the importer of TensorZero's tables: inferences, the four feedbacks, dataset rows.

Dataset rows are TensorZero's own (`tests/data/tensorzero.jsonl`, all 41 where `../shared` is at
hand); the other tables' rows are written here after its data model.
"""

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from import_rows import decoded, hop_of, lines, rows_of
from logged_calls import CALL, EPISODE, SIGNAL, chat
from trace_records import SHARED

FIXTURE = SHARED / "data" / "tensorzero" / "chat_datapoint_fixture.jsonl"
AT = datetime.fromtimestamp(int("019a60000000", 16) / 1000, UTC)


def feedback_of(row: dict[str, Any]) -> dict[str, Any]:
    (made,) = rows_of(row)
    assert made.table == "feedback", made.values
    return decoded(made)


def test_a_chat_inference_is_a_hop_of_its_episodes_turn() -> None:
    hop = hop_of(chat())

    assert [m["role"] for m in hop["said"]] == ["system", "user", "assistant", "tool"]
    assert hop["said"][2]["tool_calls"][0]["arguments"] == '{"city":"Paris"}'
    assert (hop["said"][3]["content"], hop["said"][3]["tool_call_id"]) == ("rain", "c1")
    assert (hop["completion"]["content"], hop["reasoning"]) == ("Rainy.", "Rain.")
    assert (hop["model"], hop["served_name"]) == ("support", "support_v3")
    assert (hop["turn_id"], hop["conversation_id"]) == (f"tensorzero:{EPISODE}", EPISODE)
    assert hop["response_id"] == CALL
    assert (hop["started_at"], hop["duration_s"], hop["ttft_s"]) == (AT, 1.5, 0.25)
    assert (hop["user"], hop["params"]) == ("u1", {"temperature": 0.5, "tool_choice": "auto"})
    assert hop["tools"][0]["function"]["name"] == "weather"


def test_the_gateways_listing_is_the_same_call() -> None:
    stored = chat()
    listed = {k: v for k, v in stored.items() if k not in ("id", "dynamic_tools", "tags")}
    listed |= {
        "inference_id": CALL, "type": "chat", "timestamp": "2025-11-07T22:00:00Z",
        "input": json.loads(stored["input"]), "output": json.loads(stored["output"]),
        "inference_params": json.loads(stored["inference_params"]), "tags": {"user_id": "u1"},
        "additional_tools": [json.loads(stored["dynamic_tools"][0])], "tool_choice": "auto",
    }  # fmt: skip

    assert hop_of(listed) == hop_of(stored)


def test_a_call_of_a_tool_may_be_raw() -> None:
    call = {"type": "tool_call", "id": "c1", "name": None, "arguments": None,
            "raw_name": "weather", "raw_arguments": '{"city"'}  # fmt: skip

    (made,) = hop_of(chat(output=json.dumps([call])))["completion"]["tool_calls"]

    assert made == {"id": "c1", "name": "weather", "arguments": '{"city"'}


def test_a_json_inference_answers_with_its_raw_text() -> None:
    schema = {"type": "object"}
    row = chat(output='{"raw": "{\\"a\\": 1}", "parsed": {"a": 1}}', output_schema=schema)

    assert hop_of(row)["completion"]["content"] == '{"a": 1}'
    assert hop_of(row)["params"]["output_schema"] == schema
    assert hop_of(chat(output={"raw": None, "parsed": {"a": 1}}))["completion"]["content"] == (
        '{"a": 1}'
    )
    assert hop_of(chat(output={"raw": None, "parsed": None}))["completion"] is None


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "template", "name": "user", "arguments": {"a": 1}}], '[template user {"a":1}]'),
        ([{"type": "text", "value": {"a": 1}}], '[template {"a":1}]'),
        ({"a": 1}, '[template {"a":1}]'),
        ([{"type": "raw_text", "value": "Hi"}], "Hi"),
        ("Hi", "Hi"),
    ],
)
def test_content_of_any_age_is_read(content: Any, text: str) -> None:
    asked = {"messages": [{"role": "user", "content": content}]}

    assert hop_of(chat(input=json.dumps(asked)))["said"][0]["content"] == text


@pytest.mark.parametrize(
    ("metric", "value", "kind", "judged"),
    [
        ("thumbs_up", False, "thumb", -1.0),
        ("task_success", True, "verifier", 1.0),
        ("task_success", "0", "verifier", 0.0),
        ("quality", 0.25, "verifier", 0.25),
        ("seconds", 12.5, "comment", None),
    ],
)
def test_a_metric_judges_its_call(metric: str, value: Any, kind: str, judged: Any) -> None:
    row = {"id": SIGNAL, "target_id": CALL, "metric_name": metric, "value": value, "tags": {}}

    made = feedback_of(row)

    assert (made["target_kind"], made["target_id"]) == ("response", CALL)
    assert (made["kind"], made["name"], made["value"]) == (kind, metric, judged)
    assert made["created_at"] > AT


def test_what_an_evaluator_measured_is_a_models_verdict() -> None:
    tags = [["tensorzero::evaluator_name", "judge"]]
    row = {"id": SIGNAL, "target_id": CALL, "metric_name": "good", "value": 1.0, "tags": tags}

    assert feedback_of(row)["annotator"] == "model"


def test_a_comment_and_a_demonstration() -> None:
    comment = {"id": SIGNAL, "target_id": EPISODE, "target_type": "episode", "value": "slow"}
    shown = {"id": SIGNAL, "inference_id": CALL, "value": '[{"type":"text","text":"Sunny."}]'}

    told, edit = feedback_of(comment), feedback_of(shown)

    assert (told["kind"], told["detail"]) == ("comment", "slow")
    assert (told["target_kind"], told["target_id"]) == ("conversation", EPISODE)
    assert (edit["kind"], edit["correction"]["content"]) == ("edit", "Sunny.")
    assert (edit["target_kind"], edit["target_id"]) == ("response", CALL)


def test_a_listed_demonstration_is_an_edit_of_the_answer_that_was_given() -> None:
    shown, given = [{"type": "text", "text": "Sunny."}], [{"type": "text", "text": "Rainy."}]

    hop, edit = rows_of(chat(output=shown, dispreferred_outputs=[given]))

    assert decoded(hop)["completion"]["content"] == "Rainy."
    assert decoded(edit)["correction"]["content"] == "Sunny."


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"id": CALL, "inference_id": CALL, "raw_request": "", "raw_response": "{}",
          "model_name": "m", "model_provider_name": "p"}, "model_inference"),
        ({"batch_id": "b", "id": CALL, "batch_params": "{}", "function_name": "f",
          "variant_name": "v", "input": "{}"}, "batch_request"),
        ({**chat(), "variant_name": "v", "namespace": "n", "embedding": [0.1]},
         "dynamic_in_context_learning_example"),
    ],
)  # fmt: skip
def test_rows_of_other_tables_are_counted(row: dict[str, Any], reason: str) -> None:
    assert [(r.table, r.values) for r in rows_of(row)] == [("skipped", {"reason": reason})]


def test_dataset_rows_with_an_output_are_hops() -> None:
    empty, haiku, picture = lines("tensorzero.jsonl")

    assert [r.values for r in rows_of(empty)] == [{"reason": "datapoint_without_output"}]
    assert hop_of(haiku)["said"][0]["content"] == '[template user {"topic":"probability"}]'
    assert "Chance whispers softly" in hop_of(haiku)["completion"]["content"]
    assert hop_of(picture)["said"][0]["content"].startswith(
        "What kind of animal is in this image?[image image/png https://"
    )
    assert [r.values for r in rows_of({**haiku, "is_deleted": "true"})] == [
        {"reason": "datapoint_deleted"}
    ]


@pytest.mark.skipif(not FIXTURE.is_file(), reason="needs ../shared")
def test_every_row_of_the_fixture_ends_somewhere() -> None:
    rows = [json.loads(line) for line in FIXTURE.read_text().splitlines()]
    answered = sum(row["output"] is not None for row in rows)

    made = Counter((r.table, r.values.get("reason")) for row in rows for r in rows_of(row))

    assert made == {
        ("hops", None): answered,
        ("skipped", "datapoint_without_output"): len(rows) - answered,
    }
