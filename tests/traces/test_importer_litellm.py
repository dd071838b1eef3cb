"""Proves the importer of LiteLLM's logs on what LiteLLM itself wrote (`tests/data/litellm.jsonl`).

Spend logs and pass-through bodies are written here after LiteLLM's types.
"""

from typing import Any

import pytest
from import_rows import hop_of, lines, rows_of

CALLS = lines("litellm.jsonl")
TAGGED, CALLING, ANSWERING, FAILED, REDACTED, STREAMED, LEGACY, EMBEDDING, RESPONSES = CALLS


def test_a_payload_is_a_hop() -> None:
    hop = hop_of(TAGGED)

    assert [m["content"] for m in hop["said"]] == ["Be brief.", "Weather in Paris?"]
    assert hop["completion"]["content"] == "Rainy, 14 C."
    assert (hop["model"], hop["served_name"]) == ("support@v3", "support@v3")
    assert (hop["user"], hop["workload"], hop["conversation_id"]) == ("alice", "eval", "s-1")
    assert (hop["prompt_tokens"], hop["completion_tokens"]) == (10, 20)
    assert hop["response_id"] == TAGGED["response"]["id"]
    assert hop["span_id"] == TAGGED["litellm_call_id"]
    assert hop["started_at"].timestamp() == pytest.approx(TAGGED["startTime"], abs=1e-6)
    assert hop["duration_s"] == pytest.approx(TAGGED["endTime"] - TAGGED["startTime"], abs=2e-6)
    assert hop["ttft_s"] is None
    assert hop["tools"] == TAGGED["model_parameters"]["tools"]
    assert hop["params"]["temperature"] == 0.2
    assert hop["params"]["litellm"]["response_cost"] == 0.0


def test_the_cost_and_the_calls_kind_are_kept() -> None:
    hop = hop_of(LEGACY)

    assert hop["completion"]["content"] == " upon a time"
    assert hop["params"]["litellm"]["call_type"] == "text_completion"
    assert hop["params"]["litellm"]["response_cost"] == LEGACY["response_cost"] > 0


def test_a_streams_first_token_is_timed() -> None:
    hop = hop_of(STREAMED)

    assert hop["completion"]["content"] == "one two three"
    assert 0 < hop["ttft_s"] < hop["duration_s"]


def test_an_agents_calls_carry_the_tool_call_from_one_to_the_next() -> None:
    first, second = hop_of(CALLING), hop_of(ANSWERING)

    assert first["completion"]["tool_calls"] == second["said"][1]["tool_calls"]
    assert second["said"][2]["tool_call_id"] == first["completion"]["tool_calls"][0]["id"]
    assert first["conversation_id"] == second["conversation_id"] == "s-1"


def test_a_failure_says_why() -> None:
    hop = hop_of(FAILED)

    assert hop["status"] == "engine_error"
    assert hop["error"].startswith("429 RateLimitError: ")
    assert (hop["completion"], hop["prompt_tokens"]) == (None, None)


@pytest.mark.parametrize(
    ("messages", "response"),
    [
        (REDACTED["messages"], REDACTED["response"]),
        ("redacted-by-litellm", {"text": "redacted-by-litellm"}),
        ("redacted-by-litellm", "redacted-by-litellm"),
        ({}, {}),
    ],
)
def test_a_redacted_call_keeps_its_numbers_and_no_text(messages: Any, response: Any) -> None:
    hop = hop_of({**REDACTED, "messages": messages, "response": response})

    assert (hop["said"], hop["completion"], hop["status"]) == ([], None, "ok")
    assert (hop["prompt_tokens"], hop["completion_tokens"]) == (10, 20)


def test_an_embedding_is_counted_and_skipped() -> None:
    (row,) = rows_of(EMBEDDING)

    assert (row.table, row.values) == ("skipped", {"reason": "call_embedding"})


def test_a_response_of_the_responses_api_is_read() -> None:
    assert hop_of(RESPONSES)["completion"]["content"] == "Hello there"


def test_the_group_is_what_was_asked_and_the_version_what_answered() -> None:
    grouped = {**TAGGED, "model_group": "support", "model": "hosted/support"}
    versioned = {**grouped, "response": {**TAGGED["response"], "model": "support@v3"}}

    assert (hop_of(grouped)["model"], hop_of(versioned)["served_name"]) == ("support", "support@v3")


def test_a_spend_log_tells_of_the_request_in_its_body_and_of_the_error_beside_it() -> None:
    body = {**TAGGED["model_parameters"], "model": "support", "messages": TAGGED["messages"]}
    stored = {"messages": {}, "model_parameters": None, "proxy_server_request": body}
    why = {"error_code": "429", "error_class": "RateLimitError", "error_message": "slow down"}
    failed = {**FAILED, "error_information": None, "metadata": {"error_information": why}}

    hop = hop_of({**TAGGED, **stored})

    assert (hop["said"], hop["tools"]) == (hop_of(TAGGED)["said"], hop_of(TAGGED)["tools"])
    assert hop["params"]["temperature"] == 0.2
    assert hop_of(failed)["error"] == "429 RateLimitError: slow down"


def test_an_early_payload_counts_its_tokens_in_the_response() -> None:
    told = ("id", "call_type", "model", "startTime", "endTime", "messages", "response", "metadata")
    early = {k: TAGGED[k] for k in told} | {"modelParameters": TAGGED["model_parameters"]}
    early["response"] = {**early["response"], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}

    hop = hop_of(early)

    assert (hop["prompt_tokens"], hop["completion_tokens"]) == (3, 4)
    assert hop["params"]["temperature"] == 0.2


def test_a_spend_log_is_the_same_call() -> None:
    row = {k: TAGGED[k] for k in ("call_type", "model", "messages", "response", "startTime")}
    row |= {"request_id": TAGGED["id"], "endTime": "2026-11-30 00:48:16.725848",
            "startTime": "2026-11-30T00:48:16.626493", "spend": 0.25, "end_user": "alice",
            "prompt_tokens": 10, "completion_tokens": 20, "session_id": "s-1",
            "model_group": "", "request_tags": '["User-Agent: x", "eval"]'}  # fmt: skip

    hop, same = hop_of(row), hop_of(TAGGED)

    for name in ("said", "completion", "started_at", "user", "workload", "conversation_id"):
        assert hop[name] == same[name]
    assert hop["duration_s"] == pytest.approx(same["duration_s"], abs=1e-6)
    assert hop["params"]["litellm"]["response_cost"] == 0.25
