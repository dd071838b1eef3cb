"""Importer of OpenTelemetry data: traces and logs in OTLP JSON, and spans as SDKs dump them.

An item is a `TracesData` or `LogsData` object (the Collector's file exporter writes one a line),
or one span. Every span that is a call of a model becomes a hop, by the dialect of its
attributes; `gen_ai.evaluation.result` becomes feedback; a log record with content of a call goes
to `span_events`, from where `traces.joins.span_events` completes the hop; other spans are counted.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from serving.records import TargetKind
from traces.importers import genai, mlflow_spans, openinference_spans, vercel_ai
from traces.importers.messages import decoded
from traces.importers.rows import MALFORMED, LineRefused, Row, feedback_row, hop_row, refused
from traces.importers.signals import annotator_of, signal
from traces.importers.span_calls import first, hop_of, session_of, skipped
from traces.importers.span_event_rows import agent_row, span_event_row
from traces.importers.spans import (
    Bad,
    Event,
    Span,
    at_ns,
    is_otlp,
    is_sdk_span,
    logs_of,
    spans_of,
)

NAME = "otlp"
_OTHER_SIGNALS = ("resourceMetrics", "resourceProfiles")
_DIALECTS: tuple[tuple[str, Any], ...] = (
    (openinference_spans.SOURCE, openinference_spans),
    (mlflow_spans.SOURCE, mlflow_spans),
    (NAME, vercel_ai),
    (NAME, genai),
)
"""Dialects of attributes and the source they stand for; the first that knows a span has it."""


def recognises(value: Any) -> bool:
    """Return whether an item is OTLP's, or an SDK's span."""
    return is_otlp(value) or is_sdk_span(value)


def parse(value: Any) -> Iterable[Row]:
    """Read an envelope, part by part.

    Raises:
        LineRefused: if it is none.
    """
    if isinstance(value, dict) and any(name in value for name in _OTHER_SIGNALS):
        yield Row("skipped", {"reason": "other_signal"})
        return
    if not recognises(value):
        raise LineRefused("unknown_kind", "neither resourceSpans, resourceLogs nor a span")
    for span in spans_of(value):
        yield from _part(span, span_rows)
    for event in logs_of(value):
        yield from _part(event, _log_rows)


def span_rows(span: Span) -> Iterator[Row]:
    """Yield the rows of one span: its call, and the feedback it brings."""
    known = ((source, dialect, dialect.kind_of(span)) for source, dialect in _DIALECTS)
    source, dialect, kind = next((k for k in known if k[2] is not None), (NAME, genai, "other"))
    if kind == "call":
        yield hop_row(hop_of(source, span, dialect.call_of(span)))
    elif kind != "carrier":
        yield skipped(kind)
        if kind == "agent" and span.span_id:
            yield agent_row(source, span)
    yield from openinference_spans.feedback_rows(span)
    for event in span.events:
        if event.name == genai.EVALUATION:
            yield evaluation_row(event, span.trace_id, span.span_id)


def evaluation_row(event: Event, trace_id: str, span_id: str) -> Row:
    """Return the feedback row of an evaluation event.

    Raises:
        ValueError: if it names nothing that it evaluates.
    """
    body = decoded(event.body)
    found = {**event.attributes, **(body if isinstance(body, dict) else {})}
    name = found.get("gen_ai.evaluation.name")
    if not name:
        raise ValueError("gen_ai.evaluation.name is missing")
    response_id = first(found, ("gen_ai.response.id",))
    session = session_of(found, {})
    target: tuple[TargetKind, str]
    if response_id or span_id:
        target = ("response", response_id or span_id)
    elif trace_id:
        target = ("turn", f"{NAME}:{trace_id}")
    elif session:
        target = ("conversation", session)
    else:
        raise ValueError("the evaluation has no response id, span, trace or conversation")
    feedback = signal(
        NAME,
        target,
        str(name),
        score=found.get("gen_ai.evaluation.score.value"),
        label=first(found, ("gen_ai.evaluation.score.label",)),
        text=first(found, ("gen_ai.evaluation.explanation",)),
        annotator=annotator_of(found.get("mol.annotator")),
        user=first(found, ("user.id", "enduser.id")),
        at=at_ns(event.time_ns),
    )
    return feedback_row(feedback)


def _log_rows(event: Event) -> Iterator[Row]:
    if event.name == genai.EVALUATION:
        yield evaluation_row(event, event.trace_id, event.span_id)
    elif genai.is_content(event) and event.span_id:
        yield span_event_row(NAME, event)
    else:
        yield Row("skipped", {"reason": "log_other"})


def _part(part: Any, rows: Any) -> Iterator[Row]:
    """Yield the rows of a part; what is wrong with one is its own quarantine row."""
    if isinstance(part, Bad):
        yield refused("bad_record", part.detail, part.part)
        return
    try:
        yield from list(rows(part.value))
    except LineRefused as refusal:
        yield refused(refusal.reason, str(refusal), part.part)
    except MALFORMED as error:
        yield refused("bad_record", f"{type(error).__name__}: {error}", part.part)
