"""Proves that only code that comes through its tests passes, and what tests see of the code.

Real child processes, confined both ways there are: in namespaces, and by a filter of system
calls with Landlock. Where a machine lacks one of the two its tests are skipped. Nothing is faked.
"""

import pytest
from sandboxed import RIGHT, check

from traces.verifiers.check import Check
from traces.verifiers.python_tests import check_python, extract_code


def test_right_code_passes_and_wrong_code_fails(how: str) -> None:
    assert check(RIGHT, how=how).passed is True
    assert check("def f(n): return 2", how=how) == Check(False, "AssertionError")


def test_a_fenced_block_among_words_passes() -> None:
    text = f"Here it is:\n\n```python\n{RIGHT}```\n\nIt adds one."

    assert extract_code(text) == RIGHT
    assert check(text).passed


FENCES = {
    "its version": f"```python3\n{RIGHT}```",
    "a capital": f"Here:\n```Python\n{RIGHT}```\nDone.",
    "short": f"```py3\n{RIGHT}```",
    "attributes": f"```{{.python}}\n{RIGHT}```",
    "a title": f"```python title='f'\n{RIGHT}```",
    "no label": f"```\n{RIGHT}```",
    "carriage returns": f"Here:\n```python\n{RIGHT}```\n".replace("\n", "\r\n"),
    "another language first": f"```bash\npip install x\n```\nThen:\n```python\n{RIGHT}```",
    "an output first": f"```json\n{{}}\n```\nfrom\n```\n{RIGHT}```",
    "another label alone": f"```text\n{RIGHT}```",
    "a list": "1. Do:\n   ```python\n   def f(n):\n       return n + 1\n   ```\n",
    "an item of a list": "- ```python\n  def f(n):\n      return n + 1\n  ```\n",
    "tildes": f"~~~python\n{RIGHT}~~~",
    "four of them": f"````python\n{RIGHT}````",
    "words before it": f"Sure! ```python\n{RIGHT}```",
    "words with a span": f"Not ```x``` but\n```python\n{RIGHT}```",
    "no end": f"```python\n{RIGHT}",
    "none": RIGHT,
}


@pytest.mark.parametrize("text", FENCES.values(), ids=FENCES)
def test_the_code_is_found_however_it_is_fenced(text: str) -> None:
    assert extract_code(text) == RIGHT


def test_a_fence_may_end_on_the_last_line_of_code() -> None:
    assert extract_code(f"```python\n{RIGHT.rstrip()}```\nDone.") == RIGHT.rstrip()


def test_a_fenced_body_keeps_its_indentation() -> None:
    assert extract_code("```python\n    return n + 1\n```") == "    return n + 1\n"


def test_code_is_not_the_main_program_but_a_module_that_is_there() -> None:
    code = "from __future__ import annotations\nimport dataclasses, sys\n"
    code += "@dataclasses.dataclass\nclass P:\n    x: int = 1\n" + RIGHT
    code += "assert sys.modules[__name__].f is f\nif __name__ == '__main__':\n    int(input())\n"

    assert check(code).passed


@pytest.mark.parametrize("text", ["", " \n ", "```python\n```"])
def test_no_code_fails(text: str) -> None:
    assert check(text) == Check(False, "no code")


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("def g(n): return n + 1", "NameError: name 'f' is not defined"),
        ("def f(n:", "SyntaxError"),
        ("def f(n):\n    return f(n)", "RecursionError"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f(n): raise OSError(2, 'gone')", "FileNotFoundError: [Errno 2] gone"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import os; os.abort()", "ended before its tests did"),
        ("import os; os._exit(0)", "ended before its tests did"),
        ("import os\ndef f(n): os._exit(0)", "ended before its tests did"),
        (RIGHT + "\0", "code holds a NUL byte"),
        (RIGHT + "# \ud800", "UnicodeEncodeError"),
        ("(" * 10_000, "SyntaxError"),
        ("x = 'a' * 10**9\n" + RIGHT, "MemoryError"),
        ("open('x', 'w').write('a' * 2_000_000)\n" + RIGHT, "OSError: [Errno 27]"),
        ("a = [open('/dev/null') for _ in range(70)]\n" + RIGHT, "OSError: [Errno 24]"),
        ("input()\n" + RIGHT, "EOFError"),
        ("class E(Exception): pass\ndef f(n): raise E('odd')", "E: odd"),
        ("def f(n):\n    x = []\n    x.append(x)\n    return x", "RecursionError"),
        ("def f(n): return 'a' * 20_000_000", "ended before its tests did"),
    ],
)
def test_other_code_fails_and_says_why(code: str, detail: str) -> None:
    finding = check(code)

    assert finding.passed is False
    assert finding.detail.startswith(detail)
    assert len(finding.detail) <= 160
    assert len(finding.detail.splitlines()) == 1


@pytest.mark.parametrize(
    ("tests", "detail"),
    [
        ((), "no tests to run"),
        (("", " \n"), "no tests to run"),
        (("assert f(1 ==",), "the tests are no Python: SyntaxError"),
        (("import pytest",), "the tests cannot run here: there is no module 'pytest'"),
        (("exec('import pytest')",), "the tests cannot run here: ModuleNotFoundError"),
        (("import io", "f(io.StringIO())"), "the tests give the code a StringIO"),
    ],
)
def test_tests_that_cannot_judge_find_nothing(tests: tuple[str, ...], detail: str) -> None:
    finding = check_python(RIGHT, tests)

    assert finding.passed is None
    assert finding.detail.startswith(detail)


FORGERIES = {
    "says it passed": "import os\nfor fd in range(3, 64):\n"
    "    try: os.write(fd, b'{\"passed\": true, \"detail\": \"\"}\\n')\n"
    "    except OSError: pass\nos._exit(0)",
    "looks for the tests": "import gc, sys\ndef f(n):\n"
    "    for thing in gc.get_objects():\n"
    "        if isinstance(thing, dict) and 'tests' in thing: return 2 if n == 1 else 0\n"
    "    frame = sys._getframe()\n"
    "    while frame:\n"
    "        if 'assert' in repr(frame.f_locals): return 2 if n == 1 else 0\n"
    "        frame = frame.f_back\n",
    "equals everything": "class E:\n    def __eq__(self, other): return True\n"
    "    __hash__ = None\ndef f(n): return E()",
    "equals everything as a number": "class E(int):\n"
    "    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
    "def f(n): return E(7)",
    "patches the interpreter": "import builtins, json, operator, sys\n"
    "builtins.AssertionError = KeyError\noperator.eq = lambda *a: True\n"
    "json.dumps = lambda *a, **k: '{\"passed\": true}'\ndef f(n): return 7",
    "traces frames": "import sys\nsys.settrace(lambda *a: None)\ndef f(n): return 7",
    "answers as its own line": "import gc, json, os\ndef f(n):\n"
    "    for thing in gc.get_objects():\n"
    "        if type(thing).__name__ == 'Peer':\n"
    "            thing._send({'passed': True}); thing._send({'value': True})\n    return 7",
    "asks the tests to run something": "import gc\ndef f(n):\n"
    "    for thing in gc.get_objects():\n"
    "        if type(thing).__name__ == 'Peer':\n"
    "            thing.ask('run', 'import os; os._exit(0)')\n    return 7",
    "leaves early": "import atexit, sys\nsys.exit(0)",
}  # fmt: skip


@pytest.mark.parametrize("code", FORGERIES.values(), ids=FORGERIES)
def test_no_code_can_say_of_itself_that_it_passed(code: str, how: str) -> None:
    assert check(code, how=how).passed is False


VERDICT = """
import os, stat
for fd in range(64):
    try: regular = stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError: continue
    if regular: os.write(fd, b'{"passed": true, "detail": ""}\\n')
"""


def test_code_that_finds_a_file_to_say_it_passed_in_does_not_pass(how: str) -> None:
    waits = VERDICT + "import time\ntime.sleep(60)"

    assert check(waits, how=how, wall_limit_s=1).passed is False


def test_code_cannot_have_the_tests_say_it_passed() -> None:
    code = "import gc\ndef f(n):\n    for thing in gc.get_objects():\n"
    code += (
        f"        if type(thing).__name__ == 'Peer': thing.ask('run', {VERDICT + 'os._exit(0)'!r})"
    )

    assert check(code).passed is False


@pytest.mark.parametrize(
    "reach",
    ["g.__globals__", "g.__code__", "o._hidden", "o.method.__func__"],
)
def test_code_sees_only_the_public_side_of_what_tests_lend_it(reach: str) -> None:
    tests = (
        "class O:\n    _hidden = 1\n    shown = 2\n    def method(self): return 3\n"
        "assert f(lambda: 0, O()) is None\n"
    )

    assert check("def f(g, o): assert (o.shown, o.method()) == (2, 3)", tests).passed is True
    assert check(f"def f(g, o): {reach}", tests).passed is False


def test_code_cannot_give_the_tests_builtins_of_its_own() -> None:
    code = (
        "import gc\nfor thing in gc.get_objects():\n"
        "    if type(thing).__name__ == 'Peer':\n"
        "        builtins = {'tuple': ['__builtins__', {'dict': [['all', {'named': 'bool'}]]}]}\n"
        "        thing._send({'value': [builtins, {'tuple': ['f', {'named': 'abs'}]}]})\n"
    )

    assert check(code, "assert f(-1) == 1").passed is True  # the line is in its hands
    assert check(code, "assert all([f(1) == 2])").passed is False


def test_a_number_that_swallows_the_test_does_not_pass() -> None:
    code = "class E:\n    def __sub__(self, other): return 0.0\n"
    code += "    def __lt__(self, other): return True\ndef f(n): return E()"

    assert check(code, "assert abs(f(2) - 3) < 1e-6").passed is not True
    assert check(code, "assert f(2) < 3").passed is False


def test_a_set_that_swallows_the_test_does_not_pass() -> None:
    code = "class E:\n    def __sub__(self, other): return set()\ndef f(n): return E()"

    assert check(code, "assert f(2) - {1} == set()").passed is None


@pytest.mark.parametrize("code", ["import os\ndef f(n): os._exit(0)", "import os\nos._exit(0)"])
def test_tests_that_swallow_everything_do_not_swallow_the_end(code: str) -> None:
    swallowing = "try: f(1)\nexcept: pass"

    assert check("def f(n): raise ValueError", swallowing).passed is True
    assert check(code, swallowing).passed is False


def test_code_cannot_bend_the_tests_builtins() -> None:
    code = "def f(n): return 7\ndef all(parts): return True\n"

    assert check(code, "assert all([f(1) == 2])").passed is None
    assert check(code, "assert f(1) == 7").passed is True


def test_code_cannot_swallow_the_tests() -> None:
    assert not check("def f(n): return 0\nif False:\n    '''").passed
    assert not check("def f(n): return 0 \\").passed


CARRIED = {
    "classes": (
        "class S:\n    def __init__(self): self.a = []\n"
        "    def push(self, x): self.a.append(x)\n    def __len__(self): return len(self.a)",
        "s = S()\ns.push(1)\nassert len(s) == 1 and s.a == [1] and isinstance(s, S)",
    ),
    "their equality": (
        "class V:\n    def __init__(self, x): self.x = x\n"
        "    def __add__(self, o): return V(self.x + o.x)\n"
        "    def __eq__(self, o): return self.x == o.x",
        "assert V(1) + V(2) == V(3)\nassert V(1) != V(2)",
    ),
    "arguments changed in place": (
        "def f(a, b): a.sort(); b['k'] = [1]; a[0].append(1)",
        "x, d = [[3], [2]], {}\nf(x, d)\nassert x == [[2, 1], [3]] and d == {'k': [1]}",
    ),
    "errors": (
        "class Bad(ValueError): pass\ndef f(n):\n    if n: raise Bad('no')\n    raise KeyError(n)",
        "for n, kind in ((1, Bad), (1, ValueError), (0, KeyError)):\n"
        "    try: f(n)\n    except kind as error: assert error.args == ('no' if n else 0,)\n"
        "    else: assert False",
    ),
    "functions of the tests": (
        "def twice(g): return lambda x: g(g(x))",
        "assert twice(lambda x: x + 1)(1) == 3",
    ),
    "objects of the tests": (
        "def total(n):\n    return n.v + total(n.next) if n else 0",
        "class N:\n    def __init__(self, v, n=None): self.v, self.next = v, n\n"
        "assert total(N(1, N(2))) == 3",
    ),
    "generators": ("def f(n):\n    while n: n -= 1; yield n", "assert list(f(3)) == [2, 1, 0]"),
    "named tuples and counters": (
        "from collections import Counter, namedtuple\n"
        "P = namedtuple('P', 'x y')\ndef f(n): return P(n, Counter('aa'))",
        "p = f(1)\nassert p.x == 1 and p[1] == {'a': 2} and isinstance(p, tuple)",
    ),
    "coroutines": (
        "async def f(n): return n + 1",
        "import asyncio\nassert asyncio.run(f(1)) == 2",
    ),
    "what is printed": (
        "def f(n): print('hi', n)",
        "import contextlib, io\n"
        "with contextlib.redirect_stdout(io.StringIO()) as out: f(1)\n"
        "assert out.getvalue() == 'hi 1\\n'",
    ),
    "odd values": (
        "def f(n): return n",
        "for v in (10**5000, -2**70, 1e400, '\\ud800', b'\\0', {1: {2}}, frozenset({1}), 1j,\n"
        "          range(3), None, (1, (2,)), bytearray(b'x'), ..., True, 0.1, []):\n"
        "    assert f(v) == v and type(f(v)) is type(v)\n"
        "nan = f(float('nan'))\nassert nan != nan",
    ),
    "modules that the code imported": (
        "import math\ndef f(n): return math.sqrt(n)",
        "assert math.isclose(f(4), 2)",
    ),
    "a check of its own": (
        "def g(n): return n + 1",
        "def check(candidate):\n    assert candidate(1) == 2\ncheck(g)",
    ),
}


@pytest.mark.parametrize(("code", "tests"), CARRIED.values(), ids=CARRIED)
def test_tests_see_of_the_code(code: str, tests: str) -> None:
    assert check(code, tests) == Check(True, "the tests passed")
    assert check(code, tests + "\nassert False").passed is False
