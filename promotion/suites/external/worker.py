"""A script that runs in an environment of its own and answers JSON lines.

For packages whose pins clash with the loop's. Neither side imports the other: what crosses is
JSON, one line for each request and one for its reply, after a first line that it is ready. A
script that is too late is ended with all that it started, and one that has ended is started anew
for the next request.
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import IO, Any

from promotion.suites.external.missing import python_of
from serving.errors import MolError

START_LIMIT_S = 600.0
"""For a script to import what it needs, or to read all its items: a busy machine takes long."""
_MOST_FRUITLESS = 5
"""Requests in a row without a reply, after which a script gets none for a while."""
_REST_S = 600.0


class WorkerFailed(MolError, RuntimeError):
    """A worker ended before it replied, took too long, or says that it could not."""


class Worker:
    """A running script; safe to ask from several threads, which it answers one at a time."""

    def __init__(self, venv: Path, script: Path, environment: dict[str, str], install: str) -> None:
        """Run `script` with the Python of `venv` once asked; the environment is all that it gets.

        Raises:
            EnvironmentMissing: naming `install`, the command that makes it.
        """
        self._command = [python_of(venv, install), "-I", str(script)]
        self._environment = environment
        self._name = script.stem
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._fruitless = 0
        self._failed_at = 0.0

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Return the reply to one request; `limit_s` does not count the start of the script.

        Raises:
            WorkerFailed: with what it said last, or that it took too long.
        """
        with self._lock:
            resting = time.monotonic() < self._failed_at + _REST_S
            if self._fruitless >= _MOST_FRUITLESS and resting:
                raise WorkerFailed(f"{self._name} gave no reply {self._fruitless} times in a row")
            process = self._process or self._start()
            reply = self._reply(process, json.dumps(request).encode() + b"\n", limit_s)
            self._fruitless = 0
        if "failed" in reply:
            raise WorkerFailed(f"{self._name}: {str(reply['failed'])[:300]}")
        return reply

    def close(self) -> None:
        """End the script; it also ends with this process."""
        if self._process is not None:
            self._process = None
            self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        folder = tempfile.TemporaryDirectory(prefix="mol-suite-")
        with (Path(folder.name) / "stderr").open("wb") as errors:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**environment_in(folder.name), **self._environment},
                cwd=folder.name,
                start_new_session=True,
            )
        self._folder = Path(folder.name)
        self._end = weakref.finalize(self, _end, self._process, folder)
        self._reply(self._process, b"", START_LIMIT_S)  # that it is ready
        return self._process

    def _reply(
        self, process: subprocess.Popen[bytes], request: bytes, limit_s: float
    ) -> dict[str, Any]:
        late = threading.Event()

        def end() -> None:
            late.set()
            _kill(process)

        watch, line = threading.Timer(limit_s, end), b""
        watch.daemon = True
        watch.start()
        words: list[str] = []
        try:
            stdin, stdout = _pipes(process)
            # A worker that has ended breaks the pipe; the reply that is missing says so.
            with contextlib.suppress(BrokenPipeError):
                stdin.write(request)
                stdin.flush()
            line = stdout.readline()
        finally:
            watch.cancel()
            watch.join()  # it may have begun to end the script: then the reply does not count
            reply = None if late.is_set() else reply_in(line)
            if reply is None:
                # Also where the wait was broken off: the reply would be taken for the next one's.
                words = (self._folder / "stderr").read_text(errors="replace").strip().splitlines()
                self._fruitless += 1
                self._failed_at = time.monotonic()
                self.close()
        if late.is_set():
            raise WorkerFailed(f"{self._name} gave no reply in {limit_s:g} s and was ended")
        if not line.endswith(b"\n"):
            raise WorkerFailed(f"{self._name} ended: {(words or ['it said nothing'])[-1][:300]}")
        if reply is None:
            raise WorkerFailed(f"{self._name} said what is no reply, and was ended: {line[:100]!r}")
        return reply


def reply_in(line: bytes) -> dict[str, Any] | None:
    """Return what a line says; None where it is not whole, or no object of JSON."""
    if not line.endswith(b"\n"):
        return None
    try:
        reply = json.loads(line)
    except ValueError:
        return None
    return reply if isinstance(reply, dict) else None


def environment_in(folder: str) -> dict[str, str]:
    """Return a script's environment: it sees no key and no address, and keeps nothing.

    It removes `MOL_FOLDER` itself where it finds that whoever started it is gone.
    """
    return {"HOME": folder, "TMPDIR": folder, "MOL_FOLDER": folder, "PATH": "/usr/bin:/bin"}


def _end(process: subprocess.Popen[bytes], folder: "tempfile.TemporaryDirectory[str]") -> None:
    stdin, stdout = _pipes(process)
    with contextlib.suppress(BrokenPipeError):
        stdin.close()
    stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
    _kill(process)
    process.wait()
    folder.cleanup()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout
