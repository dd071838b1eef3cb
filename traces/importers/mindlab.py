"""Importer of a capture of Mind Lab's MoL harness.

A folder of three JSON-lines files, each usable alone:
`hops.jsonl`, every engine call (request, allowed headers, response or raw SSE);
`turns.jsonl`, what the client sent and got, with the harness's `mol_*` metadata;
`feedback.jsonl`, signals by `response_id`. Lines are told apart one by one.

A hop row follows from its line alone, so that a shuffled or split capture gives
the same rows; which turn it belongs to is found by `traces.joins.join`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from serving.hop_role import KEY_HEADER, ROLE_HEADER, role_of_hop
from serving.records import (
    NO_KEY,
    Feedback,
    FeedbackKind,
    Hop,
    HopStatus,
    Message,
    TargetKind,
    canonical_json,
    content_id,
    utc_from_timestamp,
)
from serving.sse import reassemble
from traces.importers.rows import LineRefused, Row, checked_duration, feedback_row, hop_row

NAME = "mindlab"
SOURCE = "mindlab-harness"

_TARGETS: tuple[tuple[str, TargetKind], ...] = (
    ("response_id", "response"),
    ("turn_id", "turn"),
    ("conversation_id", "conversation"),
)
_SIGNALS = ("verifier", "thumb", "edit", "retry", "comment")


def recognises(value: Any) -> bool:
    """Return whether an item looks like one of a capture's lines."""
    return isinstance(value, dict) and (_is_hop(value) or _is_feedback(value) or _is_request(value))


def parse(value: Any, summary_prompt: str | None = None) -> Iterator[Row]:
    """Turn a decoded line into a row.

    `summary_prompt` is the text that asks for a summary, where the profile is at hand.

    Raises:
        LineRefused: if it is none of the three kinds, or a call that is not a chat.
        ValueError: if a field is not what it should be.
    """
    if _is_hop(value):
        yield hop_row(_hop(value, summary_prompt))
    elif _is_feedback(value):
        yield feedback_row(_feedback(value))
    elif _is_request(value):
        _duration_s(value)  # the join counts with it
        yield Row(
            "requests",
            {
                "request_id": content_id(value),
                "source": SOURCE,
                "started_at": utc_from_timestamp(float(value["ts"])),
                "body": canonical_json(value),
            },
        )
    else:
        raise LineRefused("unknown_kind", "neither an engine call, a client request nor feedback")


def summary_prompt(folder: Path) -> str | None:
    """Return the text that asks for a summary, from the profile beside a capture."""
    file = folder / "profile" / "summary.md"
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _is_hop(record: dict[str, Any]) -> bool:
    return "ts" in record and "request_headers" in record and "path" in record


def _is_feedback(record: dict[str, Any]) -> bool:
    return "ts" in record and "kind" in record and any(name in record for name, _ in _TARGETS)


def _is_request(record: dict[str, Any]) -> bool:
    return "ts" in record and "path" in record and ("request" in record or "note" in record)


def _hop(record: dict[str, Any], prompt: str | None) -> Hop:
    request = record.get("request")
    if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
        raise LineRefused("not_a_chat_call", f"{record.get('path')!r} has no messages")
    headers = {str(k).lower(): v for k, v in (record["request_headers"] or {}).items()}
    messages = tuple(Message.from_openai(m) for m in request["messages"])
    answer = _answer(record)
    usage = answer.pop("usage")
    apart = {"model", "messages", "tools"}
    params = {k: v for k, v in request.items() if k not in apart}
    reasoning = answer.pop("reasoning")
    if reasoning:
        params["response_reasoning"] = reasoning
    ts = float(record["ts"])
    return Hop(
        source=SOURCE,
        conversation_id=str(headers.get(KEY_HEADER) or NO_KEY),
        user=request.get("user"),
        seq=int(record.get("seq") or ts * 1_000_000),
        role=role_of_hop(headers.get(ROLE_HEADER), request, messages, prompt),
        model=str(request["model"]),
        messages=messages,
        tools=canonical_json(request.get("tools") or []),
        params=canonical_json(params),
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        started_at=utc_from_timestamp(ts),
        duration_s=_duration_s(record),
        ttft_s=record.get("ttft_s"),
        **answer,
    )


def _duration_s(record: dict[str, Any]) -> float:
    return checked_duration("duration_s", record.get("duration_s") or 0.0)


def _answer(record: dict[str, Any]) -> dict[str, Any]:
    """Return the response's share of a hop's fields, and `usage` and `reasoning`."""
    status = record.get("status")
    response = record.get("response")
    if isinstance(status, int) and status >= 400:
        return _failed("engine_error", f"{status} {error_text(response)}")
    if record.get("sse") is not None:
        return _streamed(record["sse"])
    if not isinstance(response, dict) or not response.get("choices"):
        why = record.get("error") or error_text(response)
        gone = record.get("status") is None or record.get("error") is not None
        return _failed("engine_error", f"no response: {why}" if gone else f"no choices: {why}")
    choice = response["choices"][0]
    raw = choice.get("message") or {}
    return {
        "served_name": response.get("model"),
        "completion": Message.from_openai(raw),
        "response_id": response.get("id"),
        "finish_reason": choice.get("finish_reason"),
        "status": "ok",
        "error": None,
        "usage": response.get("usage") or {},
        "reasoning": raw.get("reasoning") or raw.get("reasoning_content"),
        "prompt_token_ids": response.get("prompt_token_ids"),
        "completion_token_ids": choice.get("token_ids"),
    }


def _streamed(raw: Any) -> dict[str, Any]:
    stream = reassemble(raw)
    message = stream.message()
    return {
        "served_name": stream.model,
        "completion": Message.from_openai(message) if message else None,
        "response_id": stream.response_id,
        "finish_reason": stream.finish_reason,
        "status": "broken_stream" if stream.broken else "ok",
        "error": stream.broken,
        "usage": stream.usage,
        "reasoning": stream.reasoning,
    }


def _failed(status: HopStatus, error: str) -> dict[str, Any]:
    return {"status": status, "error": error, "usage": {}, "reasoning": None}


def error_text(response: Any) -> str:
    """Return an OpenAI error body in one line."""
    error = response.get("error") if isinstance(response, dict) else response
    if isinstance(error, dict):
        code = error.get("code") or error.get("type") or ""
        return f"{code}: {error.get('message') or ''}".strip(": ")
    return str(error or "no body")


def _feedback(record: dict[str, Any]) -> Feedback:
    target = next((pair for pair in _TARGETS if record.get(pair[0])), None)
    if target is None:
        raise LineRefused("bad_record", "feedback names no response, turn or conversation")
    name, target_kind = target
    kind = str(record["kind"])
    if kind not in _SIGNALS:
        raise LineRefused("unknown_kind", f"feedback kind {kind!r} is none of {_SIGNALS}")
    value = record.get("value")
    correction = record.get("correction")
    if isinstance(correction, str):
        correction = {"role": "assistant", "content": correction}
    return Feedback(
        source=SOURCE,
        target_kind=target_kind,
        target_id=str(record[name]),
        kind=cast(FeedbackKind, kind),
        name=str(record.get("name") or kind),
        value=None if value is None else float(value),
        correction=Message.from_openai(correction) if correction else None,
        detail=record.get("detail") or record.get("text"),
        user=record.get("user"),
        created_at=utc_from_timestamp(float(record["ts"])),
    )
