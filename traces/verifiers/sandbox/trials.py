"""What tests try: by the statements that they run, or as a test runner would find and call it.

In: the program that the tests are. Out: why it would try nothing here; and, once its statements
have run, runs of what it only defined: functions `test*`, methods `test*` of classes `Test*`, the
cases of `unittest`. What needs pytest (arguments that it gives, what it calls before a method)
cannot be run. Only the standard library: this runs in a bare interpreter.
"""

import ast
import sys
import types
from collections.abc import Iterator
from typing import Any

from traces.verifiers.sandbox.stand_in import TESTS, CannotCross

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BEFORE_AND_AFTER = (
    "setup", "setup_class", "setup_method", "teardown", "teardown_class", "teardown_method",
)  # fmt: skip
_CARRIED = ("sys.stdout", "sys.stderr", "sys.path", "sys.dont_write_bytecode")
"""What the code prints crosses, and what it imports is its own affair."""
_LISTENERS = ("assertLogs", "assertWarns", "assertWarnsRegex")


def why_idle(program: ast.Module) -> str | None:
    """Return why tests could judge no code; None where nothing says so."""
    for name in _imported(program):
        if name not in sys.stdlib_module_names and name != TESTS:
            return f"the tests cannot run here: there is no module {name!r}"
        if name == "doctest":
            return "the tests cannot run here: doctests are not run"
    mentioned = _names(ast.walk(program))
    defined = [node for node in program.body if isinstance(node, _FUNCTIONS)]
    for node in defined:
        bare = node.name not in mentioned and not node.decorator_list
        if bare and node.name.startswith("test") and _wants(node.args):
            return f"the tests cannot run here: {node.name} takes arguments"
    if any(node.name.startswith("test") for node in defined):
        return None
    cases = (part for node in program.body if isinstance(node, ast.ClassDef) for part in node.body)
    if any(isinstance(part, _FUNCTIONS) and part.name.startswith("test") for part in cases):
        return None
    tries = any(isinstance(node, ast.Assert | ast.Raise | ast.Call) for node in _run(program))
    return None if tries else "no tests to run"


def what_is_set(program: ast.Module) -> str | None:
    """Return what tests set or replace in modules, or listen to, that the code has its own of."""
    nodes = list(ast.walk(program))
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for node in nodes:
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            words = ast.unparse(node)
            if _root(node) in imported - {"unittest"} and not words.startswith(_CARRIED):
                return words
        if isinstance(node, ast.Call):
            words = ast.unparse(node.func)
            *_, last = ("", *words.split("."))
            of_code = last == "object" and node.args and _root(node.args[0]) not in imported
            if last in _LISTENERS or ("patch" in words.split(".") and not of_code):
                return words
    return None


def _root(node: ast.AST) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def defer_main(program: ast.Module) -> None:
    """Have `unittest.main` do nothing where tests may call it: `run_found` runs their cases."""
    if "unittest" not in _imported(program):
        return
    import unittest  # slow to import, often not needed

    class Later:
        result = unittest.TestResult()

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

    setattr(unittest, "main", Later)  # noqa: B010 - the name is a class's


def run_found(program: ast.Module, space: dict[str, Any]) -> None:
    """Run what the tests defined in `space` and their statements did not call.

    Raises:
        CannotCross: if one of them cannot be run here.
        BaseException: the first that one of them raised.
    """
    called, mentioned = _names(_run(program)), _names(ast.walk(program))
    for name, value in list(space.items()):
        if type(value) is types.FunctionType:
            own = value.__module__ == TESTS and name.startswith("test")
            if own and not (name in called or (name in mentioned and _takes(value))):
                _call(value)
        elif issubclass(type(value), type) and value.__module__ == TESTS:
            if _is_case(value):
                _run_case(value)
            elif name.startswith("Test"):
                _run_class(value)


def _imported(program: ast.Module) -> set[str]:
    names: list[str] = []
    for node in program.body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append("." if node.level else node.module or "")
    return {name.partition(".")[0] or name for name in names}


def _names(nodes: Iterator[ast.AST]) -> set[str]:
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def _run(program: ast.Module) -> Iterator[ast.AST]:
    """Yield what runs with the program itself; a comparison or a print alone tries nothing."""
    waiting: list[ast.AST] = list(program.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, ast.Expr) and _is_only_looked_at(node.value):
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


def _is_only_looked_at(value: ast.expr) -> bool:
    prints = isinstance(value, ast.Call) and ast.unparse(value.func) == "print"
    return prints or isinstance(value, ast.Compare)


def _wants(arguments: ast.arguments) -> bool:
    without = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    return without > 0 or None in arguments.kw_defaults


def _takes(function: types.FunctionType, given: int = 0) -> bool:
    code, by_name = function.__code__, function.__kwdefaults__ or {}
    without = code.co_argcount - len(function.__defaults__ or ())
    return without > given or code.co_kwonlyargcount > len(by_name)


def _call(function: types.FunctionType, *args: Any) -> None:
    if _takes(function, len(args)):
        raise CannotCross(f"the tests cannot run here: {function.__name__} takes arguments")
    # What a test raises to be left out; the code has no way to raise it here.
    skip = getattr(sys.modules.get("unittest"), "SkipTest", ())
    try:
        result = function(*args)
        if type(result) is types.CoroutineType:
            import asyncio  # slow to import, rarely needed

            result = asyncio.run(result)
    except skip:
        return
    if result is False:
        raise AssertionError(f"{function.__name__} returned False")


def _run_class(kind: type) -> None:
    names = [name for name in dir(kind) if name.startswith("test")]
    prepared = kind.__init__ is not object.__init__  # type: ignore[misc]
    if names and (prepared or any(hasattr(kind, name) for name in _BEFORE_AND_AFTER)):
        raise CannotCross(f"the tests cannot run here: pytest prepares {kind.__name__}")
    for name in names:
        method = getattr(kind(), name)
        if type(method) is types.MethodType and type(method.__func__) is types.FunctionType:
            _call(method.__func__, method.__self__)
        elif type(method) is types.FunctionType:
            _call(method)


def _is_case(kind: type) -> bool:
    case = getattr(sys.modules.get("unittest"), "TestCase", None)
    return case is not None and issubclass(kind, case)


def _run_case(kind: type) -> None:
    import unittest

    class First(unittest.TestResult):
        error: BaseException | None = None

        def addError(self, test: Any, err: Any) -> None:
            self.error = self.error or err[1]
            self.stop()

        def addFailure(self, test: Any, err: Any) -> None:
            self.addError(test, err)

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            if err is not None:
                self.addError(test, err)

        def addUnexpectedSuccess(self, test: Any) -> None:
            self.addError(test, (None, AssertionError("unexpected success"), None))

    found = First()
    unittest.defaultTestLoader.loadTestsFromTestCase(kind).run(found)
    if found.error is not None:
        raise found.error
