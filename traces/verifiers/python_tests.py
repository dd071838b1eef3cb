"""Verify Python code by running its tests, both confined (see `traces.verifiers.sandbox`).

The code runs in one process, the tests in another that the code cannot reach: what a function
returns crosses as data and is compared there. There is no network, no environment, an empty
folder, the standard library alone, and limits on time, memory, files and processes; whatever was
started is killed at the end.
"""

import re
from collections.abc import Sequence

from traces.verifiers.check import Check
from traces.verifiers.sandbox.judged import judge
from traces.verifiers.sandbox.limits import WALL_LIMIT_S


def check_python(
    text: str,
    tests: Sequence[str],
    wall_limit_s: float = WALL_LIMIT_S,
    confinement: str | None = None,
) -> Check:
    """Run `tests` (statements that raise on failure) on what the code in `text` defines.

    `confinement`: `namespaces` or `filter`; by default the best that the machine has.
    """
    together = "\n".join(tests)
    if not together.strip():
        return Check(None, "no tests to run")
    code = extract_code(text)
    if not code.strip():
        return Check(False, "no code")
    if "\0" in code:
        return Check(False, "code holds a NUL byte")
    return judge(code, together, wall_limit_s, confinement)


def extract_code(text: str) -> str:
    """Return the first fenced block of a Markdown answer, or all of it where none is."""
    fenced = re.search(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", text, re.DOTALL)
    return fenced.group(1) if fenced else text
