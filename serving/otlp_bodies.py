"""Bodies of OTLP/HTTP requests: unpacked, checked, and made one line of OTLP JSON.

In: a body as it came, protobuf or JSON, perhaps compressed with gzip. Out: the line, and how many
records were left out because their ids cannot be. Source: OTLP 1.10, "OTLP/HTTP" and "JSON
Protobuf Encoding" (ids are hex there, which protobuf's own JSON is not).
"""

import base64
import binascii
import zlib
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from serving.exchange import RequestInvalid

Signal = Literal["traces", "logs"]
PROTOBUF, JSON = "application/x-protobuf", "application/json"

_REQUESTS: dict[Signal, Any] = {
    "traces": ExportTraceServiceRequest,
    "logs": ExportLogsServiceRequest,
}
_NAMES = {
    "traces": ("resourceSpans", "scopeSpans", "spans"),
    "logs": ("resourceLogs", "scopeLogs", "logRecords"),
}
_ID_BYTES = {"traceId": 16, "spanId": 8, "parentSpanId": 8}


@dataclass(frozen=True, slots=True)
class Accepted:
    """What is kept of a request."""

    line: bytes
    """One line of OTLP JSON with its end; empty if there is nothing to keep."""
    rejected: int = 0
    """Spans or log records left out."""
    why: str = ""


def media_type(value: str) -> str:
    """Return the type of a request's body without its parameters.

    Raises:
        RequestInvalid: (415) if it is none that OTLP/HTTP has.
    """
    kind = value.partition(";")[0].strip().lower()
    if kind not in (PROTOBUF, JSON):
        raise RequestInvalid(
            f"The content type {value[:80]!r} is neither {PROTOBUF!r} nor {JSON!r}.",
            code="unsupported_media_type", status=415,
        )  # fmt: skip
    return kind


def unpacked(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """Return a body without its compression.

    Raises:
        RequestInvalid: (415) if the compression is unknown, (400) if the data is broken, (413) if
            it is too large unpacked.
    """
    match encoding.strip().lower():
        case "" | "identity" | "none":
            return body
        case "gzip" | "deflate":
            return _inflated(body, limit_bytes)
    raise RequestInvalid(
        f"The content encoding {encoding[:80]!r} is neither 'gzip' nor 'identity'.",
        code="unsupported_encoding", status=415,
    )  # fmt: skip


def accept(signal: Signal, body: bytes, kind: str, limit_bytes: int) -> Accepted:
    """Return what of an export request is kept.

    Raises:
        RequestInvalid: (400) if it cannot be decoded, (413) if its line is too long.
    """
    value = _from_protobuf(signal, body) if kind == PROTOBUF else _from_json(signal, body)
    rejected, reasons = _reject_odd_ids(signal, value)
    if not value[_NAMES[signal][0]]:
        return Accepted(b"", rejected, "; ".join(reasons))
    line = orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
    if len(line) > limit_bytes:
        raise RequestInvalid(
            f"The request is {len(line)} bytes of JSON; at most {limit_bytes} are kept. "
            "Let the exporter send smaller batches.",
            code="request_too_large", status=413,
        )  # fmt: skip
    return Accepted(line, rejected, "; ".join(reasons))


def success(signal: Signal, kind: str, accepted: Accepted) -> bytes:
    """Return the body of an answer to a request that was taken, wholly or in part."""
    name = "rejectedSpans" if signal == "traces" else "rejectedLogRecords"
    partial = {name: str(accepted.rejected), "errorMessage": accepted.why}
    if kind == JSON:
        return orjson.dumps({"partialSuccess": partial} if accepted.rejected else {})
    answer: Any = (
        ExportTraceServiceResponse() if signal == "traces" else ExportLogsServiceResponse()
    )
    if accepted.rejected:
        ParseDict({"partialSuccess": partial}, answer)
    return bytes(answer.SerializeToString())


def failure(kind: str, message: str) -> bytes:
    """Return the body of an answer that refuses a request, a `google.rpc.Status`."""
    if kind == PROTOBUF:
        # A span's status has its message in the field where that one has it, and no other is set.
        return bytes(Status(message=message).SerializeToString())
    return orjson.dumps({"message": message})


def _inflated(body: bytes, limit_bytes: int) -> bytes:
    parts, size = [], 0
    try:
        while body:
            unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # gzip's or zlib's head
            part = unpacker.decompress(body, limit_bytes + 1 - size)
            parts.append(part)
            size += len(part)
            if size > limit_bytes:
                raise RequestInvalid(
                    f"The request's body is longer than {limit_bytes} bytes unpacked.",
                    code="request_too_large", status=413,
                )  # fmt: skip
            if not unpacker.eof:
                raise zlib.error("the data ends early")
            body = unpacker.unused_data
    except zlib.error as error:
        raise _broken(f"it is not what its content encoding says: {error}") from error
    return b"".join(parts)


def _from_protobuf(signal: Signal, body: bytes) -> dict[str, Any]:
    request = _REQUESTS[signal]()
    try:
        request.ParseFromString(body)
    except DecodeError as error:
        raise _broken(f"it is no protobuf of {signal}: {error}") from error
    value: dict[str, Any] = MessageToDict(request, use_integers_for_enums=True)
    value.setdefault(_NAMES[signal][0], [])
    for record in _records(signal, value):
        for part in (record, *(record.get("links") or ())):
            for name in _ID_BYTES:
                if name in part:
                    part[name] = base64.b64decode(part[name]).hex()
    return value


def _from_json(signal: Signal, body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except ValueError as error:
        raise _broken(f"it is no JSON: {error}") from error
    top = _NAMES[signal][0]
    # Unknown names are ignored, as OTLP says; but a body of nothing else is a mistake.
    if not isinstance(value, dict) or not isinstance(value.get(top, None if value else []), list):
        raise _broken(f"it is no object with an array {top!r}")
    kept: dict[str, Any] = {top: value.get(top, [])}
    try:
        for record in _records(signal, kept):
            record.get("traceId")
    except (AttributeError, TypeError) as error:
        raise _broken(f"something below {top!r} has another form than OTLP's: {error}") from error
    return kept


def _records(signal: Signal, value: dict[str, Any]) -> Any:
    top, middle, bottom = _NAMES[signal]
    for resource in value[top]:
        for scope in resource.get(middle) or ():
            yield from scope.get(bottom) or ()


def _reject_odd_ids(signal: Signal, value: dict[str, Any]) -> tuple[int, list[str]]:
    """Take out records whose ids have the wrong length, and what is empty without them."""
    top, middle, bottom = _NAMES[signal]
    rejected, reasons = 0, list[str]()
    for resource in value[top]:
        for scope in resource.get(middle) or ():
            kept = []
            for record in scope.get(bottom) or ():
                if (why := _odd_id(signal, record)) is None:
                    kept.append(record)
                    continue
                rejected += 1
                if len(reasons) < 3:
                    reasons.append(why)
            scope[bottom] = kept
        resource[middle] = [scope for scope in resource.get(middle) or () if scope[bottom]]
    value[top] = [resource for resource in value[top] if resource[middle]]
    return rejected, reasons


def _odd_id(signal: Signal, record: dict[str, Any]) -> str | None:
    for name, size in _ID_BYTES.items():
        said = record.get(name) or ""
        if not said and (signal == "logs" or name == "parentSpanId"):
            continue
        if not isinstance(said, str) or not _is_id(said, size):
            return f"{name} {str(said)[:40]!r} is not {size} bytes in hex"
    return None


def _is_id(text: str, size: int) -> bool:
    try:
        if len(text) == 2 * size:
            return len(binascii.unhexlify(text)) == size
        return len(base64.b64decode(text, validate=True)) == size  # as some exporters send it
    except ValueError:
        return False


def _broken(why: str) -> RequestInvalid:
    return RequestInvalid(f"The request's body cannot be read: {why}", code="invalid_body")
