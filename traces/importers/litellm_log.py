"""Importer of LiteLLM's `StandardLoggingPayload`, one object a call, and of its spend logs.

A call is a hop. Text that the proxy redacted is left out: such a hop still tells latency, tokens
and cost. Calls that ask no model for text (embeddings, files, images) are counted and skipped.
`trace_id` may be one call's, one request's with its retries, or a whole session's, as the client
says; so turns are left to the hop join, and the session's id, else the trace's, is the key.
Source: litellm 1.108, `litellm/types/utils.py`.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from serving.records import NO_KEY, Hop, canonical_json
from traces.importers.cells import (
    cell,
    items,
    mapping,
    micros,
    moment,
    number,
    seconds_between,
    text_cell,
)  # fmt: skip
from traces.importers.chat_bodies import Answered, read_request, read_response
from traces.importers.messages import decoded, read_usage
from traces.importers.rows import LineRefused, Row, hop_row

NAME = "litellm"

_OWN = ("model_group", "call_type", "litellm_call_id", "model_map_information")
_CHAT = (
    "completion", "text_completion", "responses", "anthropic_messages", "generate_content",
    "generate_content_stream", "pass_through_endpoint", "realtime",
)  # fmt: skip
_REDACTED = "redacted-by-litellm"
_FACTS = ("call_type", "custom_llm_provider", "model_id", "cache_hit", "routing_decision")


def recognises(value: Any) -> bool:
    """Return whether an item is a payload of LiteLLM's logging."""
    return (
        isinstance(value, dict)
        and "startTime" in value
        and "model" in value
        and any(name in value for name in _OWN)
    )


def parse(value: Any) -> Iterable[Row]:
    """Turn a payload into its row.

    Raises:
        LineRefused: if it names no model or no time.
    """
    if not recognises(value):
        raise LineRefused("unknown_kind", "no LiteLLM payload: it has no startTime and model")
    kind = str(value.get("call_type") or "completion")
    if not _is_chat(kind):
        yield Row("skipped", {"reason": f"call_{kind}"})
        return
    yield hop_row(_hop(value))


def _is_chat(kind: str) -> bool:
    """Whether calls of this type ask a model for text; LiteLLM marks asynchronous ones by an a."""
    name = kind.removeprefix("_")
    return name in _CHAT or name.removeprefix("a") in _CHAT


def _hop(value: dict[str, Any]) -> Hop:
    model = text_cell(value, "model_group", "model")
    if model is None:
        raise LineRefused("no_model", "the payload names no model")
    started_at = moment(value["startTime"])
    if started_at is None:
        raise LineRefused("no_time", "startTime is empty")
    metadata = mapping(value.get("metadata"))
    # Spend logs keep the request's own body instead of parameters and, by default, of messages.
    body = mapping(value.get("proxy_server_request"))
    parameters = mapping(cell(value, "model_parameters", "modelParameters")) or body
    messages = _messages(value.get("messages")) or _messages(cell(body, "messages", "input"))
    asked = read_request({**parameters, "messages": messages})
    answered = _answered(value)
    known = {**answered.fields(), **_tokens(value, metadata, answered)}
    known["response_id"] = answered.response_id or text_cell(value, "id", "request_id")
    known["served_name"] = _served(text_cell(value, "model"), answered.model)
    ended_at = moment(cell(value, "endTime"))
    first_at = moment(cell(value, "completionStartTime"))
    streamed = value.get("stream") or parameters.get("stream")
    return Hop(
        source=NAME,
        conversation_id=text_cell(value, "session_id", "trace_id") or NO_KEY,
        user=_user(value, metadata),
        seq=micros(started_at),
        role="answer",
        model=model,
        messages=asked.messages,
        tools=asked.tools,
        params=canonical_json({**asked.params, **_facts(value)}),
        started_at=started_at,
        duration_s=seconds_between(started_at, ended_at) or 0.0,
        ttft_s=seconds_between(started_at, first_at) if streamed else None,
        span_id=text_cell(value, "litellm_call_id", "id", "request_id"),
        workload=_workload(value),
        **known,
    )


def _messages(value: Any) -> Any:
    """Return the messages without those whose text was redacted."""
    value = decoded(value)
    if value in (_REDACTED, {}):
        return []
    if not isinstance(value, list):
        return value or []
    return [m for m in value if not (isinstance(m, dict) and m.get("content") == _REDACTED)]


def _answered(value: dict[str, Any]) -> Answered:
    if value.get("status") == "failure":
        return Answered(status="engine_error", error=_error(value))
    response = decoded(value.get("response"))
    if not response or response == _REDACTED or response == {"text": _REDACTED}:
        return Answered()
    if isinstance(response, dict) and len(response) == 1:
        # What a pass-through endpoint or a guardrail gave back.
        response = next((response[n] for n in ("text", "response") if n in response), response)
    answered = read_response(response)
    completion = answered.completion
    if completion is not None and completion.content == _REDACTED:
        return replace(answered, completion=None, reasoning=None)
    return answered


def _error(value: dict[str, Any]) -> str:
    told = mapping(value.get("error_information"))
    told = told or mapping(mapping(value.get("metadata")).get("error_information"))
    message = text_cell(told, "error_message") or text_cell(value, "error_str") or "failure"
    words = [word for name in ("error_code", "error_class") if (word := text_cell(told, name))]
    return f"{' '.join(words)}: {message}" if words else message


def _tokens(
    value: dict[str, Any], metadata: dict[str, Any], answered: Answered
) -> dict[str, int | None]:
    if answered.status != "ok":
        return {}
    told = (read_usage(value), answered.usage, read_usage(metadata.get("usage_object")))
    names = ("prompt_tokens", "completion_tokens", "cached_tokens")
    counts = {name: [getattr(usage, name) for usage in told] for name in names}
    return {name: next((n for n in found if n is not None), None) for name, found in counts.items()}


def _served(model: str | None, answered: str | None) -> str | None:
    """Return the name that bears a version, if one does, else the deployment's."""
    versions = [name for name in (answered, model) if name is not None and "@" in name]
    return versions[0] if versions else model or answered


def _user(value: dict[str, Any], metadata: dict[str, Any]) -> str | None:
    names = ("user_api_key_end_user_id", "user_api_key_user_id", "user_api_key_user_email")
    return text_cell(value, "end_user") or text_cell(metadata, *names) or text_cell(value, "user")


def _workload(value: dict[str, Any]) -> str | None:
    """Return the caller's first tag; the proxy itself adds the client's user agent as one."""
    tags = [str(tag) for tag in items(value.get("request_tags"))]
    return next((tag for tag in tags if not tag.startswith("User-Agent:")), None)


def _facts(value: dict[str, Any]) -> dict[str, Any]:
    """Return what LiteLLM tells of the call beside its parameters, under its name."""
    told = {name: value[name] for name in _FACTS if cell(value, name) is not None}
    cost = number(cell(value, "response_cost", "spend"))
    if cost is not None:
        told["response_cost"] = cost
    tags = items(value.get("request_tags"))
    if tags:
        told["request_tags"] = tags
    return {"litellm": told} if told else {}
