"""Spans and log records, whichever envelope they came in.

    spans_of(value)   OTLP's resourceSpans, a span of the JavaScript or Python SDK -> Found
    logs_of(value)    OTLP's resourceLogs                                        -> Found

OTLP JSON writes integers as strings and ids as hex; protobuf's own JSON writes ids as base64,
enums by name and, if asked, keys in snake case: all are read. What cannot be read comes back
with its reason and the smallest envelope that holds it. Source: opentelemetry-proto 1.x,
"JSON Protobuf Encoding"; the SDKs' `ReadableSpan` and `Span.to_json`.
"""

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from serving.records import UNDATED
from traces.importers.rows import MALFORMED

T = TypeVar("T")
_HEX = re.compile(r"(?:[0-9a-f]{32}|[0-9a-f]{16})")
_ZERO = re.compile(r"0*")
_ERROR = ("2", "STATUS_CODE_ERROR", "ERROR", "StatusCode.ERROR")


@dataclass(frozen=True, slots=True)
class Event:
    """A span event or a log record."""

    name: str
    time_ns: int
    attributes: dict[str, Any]
    body: Any = None
    trace_id: str = ""
    span_id: str = ""
    resource: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """One span, its values decoded."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    scope: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    events: tuple[Event, ...]
    links: tuple[tuple[str, str], ...]
    """Trace and span id of each link."""
    failed: bool
    message: str
    """What the status says."""

    @property
    def started_at(self) -> datetime:
        """When it began; `UNDATED` where the source does not tell."""
        return at_ns(self.start_ns)

    @property
    def duration_s(self) -> float:
        """Its length, 0 where the source does not tell."""
        return since_s(self.start_ns, self.end_ns)


@dataclass(frozen=True, slots=True)
class Bad:
    """A part of an envelope that cannot be read."""

    detail: str
    part: Any
    """The smallest envelope that holds it."""


@dataclass(frozen=True, slots=True)
class Read(Generic[T]):
    """A part of an envelope, and the smallest envelope that holds it."""

    value: T
    part: Any


def is_otlp(value: Any) -> bool:
    """Return whether a value is an envelope of spans or log records."""
    return isinstance(value, dict) and any(
        isinstance(value.get(name), list)
        for name in ("resourceSpans", "resource_spans", "resourceLogs", "resource_logs")
    )


def is_sdk_span(value: Any) -> bool:
    """Return whether a value is a span as an SDK dumps it, or a platform in its form."""
    if not isinstance(value, dict) or not isinstance(value.get("attributes"), dict):
        return False
    context = value.get("spanContext") or value.get("context")
    if not isinstance(context, dict):
        return False
    return bool(context.get("traceId") or context.get("trace_id"))


def spans_of(value: dict[str, Any]) -> Iterator[Read[Span] | Bad]:
    """Yield the spans of an envelope."""
    if is_sdk_span(value):
        yield _read(value, value, _sdk_span, {}, {})
        return
    for resource in _list(value, "resourceSpans", "resource_spans"):
        names = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
        for scope in _list(resource, *names):
            about = resource.get("resource") or {}
            head = scope.get("scope") or scope.get("instrumentationLibrary") or {}
            for raw in _list(scope, "spans"):
                inner = {"scope": head, "spans": [raw]}
                part = {"resourceSpans": [{"resource": about, "scopeSpans": [inner]}]}
                yield _read(raw, part, _otlp_span, about, head)


def read_span(raw: Any, *, sdk: bool = False) -> Read[Span] | Bad:
    """Read one span without an envelope, in the form of OTLP or of an SDK."""
    read: Read[Span] | Bad = _read(raw, raw, _sdk_span if sdk else _otlp_span, {}, {})
    return read


def logs_of(value: dict[str, Any]) -> Iterator[Read[Event] | Bad]:
    """Yield the log records of an envelope."""
    for resource in _list(value, "resourceLogs", "resource_logs"):
        names = ("scopeLogs", "scope_logs", "instrumentationLibraryLogs")
        for scope in _list(resource, *names):
            about = resource.get("resource") or {}
            head = scope.get("scope") or {}
            for raw in _list(scope, "logRecords", "log_records", "logs"):
                inner = {"scope": head, "logRecords": [raw]}
                part = {"resourceLogs": [{"resource": about, "scopeLogs": [inner]}]}
                yield _read(raw, part, _otlp_log, about, head)


def at_ns(time_ns: int) -> datetime:
    """Return the time of a count of nanoseconds since 1970, exact to the microsecond."""
    return UNDATED + timedelta(microseconds=time_ns // 1000)


def since_s(start_ns: int, end_ns: int) -> float:
    """Return the seconds between two times; 0 where there are not two.

    In whole microseconds, as all times here: some dumps of the same span have no more.
    """
    return max(0, end_ns // 1000 - start_ns // 1000) / 1e6 if start_ns and end_ns else 0.0


def time_ns(value: Any) -> int:
    """Return nanoseconds since 1970 of a time in any form; 0 where there is none."""
    if value is None or value == "":
        return 0
    if isinstance(value, datetime):
        since = (value if value.tzinfo else value.replace(tzinfo=UTC)) - UNDATED
        return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
    if isinstance(value, list | tuple):  # the JavaScript SDK's seconds and nanoseconds
        return int(value[0]) * 10**9 + int(value[1])
    text = str(value)
    if text.lstrip("-").isdigit():
        return int(text)
    return time_ns(datetime.fromisoformat(text))


def hex_id(value: Any) -> str:
    """Return a trace or span id in hex, from hex, base64 or bytes; others stay as they are."""
    if isinstance(value, bytes):
        return value.hex()
    text = str(value or "").removeprefix("0x")
    if _HEX.fullmatch(text.lower()):
        return "" if _ZERO.fullmatch(text) else text.lower()
    if len(text) in (12, 24) and text.endswith("="):
        try:
            raw = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
        except binascii.Error:
            return text
        return raw.hex() if any(raw) else ""
    return text


def any_value(value: Any) -> Any:
    """Return what an OTLP `AnyValue` stands for."""
    if not isinstance(value, dict):
        return value
    for name, inner in value.items():
        match name:
            case "stringValue" | "string_value" | "boolValue" | "bool_value":
                return inner
            case "intValue" | "int_value":
                return int(inner)
            case "doubleValue" | "double_value":
                return float(inner)
            case "arrayValue" | "array_value":
                return [any_value(item) for item in (inner or {}).get("values") or ()]
            case "kvlistValue" | "kvlist_value":
                return attributes_of((inner or {}).get("values"))
            case "bytesValue" | "bytes_value":
                return inner
    return None


def attributes_of(value: Any) -> dict[str, Any]:
    """Return attributes, OTLP's list of pairs or an object, as a plain dict."""
    if isinstance(value, dict):
        return value
    return {str(pair["key"]): any_value(pair.get("value")) for pair in value or ()}


def _read(raw: Any, part: Any, make: Any, resource: Any, scope: Any) -> Any:
    try:
        return Read(make(raw, resource, scope), part)
    except MALFORMED as error:
        return Bad(f"{type(error).__name__}: {error}", part)


def _otlp_span(raw: dict[str, Any], resource: dict[str, Any], scope: dict[str, Any]) -> Span:
    status = raw.get("status") or {}
    return Span(
        trace_id=_trace_id(raw.get("traceId") or raw.get("trace_id")),
        span_id=hex_id(raw.get("spanId") or raw.get("span_id")),
        parent_id=hex_id(raw.get("parentSpanId") or raw.get("parent_span_id")),
        name=str(raw.get("name") or ""),
        scope=str(scope.get("name") or ""),
        start_ns=time_ns(raw.get("startTimeUnixNano") or raw.get("start_time_unix_nano")),
        end_ns=time_ns(raw.get("endTimeUnixNano") or raw.get("end_time_unix_nano")),
        attributes=attributes_of(raw.get("attributes")),
        resource=attributes_of(resource.get("attributes")),
        events=tuple(_event(event) for event in raw.get("events") or ()),
        links=tuple(_link(link) for link in raw.get("links") or ()),
        failed=str(status.get("code")) in _ERROR,
        message=str(status.get("message") or ""),
    )


def _sdk_span(raw: dict[str, Any], resource: dict[str, Any], scope: dict[str, Any]) -> Span:
    context = raw.get("spanContext") or raw["context"]
    parent = raw.get("parentSpanContext") or {}
    status = raw.get("status") or {}
    code = raw.get("status_code") or status.get("code") or status.get("status_code")
    head = raw.get("instrumentationScope") or raw.get("instrumentationLibrary") or {}
    about = raw.get("resource") or {}
    message = raw.get("status_message") or status.get("message") or status.get("description")
    named = raw.get("parentSpanId") or raw.get("parent_id") or parent.get("spanId")
    return Span(
        trace_id=_trace_id(context.get("traceId") or context.get("trace_id")),
        span_id=hex_id(context.get("spanId") or context.get("span_id")),
        parent_id=hex_id(named),
        name=str(raw.get("name") or ""),
        scope=str(head.get("name") or ""),
        start_ns=time_ns(raw.get("startTime") or raw.get("start_time")),
        end_ns=time_ns(raw.get("endTime") or raw.get("end_time")),
        attributes=raw["attributes"],
        resource=attributes_of(about.get("attributes")),
        events=tuple(_event(event) for event in raw.get("events") or ()),
        links=tuple(_link(link) for link in raw.get("links") or ()),
        failed=str(code) in _ERROR,
        message=str(message or ""),
    )


def _event(raw: dict[str, Any]) -> Event:
    names = ("timeUnixNano", "time_unix_nano", "time", "timestamp")
    when = next((raw[name] for name in names if raw.get(name)), 0)
    return Event(str(raw.get("name") or ""), time_ns(when), attributes_of(raw.get("attributes")))


def _link(raw: dict[str, Any]) -> tuple[str, str]:
    context = raw.get("context") or raw
    trace = context.get("traceId") or context.get("trace_id")
    return hex_id(trace), hex_id(context.get("spanId") or context.get("span_id"))


def _otlp_log(raw: dict[str, Any], resource: dict[str, Any], scope: dict[str, Any]) -> Event:
    attributes = attributes_of(raw.get("attributes"))
    name = raw.get("eventName") or raw.get("event_name") or attributes.get("event.name") or ""
    names = ("timeUnixNano", "time_unix_nano", "observedTimeUnixNano", "observed_time_unix_nano")
    times = (time_ns(raw.get(field)) for field in names)
    return Event(
        name=str(name),
        time_ns=next((t for t in times if t), 0),
        attributes=attributes,
        body=any_value(raw.get("body")),
        trace_id=hex_id(raw.get("traceId") or raw.get("trace_id")),
        span_id=hex_id(raw.get("spanId") or raw.get("span_id")),
        resource=attributes_of(resource.get("attributes")),
    )


def _trace_id(value: Any) -> str:
    trace_id = hex_id(value)
    if not trace_id:
        raise ValueError(f"trace id {value!r} is empty")
    return trace_id


def _list(value: dict[str, Any], *names: str) -> list[Any]:
    found = next((value[name] for name in names if value.get(name)), None) or []
    if not isinstance(found, list):
        raise ValueError(f"{names[0]} is a {type(found).__name__}, not an array")
    return found
