"""Spans of the Vercel AI SDK (`ai.*` attributes), read into a `Call`.

The SDK makes two spans of a call: the outer `ai.generateText` is what the program asked for, the
inner `ai.generateText.doGenerate` (`doStream`) what the model was asked, once a step. Only the
inner is a call. Versions 3 to 6: `ai.result.*` became `ai.response.*`, `args` became `input`.
"""

from typing import Any

from traces.importers.genai import params_of
from traces.importers.genai import usage_of as genai_usage_of
from traces.importers.messages import (
    Answer,
    Usage,
    decoded,
    finish_reason,
    read_answer,
    read_messages,
    read_tools,
)
from traces.importers.span_calls import Call, first
from traces.importers.spans import Span

_CALLS = (".doGenerate", ".doStream")


def kind_of(span: Span) -> str | None:
    """Return what a span is: `call`, `tool`, `agent`, `embeddings`; None if not of this SDK."""
    operation = span.attributes.get("ai.operationId")
    if not isinstance(operation, str) or not operation.startswith("ai."):
        return None
    if operation.endswith(_CALLS):
        return "call"
    if operation == "ai.toolCall":
        return "tool"
    return "embeddings" if operation.startswith(("ai.embed", "ai.rerank")) else "agent"


def call_of(span: Span) -> Call:
    """Read a call."""
    found = span.attributes
    reason = _response(found, "finishReason") or found.get("ai.finishReason")
    answer = read_answer(_said(found))
    reasoning = _response(found, "reasoning")
    ms = found.get("ai.response.msToFirstChunk") or found.get("ai.stream.msToFirstChunk")
    return Call(
        model=first(found, ("gen_ai.request.model", "ai.model.id")),
        served_name=first(found, ("ai.response.model", "gen_ai.response.model")),
        messages=read_messages(_asked(found)),
        answer=Answer(
            answer.message,
            str(reasoning) if reasoning else None,
            finish_reason(reason) or finish_reason(found.get("gen_ai.response.finish_reasons")),
        ),
        tools=read_tools(found.get("ai.prompt.tools")),
        params=_params(found),
        response_id=first(found, ("ai.response.id", "gen_ai.response.id")),
        usage=_usage(found),
        ttft_s=float(ms) / 1000 if isinstance(ms, int | float) else None,
    )


def _asked(found: dict[str, Any]) -> Any:
    messages = decoded(found.get("ai.prompt.messages"))
    if messages is not None:
        return messages
    prompt = decoded(found.get("ai.prompt"))
    if not isinstance(prompt, dict):
        return prompt
    system = [{"role": "system", "content": prompt["system"]}] if prompt.get("system") else []
    asked = prompt.get("messages") or prompt.get("prompt") or []
    return [*system, *([asked] if isinstance(asked, str) else asked)]


def _said(found: dict[str, Any]) -> dict[str, Any] | None:
    text, made = _response(found, "text"), _response(found, "object")
    calls = decoded(_response(found, "toolCalls"))
    if text is None and made is None and not calls:
        return None
    parts = [{"type": "text", "text": part} for part in (text, made) if part]
    made_calls = [{**call, "type": "tool-call"} for call in calls or ()]
    return {"role": "assistant", "content": [*parts, *made_calls]}


def _response(found: dict[str, Any], name: str) -> Any:
    value = found.get(f"ai.response.{name}")
    return found.get(f"ai.result.{name}") if value is None else value


def _params(found: dict[str, Any]) -> dict[str, Any]:
    params = params_of(found)
    choice = decoded(found.get("ai.prompt.toolChoice"))
    return params if choice is None else {**params, "tool_choice": choice}


def _usage(found: dict[str, Any]) -> Usage:
    usage = genai_usage_of(found)
    prompt = found.get("ai.usage.inputTokens", found.get("ai.usage.promptTokens"))
    completion = found.get("ai.usage.outputTokens", found.get("ai.usage.completionTokens"))
    cached = found.get("ai.usage.cachedInputTokens")
    return Usage(
        usage.prompt_tokens if usage.prompt_tokens is not None else prompt,
        usage.completion_tokens if usage.completion_tokens is not None else completion,
        usage.cached_tokens if usage.cached_tokens is not None else cached,
    )
