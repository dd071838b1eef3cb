"""The same calls over OTLP into this project's lake and into Arize Phoenix's own store.

    rate, phoenix = measure(folder, requests)

Both get the same export requests over HTTP, one after another as an exporter sends them, and
the clock runs until the last span can be queried: here endpoint, spool and ingest, there
Phoenix's server with its SQLite store. Both stores are made, empty, before the clock starts.
Phoenix runs in an environment of its own, made once.
"""

import contextlib
import json
import os
import sqlite3
import subprocess
import time
import venv
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from benchmarks.intake_data import hop_dicts
from infra.base_model import say_on_stderr
from serving.child import HOST, free_port, start_child, stop_child
from traces.ingest import ingest
from traces.storage.lake import Lake

PHOENIX = Path(".mol/bench/phoenix")
"""Where Phoenix's environment is made and kept."""
SPANS_A_REQUEST = 512
"""What OpenTelemetry's batch processor sends at once."""
_LIMIT_S = 900.0
_POLL_S = 0.05
_OTLP = {"Content-Type": "application/x-protobuf"}


class SpansNotStored(RuntimeError):
    """A store did not come up, refused spans or lost some."""


def requests(spans: int, seed: int = 1) -> list[bytes]:
    """Return export requests with so many LLM spans, in OpenInference's attributes."""
    made: list[bytes] = []
    calls = [_span(hop) for hop, _ in zip(hop_dicts(spans, seed), range(spans), strict=False)]
    for start in range(0, spans, SPANS_A_REQUEST):
        request = ExportTraceServiceRequest()
        scope = request.resource_spans.add().scope_spans.add()
        scope.spans.extend(calls[start : start + SPANS_A_REQUEST])
        made.append(request.SerializeToString())
    return made


def into_lake(folder: Path, sent: Sequence[bytes], spans: int) -> float:
    """Return the seconds from the first request until the lake holds every span."""
    home = folder / "otlp-home"
    Lake.open(home).close()
    port = free_port()
    arguments = ["serve", "--otlp-only", "--otlp-port", str(port), "--home", str(home)]
    child = start_child("flows.cli", arguments, os.environ, folder / "otlp.log")
    with _running(child, f"http://{HOST}:{port}/v1/traces", folder / "otlp.log") as url:
        started = time.perf_counter()
        _send(url, sent)
        ingest(home, home / "otlp")
        took = time.perf_counter() - started
    with Lake.open(home, read_only=True) as lake:
        found = lake.connection.execute("SELECT count(*) FROM hops").fetchone()
    if found != (spans,):
        raise SpansNotStored(f"The lake holds {found} of {spans} spans.")
    return took


def into_phoenix(folder: Path, sent: Sequence[bytes], spans: int, python: Path) -> float:
    """Return the seconds from the first request until Phoenix's store holds every span."""
    work = folder / "phoenix"
    work.mkdir()
    port = free_port()
    environment = os.environ | {
        "PHOENIX_WORKING_DIR": str(work),
        "PHOENIX_HOST": HOST,
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    }
    child = start_child(
        "phoenix.server.main", ["serve"], environment, folder / "phoenix.log", python
    )
    with _running(child, f"http://{HOST}:{port}/healthz", folder / "phoenix.log") as url:
        started = time.perf_counter()
        _send(url.removesuffix("/healthz") + "/v1/traces", sent)
        deadline = started + _LIMIT_S
        with contextlib.closing(
            sqlite3.connect(f"file:{work / 'phoenix.db'}?mode=ro", uri=True)
        ) as store:
            while store.execute("SELECT count(*) FROM spans").fetchone()[0] < spans:
                if time.perf_counter() > deadline:
                    raise SpansNotStored(f"Phoenix did not store {spans} spans in {_LIMIT_S} s.")
                time.sleep(_POLL_S)
        return time.perf_counter() - started


def install_phoenix(folder: Path = PHOENIX) -> Path | None:
    """Return the Python of Phoenix's environment, made if it is not there; None if it cannot be."""
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        say_on_stderr(f"Installing Arize Phoenix in {str(folder)!r}, once ...")
        venv.create(folder, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "-qq", "--disable-pip-version-check", "install"]
        if subprocess.run([*command, "arize-phoenix"], check=False).returncode:
            say_on_stderr("Arize Phoenix could not be installed; it is not measured.")
            return None
        (folder / "installed").touch()
    return python


@contextlib.contextmanager
def _running(child: "subprocess.Popen[bytes]", health: str, log: Path) -> Iterator[str]:
    deadline = time.monotonic() + 180
    try:
        with httpx.Client(trust_env=False, timeout=5) as client:
            while not _answers(client, health):
                if child.poll() is not None or time.monotonic() > deadline:
                    raise SpansNotStored(f"No answer at {health}: {log.read_text()[-500:]}")
                time.sleep(_POLL_S)
        yield health
    finally:
        stop_child(child)


def _answers(client: httpx.Client, url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return client.get(url).status_code < 500
    return False


def _send(url: str, sent: Sequence[bytes]) -> None:
    """Post the requests in order; a full queue is asked again, as an exporter does."""
    with httpx.Client(trust_env=False, timeout=120) as client:
        for body in sent:
            deadline = time.monotonic() + _LIMIT_S
            while (answer := client.post(url, content=body, headers=_OTLP)).status_code in (
                429,
                503,
            ):
                if time.monotonic() > deadline:
                    break
                time.sleep(float(answer.headers.get("Retry-After", "0.1")))
            answer.raise_for_status()


def _span(hop: dict[str, Any]) -> Span:
    started = datetime.fromisoformat(hop["started_at"])
    begins = round(started.timestamp() * 1e9)
    number = hop["seq"] + 1
    attributes: dict[str, Any] = {
        "openinference.span.kind": "LLM",
        "llm.model_name": hop["served_name"],
        "llm.invocation_parameters": hop["params"],
        "llm.token_count.prompt": hop["prompt_tokens"],
        "llm.token_count.completion": hop["completion_tokens"],
        "session.id": hop["conversation_id"],
        "user.id": hop["user"],
        "input.value": json.dumps(hop["messages"]),
        "output.value": hop["completion"]["content"],
    }
    for side, messages in (("input", hop["messages"]), ("output", [hop["completion"]])):
        for place, message in enumerate(messages):
            for field in ("role", "content"):
                attributes[f"llm.{side}_messages.{place}.message.{field}"] = message[field]
    return Span(
        trace_id=(number // 2 + 1).to_bytes(16, "big"),
        span_id=(number + 1).to_bytes(8, "big"),
        name="llm",
        start_time_unix_nano=begins,
        end_time_unix_nano=begins + round(hop["duration_s"] * 1e9),
        attributes=[KeyValue(key=key, value=_value(value)) for key, value in attributes.items()],
    )


def _value(value: Any) -> AnyValue:
    return AnyValue(int_value=value) if isinstance(value, int) else AnyValue(string_value=value)
