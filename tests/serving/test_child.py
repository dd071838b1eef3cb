"""Proves that servers which the loop starts end with it, however it ends.

Real processes, real signals; a small module stands in the server's place.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from serving.child import HOST, free_port, start_child, stop_child

REPOSITORY = Path(__file__).parents[2]
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child")

SERVER = """
import os, signal, subprocess, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "parent" in sys.argv:
    own = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(own.pid, flush=True)
print("ready", os.getpid(), os.environ.get("WORD"), flush=True)
time.sleep(600)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "stand_in_server.py").write_text(SERVER)
    return {"PYTHONPATH": str(tmp_path), "WORD": "given"}


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition, limit_s: float = 20.0) -> bool:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def said(log: Path) -> list[str]:
    assert wait_for(lambda: log.exists() and "ready" in log.read_text()), log.read_text()
    return log.read_text().split()


def test_a_child_gets_its_environment_and_writes_to_its_log(tmp_path, environment) -> None:
    child = start_child("stand_in_server", [], environment, tmp_path / "logs" / "log")

    words = said(tmp_path / "logs" / "log")
    stop_child(child)

    assert words == ["ready", str(child.pid), "given"]
    assert child.returncode == -signal.SIGTERM


@linux
def test_a_child_dies_when_its_parent_is_killed(tmp_path, environment) -> None:
    program = """
import os, sys, time
from pathlib import Path
from serving.child import start_child
child = start_child("stand_in_server", [], dict(os.environ), Path(sys.argv[1]))
time.sleep(600)
"""
    path = os.pathsep.join([str(REPOSITORY), environment["PYTHONPATH"]])
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "log")],
        env=os.environ | environment | {"PYTHONPATH": path},
    )
    pid = int(said(tmp_path / "log")[1])
    assert is_running(pid)

    parent.kill()
    parent.wait()

    assert wait_for(lambda: not is_running(pid))


@linux
def test_a_child_outlives_the_thread_that_asked_for_it(tmp_path, environment) -> None:
    children = []

    def ask() -> None:
        children.append(start_child("stand_in_server", [], environment, tmp_path / "log"))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    said(tmp_path / "log")
    time.sleep(0.2)
    alive = children[0].poll() is None
    stop_child(children[0])

    assert alive


def test_stopping_a_child_ends_its_own_children(tmp_path, environment) -> None:
    child = start_child("stand_in_server", ["parent"], environment, tmp_path / "log")
    grandchild = int(said(tmp_path / "log")[0])

    stop_child(child)

    assert wait_for(lambda: not is_running(grandchild))


def test_a_child_that_does_not_listen_is_killed(tmp_path, environment) -> None:
    child = start_child("stand_in_server", ["deaf"], environment, tmp_path / "log")
    said(tmp_path / "log")

    started = time.monotonic()
    stop_child(child, limit_s=0.3)

    assert child.returncode == -signal.SIGKILL
    assert time.monotonic() - started < 10


def test_stopping_a_child_that_has_ended_is_quiet(tmp_path, environment) -> None:
    child = start_child("no_such_module", [], environment, tmp_path / "log")
    child.wait()

    stop_child(child)

    assert child.returncode == 1
    assert "no_such_module" in (tmp_path / "log").read_text()


def test_a_free_port_can_be_taken() -> None:
    ports = {free_port() for _ in range(5)}

    for port in ports:
        with socket.socket() as server:
            server.bind((HOST, port))
            server.listen()
