"""Proves what of tests is no fault of the code, and that the code cannot make excuses of its own.

Real child processes, confined as well as the machine can. Nothing is faked.
"""

import pytest
from sandboxed import RIGHT, check

from traces.verifiers.check import Check

WRONG = "def f(n): return 2"
ALONE = "the tests did not end, and asked nothing of the code"


@pytest.mark.parametrize(
    ("tests", "detail"),
    [
        ("import time\ntime.sleep(60)\nassert f(1) == 2", ALONE),
        ("all(iter(int, 1))\nwhile True: pass", ALONE),
        ("x = ['a']\nwhile True: x += x\nassert f(1) == 2", "the tests fail by themselves: Memory"),
    ],
)
def test_tests_that_end_nowhere_by_themselves_judge_nothing(tests: str, detail: str) -> None:
    finding = check(RIGHT, f"len('')\n{tests}", wall_limit_s=4)

    assert finding.passed is None
    assert finding.detail.startswith(detail)


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "def f(n):\n    while True: pass",
        "def f(n): return range(10**12)",
        "def f(n):\n    while True: yield n",
        "x = list(range(10**9))",
    ],
)
def test_code_that_has_the_tests_end_nowhere_fails(code: str) -> None:
    assert check(code, "assert sorted(f(1)) == [1]", wall_limit_s=4).passed is False


WORLD = {
    "standard input": "import io, sys\nsys.stdin = io.StringIO('3')\nassert f(1) == 'world'",
    "an argument": "import sys\nsys.argv[1:] = ['3']\nassert f(1) == 'world'",
    "the environment": "import os\nos.environ['X'] = '3'\nassert f(1) == 'world'",
    "a function of a module": "import time\ntime.time = lambda: 3\nassert f(1) == 'world'",
    "the precision": "import decimal\ndecimal.getcontext().prec = 5\nassert f(1) == 'world'",
    "a patch": "from unittest.mock import patch\nwith patch('os.getcwd'): assert f(1) == 'world'",
    "a patched case": "import unittest\nfrom unittest import mock\nclass T(unittest.TestCase):\n"
    "    @mock.patch('os.getcwd')\n    def test_a(self, m): self.assertEqual(f(1), 'world')",
    "logs": "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n"
    "        with self.assertLogs(): f(1)",
}


@pytest.mark.parametrize("tests", WORLD.values(), ids=WORLD)
def test_a_world_that_the_code_does_not_see_is_no_fault_of_it(tests: str) -> None:
    finding = check(RIGHT, tests)

    assert finding.passed is None
    assert finding.detail.startswith("the tests set what the code does not see (")
    for broken in ("g = 1", "def f(n:", "def f(n): import os; os._exit(0)"):
        assert check(broken, tests).passed is False


SEEN = {
    "what is printed": "import io, sys\nsys.stdout = io.StringIO()\nassert f(1) == 3",
    "numbers by chance": "import random\nrandom.seed(0)\nfor n in [random.random()]: "
    "assert f(n) == n + 2",
    "an object of the tests": "class O: pass\nO.x = 1\nassert f(O.x) == 3",
    "an object of the code": "from unittest.mock import patch\n"
    "with patch.object(K, 'x', 2): assert f(K.x) == 4",
}


@pytest.mark.parametrize("tests", SEEN.values(), ids=SEEN)
def test_what_the_code_sees_is_no_excuse(tests: str) -> None:
    assert check("class K: x = 1\ndef f(n): return n + 2", tests).passed
    assert check(f"class K: x = 1\n{RIGHT}", tests).passed is False


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("from pathlib import Path\ndef f(n): return Path('a') / 'b'", "pathlib.Path('a/b')"),
        ("import uuid\ndef f(n): return uuid.UUID(int=n)", "uuid.UUID(int=1)"),
        ("def f(n): return {n: n}.keys()", "{1: 1}.keys()"),
        ("import datetime\ndef f(n): return datetime.timezone.utc", "datetime.timezone.utc"),
        ("import array\ndef f(n): return array.array('i', [n])", "array.array('i', [1])"),
    ],
)
def test_objects_of_libraries_are_not_compared(code: str, value: str) -> None:
    tests = f"import array, datetime, pathlib, uuid\nassert f(1) == {value}"

    assert check(code, tests).passed is None
    assert check(RIGHT, tests).passed is False


@pytest.mark.parametrize(
    "value", ["[1]", "{}", "'a'", "2.0", "len", "P()", "Counter()", "object()"]
)
def test_an_object_is_no_excuse_where_it_is_not_of_a_library(value: str) -> None:
    tests = "from collections import Counter\nclass P:\n    def __eq__(self, o): return False\n"
    tests += f"assert f(1) == {value}"

    assert check("class E: pass\ndef f(n): return E()", tests).passed is False


MOCK = "from unittest.mock import MagicMock\nm = MagicMock()\nm.read.return_value = 3\n"
MOCK += "f(m)\nm.write.assert_called_once_with(4)"


def test_code_uses_a_mock() -> None:
    assert check("def f(m): m.write(m.read() + 1)", MOCK) == Check(True, "the tests passed")
    assert check("def f(m):\n    with m as k: m.write(4); k.go()", MOCK).passed
    assert check("def f(m): m.count = 1; m.write(4)", MOCK).passed
    assert check("def f(m): m.write(5)", MOCK).passed is False


@pytest.mark.parametrize(
    "cheat",
    ["m.write = E()", "m.write = lambda *a: 1", "m.write.assert_called_once_with = E()",
     "m.configure_mock(write=E())", "m.write.called = True", "m.attach_mock(E(), 'write')",
     "m.method_calls", "m.__class__", "m._mock_children", "m.write.side_effect"],
)  # fmt: skip
def test_code_cannot_have_a_mock_say_that_it_was_called(cheat: str) -> None:
    code = "class E:\n    def __getattr__(self, name): return lambda *a, **k: 1\n"

    assert check(f"{code}def f(m): {cheat}", MOCK).passed is False


def test_code_may_do_with_an_object_of_the_tests_what_its_class_does() -> None:
    tests = "class O(list):\n    def __repr__(self): return 'O!'\n    def __int__(self): return 3\n"
    tests += "    def __enter__(self): return 4\n    def __exit__(self, *a): pass\n"
    tests += "    def __neg__(self): return -3\no = O()\n"
    code = "def f(o):\n    with o as four: return repr(o), int(o), -o, four"

    assert check(code, tests + "assert f(o) == ('O!', 3, -3, 4)").passed
