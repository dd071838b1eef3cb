"""OpenTelemetry's GenAI attributes, old and new, read from a span into a `Call`.

New: `gen_ai.input.messages` and its kin, JSON text or structured, on the span or on the event
`gen_ai.client.inference.operation.details`. Old: `gen_ai.system`, `gen_ai.prompt.N.*` and
`gen_ai.completion.N.*` (OpenLLMetry, also as `llm.prompts.N`), `gen_ai.usage.prompt_tokens`, the
events `gen_ai.content.prompt`, `gen_ai.user.message`, `gen_ai.choice`. Source: semantic
conventions 1.27 to 1.41 and GenAI 0.1.0; OpenLLMetry 0.62.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from serving.records import Message
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
from traces.importers.parts import decoded_parts
from traces.importers.span_calls import Call, first
from traces.importers.spans import Event, Span, since_s

DETAILS = ("gen_ai.client.inference.operation.details", "gen_ai.client.inference.details")
EVALUATION = "gen_ai.evaluation.result"
_MESSAGE_EVENTS = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
_CONTENT_EVENTS = (
    *DETAILS, *_MESSAGE_EVENTS, "gen_ai.choice", "gen_ai.content.prompt",
    "gen_ai.content.completion",
)  # fmt: skip
_TOOLS = ("llm.request.functions", "gen_ai.request.tools", "gen_ai.tool.definitions")
_CHUNKS = ("gen_ai.content.completion.chunk", "llm.content.completion.chunk")
_KINDS = {
    "chat": "call", "text_completion": "call", "generate_content": "call", "completion": "call",
    "embeddings": "embeddings", "embedding": "embeddings", "rerank": "retrieval",
    "retrieval": "retrieval", "execute_tool": "tool", "tool": "tool",
    "invoke_agent": "agent", "create_agent": "agent", "invoke_workflow": "agent",
    "workflow": "agent", "task": "agent", "agent": "agent",
}  # fmt: skip
_SIGNS = (
    "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.prompt.0.role",
    "gen_ai.prompt.0.content", "gen_ai.completion.0.content", "gen_ai.completion.0.role",
    "llm.prompts.0.role", "llm.completions.0.role", "gen_ai.response.id",
    "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens",
    "gen_ai.response.finish_reasons",
)  # fmt: skip


def kind_of(span: Span) -> str | None:
    """Return what a span is: `call`, `tool`, `agent`, ...; None if it is none of GenAI's."""
    found = span.attributes
    for name in ("gen_ai.operation.name", "llm.request.type", "traceloop.span.kind"):
        kind = _KINDS.get(str(found.get(name) or ""))
        if kind is not None:
            return kind
    if (
        "agent_name" in found
        or "all_messages_events" in found
        or "pydantic_ai.all_messages" in found
    ):
        return "agent"
    if any(name in found for name in _SIGNS) or any(e.name in _CONTENT_EVENTS for e in span.events):
        return "call"
    return "other" if any(name.startswith("gen_ai.") for name in found) else None


def is_content(event: Event) -> bool:
    """Return whether an event holds something of a call's prompt or answer."""
    return event.name in _CONTENT_EVENTS


@dataclass(frozen=True, slots=True)
class Spoken:
    """What was said in a call, as far as its attributes and events tell."""

    messages: tuple[Message, ...]
    answer: Answer
    tools: str


def spoken_in(attributes: dict[str, Any], events: Sequence[Event]) -> Spoken:
    """Read prompt and answer from attributes, and from events where those have none."""
    found = _with_details(attributes, events)
    asked, answered = _from_events(events)
    prompt = _system(found) + (_prompt(found) or asked)
    outputs = _outputs(found) or answered
    several = _int(found.get("gen_ai.request.choice.count") or found.get("gen_ai.request.n")) or 1
    answer = read_answer(outputs[:1] if several > 1 else outputs)
    finish = finish_reason(found.get("gen_ai.response.finish_reasons"))
    finish = finish or finish_reason(found.get("gen_ai.response.finish_reason"))
    answer = Answer(answer.message, answer.reasoning, finish or answer.finish_reason)
    return Spoken(read_messages(prompt), answer, _tools(found))


def call_of(span: Span) -> Call:
    """Read a call from its span."""
    found = _with_details(span.attributes, span.events)
    spoken = spoken_in(found, span.events)
    return Call(
        model=first(found, ("gen_ai.request.model", "llm.request.model")),
        served_name=first(found, ("gen_ai.response.model", "llm.response.model")),
        messages=spoken.messages,
        answer=spoken.answer,
        tools=spoken.tools,
        params=params_of(found),
        response_id=first(found, ("gen_ai.response.id",)),
        usage=usage_of(found),
        ttft_s=_ttft_s(span, found),
    )


def usage_of(found: dict[str, Any]) -> Usage:
    """Return the token counts under their names of any time."""
    return Usage(
        _count(found, "input_tokens", "prompt_tokens"),
        _count(found, "output_tokens", "completion_tokens"),
        _count(found, "cache_read.input_tokens", "cache_read_input_tokens", "cached_tokens"),
    )


def params_of(found: dict[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters under the names of OpenAI's protocol."""
    params = {}
    for name, value in found.items():
        short = name.removeprefix("gen_ai.request.")
        if short != name and short != "model" and value is not None and "." not in short:
            params[_PARAMS.get(short, short)] = value
    if (count := found.get("gen_ai.request.choice.count")) is not None:
        params["n"] = count
    return params


_PARAMS = {"stop_sequences": "stop"}


def _with_details(found: dict[str, Any], events: Iterable[Event]) -> dict[str, Any]:
    for event in events:
        if event.name in DETAILS:
            body = event.body if isinstance(event.body, dict) else {}
            found = {**event.attributes, **body, **found}
    return found


def _system(found: dict[str, Any]) -> list[Any]:
    system = decoded_parts(decoded(found.get("gen_ai.system_instructions")))
    return [{"role": "system", "content": system}] if system else []


def _prompt(found: dict[str, Any]) -> list[Any]:
    new = decoded(found.get("gen_ai.input.messages"))
    if new:
        return list(new) if isinstance(new, list) else [new]
    for prefix in ("gen_ai.prompt", "llm.prompts"):
        old = decoded(unflattened(found, prefix))
        if old:
            return [_old_message(raw) for raw in (old if isinstance(old, list) else [old])]
    return []


def _outputs(found: dict[str, Any]) -> list[Any]:
    new = decoded(found.get("gen_ai.output.messages"))
    if new:
        return list(new) if isinstance(new, list) else [new]
    for prefix in ("gen_ai.completion", "llm.completions"):
        old = decoded(unflattened(found, prefix))
        if old:
            return [_old_message(raw) for raw in (old if isinstance(old, list) else [old])]
    return []


def _old_message(raw: Any) -> Any:
    """Return a flattened message; its content of several parts is JSON text."""
    if not isinstance(raw, dict):
        return raw
    calls = [call for call in raw.get("tool_calls") or () if isinstance(call, dict)]
    return {**raw, "content": decoded_parts(raw.get("content")), "tool_calls": calls}


def _tools(found: dict[str, Any]) -> str:
    for name in ("gen_ai.tool.definitions", "gen_ai.request.tools", "gen_ai.request.functions"):
        if found.get(name):
            return read_tools(found[name])
    for prefix in _TOOLS if any(name.startswith(_TOOLS) for name in found) else ():
        if (old := unflattened(found, prefix)) is not None:
            return read_tools(old)
    return "[]"


def _from_events(events: Iterable[Event]) -> tuple[list[Any], list[Any]]:
    """Return the prompt's and the answer's messages that old events hold."""
    asked: list[Any] = []
    answered: list[Any] = []
    for event in events:
        data = _payload(event)
        if event.name in _MESSAGE_EVENTS:
            asked.append(_event_message(data, _MESSAGE_EVENTS[event.name]))
        elif event.name == "gen_ai.choice":
            answered.append(_choice(data))
        elif event.name == "gen_ai.content.prompt":
            asked += _whole(data.get("gen_ai.prompt"))
        elif event.name == "gen_ai.content.completion":
            answered += _whole(data.get("gen_ai.completion"))
    return asked, answered


def _payload(event: Event) -> dict[str, Any]:
    """Return what an event says: in its body, its attributes, or JSON text in one of those."""
    data = dict(event.attributes)
    for more in (decoded(event.attributes.get("gen_ai.event.content")), decoded(event.body)):
        if isinstance(more, dict):
            data |= more
        elif isinstance(more, str):
            data["content"] = more
    return data


def _event_message(data: dict[str, Any], role: str) -> dict[str, Any]:
    raw = {k: data[k] for k in ("content", "parts", "tool_calls", "name") if data.get(k)}
    raw["role"] = data.get("role") or role
    raw["content"] = decoded_parts(raw.get("content"))
    raw["tool_calls"] = decoded(raw.get("tool_calls"))
    if role == "tool":
        raw["tool_call_id"] = data.get("id") or data.get("tool_call_id")
    return raw


def _choice(data: dict[str, Any]) -> dict[str, Any]:
    message = decoded(data.get("message"))
    if not isinstance(message, dict):
        message = {
            "content": decoded_parts(message if message is not None else data.get("content"))
        }
    # Some put the calls beside the message.
    calls = message.get("tool_calls") or decoded(data.get("tool_calls"))
    finish = data.get("finish_reason")
    return {**message, "role": "assistant", "tool_calls": calls, "finish_reason": finish}


def _whole(value: Any) -> list[Any]:
    value = decoded(value)
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _count(found: dict[str, Any], *names: str) -> int | None:
    for name in names:
        if (count := _int(found.get(f"gen_ai.usage.{name}"))) is not None:
            return count
    return next((c for n in names if (c := _int(found.get(f"llm.usage.{n}"))) is not None), None)


def _int(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _ttft_s(span: Span, found: dict[str, Any]) -> float | None:
    for name in ("gen_ai.response.time_to_first_chunk", "gen_ai.server.time_to_first_token"):
        if isinstance(value := found.get(name), int | float):
            return float(value)
    chunk = next((e for e in span.events if e.name in _CHUNKS), None)
    return since_s(span.start_ns, chunk.time_ns) if chunk is not None and span.start_ns else None
