"""Conditions of a module's functions, to be broken one by one in a copy of its source."""

import ast
from collections.abc import Callable, Iterable
from functools import partial


def conditions(rules: Iterable[ast.FunctionDef]) -> list[Callable[[ast.expr], None]]:
    """Return, for each condition of the functions, what puts another expression in its place."""
    found: list[Callable[[ast.expr], None]] = []
    for rule in rules:
        for node in ast.walk(rule):
            if isinstance(node, ast.If | ast.IfExp):
                found.append(partial(setattr, node, "test"))
            elif isinstance(node, ast.BoolOp):
                found += [partial(node.values.__setitem__, n) for n in range(len(node.values))]
            elif isinstance(node, ast.comprehension):
                found += [partial(node.ifs.__setitem__, n) for n in range(len(node.ifs))]
    return found


def functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """Return a module's own functions."""
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]
