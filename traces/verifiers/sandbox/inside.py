"""What runs in the child: `python inside.py FOLDER MODE`, the order on standard input.

The order is JSON: `code` and `tests`. The verdict is JSON on standard output: `passed` and
`detail`, or `refused` where the machine cannot confine it. Three processes:

    this one           leaves the machine's namespaces and waits
    the tests          read the order, run the tests, say the verdict
    the code           runs the code and answers the tests; it is started before the order is
                       read and holds neither the tests nor a way to say a verdict

In namespaces the code has its own process numbers and a first process that ends it all.
"""

import ast
import builtins
import functools
import json
import os
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

from traces.verifiers.sandbox import kernel
from traces.verifiers.sandbox.confinement import confine, leave_the_machine
from traces.verifiers.sandbox.limits import PRINTED_LIMIT_CHARS
from traces.verifiers.sandbox.peer import LineBroken, Peer, came_over
from traces.verifiers.sandbox.stand_in import TESTS, CannotCross, StandIn, Verdictless
from traces.verifiers.sandbox.trials import defer_main, run_found, what_is_set, why_idle

NAMESPACES, FILTER = "namespaces", "filter"
_DETAIL_CHARS = 160


def main(folder: str, mode: str) -> None:
    """Confine, then run tests and code in processes of their own."""
    kernel.die_with_parent()
    os.environ.clear()
    verdict = os.dup(1)
    user, writable = None, None
    try:
        if mode == NAMESPACES:
            user = leave_the_machine(folder)
        else:
            writable = folder
            os.chdir(folder)
        _hold(os.open("/dev/null", os.O_RDWR), 1, 2)
    except (OSError, KeyError) as error:
        _say(verdict, {"refused": str(error)})
        return
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    to_code, from_code = os.pipe(), os.pipe()
    if mode == NAMESPACES:
        kernel.unshare(kernel.CLONE_NEWPID)
    if os.fork() == 0:
        _hold(os.open("/dev/null", os.O_RDWR), 0)
        for fd in (verdict, to_code[1], from_code[0]):
            os.close(fd)
        _be_first(mode)
        confine(user, writable)
        _run_code(Peer(to_code[0], from_code[1], trusts=True))
    os.close(to_code[0])
    os.close(from_code[1])
    try:
        confine(user, writable)
    except OSError as error:
        _say(verdict, {"refused": str(error)})
        os._exit(0)
    order = json.load(sys.stdin)
    _hold(os.open("/dev/null", os.O_RDONLY), 0)
    peer = Peer(from_code[0], to_code[1], trusts=False)
    try:
        peer.ask("len", "")
    except LineBroken as error:
        _say(verdict, {"refused": str(error)})
        os._exit(0)
    _say(verdict, {"begun": True})
    _say(verdict, _judge(peer, functools.partial(_say, verdict), **order))
    os._exit(0)


def _hold(fd: int, *places: int) -> None:
    for place in places:
        os.dup2(fd, place)


def _say(fd: int, message: dict[str, Any]) -> None:
    os.write(fd, json.dumps(message).encode() + b"\n")


def _be_first(mode: str) -> None:
    """Return in a child of the first process; the first ends, and all others, when it has."""
    if mode != NAMESPACES:
        return
    worker = os.fork()
    if not worker:
        return
    while os.wait()[0] != worker:
        pass
    os._exit(0)


def _run_code(peer: Peer) -> NoReturn:
    printed: list[str] = []

    class Printed:
        encoding, errors, closed = "utf-8", "strict", False

        def write(self, text: str) -> int:
            if sum(map(len, printed)) + len(text) <= PRINTED_LIMIT_CHARS:
                printed.append(text)
            return len(text)

        def flush(self) -> None:
            pass

        def isatty(self) -> bool:
            return False

    def take() -> str:
        text = "".join(printed)
        printed.clear()
        return text

    sys.stdout = Printed()
    peer.printed = take
    peer.serve()
    os._exit(0)


def _judge(
    peer: Peer, say: Callable[[dict[str, Any]], None], code: str, tests: str
) -> dict[str, Any]:
    try:
        compiled, program = compile(tests, "<tests>", "exec"), ast.parse(tests)
        idle = why_idle(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return _verdict(None, f"the tests are no Python: {_told(error)}")
    if idle:
        return _verdict(None, idle)
    used = {node.id for node in ast.walk(program) if isinstance(node, ast.Name)}
    peer.stops = bool(used & {"StopIteration", "StopAsyncIteration"})
    defer_main(program)
    module = sys.modules[TESTS] = types.ModuleType(TESTS)
    began = False
    try:
        # What it says it defines is its own word: no `__builtins__` of its making.
        found = {n: value for n, value in peer.ask("run", code) if not n.startswith("__")}
        hidden = {name for name in found if hasattr(builtins, name)}
        if hidden & used:
            names = ", ".join(sorted(hidden & used))
            return _verdict(None, f"the code redefines what the tests use: {names}")
        vars(module).update((name, found[name]) for name in found.keys() - hidden)
        if all(type(found[name]) is StandIn for name in used & found.keys()):
            say({"alone": True})
            peer.heard = False
            peer.when_heard = lambda: say({"alone": False})
        began = True
        _run_tests(compiled, program, vars(module))
        if Verdictless.last is not None:
            raise Verdictless.last
    except CannotCross as error:
        return _verdict(None, str(error)[:_DETAIL_CHARS])
    except Verdictless as error:
        return _verdict(False, f"ended before its tests did ({error})")
    except BaseException as error:
        excuse = _excuse(error, program, alone=not peer.heard) if began else None
        return _verdict(None if excuse else False, f"{excuse or ''}{_told(error)}"[:_DETAIL_CHARS])
    if not peer.heard:
        return _verdict(None, "the tests ask nothing of the code")
    return _verdict(True, "the tests passed")


def _excuse(error: BaseException, program: ast.Module, *, alone: bool) -> str | None:
    """Return why an error of the tests is no fault of the code; None where it may be one.

    `alone`: they had asked nothing of the code.
    """
    if alone and isinstance(error, MemoryError):
        return "the tests fail by themselves: "
    if came_over(error) or not isinstance(error, NameError):
        world = what_is_set(program)
        if world:
            return f"the tests set what the code does not see ({world}): "
    if isinstance(error, ModuleNotFoundError) and not came_over(error):
        return "the tests cannot run here: "
    return None


def _run_tests(compiled: types.CodeType, program: ast.Module, space: dict[str, Any]) -> None:
    try:
        exec(compiled, space)  # noqa: S102 - what this is for
    except SystemExit as end:
        if end.code or came_over(end):
            raise
    run_found(program, space)


def _verdict(passed: bool | None, detail: str) -> dict[str, Any]:
    return {"passed": passed, "detail": detail}


def _told(error: BaseException) -> str:
    try:
        words = " ".join(str(error).split())
    except BaseException:
        words = ""
    name = type(error).__name__
    return (f"{name}: {words}" if words else name)[:_DETAIL_CHARS]
