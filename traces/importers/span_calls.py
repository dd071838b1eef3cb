"""A model call found in a span, and the hop it becomes.

Each dialect of attributes (`genai`, `vercel_ai`, `openinference`) reads a span into a `Call`;
what all have in common is done here: ids, times, errors, this project's own `mol.*` attributes.
Spans that are no call of a model (tools, agents, embeddings) are counted, not stored: what a
tool gave back stands in the prompt of the next call.
"""

from dataclasses import dataclass, field
from typing import Any, cast

from serving.records import Hop, HopRole, HopStatus, Message, canonical_json
from traces.importers.messages import Answer, Usage
from traces.importers.rows import Row
from traces.importers.spans import Span

_ROLES = ("route", "answer", "summary")
_SESSIONS = (
    "gen_ai.conversation.id", "session.id", "langfuse.session.id",
    "traceloop.association.properties.session_id",
    "traceloop.association.properties.conversation_id",
    "traceloop.association.properties.thread_id",
    "ai.telemetry.metadata.sessionId", "ai.telemetry.metadata.conversationId",
    "ai.telemetry.metadata.threadId",
)  # fmt: skip
_USERS = (
    "user.id", "enduser.id", "langfuse.user.id", "traceloop.association.properties.user_id",
    "ai.telemetry.metadata.userId",
)  # fmt: skip
_WORKLOADS = (
    "mol.workload", "gen_ai.workflow.name", "traceloop.workflow.name", "ai.telemetry.functionId",
    "gen_ai.agent.name", "agent.name",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """What a dialect knows of a call."""

    model: str | None
    served_name: str | None
    messages: tuple[Message, ...]
    answer: Answer
    tools: str = "[]"
    params: dict[str, Any] = field(default_factory=dict)
    response_id: str | None = None
    usage: Usage = field(default_factory=Usage)
    ttft_s: float | None = None


def skipped(kind: str) -> Row:
    """Return the row that counts a span that is no call; `kind` says what it is."""
    return Row("skipped", {"reason": f"span_{kind}"})


def hop_of(source: str, span: Span, call: Call) -> Hop:
    """Return the hop of a call."""
    found = span.attributes
    status, error = _status(span, call)
    return Hop(
        source=source,
        conversation_id=session_of(found, span.resource) or span.trace_id,
        turn_id=f"{source}:{span.trace_id}",
        user=first(found, _USERS),
        seq=span.start_ns // 1000,
        role=_role(found),
        model=call.model or call.served_name or "unknown",
        served_name=_adapter(found) or call.served_name,
        messages=call.messages,
        tools=call.tools,
        params=canonical_json(call.params),
        completion=call.answer.message,
        response_id=call.response_id,
        finish_reason=call.answer.finish_reason,
        status=status,
        error=error,
        confidence=_number(found.get("mol.route.confidence")),
        propensity=_number(found.get("mol.route.propensity")),
        prompt_tokens=call.usage.prompt_tokens,
        completion_tokens=call.usage.completion_tokens,
        cached_tokens=call.usage.cached_tokens,
        started_at=span.started_at,
        duration_s=span.duration_s,
        ttft_s=call.ttft_s,
        harness_digest=first(found, ("mol.harness.digest",)),
        reasoning=call.answer.reasoning,
        span_id=span.span_id or None,
        workload=_workload(found, span.resource),
        task=first(found, ("mol.task",)),
    )


def first(attributes: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """Return the first attribute of those names that is set, as text."""
    return next((str(v) for n in names if (v := attributes.get(n)) not in (None, "")), None)


def session_of(attributes: dict[str, Any], resource: dict[str, Any]) -> str | None:
    """Return the id of the session, under any of the names in use."""
    return first(attributes, _SESSIONS) or first(resource, _SESSIONS)


def error_of(span: Span) -> str | None:
    """Return what went wrong in one line, None if nothing did."""
    kind = first(span.attributes, ("error.type",))
    if not span.failed and kind is None:
        return None
    thrown = next((e.attributes for e in span.events if e.name == "exception"), {})
    text = span.message or thrown.get("exception.message") or ""
    kind = kind or thrown.get("exception.type")
    if kind and str(text).startswith((f"{kind}: ", str(kind).rsplit(".", 1)[-1] + ": ")):
        return str(text)
    return ": ".join(str(part) for part in (kind, text) if part) or "the span's status is an error"


def _status(span: Span, call: Call) -> tuple[HopStatus, str | None]:
    error = error_of(span)
    if error is None and call.answer.finish_reason != "error":
        return "ok", None
    said = call.answer.message
    begun = said is not None and (said.content or said.tool_calls)
    return "broken_stream" if begun else "engine_error", error or "finish_reason is 'error'"


def _role(attributes: dict[str, Any]) -> HopRole:
    role = attributes.get("mol.hop.role")
    return cast(HopRole, role) if role in _ROLES else "answer"


def _adapter(attributes: dict[str, Any]) -> str | None:
    """Return the served name that the `mol.adapter` attributes spell, `name@version`."""
    name = attributes.get("mol.adapter.name")
    if not name:
        return None
    version = attributes.get("mol.adapter.digest") or attributes.get("mol.adapter.version")
    if not version or "@" in str(name):
        return str(name)
    short = str(version).removeprefix("sha256:")
    return f"{name}@{short[:12] if attributes.get('mol.adapter.digest') else short}"


def _workload(attributes: dict[str, Any], resource: dict[str, Any]) -> str | None:
    service = str(resource.get("service.name") or "")
    named = first(attributes, _WORKLOADS)
    return named or (None if service.startswith("unknown_service") else service or None)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
