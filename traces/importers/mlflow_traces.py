"""Importer of MLflow traces, as `Trace.to_json()` and `mlflow traces get` write them.

    {"info": {"trace_id", "trace_metadata", "assessments", ...}, "data": {"spans": [...]}}

Also the older form (`request_id`, spans with `context`) and rows of `mlflow.search_traces`.
Assessments become feedback: only those that are `valid` and that no later one overrides.
Previews are cut, so they are never read. A model's span around another model's span is a
wrapper, not a second call.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from serving.records import Feedback, Message, TargetKind, canonical_json
from traces.importers import mlflow_spans
from traces.importers.messages import decoded
from traces.importers.mlflow_spans import SOURCE
from traces.importers.parts import json_text
from traces.importers.rows import MALFORMED, LineRefused, Row, feedback_row, hop_row, refused
from traces.importers.signals import annotator_of, signal
from traces.importers.span_calls import hop_of, skipped
from traces.importers.spans import (
    Bad,
    Read,
    Span,
    at_ns,
    hex_id,
    is_sdk_span,
    read_span,
    time_ns,
)

NAME = SOURCE
_CALLS = "call"


def recognises(value: Any) -> bool:
    """Return whether an item is a trace, or a row that holds one."""
    return isinstance(value, dict) and _document(value) is not None


def parse(value: Any) -> Iterable[Row]:
    """Read a trace: its calls and its assessments.

    Raises:
        LineRefused: if it is none.
    """
    document = _document(value) if isinstance(value, dict) else None
    if document is None:
        raise LineRefused("unknown_kind", "no trace: needs info and data.spans")
    info, raws = document
    about = _about(info)
    spans: list[Span] = []
    for raw in raws:
        read = _span(raw, about)
        if isinstance(read, Bad):
            yield refused("bad_record", read.detail, _part(info, [raw], []))
        else:
            spans.append(read.value)
    wrapping = {span.parent_id for span in spans if mlflow_spans.kind_of(span) == _CALLS}
    for span in spans:
        try:
            yield _row(span, wrapping)
        except (*MALFORMED, LineRefused) as error:
            yield _refusal(error, _part(info, [span_of(span, raws)], []))
    yield from _assessments(info, spans)


def _document(value: dict[str, Any]) -> tuple[dict[str, Any], list[Any]] | None:
    """Return info and spans of a trace, whichever form it has."""
    whole = decoded(value["trace"]) if isinstance(value.get("trace"), str) else value
    if not isinstance(whole, dict):
        return None
    info, data = whole.get("info"), whole.get("data")
    if isinstance(info, dict) and isinstance(data, dict) and isinstance(data.get("spans"), list):
        return info, data["spans"]
    spans = decoded(value.get("spans"))
    named = value.get("trace_id") or value.get("request_id")
    if isinstance(spans, list) and named and ("trace_metadata" in value or "assessments" in value):
        return value, spans
    return None


def _about(info: dict[str, Any]) -> dict[str, Any]:
    """Return what the trace says of all its spans, under the names that spans use."""
    metadata = decoded(info.get("trace_metadata") or info.get("request_metadata"))
    found = _pairs(metadata)
    tags = _pairs(decoded(info.get("tags")))
    return {
        "session.id": found.get("mlflow.trace.session") or found.get("mlflow.traceSession"),
        "user.id": found.get("mlflow.trace.user") or found.get("mlflow.traceUser"),
        "mol.workload": tags.get("mlflow.traceName"),
    }


def _pairs(value: Any) -> dict[str, Any]:
    if isinstance(value, list):  # the oldest form: a list of pairs
        return {str(pair.get("key")): pair.get("value") for pair in value if isinstance(pair, dict)}
    return value if isinstance(value, dict) else {}


def _span(raw: Any, about: dict[str, Any]) -> Read[Span] | Bad:
    if isinstance(raw, dict) and isinstance(raw.get("attributes"), dict):
        told = {k: v for k, v in about.items() if v is not None}
        raw = {**raw, "attributes": {**told, **raw["attributes"]}}
    return read_span(raw, sdk=is_sdk_span(raw))


def span_of(span: Span, raws: list[Any]) -> Any:
    """Return the raw form of a span."""
    for raw in raws:
        context = raw.get("context") if isinstance(raw.get("context"), dict) else raw
        if hex_id(context.get("span_id")) == span.span_id:
            return raw
    return None


def _part(info: dict[str, Any], spans: list[Any], assessments: list[Any]) -> dict[str, Any]:
    return {"info": {**info, "assessments": assessments}, "data": {"spans": spans}}


def _refusal(error: Exception, part: Any) -> Row:
    if isinstance(error, LineRefused):
        return refused(error.reason, str(error), part)
    return refused("bad_record", f"{type(error).__name__}: {error}", part)


def _row(span: Span, wrapping: set[str]) -> Row:
    kind = mlflow_spans.kind_of(span) or "other"
    if kind != _CALLS:
        return skipped(kind)
    if span.span_id in wrapping:
        return skipped("agent")
    return hop_row(hop_of(SOURCE, span, mlflow_spans.call_of(span)))


def _assessments(info: dict[str, Any], spans: list[Span]) -> Iterator[Row]:
    raws = decoded(info.get("assessments")) or []
    overridden = {raw.get("overrides") for raw in raws if isinstance(raw, dict)}
    for raw in raws:
        try:
            # A default that is not written: only feedback that was overridden says otherwise.
            if raw.get("valid") is False or (raw.get("assessment_id") or "") in overridden:
                yield Row("skipped", {"reason": "assessment_overridden"})
            else:
                yield feedback_row(_feedback(raw, info, spans))
        except (*MALFORMED, LineRefused) as error:
            yield _refusal(error, _part(info, [], [raw]))


def _feedback(raw: dict[str, Any], info: dict[str, Any], spans: list[Span]) -> Feedback:
    source = raw.get("source") or {}
    name = raw.get("assessment_name") or raw.get("name")
    if not name:
        raise ValueError("the assessment has no name")
    told = raw.get("feedback") or {}
    value = decoded(told.get("value"))
    made = signal(
        SOURCE,
        _target(raw, info, spans),
        str(name),
        score=value if isinstance(value, int | float) else None,
        label=value if isinstance(value, str) else None,
        text=_text(raw, told, value),
        annotator=annotator_of(source.get("source_type")),
        user=str(source["source_id"]) if source.get("source_id") else None,
        at=at_ns(time_ns(raw.get("last_update_time") or raw.get("create_time"))),
    )
    expectation = raw.get("expectation")
    if not isinstance(expectation, dict):
        return made
    expected = expectation.get(
        "value", decoded((expectation.get("serialized_value") or {}).get("value"))
    )
    # What was expected says nothing about what was answered.
    detail = canonical_json({"expectation": expected, "text": raw.get("rationale")})
    answer = Message(role="assistant", content=json_text(expected))
    known = str(name) in ("expected_response", "expected_output", "ground_truth")
    return made.model_copy(
        update={"kind": "comment", "detail": detail, "correction": answer if known else None}
    )


def _text(raw: dict[str, Any], told: dict[str, Any], value: Any) -> str | None:
    """Return the explanation, with what the value and the error say that no score does."""
    more = {"text": raw.get("rationale"), "error": told.get("error")}
    if isinstance(value, dict | list):
        more["value"] = value
    more = {k: v for k, v in more.items() if v}
    if set(more) <= {"text"}:
        return more.get("text")
    return canonical_json(more)


def _target(raw: dict[str, Any], info: dict[str, Any], spans: list[Span]) -> tuple[TargetKind, str]:
    trace_id = next((span.trace_id for span in spans), None) or _trace_id(raw, info)
    span_id = hex_id(raw.get("span_id"))
    span = next((span for span in spans if span.span_id == span_id), None)
    whole = span is not None and not span.parent_id and mlflow_spans.kind_of(span) != _CALLS
    if span_id and not whole:
        return "response", span_id
    return "turn", f"{SOURCE}:{trace_id}"


def _trace_id(raw: dict[str, Any], info: dict[str, Any]) -> str:
    """Return the hex id of `tr-<hex>` or `trace:/<location>/<hex>`."""
    names = (info.get("trace_id"), info.get("request_id"), raw.get("trace_id"))
    named = next((str(name) for name in names if name), "")
    if not named:
        raise ValueError("the assessment names no trace")
    return named.removeprefix("tr-").rsplit("/", 1)[-1]
