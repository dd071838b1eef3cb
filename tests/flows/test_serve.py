"""Proves that `flows serve` alone gives a server that answers, records and stops cleanly.

Everything is real; the base model is the tiny random one behind the embedded engine.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import openai
from mol_server import LIMIT_S, spool_lines

from flows.config import load_settings
from flows.stages import ingest_stage

FLOWS = Path(sys.executable).with_name("flows")
START_LIMIT_S = 100.0


def test_it_answers_records_and_leaves_nothing_running(tiny_base: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    command = [
        FLOWS, "serve", "--base", tiny_base, "--home", home, "--port", "0",
        "--serve.admin-port", "0", "--serve.router.mode", "rules",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MOL_API_KEYS": "k" * 20}
    server = subprocess.Popen(
        [str(word) for word in command], env=environment, stderr=subprocess.PIPE, text=True
    )
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.extend(server.stderr))
    reader.start()
    try:
        url = _wait_for(r"at (http://127\.0\.0\.1:\d+)/v1", said, server)
        admin = _wait_for(r"Admin API at (http://127\.0\.0\.1:\d+)", said, server)
        with openai.OpenAI(base_url=f"{url}/v1", api_key="k" * 20, max_retries=0) as client:
            reply = client.chat.completions.create(
                model="mol", messages=[{"role": "user", "content": "Hello"}], max_tokens=4
            )
        key = (home / "admin.key").read_text()
        headers = {"authorization": f"Bearer {key}"}
        slots = httpx.get(f"{admin}/slots", headers=headers).json()["slots"]
        children = _children(server.pid)
    finally:
        server.send_signal(signal.SIGTERM)
        status = server.wait(LIMIT_S)
        reader.join(LIMIT_S)
        server.stderr.close()

    assert status == 0, said
    assert reply.usage.completion_tokens >= 1
    assert [slot["slot"] for slot in slots] == ["L0", "L1", "L2", "L3"]
    assert children
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    kinds = [line["kind"] for line in spool_lines(home)]
    assert (kinds.count("hop"), kinds.count("turn")) == (3, 1)
    assert "k" * 20 not in "".join(said)
    (report,) = ingest_stage(load_settings(None, (), {"home": home}))
    added = report.funnel["hops_added"], report.funnel["turns_added"]
    assert (added, report.quarantined) == ((3, 1), {})


def test_a_taken_port_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [str(FLOWS), "serve", "--home", str(tmp_path), "--port", str(port),
             "--engine", "http://127.0.0.1:9"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    assert done.returncode == 1
    assert f"Cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def _wait_for(pattern: str, said: list[str], server: "subprocess.Popen[str]") -> str:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        found = re.search(pattern, "".join(said))
        if found:
            return found[1]
        assert server.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


def _children(pid: int) -> list[str]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [child for task in tasks for child in (task / "children").read_text().split()]
