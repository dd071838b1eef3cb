"""Run tests on code in a confined child; the side that is not confined.

In: the code, the tests, a wall-clock limit. Out: a `Check`; one without verdict where this machine
cannot confine code, or the child did not get as far as running it.
"""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from traces.verifiers.check import Check
from traces.verifiers.sandbox.folder import folder, is_overfull
from traces.verifiers.sandbox.inside import FILTER, NAMESPACES

_ROOT = Path(__file__).parents[3]
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from traces.verifiers.sandbox.inside import main; "
    "del sys.path[0]; main(*sys.argv[2:])"
)
_ANSWER_BYTES = 4096
_LOOK_EACH_S = 0.05
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""The same sets in the same order each time; gone before any code runs."""


def judge(code: str, tests: str, wall_limit_s: float, mode: str | None = None) -> Check:
    """Run tests on code; `mode` is how to confine them, by default the best there is."""
    chosen = mode or confinement()
    if chosen is None:
        return Check(None, "this machine cannot confine code (neither namespaces nor Landlock)")
    said = _run(chosen, code, tests, wall_limit_s)
    if "refused" in said:
        return Check(None, f"the code could not be confined: {said['refused']}"[:160])
    if said.get("overfull"):
        return Check(False, "wrote more than its folder holds")
    if "passed" in said:
        return Check(said["passed"], said["detail"])
    if "begun" not in said:
        return Check(None, "the sandbox did not start")
    if said.get("alone"):
        return Check(None, "the tests did not end, and asked nothing of the code")
    if said.get("timed_out"):
        return Check(False, f"did not end within {wall_limit_s:g} s")
    return Check(False, "ended before its tests did")


@functools.cache
def confinement() -> str | None:
    """Return how this machine confines code; None if it cannot."""
    if sys.platform != "linux":
        return None
    for mode in (NAMESPACES, FILTER):
        said = _run(mode, "", "", 30.0)
        if "passed" in said or said["timed_out"]:  # a busy machine is no refusal
            return mode
    return None


def _run(mode: str, code: str, tests: str, wall_limit_s: float) -> dict[str, Any]:
    """Return what a child said, all its messages in one."""
    with (
        folder() as path,
        tempfile.TemporaryFile() as order,
        tempfile.TemporaryFile() as answer,
    ):
        order.write(json.dumps({"code": code, "tests": tests}).encode())
        order.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-P", "-s", "-S", "-B", "-c", _START, str(_ROOT), path, mode],
            cwd=path,
            env=_ENVIRONMENT,
            stdin=order,
            stdout=answer,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            ended = _wait(child, path, wall_limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        answer.seek(0)
        return _heard(answer.read(_ANSWER_BYTES)) | ended


def _wait(child: subprocess.Popen[bytes], path: str, wall_limit_s: float) -> dict[str, bool]:
    """Wait until a child has ended, its time is up, or its folder too full."""
    until = time.monotonic() + wall_limit_s
    timed_out, running = False, True
    while running and not timed_out:
        left_s = until - time.monotonic()
        try:
            child.wait(max(0.0, min(_LOOK_EACH_S, left_s)))
            running = False
        except subprocess.TimeoutExpired:
            timed_out = left_s <= _LOOK_EACH_S
        if is_overfull(path):
            return {"timed_out": timed_out, "overfull": True}
    return {"timed_out": timed_out}


def _heard(data: bytes) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for line in data.splitlines():
        with contextlib.suppress(ValueError):
            said |= json.loads(line)
    return said
