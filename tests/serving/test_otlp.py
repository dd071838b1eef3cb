"""Proves that the OTLP endpoint keeps what a real exporter sends and refuses as the spec says.

The exporters are OpenTelemetry's own; odd requests are made by hand over real sockets. A disk
that takes nothing is a folder whose place a file has.
"""

import asyncio
import gzip
import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from otlp_server import LIMIT_S, chat_span, exporting, otlp_server

from serving.access import KeysInvalid
from serving.config import OtlpConfig, ServeConfig
from serving.otlp_bodies import accept
from serving.serve import collecting

TRACE, SPAN = "5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174"
PROTOBUF, JSON = "application/x-protobuf", "application/json"


def kept(home: Path) -> list[dict[str, Any]]:
    files = sorted((home / "otlp").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def spans_kept(home: Path) -> list[dict[str, Any]]:
    return [
        span
        for line in kept(home)
        for resource in line["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def envelope(**span: Any) -> dict[str, Any]:
    made = {"traceId": TRACE, "spanId": SPAN, "name": "chat", **span}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [made]}]}]}


def post(url: str, body: bytes, kind: str = JSON, path: str = "/v1/traces", **headers: str) -> Any:
    more = {"content-type": kind, **{name.replace("_", "-"): v for name, v in headers.items()}}
    return httpx.post(url + path, content=body, headers=more, timeout=LIMIT_S)


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_what_an_exporter_sends_is_kept_with_ids_in_hex(
    tmp_path: Path, compression: Compression
) -> None:
    with otlp_server(tmp_path) as url:
        with exporting(url, compression) as provider:
            for n in range(3):
                chat_span(provider, "s1", f"chatcmpl-{n}")
        found = spans_kept(tmp_path)  # before the server has closed anything

    assert len(found) == 3
    assert all(len(bytes.fromhex(span["traceId"])) == 16 for span in found)
    assert all(len(bytes.fromhex(span["spanId"])) == 8 for span in found)
    attributes = {pair["key"]: pair["value"] for pair in found[0]["attributes"]}
    assert attributes["gen_ai.usage.input_tokens"] == {"intValue": "9"}
    assert found[0]["kind"] == 1


def test_json_is_kept_as_it_is_and_protobuf_becomes_the_same(tmp_path: Path) -> None:
    body = envelope(kind=3, startTimeUnixNano="1764432000000000001", status={"code": 2})
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id, span.span_id, span.name = bytes.fromhex(TRACE), bytes.fromhex(SPAN), "chat"
    span.kind, span.start_time_unix_nano, span.status.code = 3, 1764432000000000001, 2

    with otlp_server(tmp_path) as url:
        answers = [
            post(url, json.dumps(body, indent=2).encode(), JSON + "; charset=utf-8"),
            post(url, request.SerializeToString(), PROTOBUF),
        ]

    assert [(a.status_code, a.headers["content-type"]) for a in answers] == [
        (200, JSON), (200, PROTOBUF),
    ]  # fmt: skip
    assert (answers[0].content, answers[1].content) == (b"{}", b"")
    assert kept(tmp_path) == [body, body]


def test_logs_are_kept_too(tmp_path: Path) -> None:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add()
    record.event_name = "gen_ai.evaluation.result"

    with otlp_server(tmp_path) as url:
        answer = post(url, request.SerializeToString(), PROTOBUF, "/v1/logs")

    assert answer.status_code == 200
    (line,) = kept(tmp_path)
    assert line["resourceLogs"][0]["scopeLogs"][0]["logRecords"] == [
        {"eventName": "gen_ai.evaluation.result"}
    ]


@pytest.mark.parametrize("kind", [JSON, PROTOBUF])
def test_records_with_impossible_ids_are_rejected_alone(tmp_path: Path, kind: str) -> None:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for trace in (bytes.fromhex(TRACE), b"\1\2\3", b""):
        scope.spans.add(trace_id=trace, span_id=bytes.fromhex(SPAN), name="chat")
    as_json = envelope()
    inner = as_json["resourceSpans"][0]["scopeSpans"][0]["spans"]
    inner += [{**inner[0], "traceId": "010203"}, {**inner[0], "traceId": ""}]

    with otlp_server(tmp_path) as url:
        body = request.SerializeToString() if kind == PROTOBUF else json.dumps(as_json).encode()
        answer = post(url, body, kind)

    assert answer.status_code == 200
    if kind == PROTOBUF:
        partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
        rejected, why = partial.rejected_spans, partial.error_message
    else:
        partial = answer.json()["partialSuccess"]
        rejected, why = int(partial["rejectedSpans"]), partial["errorMessage"]
    assert rejected == 2
    assert "'010203' is not 16 bytes" in why
    assert [span["traceId"] for span in spans_kept(tmp_path)] == [TRACE]


def test_nothing_to_keep_is_a_success_without_a_line(tmp_path: Path) -> None:
    with otlp_server(tmp_path) as url:
        answers = [post(url, b"{}"), post(url, b"", PROTOBUF)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert kept(tmp_path) == []


@pytest.mark.parametrize(
    ("body", "kind", "headers", "status", "why"),
    [
        (b"{", JSON, {}, 400, "no JSON"),
        (b'{"resource_spans": []}', JSON, {}, 400, "no object with an array 'resourceSpans'"),
        (b'{"resourceSpans": [null]}', JSON, {}, 400, "another form"),
        (b"\xff\xff", PROTOBUF, {}, 400, "no protobuf"),
        (b"{}", JSON, {"content_encoding": "gzip"}, 400, "content encoding"),
        (b"{}", JSON, {"content_encoding": "br"}, 415, "'br'"),
        (b"{}", "text/plain", {}, 415, "'text/plain'"),
        (b" " * 3000, JSON, {}, 413, "longer than 2048 bytes"),
        (gzip.compress(b" " * 10**6), JSON, {"content_encoding": "gzip"}, 413, "unpacked"),
        (b"{}", JSON, {"host": "evil.example"}, 403, "host_not_allowed|not the loopback"),
    ],
)
def test_a_request_that_cannot_be_taken_is_told_why(
    tmp_path: Path, body: bytes, kind: str, headers: dict[str, str], status: int, why: str
) -> None:
    with otlp_server(tmp_path, max_body_bytes=2048) as url:
        answer = post(url, body, kind, **headers)

    assert answer.status_code == status
    message = (
        Status.FromString(answer.content).message if kind == PROTOBUF else answer.json()["message"]
    )
    assert any(part in message for part in why.split("|"))
    assert kept(tmp_path) == []


def test_other_signals_and_methods_have_no_endpoint(tmp_path: Path) -> None:
    with otlp_server(tmp_path) as url:
        metrics = post(url, b"{}", path="/v1/metrics")
        got = httpx.get(f"{url}/v1/traces", timeout=LIMIT_S)

    assert (metrics.status_code, got.status_code) == (404, 405)
    assert "Only traces and logs" in metrics.json()["message"]


def test_keys_apply_where_they_are_set(tmp_path: Path) -> None:
    with otlp_server(tmp_path, {"MOL_API_KEYS": "k" * 20}) as url:
        refused = post(url, b"{}")
        with exporting(url, Compression.Gzip, authorization=f"Bearer {'k' * 20}") as provider:
            chat_span(provider, "s1", "chatcmpl-1")

    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert len(spans_kept(tmp_path)) == 1


def test_a_foreign_address_needs_keys(tmp_path: Path) -> None:
    async def start() -> None:
        config = ServeConfig(otlp=OtlpConfig(host="0.0.0.0", port=0))
        async with collecting(tmp_path, config, {}):
            pass

    with pytest.raises(KeysInvalid, match=r"'0\.0\.0\.0' is not the loopback"):
        asyncio.run(start())


def test_a_disk_that_takes_nothing_is_told_and_asked_again(tmp_path: Path) -> None:
    folder = tmp_path / "otlp"
    with otlp_server(tmp_path) as url:
        folder.write_text("in the way")
        refused = post(url, json.dumps(envelope()).encode())
        folder.unlink()
        taken = post(url, json.dumps(envelope()).encode())

    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert taken.status_code == 200
    assert len(spans_kept(tmp_path)) == 1


def test_more_than_may_wait_are_sent_away_to_come_again(tmp_path: Path) -> None:
    with otlp_server(tmp_path, max_waiting=1) as url, httpx.Client(timeout=LIMIT_S) as client:
        address = httpx.URL(url)
        # One request whose body does not come holds the only place.
        with socket.create_connection((address.host, address.port)) as slow:
            slow.sendall(
                b"POST /v1/traces HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 5\r\n"
                b"content-type: application/json\r\n\r\n"
            )
            while (answer := client.post(f"{url}/v1/traces", json={})).status_code == 200:
                pass

    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1


def test_full_segments_are_closed_and_others_begun(tmp_path: Path) -> None:
    with otlp_server(tmp_path, segment_bytes=1024) as url:
        for _ in range(3):
            assert post(url, json.dumps(envelope(name="x" * 900)).encode()).status_code == 200

    assert len(list((tmp_path / "otlp").glob("*.jsonl"))) == 3


def test_a_line_longer_than_ingest_reads_is_refused() -> None:
    body = json.dumps(envelope(name="x" * 500)).encode()

    with pytest.raises(ValueError, match="at most 400 are kept"):
        accept("traces", body, JSON, 400)
