"""Bodies of model APIs, as logs keep them: a request, and what came back for it.

    read_request(body)   chat completions, legacy completions, responses, Anthropic -> Asked
    read_response(body)  the same, or an error body                                -> Answered

A response is an object, its JSON text, the text of an event stream, or a list of its chunks;
of Anthropic's only whole ones. Around an object may be the status of HTTP, as batches write it.
Of several choices the first is the answer. Sources: OpenAI API reference (chat, completions,
responses), Anthropic API reference (messages).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from serving.records import HopStatus, Message, canonical_json
from serving.sse import EventReader, reassemble
from traces.importers.cells import text_cell
from traces.importers.messages import (
    Usage,
    decoded,
    finish_reason,
    read_answer,
    read_messages,
    read_tools,
    read_usage,
)
from traces.importers.rows import LineRefused

_FIRST_EVENT = 4096
"""So many characters hold the first event of a stream, which is short in every protocol."""
_APART = ("model", "messages", "tools", "functions", "prompt", "input", "instructions", "system")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request says."""

    model: str | None
    messages: tuple[Message, ...]
    tools: str
    params: dict[str, Any]
    """Everything else: sampling, formats, ids."""
    prompt_token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """What came back."""

    status: HopStatus = "ok"
    error: str | None = None
    completion: Message | None = None
    reasoning: str | None = None
    finish_reason: str | None = None
    response_id: str | None = None
    model: str | None = None
    created: Any = None
    session: str | None = None
    usage: Usage = field(default_factory=Usage)
    prompt_token_ids: tuple[int, ...] | None = None
    completion_token_ids: tuple[int, ...] | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of a hop that come from the response alone."""
        return {
            "served_name": self.model,
            "completion": self.completion,
            "reasoning": self.reasoning,
            "finish_reason": self.finish_reason,
            "response_id": self.response_id,
            "status": self.status,
            "error": self.error,
            "prompt_tokens": self.usage.prompt_tokens,
            "completion_tokens": self.usage.completion_tokens,
            "cached_tokens": self.usage.cached_tokens,
            "prompt_token_ids": self.prompt_token_ids,
            "completion_token_ids": self.completion_token_ids,
        }


def is_request(value: Any) -> bool:
    """Return whether a value looks like the body of a request to a model."""
    asks = ("messages", "prompt", "input")
    return isinstance(value, dict) and any(isinstance(value.get(n), list | str) for n in asks)


def read_request(body: Any) -> Asked:
    """Read a request's body.

    Raises:
        LineRefused: if it asks no model for text, or for several texts in one call.
    """
    body = decoded(body)
    if not isinstance(body, dict):
        raise LineRefused("not_a_chat_call", f"the request is a {type(body).__name__}")
    token_ids = None
    messages: Any = []
    if "messages" in body:
        told = body.get("system") or body.get("instructions")
        messages = [*_system(told), *_list(body["messages"])]
    elif "prompt" in body:
        messages, token_ids = _prompt(body["prompt"])
    elif "input" in body:
        messages = [*_system(body.get("instructions")), *_list(body["input"])]
    else:
        raise LineRefused("not_a_chat_call", "the request has no messages, prompt or input")
    return Asked(
        model=text_cell(body, "model"),
        messages=read_messages(messages),
        tools=read_tools(body.get("tools") or body.get("functions")),
        params={k: v for k, v in body.items() if k not in _APART},
        prompt_token_ids=token_ids,
    )


def read_response(body: Any) -> Answered:
    """Read a response's body.

    Raises:
        LineRefused: if it is neither an answer nor an error.
    """
    body = decoded(body)
    if isinstance(body, dict) and "status_code" in body and "body" in body:
        body = decoded(body["body"])
    if body in (None, "", {}, []):
        return Answered(status="engine_error", error="no response")
    if isinstance(body, str):
        if body.lstrip().startswith(("data:", "event:", ":")):
            return _streamed(body)
        return Answered(completion=Message(role="assistant", content=body))
    if isinstance(body, list):
        return _from_list(body)
    if not isinstance(body, dict):
        raise LineRefused("not_a_response", f"the response is a {type(body).__name__}")
    if _is_chunk(body):
        return _from_list([body])
    if body.get("choices"):
        return _chat(body)
    if isinstance(body.get("output"), list) and body.get("status") != "failed":
        return _response_object(body)
    if body.get("type") == "message" and "content" in body:
        return _anthropic(body)
    if body.get("role") == "assistant":
        return _answer(body, body)
    return Answered(
        status="engine_error",
        error=_error_text(body),
        response_id=text_cell(body, "id"),
        model=text_cell(body, "model"),
        created=body.get("created") or body.get("created_at"),
        usage=read_usage(body.get("usage")),
    )


def _system(value: Any) -> list[Any]:
    return [{"role": "system", "content": value}] if value else []


def _list(value: Any) -> list[Any]:
    value = decoded(value)
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def _prompt(value: Any) -> tuple[list[Any], tuple[int, ...] | None]:
    """Read the prompt of a legacy completion: a text, or a list of one text or of token ids."""
    while isinstance(value, list) and len(value) == 1 and not isinstance(value[0], int):
        value = value[0]
    if isinstance(value, list):
        if all(type(token) is int for token in value):
            return [], tuple(value)
        raise LineRefused(
            "many_prompts", f"{len(value)} prompts in one call; log one call a prompt"
        )
    return _list(value), None


def _chat(body: dict[str, Any]) -> Answered:
    """Read chat completions and legacy completions."""
    choices = [c for c in body["choices"] if isinstance(c, dict)]
    if not choices:
        raise LineRefused("not_a_response", "no choice of the response is an object")
    choice = min(choices, key=lambda c: c.get("index") or 0)
    raw = choice.get("message")
    if raw is None:
        raw = {"role": "assistant", "content": choice.get("text")}
    return _answer(
        body,
        raw,
        finish=choice.get("finish_reason"),
        prompt_ids=body.get("prompt_token_ids") or choice.get("prompt_token_ids"),
        token_ids=choice.get("token_ids"),
    )


def _response_object(body: dict[str, Any]) -> Answered:
    """Read an object of the responses API."""
    called = any(
        isinstance(item, dict) and item.get("type") in ("function_call", "custom_tool_call")
        for item in body["output"]
    )
    details = body.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    status = body.get("status")
    finish = reason or ("tool_calls" if called and status in (None, "completed") else status)
    return _answer(body, body["output"], finish=finish)


def _anthropic(body: dict[str, Any]) -> Answered:
    message = {"role": "assistant", "content": body["content"]}
    return _answer(body, message, finish=body.get("stop_reason"))


def _answer(
    body: dict[str, Any],
    raw: Any,
    finish: Any = None,
    prompt_ids: Any = None,
    token_ids: Any = None,
) -> Answered:
    answer = read_answer(raw)
    return Answered(
        completion=answer.message,
        reasoning=answer.reasoning,
        finish_reason=finish_reason(finish) or answer.finish_reason,
        response_id=text_cell(body, "id"),
        model=text_cell(body, "model"),
        created=body.get("created") or body.get("created_at"),
        session=text_cell(body, "episode_id"),
        usage=read_usage(body.get("usage")),
        prompt_token_ids=_ids(prompt_ids),
        completion_token_ids=_ids(token_ids),
    )


def _from_list(body: list[Any]) -> Answered:
    """Read a list: chunks or lines of a stream, or the items of an answer."""
    chunks = [decoded(item) for item in body]
    if any(_is_chunk(chunk) or _is_legacy(chunk) for chunk in chunks):
        whole = [chunk for chunk in chunks if isinstance(chunk, dict)]
        lines = [f"data: {canonical_json(chunk)}\n" for chunk in whole]
        # A list has no place for the marker that ends a stream; the finish reason tells.
        answered = _streamed("\n".join([*lines, "data: [DONE]\n"]))
        first = next(chunk for chunk in whole if _is_chunk(chunk) or _is_legacy(chunk))
        created, session = first.get("created"), text_cell(first, "episode_id")
        return replace(answered, created=created, session=session)
    if all(isinstance(item, str) for item in body):
        return _streamed("\n".join(body))
    return _answer({}, body)


def _streamed(text: str) -> Answered:
    begin = EventReader().feed(text[:_FIRST_EVENT].encode("utf-8", "replace") + b"\n")
    if begin and begin[0].get("type") == "message_start":
        raise LineRefused("unknown_stream", "a stream of Anthropic's; log whole messages instead")
    stream = reassemble(text)
    if stream.response is not None:
        whole = read_response(stream.response)
        if stream.broken is None or whole.status != "ok":
            return whole
        return Answered(
            "broken_stream", stream.broken, whole.completion, whole.reasoning, None,
            whole.response_id, whole.model, whole.created,
        )  # fmt: skip
    raw = stream.message()
    answer = read_answer(raw) if raw else None
    refused = stream.error is not None and raw is None
    return Answered(
        status="engine_error" if refused else "broken_stream" if stream.broken else "ok",
        error=stream.broken,
        completion=answer.message if answer else None,
        reasoning=stream.reasoning or None,
        finish_reason=finish_reason(stream.finish_reason),
        response_id=str(stream.response_id) if stream.response_id else None,
        model=str(stream.model) if stream.model else None,
        usage=read_usage(stream.usage),
        prompt_token_ids=_ids(stream.prompt_token_ids),
        completion_token_ids=_ids(stream.token_ids),
    )


def _is_chunk(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    choices = list(_dicts(value.get("choices")))
    if any("delta" in choice for choice in choices):
        return True
    # Tracers put a stream together and leave its `object` as it was.
    whole = any("message" in choice for choice in choices)
    kind = str(value.get("object") or value.get("type") or "")
    return not whole and (kind.endswith(".chunk") or kind.startswith("response."))


def _is_legacy(value: Any) -> bool:
    """Whether this is a legacy completion: whole and as a chunk it looks the same."""
    return isinstance(value, dict) and value.get("object") == "text_completion"


def _dicts(value: Any) -> Iterable[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _error_text(body: dict[str, Any]) -> str:
    """Return an error body in one line.

    Raises:
        LineRefused: if the body is none.
    """
    error = body.get("error")
    if not error:
        named = next((n for n in ("detail", "message", "error_message") if body.get(n)), None)
        if named is None:
            if "choices" in body or "output" in body:
                return "no choices"
            raise LineRefused("not_a_response", f"neither an answer nor an error: {sorted(body)}")
        error = {**body, "message": body[named]}
    if not isinstance(error, dict):
        return str(error)
    code = error.get("code") or error.get("type") or error.get("status") or ""
    message = error.get("message") or error.get("detail") or ""
    if not isinstance(message, str):
        message = canonical_json(message)
    return f"{code}: {message}".strip(": ") or canonical_json(error)


def _ids(value: Any) -> tuple[int, ...] | None:
    return tuple(int(token) for token in value) if value else None
