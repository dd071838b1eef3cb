"""Verify Python code by running its tests in a subprocess with limits.

The child gets no environment, an empty folder, limits on processor time, memory and
file size, and a wall-clock limit; what it prints goes to files under the same limits. It
proves that it came to the end by saying a random word that the code is not given. It is not
a defence against hostile code: the network stays reachable, and code that goes through the
interpreter's frames can find the word.
"""

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from traces.verifiers.check import Check

CPU_LIMIT_S = 2
MEMORY_LIMIT_BYTES = 512 * 1024 * 1024
WALL_LIMIT_S = 10.0
FILE_LIMIT_BYTES = 1024 * 1024

_RUN = """
def run():
    import json, os, resource, sys
    code, tests, word, limits = json.load(sys.stdin)
    for name, limit in limits.items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0)
    say, word = os.write, word.encode()
    space = {"__name__": "__main__"}
    exec(compile(code, "<code>", "exec"), space)
    exec(compile(tests, "<tests>", "exec"), space)
    say(1, word)
run()
"""


def check_python(text: str, tests: Sequence[str], wall_limit_s: float = WALL_LIMIT_S) -> Check:
    """Run the code in `text` followed by `tests` (statements that raise on failure)."""
    code = extract_code(text)
    if not code.strip():
        return Check(False, "no code")
    if "\0" in code:
        return Check(False, "code holds a NUL byte")
    word = f"<{secrets.token_hex(16)}>"
    with tempfile.TemporaryDirectory(prefix="mol-python-") as folder:
        order = json.dumps([code, "\n".join(tests), word, _LIMITS]).encode()
        status, said, complaint = _run(Path(folder), order, wall_limit_s)
    if status is None:
        return Check(False, f"did not end within {wall_limit_s:g} s")
    if status == 0 and word.encode() in said:
        return Check(True, f"{len(tests)} tests passed")
    if status == 0:
        return Check(False, "ended before its tests did")
    lines = complaint.decode(errors="replace").strip().splitlines()
    return Check(False, lines[-1][:160] if lines else f"exit status {status}")


def extract_code(text: str) -> str:
    """Return the first fenced block of a Markdown answer, or all of it where none is."""
    fenced = re.search(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", text, re.DOTALL)
    return fenced.group(1) if fenced else text


_LIMITS = {
    "RLIMIT_CPU": CPU_LIMIT_S,
    "RLIMIT_AS": MEMORY_LIMIT_BYTES,
    "RLIMIT_FSIZE": FILE_LIMIT_BYTES,
    "RLIMIT_CORE": 0,
}


def _run(scratch: Path, order: bytes, limit_s: float) -> tuple[int | None, bytes, bytes]:
    """Return exit status (None: out of time), output and error output of one child."""
    (scratch / "work").mkdir()
    with (scratch / "out").open("w+b") as out, (scratch / "err").open("w+b") as err:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", _RUN],
            cwd=scratch / "work",
            env={},
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        status = None
        try:
            child.communicate(order, timeout=limit_s)
            status = child.returncode
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # with what the code forked
            child.wait()
        out.seek(0)
        err.seek(0)
        return status, out.read(), err.read()
