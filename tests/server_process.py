"""Runs a server program for tests until a block ends; it dies with this process too."""

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from serving.child import HOST

LIMIT_S = 60.0


@contextlib.contextmanager
def server_process(
    command: Sequence[str],
    port: int,
    log: Path,
    user: str | None = None,
    environment: Mapping[str, str] | None = None,
    stop: signal.Signals = signal.SIGTERM,
) -> Iterator[None]:
    """Run `command`, as another user if one is named, and wait until it takes connections."""
    setpriv = shutil.which("setpriv")
    assert setpriv, "setpriv (util-linux) starts the servers of these tests"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [setpriv, *as_user(user), "--pdeathsig", "TERM", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    try:
        deadline = time.monotonic() + LIMIT_S
        while not _answers(port):
            assert process.poll() is None, f"{command[0]} ended: {log.read_text()}"
            assert time.monotonic() < deadline, f"{command[0]} does not start: {log.read_text()}"
            time.sleep(0.02)
        yield
    finally:
        process.send_signal(stop)
        process.wait(LIMIT_S)


def as_user(user: str | None) -> list[str]:
    """Return the options of `setpriv` for another user; none for this one."""
    return [f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=5):
            return True
    except OSError:
        return False
