"""Proves that every branch of the rule of outcomes is held up by a row of a table.

Each condition of `outcomes._verdict`, and of what it asks which verdicts count, is broken in turn,
in a copy of the module that is made from its own source: never true, and always true. Nothing else
is changed. A rule that breaks down is noticed too.
"""

import ast
import inspect
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from mutants import conditions, functions
from trace_records import signal

from traces.attribution import outcomes

GOOD, BAD = signal(value=1.0), signal(value=0.0)
SILENT = signal(value=None)
SHOWN = signal(value=0.0, source="derived", name="call_schema", annotator="code")
AGAIN = signal(value=1.0, source="derived", annotator="code", reference="{}")
COMMENT, THANKS = signal("comment", None), signal("thanks", 1.0)
UP, DOWN = signal("thumb", 1.0), signal("thumb", -1.0)
UP_BY_SAME, DOWN_BY_SAME = signal("thumb", 1.0, user="u1"), signal("thumb", -1.0, user="u1")
UP_BY_ANOTHER = signal("thumb", 1.0, user="u2")
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
    ("ok", [DOWN, UP_BY_ANOTHER], {}, (False, "B", "divided")),
    ("ok", [UP_BY_SAME, DOWN_BY_SAME], {}, (None, None, "divided")),
    ("ok", [UP_BY_SAME, DOWN_BY_SAME, RETRY], {}, (None, "C", "suspect")),
    ("ok", [UP_BY_SAME, DOWN_BY_SAME, SILENT], {}, (None, None, "unverified")),
    ("ok", [RETRY], {}, (None, "C", "suspect")),
    ("ok", [SILENT], {}, (None, None, "unverified")),
    ("ok", [SILENT, DOWN], {}, (False, "B", "thumbed")),
    ("ok", [], {}, (None, None, "unjudged")),
    ("ok", [COMMENT], {}, (None, None, "unjudged")),
    ("ok", [THANKS], {}, (None, None, "unjudged")),
    ("ok", [SHOWN], {}, (False, "A", "checked")),
    ("ok", [SHOWN, SILENT], {}, (False, "A", "checked")),
    ("ok", [SHOWN, UP], {}, (False, "A", "checked")),
    ("ok", [SHOWN, GOOD], {}, (True, "A", "verified")),
    ("ok", [SHOWN, BAD], {}, (False, "A", "verified")),
    ("ok", [SILENT, AGAIN, SHOWN], {}, (True, "A", "verified")),
    ("ok", [BAD], {"superseded": True}, (None, None, "superseded")),
)


def failing(settle: Callable[..., Any]) -> list[Row]:
    """Return the rows that a way of settling gets wrong."""
    wrong = []
    for status, signals, flags, expected in ROWS:
        turn = SimpleNamespace(turn_id="t1", status=status, user="u1")
        try:
            found = settle(turn, signals, **flags)
        except (LookupError, TypeError):
            found = SimpleNamespace(success=None, tier=None, rule="broke down")
        if (found.success, found.tier, found.rule) != expected:
            wrong.append((status, signals, flags, expected))
    return wrong


RULES = ("_verdict", "verdicts", "shows_itself")


def of_the_rule(tree: ast.Module) -> list[ast.FunctionDef]:
    """Return the functions that make the rule."""
    return [rule for rule in functions(tree) if rule.name in RULES]


SOURCE = inspect.getsource(outcomes)
COUNT = len(conditions(of_the_rule(ast.parse(SOURCE))))


def test_the_table_holds() -> None:
    assert failing(outcomes.settle) == []
    assert COUNT >= 16


@pytest.mark.parametrize("value", [False, True], ids=["never", "always"])
@pytest.mark.parametrize("place", range(COUNT))
def test_a_broken_condition_is_noticed(place: int, value: bool) -> None:
    tree = ast.parse(SOURCE)
    conditions(of_the_rule(tree))[place](ast.Constant(value))
    mutant = ModuleType("mutant")
    exec(compile(ast.fix_missing_locations(tree), "mutant", "exec"), vars(mutant))

    assert failing(mutant.settle)
