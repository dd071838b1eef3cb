"""Importer of OpenInference data: OTLP, and what Phoenix and Arize export.

An item is an OTLP envelope with OpenInference spans, a span as Phoenix's API gives it, a row of
a spans data frame (`context.trace_id`, `attributes.llm.input_messages`), or a row of its
annotations (`annotation_name`, `span_id`, `result.score`).
"""

from collections.abc import Iterable, Iterator
from typing import Any

from serving.records import TargetKind
from traces.importers import otlp
from traces.importers.flattened import nested
from traces.importers.messages import decoded
from traces.importers.openinference_spans import SOURCE, SPAN_KIND, annotation_row, has_feedback
from traces.importers.rows import LineRefused, Row
from traces.importers.spans import hex_id, is_otlp, is_sdk_span, time_ns

NAME = SOURCE
_ROW_IDS = ("context.trace_id", "context.span_id")
_TARGETS = ("span_id", "context.span_id", "trace_id", "session_id")


def recognises(value: Any) -> bool:
    """Return whether an item has spans with OpenInference's attributes, or is an annotation."""
    if not isinstance(value, dict):
        return False
    if is_otlp(value):
        return any(
            pair.get("key") == SPAN_KIND or has_feedback({str(pair.get("key")): 1})
            for pair in _pairs(value)
            if isinstance(pair, dict)
        )
    if is_sdk_span(value):
        attributes = value["attributes"]
        named = isinstance(value.get("span_kind"), str) and "status_code" in value
        return named or SPAN_KIND in attributes or has_feedback(attributes)
    return _is_row(value) or _is_annotation(value)


def parse(value: Any) -> Iterable[Row]:
    """Read an item.

    Raises:
        LineRefused: if it is none of the kinds.
        ValueError: if a row is not what it should be.
    """
    if is_otlp(value):
        yield from otlp.parse(value)
    elif is_sdk_span(value):
        yield from otlp.parse(_with_kind(value))
    elif isinstance(value, dict) and _is_row(value):
        yield from otlp.parse(_span_of_row(value))
    elif isinstance(value, dict) and _is_annotation(value):
        yield _annotation(value)
    else:
        raise LineRefused("unknown_kind", "neither a span nor an annotation")


def _pairs(value: dict[str, Any]) -> Iterator[Any]:
    """Yield the attributes of an envelope's spans as they stand in it."""
    for resource in value.get("resourceSpans") or value.get("resource_spans") or ():
        for scope in resource.get("scopeSpans") or resource.get("scope_spans") or ():
            for span in scope.get("spans") or ():
                yield from span.get("attributes") or ()


def _is_row(value: dict[str, Any]) -> bool:
    return all(name in value for name in _ROW_IDS) and any(
        name.startswith("attributes.") for name in value
    )


def _is_annotation(value: dict[str, Any]) -> bool:
    named = "annotation_name" in value or ("name" in value and "result" in value)
    return named and "annotator_kind" in value and any(name in value for name in _TARGETS)


def _with_kind(value: dict[str, Any]) -> dict[str, Any]:
    """Return a span whose kind is among its attributes; some exports have it beside them."""
    attributes = value["attributes"]
    flat = (
        _flat(attributes) if any(isinstance(v, dict) for v in attributes.values()) else attributes
    )
    kind = value.get("span_kind")
    if isinstance(kind, str) and SPAN_KIND not in flat:
        flat = {**flat, SPAN_KIND: kind}
    return {**value, "attributes": flat}


def _flat(attributes: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return attributes by dotted names: some exports nest them."""
    flat: dict[str, Any] = {}
    for name, value in attributes.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _span_of_row(row: dict[str, Any]) -> dict[str, Any]:
    start = "attributes."
    attributes = {
        n[len(start) :]: v for n, v in row.items() if n.startswith(start) and v is not None
    }
    span = {k: v for k, v in row.items() if not k.startswith((start, "context."))}
    span["context"] = {"trace_id": row["context.trace_id"], "span_id": row["context.span_id"]}
    span["events"] = decoded(row.get("events")) or []
    return _with_kind({**span, "attributes": attributes})


def _annotation(value: dict[str, Any]) -> Row:
    row = nested(value)
    told = {**row, **(decoded(row.get("result")) or {})}
    told["name"] = row.get("annotation_name") or row.get("name")
    at = row.get("updated_at") or row.get("created_at")
    return annotation_row(told, _target(value), time_ns(at))


def _target(value: dict[str, Any]) -> tuple[TargetKind, str]:
    if span_id := value.get("span_id") or value.get("context.span_id"):
        return "response", hex_id(span_id)
    if trace_id := value.get("trace_id"):
        return "turn", f"{SOURCE}:{hex_id(trace_id)}"
    if session_id := value.get("session_id"):
        return "conversation", str(session_id)
    raise ValueError("the annotation names no span, trace or session")
