"""MLflow's attributes, read from a span into a `Call`.

Every value is JSON text. `mlflow.spanInputs` and `mlflow.spanOutputs` are whatever the traced
function took and gave back: a request's and a response's body where MLflow traced a client
library. They come in MLflow's own trace documents and, exported, in OTLP. Source: mlflow 3.17.
"""

from typing import Any

from traces.importers.conversations import read_input, read_output
from traces.importers.messages import Answer, Usage, decoded, read_tools, read_usage
from traces.importers.span_calls import Call
from traces.importers.spans import Span, since_s

SOURCE = "mlflow"
_KINDS = {
    "CHAT_MODEL": "call", "LLM": "call", "EMBEDDING": "embeddings", "TOOL": "tool",
    "RETRIEVER": "retrieval", "RERANKER": "retrieval", "AGENT": "agent", "CHAIN": "agent",
    "WORKFLOW": "agent", "TASK": "agent",
}  # fmt: skip


def kind_of(span: Span) -> str | None:
    """Return what a span is; None if it is not MLflow's."""
    kind = decoded(span.attributes.get("mlflow.spanType"))
    return None if kind is None else _KINDS.get(str(kind).upper(), "other")


def call_of(span: Span) -> Call:
    """Read a call."""
    asked = read_input(_value(span, "mlflow.spanInputs"))
    answered = read_output(_value(span, "mlflow.spanOutputs"))
    named = _value(span, "mlflow.llm.model") or _value(span, "model")
    usage = read_usage(_value(span, "mlflow.chat.tokenUsage"))
    if usage == Usage():
        usage = answered.usage
    tools = _value(span, "mlflow.chat.tools")
    chunk = next((e for e in span.events if e.name == "mlflow.chunk.item.0"), None)
    return Call(
        model=asked.model or _text(_value(span, "model")) or _text(named),
        served_name=answered.model or _text(named),
        messages=asked.messages,
        answer=Answer(answered.completion, answered.reasoning, answered.finish_reason),
        tools=read_tools(tools) if tools else asked.tools,
        params=asked.params,
        response_id=answered.response_id,
        usage=usage,
        ttft_s=since_s(span.start_ns, chunk.time_ns) if chunk is not None else None,
    )


def _value(span: Span, name: str) -> Any:
    return decoded(span.attributes.get(name))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
