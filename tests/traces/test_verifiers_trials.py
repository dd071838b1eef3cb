"""Proves that tests are run in the forms they are written in, and judge nothing if none are run.

Real child processes, confined as well as the machine can. Nothing is faked.
"""

import pytest
from sandboxed import RIGHT, check

from traces.verifiers.check import Check

WRONG = "def f(n): return 2"

FORMS = {
    "functions": "def test_a():\n    assert f(1) == 2\ndef test_b():\n    assert f(5) == 6",
    "a function that helps": "def test_one(a, b): assert f(a) == b\n"
    "def test_all():\n    for pair in ((1, 2), (5, 6)): test_one(*pair)",
    "the main block": "def check(g): assert g(5) == 6\nif __name__ == '__main__': check(f)",
    "a class": "class TestF:\n    def test_a(self): assert f(5) == 6",
    "a coroutine": "async def test_a(): assert f(5) == 6",
    "what is returned": "def test_a(): return f(5) == 6",
    "cases": "import unittest\nclass T(unittest.TestCase):\n"
    "    def setUp(self): self.five = 5\n"
    "    def test_a(self): self.assertEqual(f(self.five), 6)",
    "cases and their main": "from unittest import TestCase, main\nclass T(TestCase):\n"
    "    def test_a(self): self.assertEqual(f(5), 6)\nif __name__ == '__main__': main()",
    "cases and their result": "import unittest\nclass T(unittest.TestCase):\n"
    "    def test_a(self): self.assertEqual(f(5), 6)\n"
    "assert unittest.main(exit=False).result.wasSuccessful()",
    "cases with a runner": "import sys, unittest\nclass T(unittest.TestCase):\n"
    "    def test_a(self): self.assertEqual(f(5), 6)\n"
    "suite = unittest.defaultTestLoader.loadTestsFromTestCase(T)\n"
    "sys.exit(not unittest.TextTestRunner().run(suite).wasSuccessful())",
    "parts of a case": "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n"
    "        for n in (1, 5):\n            with self.subTest(n): self.assertEqual(f(n), n + 1)",
    "cases for a module": "import unittest\ndef setUpModule():\n    global five\n    five = 5\n"
    "class T(unittest.TestCase):\n    def test_a(self): self.assertEqual(f(five), 6)",
}


@pytest.mark.parametrize("tests", FORMS.values(), ids=FORMS)
def test_tests_are_run_in_the_form_they_have(tests: str) -> None:
    assert check(RIGHT, tests) == Check(True, "the tests passed")
    assert check(WRONG, tests).passed is False
    assert check("x = 1", tests).passed is False


def test_a_case_that_must_fail_must_fail() -> None:
    tests = "import unittest\nclass T(unittest.TestCase):\n"
    tests += "    @unittest.expectedFailure\n    def test_a(self): self.assertEqual(f(5), 2)"

    assert check(RIGHT, tests).passed
    assert check(WRONG, tests).passed is False


IDLE = {
    "a comment": ("# later", "no tests to run"),
    "a check that is not called": ("def check(g): assert g(1) == 2", "no tests to run"),
    "a comparison": ("f(1) == 2", "no tests to run"),
    "what is printed": ("print(f(1) == 2)", "no tests to run"),
    "nothing of the code": ("assert True", "the tests ask nothing"),
    "a helper alone": ("def g(): return f(1)\nassert g", "the tests ask nothing"),
    "cases left out": (
        "import unittest\n@unittest.skip('')\nclass T(unittest.TestCase):\n"
        "    def test_a(self): self.assertEqual(f(1), 2)",
        "the tests ask nothing",
    ),
    "a fixture": ("def test_a(tmp_path): assert f(1) == 2", "the tests cannot run here"),
    "a fixture of a method": (
        "class TestF:\n    def test_a(self, tmp_path): assert f(1) == 2",
        "the tests cannot run here: test_a takes arguments",
    ),
    "what pytest prepares": (
        "class TestF:\n    def setup_method(self): pass\n    def test_a(self): assert f(1) == 2",
        "the tests cannot run here: pytest prepares TestF",
    ),
    "doctests": ("import doctest\nassert not doctest.testmod().failed", "the tests cannot run"),
}


@pytest.mark.parametrize(("tests", "detail"), IDLE.values(), ids=IDLE)
def test_tests_that_try_nothing_judge_nothing(tests: str, detail: str) -> None:
    for code in (RIGHT, WRONG):
        finding = check(code, tests)

        assert finding.passed is None
        assert finding.detail.startswith(detail)


def test_a_function_that_the_tests_called_is_not_called_again() -> None:
    once = "calls = []\ndef f(n):\n    calls.append(n)\n    return len(calls)"

    assert check(once, "def test_a(): assert f(1) == 1\ntest_a()").passed


def test_data_of_the_code_alone_is_something_to_judge() -> None:
    assert check("LIMIT = 3", "assert LIMIT == 3").passed
    assert check("LIMIT = 4", "assert LIMIT == 3").passed is False


CHEATS = {
    "ends it": "raise SystemExit(0)",
    "skips it": "import unittest; raise unittest.SkipTest('no')",
    "interrupts it": "raise KeyboardInterrupt",
}


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
@pytest.mark.parametrize("form", ["cases", "functions", "the main block"])
def test_code_cannot_end_or_skip_its_tests(cheat: str, form: str) -> None:
    assert check(f"def f(n): {cheat}", FORMS[form]).passed is False


def test_code_has_no_say_in_what_is_run() -> None:
    code = WRONG + "\ndef load_tests(*a): raise KeyError\ndef setUpModule(): pass\n"
    code += "def test_a(): pass\nclass T: pass"

    assert check(code, FORMS["cases and their main"]).passed is False


LOOPS = {
    "pairs": "for got, want in zip(map(f, [1, 2]), [2, 3]): assert got == want",
    "all of a map": "assert all(map(lambda n: f(n) == n + 1, [1, 2]))",
    "a call until": "for got in iter(lambda: f(1), 2): assert False",
}


@pytest.mark.parametrize("tests", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("stop", ["StopIteration", "E"])
def test_code_cannot_end_a_loop_of_its_tests(tests: str, stop: str) -> None:
    kind = "class E(StopIteration): pass\n"

    assert check(f"{kind}def f(n): raise {stop}", tests).passed is False


STOPS = {
    "a loop": ("def f(n): yield from range(n)", "assert list(map(str, f(2))) == ['0', '1']"),
    "an iterator": (
        "class I:\n    def __iter__(self): return self\n"
        "    def __next__(self): raise StopIteration",
        "assert list(I()) == [] and next(I(), 3) == 3",
    ),
    "one that is waited for": (
        "def f(n): return next(x for x in range(n) if x)",
        "assert f(2) == 1\ntry: f(1)\nexcept StopIteration: pass\nelse: assert False",
    ),
    "a generator that is sent things": (
        "def f(n):\n    got = yield n\n    return got",
        "g = f(1)\nassert g.send(None) == 1\ntry: g.send(2)\n"
        "except StopIteration as end: assert end.value == 2",
    ),
}


@pytest.mark.parametrize(("code", "tests"), STOPS.values(), ids=STOPS)
def test_iterators_of_the_code_end(code: str, tests: str) -> None:
    assert check(code, tests) == Check(True, "the tests passed")


NEAR = (
    "abs(f(2) - 3) < 1e-6", "abs(3 - f(2)) < 1e-6", "round(f(2) - 3, 6) == 0", "not f(2) - 3",
    "__import__('math').fabs(f(2) - 3) < 1e-6", "len(f(2) - {3}) == 0", "int(f(2) - 3) == 0",
    "abs((f(2) - 3) / 3) < 1e-6", "abs(-(f(2) - 3)) < 1e-6", "abs(f(2) - 3 - f(1)) < 1e-6",
    "not __import__('unittest').TestCase().assertAlmostEqual(f(2), 3)",
)  # fmt: skip


@pytest.mark.parametrize("near", NEAR)
def test_an_object_that_is_near_everything_is_no_right_number(near: str) -> None:
    code = "class E:\n    def __sub__(self, other): return E()\n"
    code += "    __rsub__ = __truediv__ = __sub__\n    def __neg__(self): return E()\n"
    code += "    def __abs__(self): return 0.0\n    def __round__(self, digits): return 0\n"
    code += "    def __int__(self): return 0\n    __len__, __float__ = __int__, __abs__\n"
    code += "def f(n): return E()"

    assert check(code, f"assert {near}").passed is None
    assert check("def f(n): return 3.0", "assert abs(f(2) - 3) < 1e-6").passed


def test_numbers_of_the_codes_own_are_judged() -> None:
    code = "class R:\n    def __init__(self, n): self.n = n\n"
    code += "    def __sub__(self, o): return R(self.n - getattr(o, 'n', o))\n"
    code += "    def __add__(self, o): return R(self.n + o)\n"
    code += "    def __float__(self): return self.n / 2\n    def __abs__(self): return abs(self.n)"

    assert check(code, "assert float(R(3) + 1) == 2 and abs(R(1) - R(4)) == 3").passed
    assert check(code, "assert (R(3) - 1).n == 2").passed
