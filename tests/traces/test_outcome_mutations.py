"""Proves that every branch of the rule of outcomes is held up by a row of a table.

Each condition of `outcomes._verdict` is broken in turn, in a copy of the module that is made from
its own source: never true, and always true. Nothing else is changed.
"""

import ast
import inspect
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from trace_records import signal

from traces.attribution import outcomes

GOOD, BAD = signal(value=1.0), signal(value=0.0)
SILENT = signal(value=None)
UP, DOWN = signal("thumb", 1.0), signal("thumb", -1.0)
EDIT, RETRY = signal("edit", None), signal("retry", None)

Row = tuple[str, list[Any], dict[str, bool], tuple[bool | None, str | None, str]]
ROWS: tuple[Row, ...] = (
    ("abandoned", [GOOD], {}, (None, None, "abandoned")),
    ("failed", [GOOD], {}, (False, None, "not_answered")),
    ("failed", [], {"engine_failed": True}, (False, None, "engine")),
    ("ok", [GOOD, DOWN], {}, (True, "A", "verified")),
    ("ok", [BAD, GOOD], {}, (False, "A", "verified")),
    ("ok", [EDIT, UP], {}, (False, "B", "edited")),
    ("ok", [UP, RETRY], {}, (True, "B", "thumbed")),
    ("ok", [DOWN], {}, (False, "B", "thumbed")),
    ("ok", [RETRY], {}, (None, "C", "suspect")),
    ("ok", [SILENT], {}, (None, None, "unverified")),
    ("ok", [SILENT, DOWN], {}, (False, "B", "thumbed")),
    ("ok", [], {}, (None, None, "unjudged")),
    ("ok", [BAD], {"superseded": True}, (None, None, "superseded")),
)


def failing(settle: Callable[..., Any]) -> list[Row]:
    """Return the rows that a way of settling gets wrong."""
    wrong = []
    for status, signals, flags, expected in ROWS:
        turn = SimpleNamespace(turn_id="t1", status=status, user="u1")
        found = settle(turn, signals, **flags)
        if (found.success, found.tier, found.rule) != expected:
            wrong.append((status, signals, flags, expected))
    return wrong


def conditions(tree: ast.Module) -> list[ast.If | ast.IfExp]:
    """Return the conditions of the rule, in order."""
    rule = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "_verdict")
    return [node for node in ast.walk(rule) if isinstance(node, ast.If | ast.IfExp)]


SOURCE = inspect.getsource(outcomes)
COUNT = len(conditions(ast.parse(SOURCE)))


def test_the_table_holds() -> None:
    assert failing(outcomes.settle) == []
    assert COUNT >= 7


@pytest.mark.parametrize("value", [False, True], ids=["never", "always"])
@pytest.mark.parametrize("place", range(COUNT))
def test_a_broken_condition_is_noticed(place: int, value: bool) -> None:
    tree = ast.parse(SOURCE)
    conditions(tree)[place].test = ast.copy_location(
        ast.Constant(value), conditions(tree)[place].test
    )
    mutant = ModuleType("mutant")
    exec(compile(ast.fix_missing_locations(tree), "mutant", "exec"), vars(mutant))

    assert failing(mutant.settle)
