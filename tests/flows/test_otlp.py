"""Proves the whole way of OpenTelemetry data: exporter, endpoint, ingest, turns.

The exporter and the process are real. The process is killed as soon as the exporter has its
answer: what was acknowledged must be there.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from otlp_server import LIMIT_S, chat_span, exporting

from flows.config import load_settings
from flows.stages import NothingToIngest, ingest_stage, named_sources
from serving.child import free_port, start_child, stop_child
from traces.storage.lake import Lake


def test_what_was_acknowledged_is_a_turn_after_the_process_was_killed(tmp_path: Path) -> None:
    home, log, port = tmp_path / "home", tmp_path / "log", free_port()
    arguments = ["serve", "--home", str(home), "--otlp-only", "--otlp-port", str(port)]
    child = start_child("flows.cli", arguments, dict(os.environ), log)
    try:
        _wait_for(r"Taking OpenTelemetry data at (http://127\.0\.0\.1:\d+)\.", log, child)
        with exporting(f"http://127.0.0.1:{port}", Compression.Gzip) as provider:
            for n in range(5):
                chat_span(provider, f"s{n}", f"chatcmpl-{n}")
        child.kill()
        child.wait(LIMIT_S)
    finally:
        stop_child(child)

    reports = ingest_stage(load_settings(None, (), {"home": home}))
    again = ingest_stage(load_settings(None, (), {"home": home}))
    with Lake.open(home, read_only=True) as lake:
        turns = lake.connection.execute(
            "SELECT conversation_id, slot, digest, request, status FROM v_turns ORDER BY ALL"
        ).fetchall()
    (report,) = reports
    assert (report.format, report.funnel["hops_added"]) == ("otlp", 5)
    assert not any(one.added for one in again)
    assert turns == [(f"s{n}", "support", "v3", "Weather in Paris?", "ok") for n in range(5)]


def test_ingest_takes_the_spool_and_what_the_endpoint_kept(tmp_path: Path) -> None:
    settings = load_settings(None, (), {"home": tmp_path})
    with pytest.raises(NothingToIngest, match="No traces are named"):
        named_sources(settings)

    (tmp_path / "otlp").mkdir()
    assert named_sources(settings) == (tmp_path / "otlp",)
    (tmp_path / "spool").mkdir()
    assert named_sources(settings) == (tmp_path / "spool", tmp_path / "otlp")


def test_help_tells_of_the_endpoint() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("flows"), "serve", "--help"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert all(flag in done.stdout for flag in ("--otlp ", "--otlp-port", "--otlp-only"))


def _wait_for(pattern: str, log: Path, child: "subprocess.Popen[bytes]") -> str:
    deadline = time.monotonic() + LIMIT_S
    while True:
        said = log.read_text()
        if found := re.search(pattern, said):
            return found[1]
        assert child.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.05)
