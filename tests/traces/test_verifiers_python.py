"""Proves that only code that comes through its tests passes, and that no code does harm on the way.

Real child processes with real limits; nothing is faked.
"""

import os
import resource
import tempfile
import threading
import time
from pathlib import Path

import pytest

from traces.verifiers.python_tests import check_python, extract_code

RIGHT = "def f(n):\n    return n + 1\n"
TESTS = ("assert f(1) == 2", "assert f(-1) == 0")


def test_right_code_passes() -> None:
    assert check_python(RIGHT, TESTS).passed


def test_a_fenced_block_among_words_passes() -> None:
    text = f"Here it is:\n\n```python\n{RIGHT}```\n\nIt adds one."

    assert extract_code(text) == RIGHT
    assert check_python(text, TESTS).passed


@pytest.mark.parametrize("text", ["", " \n ", "```python\n```"])
def test_no_code_fails(text: str) -> None:
    assert check_python(text, TESTS).detail == "no code"


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("def f(n): return n", "AssertionError"),
        ("def g(n): return n + 1", "NameError: name 'f' is not defined"),
        ("def f(n:", "SyntaxError"),
        ("def f(n):\n    return f(n)", "RecursionError"),
        ("x = '''", "SyntaxError"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("raise SystemExit(3)", "exit status 3"),
        ("import os; os.abort()", "exit status -6"),
        (RIGHT + "\0", "code holds a NUL byte"),
        (RIGHT + "# \ud800", "UnicodeEncodeError"),
        ("(" * 10_000, "SyntaxError"),
        ("x = 'a' * 10**9\n" + RIGHT, "MemoryError"),
        ("open('x', 'w').write('a' * 2_000_000)\n" + RIGHT, "OSError: [Errno 27]"),
        (RIGHT + "print('x' * 2_000_000)", "OSError: [Errno 27]"),
        ("input()\n" + RIGHT, "EOFError"),
        ("import sys\nprint('no ' * 1000, file=sys.stderr)\n1 / 0", "ZeroDivisionError"),
    ],
)
def test_other_code_fails_and_says_why(code: str, detail: str) -> None:
    finding = check_python(code, TESTS)

    assert not finding.passed
    assert finding.detail.startswith(detail)
    assert len(finding.detail) <= 160


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nprint('tests passed')\nsys.exit(0)",
        "import os\nprint('tests passed', flush=True)\nos._exit(0)",
        "raise SystemExit",
        "import sys\nprint('2 tests passed', file=sys.stderr)\nsys.exit()",
        "import atexit, os\natexit.register(lambda: os._exit(0))\nraise ValueError",
        "import sys, os\nprint(sys.argv, sys.orig_argv, sys.stdin.read())\nos._exit(0)",
    ],
)
def test_code_that_ends_before_its_tests_does_not_pass(code: str) -> None:
    finding = check_python(code, TESTS)

    assert not finding.passed
    assert finding.detail == "ended before its tests did"


def test_code_cannot_swallow_the_tests() -> None:
    assert not check_python("def f(n): return 0\nif False:\n    '''", TESTS).passed
    assert not check_python("def f(n): return 0 \\", TESTS).passed


def test_printing_right_code_passes() -> None:
    assert check_python("print('hello')\n" + RIGHT + "print('tests failed')", TESTS).passed


def test_code_longer_than_a_command_line_passes() -> None:
    assert check_python("x = 1\n" * 50_000 + RIGHT, TESTS).passed


def test_an_endless_loop_ends_at_the_wall_limit() -> None:
    started = time.monotonic()

    finding = check_python("while True: pass", TESTS, wall_limit_s=0.5)

    assert finding.detail == "did not end within 0.5 s"
    assert time.monotonic() - started < 10


def test_an_endless_sleep_ends_at_the_wall_limit() -> None:
    finding = check_python("import time; time.sleep(60)", TESTS, wall_limit_s=0.5)

    assert finding.detail == "did not end within 0.5 s"


def test_endless_output_stays_small() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code = "while True:\n    try: print('x' * 100_000)\n    except OSError: pass"

    finding = check_python(code, TESTS, wall_limit_s=2)

    assert not finding.passed
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kb < 20_000


def test_a_forked_process_neither_holds_the_check_up_nor_survives(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = RIGHT + (
        "import os, time\nif os.fork() == 0:\n"
        f"    open({str(note)!r}, 'w').write(str(os.getpid()))\n    time.sleep(60)\n"
        f"while not os.path.exists({str(note)!r}): time.sleep(0.01)\n"
    )
    started = time.monotonic()

    finding = check_python(code, TESTS)

    assert finding.passed
    assert time.monotonic() - started < 9
    assert not _is_running(int(note.read_text()))


def _is_running(pid: int) -> bool:
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return False
        except FileNotFoundError:
            return False
        time.sleep(0.02)
    return True


def test_code_sees_nothing_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOL_TEST_SECRET", "hush")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    code = RIGHT + "import os, sys\nassert 'hush' not in repr(os.environ) + repr(sys.path)\n"
    code += "assert not set(os.environ) - {'LC_CTYPE'}\nassert os.listdir() == []\n"

    assert check_python(code, TESTS).passed


def test_code_leaves_nothing_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = RIGHT + "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').write('x')\nos.chmod('a', 0)"

    assert check_python(code, TESTS).passed
    assert os.listdir(tmp_path) == []


def test_checks_run_side_by_side() -> None:
    findings = []
    threads = [
        threading.Thread(target=lambda: findings.append(check_python(RIGHT, TESTS)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [finding.passed for finding in findings] == [True] * 4
