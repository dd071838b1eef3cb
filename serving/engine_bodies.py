"""Bodies of the engine's HTTP API: requests read, answers and errors written, in vLLM's shapes."""

import math
import time
import uuid
from collections.abc import Iterator
from typing import Any, TypeGuard

import orjson

from serving.engine import ChatRequest, ChatResult, Delta
from serving.records import Message

_OPTIONS = ("stop", "top_p")


class RequestRefused(Exception):
    """A request is wrong; it becomes vLLM's error body."""

    def __init__(
        self, message: str, *, kind: str = "BadRequestError", status: int = 400,
        param: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.param = param


def object_of(content: bytes) -> dict[str, Any]:
    """Return the JSON object of a request's body."""
    try:
        raw = orjson.loads(content)
    except ValueError as error:
        raise RequestRefused(f"The body is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise RequestRefused("The body is no JSON object.")
    return raw


def text_of(raw: dict[str, Any], field: str) -> str:
    """Return a field's text; empty where it is missing."""
    value = raw.get(field)
    if value is not None and not isinstance(value, str):
        raise RequestRefused(f"`{field}` is a text, not {value!r:.40}.", param=field)
    return value or ""


def chat_request(raw: dict[str, Any], model: str) -> ChatRequest:
    """Return the engine call of a chat request to the engine's `model`."""
    structured = _dict(raw, "structured_outputs")
    choices = structured.get("choice") or ()
    if not all(isinstance(choice, str) for choice in choices):
        raise RequestRefused("`choice` is a list of texts.", param="structured_outputs")
    tools = raw.get("tools") or []
    if raw.get("tool_choice") == "none":
        tools = []
    if not isinstance(tools, list) or not all(_is_tool(tool) for tool in tools):
        raise RequestRefused("`tools` is a list of functions with names.", param="tools")
    return ChatRequest(
        model=model,
        messages=_messages(raw),
        tools=tuple(tools),
        max_tokens=int(_number(raw, ("max_completion_tokens", "max_tokens"), 512, 1, 1 << 20)),
        temperature=_number(raw, ("temperature",), 1.0, 0.0, 100.0),
        seed=None
        if raw.get("seed") is None
        else int(_number(raw, ("seed",), 0, -(1 << 63), 1 << 63)),
        choices=tuple(choices),
        continue_final=bool(raw.get("continue_final_message")),
        options={key: raw[key] for key in _OPTIONS if raw.get(key) is not None},
    )


def completion(raw: dict[str, Any], result: ChatResult) -> dict[str, Any]:
    """Return a `chat.completion`."""
    calls = result.message.to_openai().get("tool_calls")
    message: dict[str, Any] = {
        "role": "assistant",
        "content": result.message.content or (None if calls else ""),
        "reasoning": result.reasoning or None,
    }
    if calls:
        message["tool_calls"] = calls
    ids = bool(raw.get("return_token_ids"))
    return {
        "id": result.response_id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": raw["model"],
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": _logprobs(raw, result),
                "finish_reason": result.finish_reason,
                "stop_reason": None,
                "token_ids": result.completion_token_ids if ids else None,
            }
        ],
        "usage": _usage(result),
        "prompt_token_ids": result.prompt_token_ids if ids else None,
    }


def forced_token(raw: dict[str, Any]) -> tuple[list[int], int]:
    """Return the prompt's tokens and the one that the answer is forced to be."""
    prompt, allowed = raw.get("prompt"), raw.get("allowed_token_ids")
    if not _is_tokens(prompt) or not _is_tokens(allowed) or len(allowed) != 1:
        raise RequestRefused(
            "Only answers of one forced token are given here: `prompt` is a list of token ids, "
            "`allowed_token_ids` one of them.",
            param="prompt",
        )
    if raw.get("max_tokens") != 1 or raw.get("logprobs") is None:
        raise RequestRefused("`max_tokens` is 1 and `logprobs` given.", param="max_tokens")
    return prompt, allowed[0]


def forced_completion(
    raw: dict[str, Any], prompt: list[int], token: int, logprob: float
) -> dict[str, Any]:
    """Return a `text_completion` of that one token."""
    told = {"token_logprobs": [logprob], "tokens": [f"token_id:{token}"], "text_offset": [0]}
    choice = {"index": 0, "text": "", "logprobs": told, "finish_reason": "length"}
    usage = {"prompt_tokens": len(prompt), "completion_tokens": 1, "total_tokens": len(prompt) + 1}
    return {
        "id": f"cmpl-{uuid.uuid4().hex[:24]}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": raw["model"],
        "choices": [choice | {"token_ids": [token] if raw.get("return_token_ids") else None}],
        "usage": usage,
    }


def role_chunk(head: dict[str, Any]) -> dict[str, Any]:
    """Return the chunk that opens a stream."""
    return _chunk(head, {"role": "assistant", "content": ""})


def delta_chunk(head: dict[str, Any], delta: Delta) -> dict[str, Any]:
    """Return the chunk of one piece."""
    raw: dict[str, Any] = {}
    if delta.content:
        raw["content"] = delta.content
    if delta.reasoning:
        raw["reasoning"] = delta.reasoning
    calls = []
    for call in delta.calls:
        function = {"arguments": call.arguments} | ({"name": call.name} if call.name else {})
        opened = {"id": call.id, "type": "function"} if call.id else {}
        calls.append({"index": call.index, "function": function} | opened)
    if calls:
        raw["tool_calls"] = calls
    return _chunk(head, raw)


def last_chunks(
    head: dict[str, Any], raw: dict[str, Any], result: ChatResult
) -> Iterator[dict[str, Any]]:
    """Yield the chunk with the finish reason, and the one with the usage if it was asked for.

    Unlike in vLLM, all token ids and log-probabilities come with the former.
    """
    more: dict[str, Any] = {"finish_reason": result.finish_reason, "stop_reason": None}
    if raw.get("logprobs"):
        more["logprobs"] = _logprobs(raw, result)
    top: dict[str, Any] = {}
    if raw.get("return_token_ids"):
        more["token_ids"] = result.completion_token_ids
        top["prompt_token_ids"] = result.prompt_token_ids
    yield _chunk(head, {}, **more) | top
    if _dict(raw, "stream_options").get("include_usage"):
        yield _chunk(head, {}) | {"choices": [], "usage": _usage(result)}


def error_body(message: str, kind: str, status: int, param: str | None = None) -> dict[str, Any]:
    """Return the body of a refusal."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def _chunk(head: dict[str, Any], delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None} | more
    return head | {"object": "chat.completion.chunk", "choices": [choice]}


def _messages(raw: dict[str, Any]) -> tuple[Message, ...]:
    messages = raw.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestRefused("`messages` is a list of at least one message.", param="messages")
    try:
        return tuple(Message.from_openai(message) for message in messages)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = " ".join(str(error).split())[:200]
        raise RequestRefused(f"A message is wrong: {why}", param="messages") from error


def _is_tokens(value: Any) -> TypeGuard[list[int]]:
    return bool(value) and isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _dict(raw: dict[str, Any], field: str) -> dict[str, Any]:
    value = raw.get(field) or {}
    if not isinstance(value, dict):
        raise RequestRefused(f"`{field}` is an object.", param=field)
    return value


def _is_tool(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _number(
    raw: dict[str, Any], fields: tuple[str, ...], default: float, low: float,
    high: float = math.inf,
) -> float:  # fmt: skip
    for field in fields:
        value = raw.get(field)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RequestRefused(f"`{field}` is a number, not {value!r:.40}.", param=field)
        if not low <= value <= high:
            raise RequestRefused(f"{field} must be at least {low}, got {value}.", param=field)
        return value
    return default


def _usage(result: ChatResult) -> dict[str, Any]:
    details = None if result.cached_tokens is None else {"cached_tokens": result.cached_tokens}
    return {
        "prompt_tokens": result.prompt_tokens,
        "total_tokens": result.prompt_tokens + result.completion_tokens,
        "completion_tokens": result.completion_tokens,
        "prompt_tokens_details": details,
    }


def _logprobs(raw: dict[str, Any], result: ChatResult) -> dict[str, Any] | None:
    """Tell a choice's probability as that of one token; other answers have none to tell."""
    if not raw.get("logprobs") or result.choice_probability is None:
        return None
    text = result.message.content
    logprob = math.log(max(result.choice_probability, 1e-300))
    token = {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
    return {"content": [token]}
