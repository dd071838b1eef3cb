"""Server processes that never outlive the one that started them.

A child asks Linux for SIGTERM on its parent's death before it becomes the server, so that
a killed loop leaves nothing running.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HOST = "127.0.0.1"

_LAUNCH = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit("The process that started this server is gone.")
os.execv(sys.executable, [sys.executable, "-m", *sys.argv[2:]])
"""


# Linux counts the thread that started a child as its parent: this one stays to the end.
_STARTER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="start-child")


def start_child(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    python: Path = Path(sys.executable),
) -> subprocess.Popen[bytes]:
    """Run `python -m module arguments` in a session of its own, with its output in `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        return _STARTER.submit(
            subprocess.Popen,
            [str(python), "-c", _LAUNCH, str(os.getpid()), module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        ).result()


def stop_child(child: subprocess.Popen[bytes], limit_s: float = 20.0) -> None:
    """End a child and its own children: asked first, killed after `limit_s`."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=limit_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def free_port() -> int:
    """Return a loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
