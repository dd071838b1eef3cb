"""OpenInference's attributes (Phoenix, Arize), read from a span into a `Call` and feedback.

Messages are flattened: `llm.input_messages.0.message.tool_calls.0.tool_call.function.name`.
Feedback stands on the span it is about, or on a span of its own, the carrier, with exactly one
link to that span; `annotations` and `evaluations` mean the same, and either may be about the
whole trace or session. Source: OpenInference semantic conventions 0.1.42.
"""

from collections.abc import Iterator
from typing import Any

from serving.records import TargetKind
from traces.importers import genai
from traces.importers.flattened import unflattened
from traces.importers.messages import (
    Answer,
    Usage,
    decoded,
    finish_reason,
    read_answer,
    read_messages,
    read_tools,
)
from traces.importers.rows import Row, feedback_row
from traces.importers.signals import annotator_of, signal
from traces.importers.span_calls import Call, first, session_of
from traces.importers.spans import Span, at_ns

SOURCE = "openinference"
SPAN_KIND = "openinference.span.kind"
_KINDS = {
    "LLM": "call", "TOOL": "tool", "AGENT": "agent", "CHAIN": "agent", "RETRIEVER": "retrieval",
    "RERANKER": "retrieval", "EMBEDDING": "embeddings",
}  # fmt: skip
_FEEDBACK = ("annotation", "evaluation")
_SCOPES = ("", "trace.", "session.")
_STARTS = tuple(f"{scope}{word}s" for scope in _SCOPES for word in _FEEDBACK)


def kind_of(span: Span) -> str | None:
    """Return what a span is; `carrier` if it only brings feedback; None if not OpenInference's."""
    kind = str(span.attributes.get(SPAN_KIND) or "").upper()
    if kind in ("", "UNKNOWN", "EVALUATOR") and has_feedback(span.attributes):
        return "carrier"
    if not kind or kind == "UNKNOWN":
        return "call" if _llm(span.attributes, "input_messages") is not None else None
    return _KINDS.get(kind, "other")


def has_feedback(attributes: dict[str, Any]) -> bool:
    """Return whether attributes hold annotations or evaluations, in whatever scope."""
    return any(
        name.startswith(_STARTS) and (name in _STARTS or f".{_word(name)}." in name)
        for name in attributes
    )


def call_of(span: Span) -> Call:
    """Read a call."""
    found = span.attributes
    asked = decoded(found.get("input.value"))
    got = decoded(found.get("output.value"))
    prompt = _prompt(found, asked)
    if not prompt and any(name.startswith("gen_ai.") for name in found):
        return genai.call_of(span)
    params = decoded(found.get("llm.invocation_parameters"))
    params = dict(params) if isinstance(params, dict) else {}
    model = first(found, ("llm.request.model_name",)) or params.pop("model", None)
    named = first(found, ("llm.model_name", "embedding.model_name"))
    served = first(found, ("llm.response.model_name",)) or named
    answer = _answer(found, got, several=(params.get("n") or 1) != 1)
    finish = finish_reason(found.get("llm.finish_reason")) or answer.finish_reason
    for name in ("messages", "tools", "model"):
        params.pop(name, None)
    return Call(
        model=str(model) if model else named,
        served_name=served,
        messages=read_messages(prompt),
        answer=Answer(answer.message, answer.reasoning, finish),
        tools=_tools(found),
        params=params,
        response_id=_response_id(got),
        usage=_usage(found),
        ttft_s=None,
    )


def feedback_rows(span: Span) -> Iterator[Row]:
    """Yield the feedback that a span brings.

    Raises:
        ValueError: if a carrier does not say what it is about.
    """
    if not has_feedback(span.attributes):
        return
    for scope in _SCOPES:
        for word in _FEEDBACK:
            raws = unflattened(span.attributes, f"{scope}{word}s")
            for raw in raws if isinstance(raws, list) else ():
                told = raw.get(word) if isinstance(raw, dict) else None
                if isinstance(told, dict):
                    yield annotation_row(told, target_of(span, scope), span.end_ns)


def annotation_row(told: dict[str, Any], target: tuple[TargetKind, str], at: int) -> Row:
    """Return the feedback row of one annotation.

    Raises:
        ValueError: if it has no name.
    """
    if not told.get("name"):
        raise ValueError("the annotation has no name")
    metadata = decoded(told.get("metadata"))
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    user = told.get("user_id") or user or told.get("identifier")
    feedback = signal(
        SOURCE,
        target,
        str(told["name"]),
        score=told.get("score"),
        label=None if told.get("label") is None else str(told["label"]),
        text=told.get("explanation") or None,
        annotator=annotator_of(told.get("annotator_kind")),
        user=str(user) if user else None,
        at=at_ns(at),
    )
    return feedback_row(feedback)


def target_of(span: Span, scope: str) -> tuple[TargetKind, str]:
    """Return what a span's feedback of a scope is about: itself, or what it links to."""
    carrier = kind_of(span) in ("carrier", None)
    if carrier and len(span.links) > 1:
        raise ValueError(f"a span that carries feedback has {len(span.links)} links, not one")
    trace_id, span_id = span.links[0] if carrier and span.links else (span.trace_id, span.span_id)
    if scope == "session.":
        if session := session_of(span.attributes, span.resource):
            return "conversation", session
        return "conversation", trace_id
    whole = scope == "trace." or not span_id
    # A root span that is no call stands for the whole trace.
    whole = whole or (not carrier and not span.parent_id and kind_of(span) != "call")
    return ("turn", f"{SOURCE}:{trace_id}") if whole else ("response", span_id)


def _word(name: str) -> str:
    return "annotation" if "annotations" in name else "evaluation"


def _llm(found: dict[str, Any], name: str) -> Any:
    value = unflattened(found, f"llm.{name}")
    return decoded(value)


def _prompt(found: dict[str, Any], asked: Any) -> list[Any]:
    messages = _llm(found, "input_messages")
    if isinstance(messages, list) and messages:
        return [_message(raw) for raw in messages]
    prompts = _llm(found, "prompts")
    if isinstance(prompts, list) and prompts:
        return [_text_of(raw, "prompt") for raw in prompts]
    if isinstance(asked, dict) and isinstance(asked.get("messages"), list):
        return list(asked["messages"])
    text = found.get("input.value")
    plain = found.get("input.mime_type") in (None, "text/plain")
    return [text] if text and plain and isinstance(text, str) else []


def _answer(found: dict[str, Any], got: Any, *, several: bool) -> Answer:
    messages = _llm(found, "output_messages")
    if isinstance(messages, list) and messages:
        # The items of one answer may be a message each; several answers are alternatives.
        raws = [{"role": "assistant", **_message(raw)} for raw in messages]
        answer = read_answer(raws[:1] if several else raws)
        return Answer(answer.message, answer.reasoning, _finish(got))
    choices = _llm(found, "choices")
    if isinstance(choices, list) and choices:
        return read_answer(_text_of(choices[0], "completion"))
    if isinstance(got, dict) and got.get("choices"):
        choice = got["choices"][0]
        answer = read_answer(choice.get("message") or choice.get("text"))
        return Answer(answer.message, answer.reasoning, _finish(got))
    text = found.get("output.value")
    plain = found.get("output.mime_type") in (None, "text/plain")
    return read_answer(text) if text and plain else Answer(None)


def _finish(got: Any) -> str | None:
    if not isinstance(got, dict):
        return None
    choices = got.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return finish_reason(choices[0].get("finish_reason"))
    return finish_reason(got.get("stop_reason"))


def _message(raw: Any) -> dict[str, Any]:
    """Return a message of OpenInference in the terms of OpenAI's."""
    told = raw.get("message", raw) if isinstance(raw, dict) else {"content": raw}
    calls = [call.get("tool_call", call) for call in told.get("tool_calls") or ()]
    if told.get("function_call_name"):
        arguments = told.get("function_call_arguments_json")
        calls.append({"function": {"name": told["function_call_name"], "arguments": arguments}})
    parts = [_part(part) for part in told.get("contents") or ()]
    content = parts or told.get("content")
    role = "assistant" if told.get("role") == "agent" else told.get("role")
    found = {"role": role, "content": content, "tool_calls": calls}
    return {**found, "tool_call_id": told.get("tool_call_id"), "reasoning": told.get("reasoning")}


def _part(raw: dict[str, Any]) -> dict[str, Any]:
    part = dict(raw.get("message_content") or {})
    if isinstance(raw.get("tool_call"), dict):
        return {**raw["tool_call"], "type": "tool_call"}
    for kind in ("image", "audio", "video", "document"):
        inner = part.pop(kind, None)
        if isinstance(inner, dict):
            about = inner.get(kind, inner)
            return {**part, **(about if isinstance(about, dict) else {}), "type": kind}
    return part


def _text_of(raw: Any, name: str) -> str:
    inner = raw.get(name, raw) if isinstance(raw, dict) else raw
    return str(inner.get("text") or "") if isinstance(inner, dict) else str(inner)


def _tools(found: dict[str, Any]) -> str:
    tools = _llm(found, "tools")
    if not isinstance(tools, list):
        return "[]"
    schemas = [tool.get("tool", tool) for tool in tools if isinstance(tool, dict)]
    return read_tools([schema.get("json_schema", schema) for schema in schemas])


def _usage(found: dict[str, Any]) -> Usage:
    def count(name: str) -> int | None:
        value = found.get(f"llm.token_count.{name}")
        number = isinstance(value, int | float) and not isinstance(value, bool) and value == value
        return int(value) if number and value is not None else None

    cached = count("prompt_details.cache_read")
    return Usage(count("prompt"), count("completion"), cached)


def _response_id(got: Any) -> str | None:
    """Return the id of the raw response, where the span has it."""
    if not isinstance(got, dict) or not ({"choices", "output", "content"} & got.keys()):
        return None
    return str(got["id"]) if got.get("id") else None
