"""Stand-ins: objects that ask the other end of the line whatever they are asked.

Against plain data a stand-in is compared by the plain data that its object is made of (a named
tuple is a tuple, a counter a dict) and never by the object's own methods; an object made of none
differs from all plain data. Where its arithmetic with plain data gives plain data, that is nothing
to trust; nor is plain data made of what is left when plain data is taken from it, as is done to
see how near it is.
"""

import builtins
import operator
from typing import TYPE_CHECKING, Any

from traces.verifiers.sandbox.acts import BINARY, ORDER, UNARY
from traces.verifiers.sandbox.values import PLAIN

if TYPE_CHECKING:
    from traces.verifiers.sandbox.peer import Peer

TESTS = "__main__"
"""Name of the module that the tests run as."""


class Verdictless(BaseException):
    """The tests cannot go on; remembered, for tests that swallow all exceptions."""

    last: "Verdictless | None" = None

    def __init__(self, reason: str) -> None:
        """Remember itself as the last there was."""
        super().__init__(reason)
        Verdictless.last = self


class CannotCross(Verdictless):
    """The tests do what cannot be carried over to the code, or what it could answer as it likes."""


class StandIn:
    """One object of the other process."""

    __slots__ = ("_base", "_handle", "_is_rest", "_peer")

    def __init__(self, peer: "Peer", handle: int, base: str | None) -> None:
        """`base` names the plain type that its class derives from."""
        for name, value in (("_peer", peer), ("_handle", handle), ("_base", base)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_is_rest", False)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What `isinstance` is to believe."""
        return _kind(self) or StandIn

    def __getattr__(self, name: str) -> Any:
        return ask(self, "get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        ask(self, "set", name, value)

    def __delattr__(self, name: str) -> None:
        ask(self, "delete", name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the object where it is."""
        return ask(self, "call", list(args), kwargs)

    def __eq__(self, other: object) -> Any:
        if type(other) is StandIn:
            return self is other or bool(ask(self, "eq", other))
        if _kind(self):
            return _base_of(self) == other
        if _compares_itself(other):
            raise CannotCross(f"an object of the code is compared with a {type(other).__name__}")
        return False

    def __hash__(self) -> int:
        return int(ask(self, "hash"))

    def __bool__(self) -> bool:
        return bool(_base_of(self) if _kind(self) else _trusted(self, ask(self, "bool")))

    def __contains__(self, part: Any) -> bool:
        return part in _base_of(self) if _kind(self) else bool(ask(self, "contains", part))

    def __iter__(self) -> Any:
        return ask(self, "iter")

    def __next__(self) -> Any:
        return ask(self, "next")

    def __enter__(self) -> Any:
        return self.__getattr__("__enter__")()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        return self.__getattr__("__exit__")(None, None, None)

    def __instancecheck__(self, value: Any) -> bool:
        return type(value) is StandIn and bool(_peer(self).ask("isinstance", value, self))

    def __subclasscheck__(self, value: Any) -> bool:
        return type(value) is StandIn and bool(_peer(self).ask("issubclass", value, self))

    def __getitem__(self, key: Any) -> Any:
        return ask(self, "getitem", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        ask(self, "setitem", key, value)

    def __delitem__(self, key: Any) -> None:
        ask(self, "delitem", key)


def ask(stand_in: StandIn, what: str, *values: Any) -> Any:
    """Have something done to a stand-in's object."""
    return _peer(stand_in).ask(what, stand_in, *values)


def handle_of(stand_in: StandIn) -> int:
    """Return the number of a stand-in's object in its own process."""
    return int(object.__getattribute__(stand_in, "_handle"))


async def awaited(coroutine: StandIn) -> Any:
    """Return what a coroutine of the other process comes to."""
    return ask(coroutine, "finish")


def _compares_itself(value: Any) -> bool:
    """Whether a value is an object of a library that another like it could equal."""
    if isinstance(value, PLAIN) or callable(value) or type(value).__module__ == TESTS:
        return False
    equal: Any = type(value).__eq__
    return equal is not object.__eq__


def _peer(stand_in: StandIn) -> "Peer":
    peer: Peer = object.__getattribute__(stand_in, "_peer")
    return peer


def _kind(stand_in: StandIn) -> type | None:
    name = object.__getattribute__(stand_in, "_base")
    return getattr(builtins, name, None) if name else None


def _base_of(stand_in: StandIn) -> Any:
    value = ask(stand_in, "base")
    if type(value) is not _kind(stand_in):
        raise TypeError("an object is not what it was said to be")
    return value


def _forward(name: str) -> Any:
    return lambda self, *values: _trusted(self, ask(self, name, *values))


def _is_rest(value: Any) -> bool:
    """Whether a value is a stand-in for what is left when plain data is taken from an object."""
    return type(value) is StandIn and bool(object.__getattribute__(value, "_is_rest"))


def _rest(value: Any) -> Any:
    if type(value) is StandIn:
        object.__setattr__(value, "_is_rest", True)
    return value


def _trusted(stand_in: StandIn, result: Any) -> Any:
    """Return what was made of a stand-in alone.

    Raises:
        CannotCross: if it is plain data made of a rest, which the code may say is nothing.
    """
    if not _is_rest(stand_in):
        return result
    if type(result) is not StandIn:
        raise CannotCross("what is left of an object of the code is made plain data")
    return _rest(result)


def _binary(name: str, *, swapped: bool) -> Any:
    act = getattr(operator, name)

    def compute(self: StandIn, other: Any) -> Any:
        number = isinstance(other, int | float | complex)
        mine = _base_of(self) if number and _kind(self) else self
        if mine is not self:
            return act(other, mine) if swapped else act(mine, other)
        pair = (other, self) if swapped else (self, other)
        result = _peer(self).ask(name, *pair)
        if type(other) is not StandIn and type(result) is not StandIn:
            raise CannotCross(f"an object of the code takes part in {name} as plain data")
        is_rest = (
            _is_rest(self) or _is_rest(other) or (name == "sub" and type(other) is not StandIn)
        )
        return _rest(result) if is_rest else result

    return compute


def _ordered(name: str) -> Any:
    act = getattr(operator, name)

    def compare(self: StandIn, other: Any) -> Any:
        if type(other) is StandIn:
            return bool(ask(self, name, other))
        return act(_base_of(self), other) if _kind(self) else NotImplemented

    return compare


for _name in BINARY:
    _word = _name.rstrip("_")
    setattr(StandIn, f"__{_word}__", _binary(_name, swapped=False))
    setattr(StandIn, f"__r{_word}__", _binary(_name, swapped=True))
for _name in ORDER:
    setattr(StandIn, f"__{_name}__", _ordered(_name))
for _name in (
    *UNARY,
    "len",
    "repr",
    "str",
    "int",
    "float",
    "complex",
    "bytes",
    "round",
    "reversed",
):
    setattr(StandIn, f"__{_name}__", _forward(_name))
