"""Proves that the gate's functions are told from wrong ones by their tests.

Every kind of `promotion/suites/data/functions.toml` with all its values, in the real sandbox. Many
functions share one child process, for its start is most of what a check costs.
"""

import random
from collections import Counter
from collections.abc import Sequence

from wrong_functions import WRONG

from promotion.suites.functions import KINDS, Function, functions_of, make_function_task
from promotion.suites.task import Task
from promotion.suites.world import make_tasks
from traces.verifiers.check import Check
from traces.verifiers.python_tests import check_python

WRONG_BY = "AssertionError, LookupError, ValueError, ZeroDivisionError, TypeError"
"""How a wrong body may fail; any other error is a mistake in `WRONG`."""

FUNCTIONS = [function for name, table in KINDS.items() for function in functions_of(name, table)]
"""All that only the gate asks for."""


def check_wrong(functions: Sequence[Function]) -> Check:
    """Run the tests of functions that are wrong; the detail has the places of those that pass."""
    code, tests = [], ["passed = []"]
    for place, function in enumerate(functions):
        code.append(function.code.replace(function.name, f"f{place}"))
        own = [test.replace(f"{function.name}(", f"f{place}(") for test in function.tests]
        tests += ["try:", *(f"    {test}" for test in own), f"    passed.append({place})"]
        tests += [f"except ({WRONG_BY}):", "    pass"]
    return check_python("\n".join(code), [*tests, "if passed: raise RuntimeError(passed)"], 60)


def gate_tasks(count: int) -> list[Task]:
    rng = random.Random(0)
    return [make_function_task(rng, "gate") for _ in range(count)]


def test_every_right_body_passes_its_tests() -> None:
    code = "\n".join(function.code for function in FUNCTIONS)
    tests = [test for function in FUNCTIONS for test in function.tests]

    assert len({function.name for function in FUNCTIONS}) == len(FUNCTIONS)
    assert check_python(code, tests, 60).passed


def test_every_kind_refuses_plausible_wrong_bodies() -> None:
    wrong = [
        function
        for name, bodies in WRONG.items()
        for body in bodies
        for function in functions_of(name, {**KINDS[name], "body": body})
    ]
    check = check_wrong(wrong)

    assert WRONG.keys() == KINDS.keys()
    assert min(map(len, WRONG.values())) >= 2
    assert check.passed, check.detail


def test_a_right_body_among_wrong_ones_is_found() -> None:
    (wrong,) = functions_of("is_prime", {**KINDS["is_prime"], "body": "return True"})

    assert check_wrong([wrong, FUNCTIONS[0]]) == Check(False, "RuntimeError: [1]")


def test_the_gate_asks_for_every_function_with_its_tests() -> None:
    asked = {task.keywords[0]: task for task in gate_tasks(6000)}

    for function in FUNCTIONS:
        task = asked[function.name]
        assert f"{function.name}({function.parameters})" in task.text
        assert function.wish in task.text
        assert task.answer.content == function.code
        assert task.reference == {"verifier": "python_tests", "tests": list(function.tests)}


def test_a_wish_and_its_tests_say_enough() -> None:
    for function in FUNCTIONS:
        verb = function.wish.split()[0]
        assert verb.endswith("s"), function.wish
        assert function.wish[-1] not in ".;:", function.wish
        assert 3 <= len(function.tests) <= 6, function.name


def test_the_gates_requests_for_functions_are_enough_clusters() -> None:
    per_kind = Counter(task.template.split("-")[1] for task in gate_tasks(6000))

    assert len({task.template for task in make_tasks("L2", 1500, 0, "gate")}) >= 700
    assert len({task.template for task in make_tasks("L2", 375, 0, "gate")}) >= 320
    assert max(per_kind.values()) < 2 * min(per_kind.values())
