"""Verify Python code by running its tests in a subprocess with limits.

The child gets no environment, an empty folder, limits on processor time, memory and
file size, and a wall-clock limit. It is not a defence against
hostile code: the network stays reachable.
"""

import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from traces.verifiers.check import Check

CPU_LIMIT_S = 2
MEMORY_LIMIT_BYTES = 512 * 1024 * 1024
WALL_LIMIT_S = 10.0
FILE_LIMIT_BYTES = 1024 * 1024


def check_python(text: str, tests: Sequence[str], wall_limit_s: float = WALL_LIMIT_S) -> Check:
    """Run the code in `text` followed by `tests` (statements that raise on failure)."""
    code = extract_code(text)
    if not code.strip():
        return Check(False, "no code")
    program = code + "\n\n" + "\n".join(tests) + "\nprint('tests passed')\n"
    with tempfile.TemporaryDirectory(prefix="mol-python-") as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-B", "-c", program],
                cwd=folder,
                env={},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=wall_limit_s,
                preexec_fn=_limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Check(False, f"did not end within {wall_limit_s:g} s")
        except ValueError:
            return Check(False, "code holds a NUL byte")
    if done.returncode == 0 and done.stdout.rstrip().endswith(b"tests passed"):
        return Check(True, f"{len(tests)} tests passed")
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return Check(False, lines[-1][:160] if lines else f"exit status {done.returncode}")


def extract_code(text: str) -> str:
    """Return the first fenced block of a Markdown answer, or all of it where none is."""
    fenced = re.search(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", text, re.DOTALL)
    return fenced.group(1) if fenced else text


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT_BYTES, FILE_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
