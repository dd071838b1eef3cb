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
import pytest
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
        logs = list(home.glob("engine-*.log"))
    finally:
        server.send_signal(signal.SIGTERM)
        status = server.wait(LIMIT_S)
        reader.join(LIMIT_S)
        server.stderr.close()

    assert status == 0, said
    assert reply.usage.completion_tokens >= 1
    assert [slot["slot"] for slot in slots] == ["L0", "L1", "L2", "L3"]
    assert children
    assert len(logs) == 1
    assert not logs[0].exists()
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


def test_an_engine_that_does_not_start_leaves_its_log_and_names_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = subprocess.run(
        [str(FLOWS), "serve", "--home", str(home), "--base", str(tmp_path / "none")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    (log,) = home.glob("engine-*.log")
    assert done.returncode == 1
    assert f"The whole log is in {str(log)!r}." in done.stderr.splitlines()[-1]
    assert str(tmp_path / "none") in log.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_ended_while_its_engine_starts_leaves_no_log(
    tiny_base: Path, tmp_path: Path, number: signal.Signals
) -> None:
    home = tmp_path / "home"
    server = subprocess.Popen(
        [str(FLOWS), "serve", "--home", str(home), "--base", str(tiny_base), "--port", "0"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while not list(home.glob("engine-*.log")):
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        server.send_signal(number)
        said = server.communicate(timeout=LIMIT_S)[1]
    finally:
        server.kill()
        server.wait()

    assert server.returncode == 130, said
    assert "Serving" not in said
    assert not list(home.glob("engine-*.log"))


def test_an_engine_that_ends_by_itself_leaves_its_log_and_names_it(
    tiny_base: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    command = [
        FLOWS, "serve", "--base", tiny_base, "--home", home, "--port", "0",
        "--serve.admin-port", "0",
    ]  # fmt: skip
    server = subprocess.Popen(
        [str(word) for word in command], env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.extend(server.stderr))
    reader.start()
    try:
        _wait_for(r"Admin API at (http://127\.0\.0\.1:\d+)", said, server)
        (child,) = _children(server.pid)
        os.kill(int(child), signal.SIGKILL)
        deadline = time.monotonic() + LIMIT_S
        # Its last thread has ended too, or nobody can tell yet that it has.
        while not _has_ended(child):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(LIMIT_S)
        reader.join(LIMIT_S)
        server.stderr.close()

    (log,) = home.glob("engine-*.log")
    assert f"The embedded engine ended by itself; its log is in {str(log)!r}." in "".join(said)


def _wait_for(pattern: str, said: list[str], server: "subprocess.Popen[str]") -> str:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        found = re.search(pattern, "".join(said))
        if found:
            return found[1]
        assert server.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


def _has_ended(pid: str) -> bool:
    state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return state == "Z" and len(list(Path(f"/proc/{pid}/task").iterdir())) == 1


def _children(pid: int) -> list[str]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [child for task in tasks for child in (task / "children").read_text().split()]
