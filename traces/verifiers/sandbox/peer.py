"""One end of the line between tested code and its tests, which run in two processes.

The tests hold stand-ins for the code's functions and objects. What a stand-in is asked goes to
the code's process; what comes back is data, looked at where the code cannot reach. So code cannot
say of itself that it passed: a stand-in is never equal to, less than or greater than plain data,
whatever the object's own methods say. The code, too, gets stand-ins, for functions and objects
that the tests pass it; of those it may only call, iterate and use public attributes.
"""

import importlib
import json
import os
import struct
import sys
import types
from collections.abc import Callable
from typing import Any

from traces.verifiers.sandbox.acts import ACTS, BINARY, ORDER, UNARY
from traces.verifiers.sandbox.limits import MESSAGE_LIMIT_BYTES
from traces.verifiers.sandbox.stand_in import (
    TESTS,
    CannotCross,
    StandIn,
    Verdictless,
    awaited,
    handle_of,
)
from traces.verifiers.sandbox.values import MUTABLE, PLAIN_BASES, decode, encode, renew

_HEAD = struct.Struct("<I")
_MOCKS = "unittest.mock"
_KEPT = ("method_calls",)
"""What each mock has besides what its class has."""
_OF_OBJECTS = (
    *BINARY, *ORDER, *UNARY, "bool", "bytes", "complex", "contains", "delitem", "eq", "float",
    "getitem", "hash", "int", "isinstance", "len", "repr", "reversed", "round", "setitem", "str",
)  # fmt: skip
"""What the code may do with an object of a class of the tests."""
_STOPS = (StopIteration, StopAsyncIteration)
_CAME = "_came_over_the_line"


class LineBroken(Verdictless):
    """The other process has ended, or talks nonsense."""


class Peer:
    """One end: sends requests, and answers the other end's while it waits."""

    def __init__(self, read_fd: int, write_fd: int, *, trusts: bool) -> None:
        """`trusts`: whether the other end may ask for everything, as tests may of code."""
        self._read_fd, self._write_fd, self._trusts = read_fd, write_fd, trusts
        self._objects: list[Any] = []
        self._handles: dict[int, int] = {}
        self._stand_ins: dict[int, Any] = {}
        self._classes: dict[int, type[BaseException]] = {}
        self.printed: Callable[[], str] = str
        """Takes what was printed here since it was last asked."""
        self.stops = False
        """Whether whoever asks here expects that what it calls may raise StopIteration."""
        self.heard = True
        """Whether the other end was asked anything, since this was last taken back."""
        self.when_heard: Callable[[], None] = lambda: None

    def ask(self, what: str, *values: Any) -> Any:
        """Have the other end do something; return or raise what came of it."""
        if not self.heard:
            self.heard = True
            self.when_heard()
        self._send({"do": what, "of": [encode(value, self._reference) for value in values]})
        while True:
            message = self._receive()
            if "do" in message:
                self._answer(message)
                continue
            sys.stdout.write(message.get("printed") or "")
            if "error" in message:
                error = self._error(message["error"])
                expected = what == "next" or self._trusts or self.stops
                if isinstance(error, _STOPS) and not expected:
                    # Else it would end a loop of the tests, as in a generator before PEP 479.
                    raise RuntimeError(f"the code raised {type(error).__name__}") from error
                raise error
            for place, content in message.get("args") or ():
                renew(_argument(values, place), decode(content, self._stand_in))
            return decode(message["value"], self._stand_in)

    def serve(self) -> None:
        """Answer the other end until it is gone."""
        while True:
            try:
                message = self._receive()
            except LineBroken:
                return
            self._answer(message)

    def _answer(self, message: dict[str, Any]) -> None:
        try:
            what, raw = message["do"], message["of"]
            if not self._trusts and not (isinstance(raw[0], dict) and "yours" in raw[0]):
                raise TypeError("that is nothing the tests gave")
            values = [decode(value, self._stand_in) for value in raw]
            if not self._trusts and not _is_harmless(what, values):
                raise TypeError(f"the code may not do this with what the tests gave: {what}")
            reply = {"value": encode(ACTS[what](*values), self._reference)}
            if what == "call":
                reply["args"] = [
                    [place, encode(value, self._reference)]
                    for place, value in [*enumerate(values[1]), *values[2].items()]
                    if type(value) in MUTABLE
                ]
        except (LineBroken, CannotCross):
            raise
        except BaseException as error:
            reply = {"error": self._described(error)}
        self._send({**reply, "printed": self.printed()})

    def _reference(self, value: Any) -> Any:
        if type(value) is StandIn:
            return {"yours": handle_of(value)}
        for handle, known in self._classes.items():
            if value is known:
                return {"yours": handle}
        if type(value) is types.ModuleType and self._trusts:
            return {"module": value.__name__}
        if not self._trusts and not _may_cross(value):
            raise CannotCross(f"the tests give the code a {type(value).__name__}")
        handle = self._handles.setdefault(id(value), len(self._objects))
        if handle == len(self._objects):
            self._objects.append(value)  # kept, so that its id stays its own
        if isinstance(value, type) and issubclass(value, BaseException):
            base = next(b for b in value.__mro__[1:] if issubclass(b, BaseException))
            return {"error_class": [handle, value.__name__, encode(base, self._reference)]}
        if type(value) is types.CoroutineType:
            return {"coroutine": handle}
        kind = next((k.__name__ for k in PLAIN_BASES if isinstance(value, k)), None)
        return {"mine": [handle, kind]}

    def _stand_in(self, kind: str, content: Any) -> Any:
        if kind == "yours":
            return self._objects[content]
        if kind == "mine":
            handle, base = content
            if handle not in self._stand_ins:
                self._stand_ins[handle] = StandIn(self, handle, base)
            return self._stand_ins[handle]
        if kind == "coroutine":
            return awaited(StandIn(self, content, None))
        if kind == "module" and content.partition(".")[0] in sys.stdlib_module_names:
            return importlib.import_module(content)
        if kind != "error_class":
            raise ValueError(f"no such value: {kind!r:.40}")
        handle, name, base = content
        if handle not in self._classes:
            parent = decode(base, self._stand_in)
            self._classes[handle] = type(str(name), (parent,), {})
        return self._classes[handle]

    def _described(self, error: BaseException) -> dict[str, Any]:
        told = [arg if _is_plain(arg) else repr(arg) for arg in error.args]
        held = {name: value for name, value in vars(error).items() if _is_plain(value)}
        return {
            "class": encode(type(error), self._reference),
            "args": encode(told, self._reference),
            "held": encode(held, self._reference),
        }

    def _error(self, raw: dict[str, Any]) -> BaseException:
        kind = decode(raw["class"], self._stand_in)
        told = decode(raw["args"], self._stand_in)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            kind = RuntimeError
        try:
            error: BaseException = kind(*told)
        except Exception:  # such as UnicodeDecodeError, which wants more than words
            error = RuntimeError(*told)
        setattr(error, _CAME, True)
        for name, value in decode(raw["held"], self._stand_in).items():
            if isinstance(name, str) and not name.startswith("_"):
                setattr(error, name, value)
        return error

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        if len(data) > MESSAGE_LIMIT_BYTES:
            raise LineBroken(f"a value of {len(data)} bytes is too large")
        view = memoryview(_HEAD.pack(len(data)) + data)
        while view:
            try:
                view = view[os.write(self._write_fd, view) :]
            except OSError as error:
                raise LineBroken("the code ended") from error

    def _receive(self) -> dict[str, Any]:
        (size,) = _HEAD.unpack(self._read(_HEAD.size))
        if size > MESSAGE_LIMIT_BYTES:
            raise LineBroken(f"a value of {size} bytes is too large")
        try:
            message = json.loads(self._read(size))
        except (ValueError, RecursionError) as error:
            raise LineBroken("a value that cannot be read") from error
        if not isinstance(message, dict):
            raise LineBroken("a message that is none")
        return message

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = os.read(self._read_fd, min(size - len(data), 1 << 20))
            if not part:
                raise LineBroken("the code ended")
            data += part
        return data


def came_over(error: BaseException) -> bool:
    """Whether an error was raised by the other end."""
    return getattr(error, _CAME, False)


def _argument(values: tuple[Any, ...], place: int | str) -> Any:
    return values[1][place] if isinstance(place, int) else values[2][place]


def _may_cross(value: Any) -> bool:
    """Whether an object of the tests may be lent to the code."""
    kind = type(value)
    iterates = hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools")
    return callable(value) or iterates or kind.__module__ == TESTS


def _is_harmless(what: str, values: list[Any]) -> bool:
    """Whether the code may do this with what the tests lent it."""
    if what in ("call", "iter", "next"):
        return True
    kind = type(values[0])
    if what in ("get", "set") and isinstance(values[1], str):
        if what == "get" and values[1] in ("__enter__", "__exit__"):
            return kind.__module__ in (TESTS, _MOCKS)
        if kind.__module__ == _MOCKS:
            # What a mock has of its class, such as `return_value`, is for the tests, and an
            # object of the code in a mock's place would say that it was called.
            of_tests = hasattr(kind, values[1]) or values[1] in _KEPT
            return not of_tests and (what == "get" or _is_plain(values[2]))
        return kind.__module__ == TESTS and not values[1].startswith("_")
    return kind.__module__ == TESTS and what in _OF_OBJECTS


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str, bytes)
