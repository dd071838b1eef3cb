"""Code under test, checked in each of the two confinements that a machine may have."""

import functools

from traces.verifiers.check import Check
from traces.verifiers.python_tests import check_python
from traces.verifiers.sandbox.judged import _run

RIGHT = "def f(n):\n    return n + 1\n"
TESTS = ("assert f(1) == 2", "assert f(-1) == 0")


@functools.cache
def refusal(mode: str) -> str | None:
    """Say why this machine does not give a confinement; None if it does."""
    return _run(mode, "", "", 30).get("refused")


def check(code: str, *tests: str, how: str | None = None, wall_limit_s: float = 10) -> Check:
    """Run code and its tests, those of `RIGHT` where none are named."""
    return check_python(code, tests or TESTS, wall_limit_s, how)
