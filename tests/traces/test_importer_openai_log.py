"""Proves the importer of OpenAI logs: requests and responses of three protocols, streams, errors.

The logged calls are written here after OpenAI's and NVIDIA's documents; the stream is a recording
(`tests/data`), and the whole set of TensorZero's recordings is read where `../shared` is at hand.
"""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from import_rows import DATA, decoded, hop_of, rows_as, rows_of
from logged_calls import ANSWERED, ASKED, WEATHER, logged
from trace_records import SHARED

from serving.records import NO_KEY, UNDATED
from traces.sources.detect import format_of

OPENAI = SHARED / "data" / "tensorzero" / "openai"


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


def test_a_logged_call_is_a_hop() -> None:
    hop = hop_of(logged())

    assert hop["said"][0]["content"] == "Weather in Paris?"
    assert hop["completion"]["content"] == "Rainy."
    assert (hop["model"], hop["served_name"]) == ("support", "support@v3")
    assert (hop["workload"], hop["user"]) == ("agent.chat", "aiva")
    assert (hop["prompt_tokens"], hop["completion_tokens"], hop["cached_tokens"]) == (9, 5, 4)
    assert (hop["finish_reason"], hop["response_id"]) == ("stop", "chatcmpl-1")
    assert (hop["params"], hop["tools"]) == ({"temperature": 0.2}, [WEATHER])
    assert hop["started_at"] == datetime(2025, 11, 29, 16, tzinfo=UTC)
    assert (hop["conversation_id"], hop.get("turn_id")) == (NO_KEY, None)


@pytest.mark.parametrize(
    "when",
    [
        1764432000, 1764432000.0, 1764432000000, 1764432000000000, 1764432000 * 10**9, "1764432000",
        "2025-11-29T16:00:00Z", "2025-11-29T17:00:00+01:00", "2025-11-29 16:00:00.000000",
    ],
)  # fmt: skip
def test_a_time_is_read_in_any_unit(when: Any) -> None:
    assert hop_of(logged(timestamp=when))["started_at"] == datetime(2025, 11, 29, 16, tzinfo=UTC)


def test_without_a_time_the_response_tells_and_else_nobody() -> None:
    undated = {k: v for k, v in ANSWERED.items() if k != "created"}

    told = hop_of(logged(timestamp=None))
    untold = hop_of({"request": ASKED, "response": undated})

    assert told["started_at"] == datetime.fromtimestamp(1764431999, UTC)
    assert (untold["started_at"], untold["seq"]) == (UNDATED, 0)
    assert (untold["user"], untold["workload"]) == (None, None)


def test_text_and_json_text_are_read_as_objects_are() -> None:
    texts = logged(request=json.dumps(logged()["request"]), response=json.dumps(ANSWERED))

    assert hop_of(texts) == hop_of(logged())


def test_the_session_a_caller_names_is_the_conversation() -> None:
    inside = {**ASKED, "metadata": {"session_id": "s1"}}

    assert hop_of(logged(session_id="s1"))["conversation_id"] == "s1"
    assert hop_of(logged(request=inside))["conversation_id"] == "s1"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"error": {"message": "too long", "code": 400}}, "400: too long"),
        ({"detail": "Not found"}, "Not found"),
        ({"object": "error", "message": "no engine", "code": 503}, "503: no engine"),
        ({"error": "busy"}, "busy"),
        (None, "no response"),
        ({}, "no response"),
        ("", "no response"),
    ],
)
def test_an_error_body_is_a_failed_call(body: Any, error: str) -> None:
    hop = hop_of(logged(response=body))

    assert (hop["status"], hop["error"], hop["completion"]) == ("engine_error", error, None)


def test_a_stream_may_be_text_lines_or_chunks() -> None:
    chunks = [chunk({"role": "assistant", "content": "Rai"}), chunk({"content": "ny."}, "stop")]
    events = [f"data: {json.dumps(c)}" for c in chunks] + ["data: [DONE]"]

    for body in (chunks, events, "\n\n".join(events)):
        hop = hop_of(logged(response=body))
        assert (hop["completion"]["content"], hop["status"]) == ("Rainy.", "ok")


def test_a_stream_that_was_cut_is_broken_and_keeps_its_text() -> None:
    hop = hop_of(logged(response=[chunk({"content": "Rai"})]))

    assert (hop["status"], hop["completion"]["content"]) == ("broken_stream", "Rai")


def test_legacy_completions_have_a_prompt_and_a_text() -> None:
    body = {"object": "text_completion", "choices": [{"text": " upon a time", "index": 0}]}
    pieces = ((" upon", None), (" a time", "stop"))
    streamed = [
        {"object": "text_completion", "choices": [{"text": text, "finish_reason": finish}]}
        for text, finish in pieces
    ]
    events = [f"data: {json.dumps(one)}\n" for one in streamed] + ["data: [DONE]\n"]

    for response in (body, streamed, "\n".join(events)):
        hop = hop_of(logged(request={"model": "m", "prompt": ["Once"]}, response=response))
        assert [m["content"] for m in hop["said"]] == ["Once"]
        assert hop["completion"]["content"] == " upon a time"
    tokens = hop_of(logged(request={"model": "m", "prompt": [1, 2, 3]}, response=body))
    assert (tokens["said"], tokens["prompt_token_ids"]) == ([], [1, 2, 3])


def test_the_responses_api_has_items() -> None:
    request = {
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        ],
        "tools": [{"type": "function", "name": "weather", "parameters": {"type": "object"}}],
    }
    text = {"type": "output_text", "text": "Rainy."}
    message = {"type": "message", "role": "assistant", "content": [text]}
    response = {"id": "resp_1", "object": "response", "model": "m", "status": "completed",
                "output": [{"type": "reasoning", "summary": []}, message],
                "usage": {"input_tokens": 9, "output_tokens": 5}}  # fmt: skip

    hop = hop_of(logged(request=request, response=response))
    events = [{"type": "response.completed", "response": response}]
    streamed = hop_of(logged(request=request, response=events))

    assert [m["role"] for m in hop["said"]] == ["system", "user", "assistant", "tool"]
    assert hop["said"][3]["tool_call_id"] == "c1"
    assert (hop["completion"]["content"], hop["finish_reason"]) == ("Rainy.", "stop")
    assert (hop["prompt_tokens"], hop["tools"][0]["function"]["name"]) == (9, "weather")
    assert streamed == hop


def test_anthropics_messages_are_read() -> None:
    call = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Paris"}}
    request = {
        "model": "m",
        "system": "Be brief.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Weather?"}]}],
        "tools": [{"name": "weather", "input_schema": {"type": "object"}}],
    }
    response = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m",
                "content": [{"type": "text", "text": "Let me look."}, call],
                "stop_reason": "tool_use", "usage": {"input_tokens": 9, "output_tokens": 5,
                "cache_read_input_tokens": 4}}  # fmt: skip

    hop = hop_of(logged(request=request, response=response))

    assert [m["content"] for m in hop["said"]] == ["Be brief.", "Weather?"]
    assert hop["completion"]["content"] == "Let me look."
    assert hop["completion"]["tool_calls"][0]["arguments"] == '{"city": "Paris"}'
    assert (hop["finish_reason"], hop["cached_tokens"]) == ("tool_calls", 4)
    assert hop["tools"][0]["function"]["name"] == "weather"


def test_a_response_alone_is_a_hop_without_messages() -> None:
    hop = hop_of(ANSWERED)

    assert (hop["said"], hop["model"], hop["completion"]["content"]) == ([], "support@v3", "Rainy.")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"request": {"model": "m", "prompt": ["a", "b"]}}, "many_prompts"),
        ({"request": {"messages": []}, "response": {"error": "x"}}, "no_model"),
        ({"response": {"rows": 3}}, "not_a_response"),
        ({"response": 'event: x\ndata: {"type": "message_start"}\n\n'}, "unknown_stream"),
        ({"request": {"model": "m", "query": "x"}}, "not_a_chat_call"),
        ({"timestamp": "yesterday"}, "bad_record"),
        ({"request": {**ASKED, "messages": [{"role": "wizard"}]}}, "bad_record"),
    ],
)
def test_what_is_no_call_is_quarantined_with_its_reason(
    changes: dict[str, Any], reason: str
) -> None:
    (row,) = rows_as("openai", logged(**changes))

    assert (row.table, row.values["reason"]) == ("quarantine", reason)


def test_a_batchs_output_and_stored_completions_are_responses_alone() -> None:
    batched = {"id": "b1", "custom_id": "c1", "error": None,
               "response": {"status_code": 200, "request_id": "r", "body": ANSWERED}}  # fmt: skip
    stored, broken = rows_of({"object": "list", "data": [ANSWERED, 3], "has_more": False})

    assert hop_of(batched) == decoded(stored) == hop_of(ANSWERED)
    assert (broken.table, json.loads(broken.values["raw"])["data"]) == ("quarantine", [3])


def test_a_custom_tools_input_is_its_arguments() -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "python", "input": "print(1)"}}
    body = {"choices": [{"message": {"role": "assistant", "tool_calls": [call]}}]}

    assert hop_of(logged(response=body))["completion"]["tool_calls"] == [
        {"id": "c1", "name": "python", "arguments": "print(1)"}
    ]


def test_an_embedding_is_counted() -> None:
    body = {"object": "list", "model": "e", "data": [{"embedding": [0.1]}]}

    (row,) = rows_as("openai", logged(request={"model": "e", "input": "a"}, response=body))

    assert (row.table, row.values) == ("skipped", {"reason": "call_without_text"})


def test_a_recorded_stream_gives_the_call_that_its_chunks_make_up() -> None:
    chunks = [json.loads(line) for line in (DATA / "openai_stream.jsonl").read_text().splitlines()]
    pieces = [
        call["function"]["arguments"]
        for c in chunks
        for call in c["choices"][0]["delta"].get("tool_calls") or ()
    ]

    hop = hop_of(chunks)

    assert format_of(chunks[0]) == "openai"
    assert (hop["status"], hop["finish_reason"]) == ("ok", "tool_calls")
    assert [c["arguments"] for c in hop["completion"]["tool_calls"]] == ["".join(pieces)]


@pytest.mark.skipif(not OPENAI.is_dir(), reason="needs ../shared")
@pytest.mark.parametrize("kind", ["example", "function_example", "json_example"])
def test_a_stream_reassembles_to_the_message_of_the_plain_form(kind: str) -> None:
    plain = json.loads((OPENAI / f"chat_completions_{kind}.json").read_text())
    text = (OPENAI / f"chat_completions_streaming_{kind}.jsonl").read_text()
    chunks = [json.loads(line) for line in text.splitlines()]
    plain["choices"][0]["message"] = joined([c["choices"][0]["delta"] for c in chunks])

    assert hop_of(chunks)["completion"] == hop_of(plain)["completion"]
    assert hop_of(chunks)["prompt_tokens"] == hop_of(plain)["prompt_tokens"] == 57


def joined(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """Put a stream of at most one tool call together, as simply as can be."""
    calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    functions = [call["function"] for call in calls]
    whole = {
        "id": "".join(call.get("id") or "" for call in calls),
        "type": "function",
        "function": {
            "name": "".join(f.get("name") or "" for f in functions),
            "arguments": "".join(f.get("arguments") or "" for f in functions),
        },
    }
    content = "".join(delta.get("content") or "" for delta in deltas)
    return {"role": "assistant", "content": content, "tool_calls": [whole] if calls else None}
