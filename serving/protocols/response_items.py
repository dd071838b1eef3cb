"""The objects of the responses protocol: a response and the items of its output."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from serving.exchange import Ask, Reply

Status = Literal["in_progress", "completed", "incomplete"]

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def whole(reply: Reply, ask: Ask | None = None) -> dict[str, Any]:
    """Return the body of a plain answer; with `ask` it repeats the request's settings."""
    output: list[dict[str, Any]] = []
    if reply.reasoning:
        output.append(reasoning_item(reply.response_id, len(output), reply.reasoning))
    if reply.message.content or not (output or reply.message.tool_calls):
        output.append(message_item(reply.response_id, len(output), reply.message.content))
    for call in reply.message.tool_calls:
        at = len(output)
        output.append(call_item(reply.response_id, at, call.id, call.name, call.arguments))
    if reason_incomplete(reply):
        output[-1]["status"] = "incomplete"
    return finished(reply, ask, output)


def finished(reply: Reply, ask: Ask | None, output: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a response that has its last item."""
    reason = reason_incomplete(reply)
    body = opened(reply.response_id, reply.model, reply.created_at, ask)
    return body | {
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "output": list(output),
        "usage": {
            "input_tokens": reply.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": reply.cached_tokens or 0,
                "cache_write_tokens": 0,
            },
            "output_tokens": reply.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        },
        "metadata": body["metadata"] | reply.metadata,
    }


def opened(response_id: str, model: str, created_at: datetime, ask: Ask | None) -> dict[str, Any]:
    """Return a response without output."""
    options = ask.options if ask else {}
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(created_at.timestamp()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": (ask.instructions or None) if ask else None,
        "max_output_tokens": ask.max_tokens if ask else None,
        "metadata": dict(ask.metadata) if ask else {},
        "model": model,
        "output": [],
        "parallel_tool_calls": options.get("parallel_tool_calls", True),
        "previous_response_id": ask.previous_response_id if ask else None,
        "reasoning": {"effort": options.get("reasoning_effort"), "summary": None},
        "store": ask.store if ask else True,
        "temperature": options.get("temperature"),
        "text": {"format": _format(options.get("response_format"))},
        "tool_choice": _tool_choice(options.get("tool_choice")),
        "tools": [_tool(tool) for tool in (ask.tools if ask else ())],
        "top_p": options.get("top_p"),
        "truncation": "disabled",
        "usage": None,
        "user": ask.user if ask else None,
    }


def reason_incomplete(reply: Reply) -> str | None:
    """Return why an answer stopped before its end, None if it did not."""
    return _INCOMPLETE.get(reply.finish_reason)


def item_id(prefix: str, response_id: str, index: int) -> str:
    """Return the id of an item, the same whenever the response is written."""
    return f"{prefix}_{response_id.removeprefix('resp_')}_{index}"


def text_part(text: str) -> dict[str, Any]:
    """Return a piece of an answer."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def reasoning_part(text: str) -> dict[str, Any]:
    """Return a piece of thought."""
    return {"type": "reasoning_text", "text": text}


def message_item(
    response_id: str, index: int, text: str | None, status: Status = "completed"
) -> dict[str, Any]:
    """Return an answer's text as an item; None has no part yet."""
    return {
        "id": item_id("msg", response_id, index),
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": [] if text is None else [text_part(text)],
    }


def reasoning_item(
    response_id: str, index: int, text: str | None, status: Status = "completed"
) -> dict[str, Any]:
    """Return the thoughts before an answer as an item; None has no part yet."""
    return {
        "id": item_id("rs", response_id, index),
        "type": "reasoning",
        "status": status,
        "summary": [],
        "content": [] if text is None else [reasoning_part(text)],
    }


def call_item(
    response_id: str,
    index: int,
    call_id: str,
    name: str,
    arguments: str,
    status: Status = "completed",
) -> dict[str, Any]:
    """Return a tool call as an item."""
    return {
        "id": item_id("fc", response_id, index),
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function: dict[str, Any] = tool["function"]
    return {"type": "function", "description": None, "strict": None} | function


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, dict):
        return {"type": "function", "name": choice["function"]["name"]}
    return choice or "auto"


def _format(wanted: dict[str, Any] | None) -> dict[str, Any]:
    if wanted is None:
        return {"type": "text"}
    schema: dict[str, Any] = wanted.get("json_schema", {})
    return {"type": wanted["type"]} | schema
