"""What one end of the line may ask of the other: functions of values, by name."""

import operator
import sys
import types
from collections.abc import Callable
from typing import Any

from traces.verifiers.sandbox.values import plain_base

_NAME = "answer"


def run(code: str) -> list[tuple[str, Any]]:
    """Run a program, not as the main one; return what it defines."""
    module = sys.modules[_NAME] = types.ModuleType(_NAME)
    exec(compile(code, "<code>", "exec"), module.__dict__)  # noqa: S102 - what this is for
    return [(name, value) for name, value in vars(module).items() if not name.startswith("__")]


def _call(function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


def _finish(coroutine: Any) -> Any:
    import asyncio  # slow to import, rarely needed

    return asyncio.run(coroutine)


BINARY = (
    "add", "and_", "floordiv", "lshift", "matmul", "mod", "mul", "or_", "pow", "rshift", "sub",
    "truediv", "xor",
)  # fmt: skip
UNARY = ("abs", "index", "invert", "neg", "pos")
ORDER = ("ge", "gt", "le", "lt")

ACTS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in (*BINARY, *UNARY, *ORDER, "eq")},
    **{act.__name__: act for act in (bool, bytes, complex, float, hash, int, iter, len, repr)},
    **{act.__name__: act for act in (isinstance, issubclass, next, reversed, round, str)},
    "base": plain_base,
    "call": _call,
    "contains": operator.contains,
    "delete": delattr,
    "delitem": operator.delitem,
    "finish": _finish,
    "get": getattr,
    "getitem": operator.getitem,
    "run": run,
    "set": setattr,
    "setitem": operator.setitem,
}
