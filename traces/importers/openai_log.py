"""Importer of OpenAI request/response logs, as proxies and NVIDIA's Data Flywheel write them.

    {"request": {...}, "response": {...}, "timestamp": 1764432000,
     "client_id": "aiva", "workload_id": "agent.chat"}

Only `request` and `response` are needed. Also responses alone, streams as lists of their chunks,
a batch's output, and the API's list of stored completions: they tell what was answered but not
what was asked, so their hops have no messages. Such logs know no turns: the hop join finds them
from the histories and the tool calls.
Source: NVIDIA-AI-Blueprints/data-flywheel, "Data logging".
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from serving.records import NO_KEY, UNDATED, Hop, canonical_json
from traces.importers.cells import cell, mapping, micros, moment, number, text_cell
from traces.importers.chat_bodies import Asked, is_request, read_request, read_response
from traces.importers.messages import decoded
from traces.importers.rows import LineRefused, Row, hop_row, whole_or_refused

NAME = "openai"

_OBJECTS = ("chat.completion", "text_completion", "response", "chat.completion.chunk")
_SESSION = ("session_id", "conversation_id", "thread_id")
_TIMES = ("timestamp", "created_at", "time", "started_at")


def recognises(value: Any) -> bool:
    """Return whether an item is a logged call, a response, or a stream's chunks."""
    if isinstance(value, list):
        return bool(value) and all(_is_response(chunk) for chunk in value)
    if not isinstance(value, dict):
        return False
    if "request" in value and "response" in value:
        # A harness capture's engine calls have both too.
        return "path" not in value and is_request(decoded(value["request"]))
    return _is_response(value) or _is_batch_output(value) or _is_list(value)


def parse(value: Any) -> Iterable[Row]:
    """Turn a logged call, or each response of a list, into its row.

    Raises:
        LineRefused: if it is no call to a chat or completion model.
    """
    if isinstance(value, dict) and _is_list(value):
        for one in value["data"]:
            yield from whole_or_refused(partial(parse, one), {"object": "list", "data": [one]})
        return
    if isinstance(value, list) or "request" not in value:
        if not recognises(value):
            raise LineRefused("unknown_kind", "neither a logged call nor a response")
        if isinstance(value, dict) and _is_batch_output(value):
            value = value["response"]
        value = {"request": None, "response": value}
    response = decoded(value.get("response"))
    if isinstance(response, dict) and isinstance(response.get("data"), list):
        # Embeddings and images.
        yield Row("skipped", {"reason": "call_without_text"})
        return
    yield hop_row(_hop(value))


def _is_response(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("object") in _OBJECTS
        and ("choices" in value or "output" in value)
    )


def _is_batch_output(value: dict[str, Any]) -> bool:
    """Whether this is a line of what a batch gave back."""
    response = value.get("response")
    return "custom_id" in value and isinstance(response, dict) and "body" in response


def _is_list(value: dict[str, Any]) -> bool:
    data = value.get("data")
    return value.get("object") == "list" and isinstance(data, list) and any(map(_is_response, data))


def _hop(value: dict[str, Any]) -> Hop:
    bare = value["request"] is None
    asked = Asked(None, (), "[]", {}) if bare else read_request(value["request"])
    answered = read_response(value.get("response"))
    model = asked.model or answered.model
    if model is None:
        raise LineRefused("no_model", "neither request nor response names a model")
    started_at = moment(cell(value, *_TIMES)) or moment(answered.created) or UNDATED
    known = answered.fields()
    if asked.prompt_token_ids is not None:
        known["prompt_token_ids"] = asked.prompt_token_ids
    return Hop(
        source=NAME,
        conversation_id=_session(value) or answered.session or NO_KEY,
        user=text_cell(value, "client_id") or text_cell(asked.params, "user"),
        seq=micros(started_at),
        role="answer",
        model=model,
        messages=asked.messages,
        tools=asked.tools,
        params=canonical_json(asked.params),
        started_at=started_at,
        duration_s=max(0.0, number(value.get("duration_s")) or 0.0),
        workload=text_cell(value, "workload_id"),
        **known,
    )


def _session(value: dict[str, Any]) -> str | None:
    request = mapping(value["request"])
    places = (value, request, mapping(request.get("metadata")), mapping(value.get("metadata")))
    return next((found for place in places if (found := text_cell(place, *_SESSION))), None)
