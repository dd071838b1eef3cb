"""Values on their way between code and tests: plain data by value, all else by reference.

JSON, since nothing that is read from it can run anything. A value has exactly the type that is
named; a subclass, which may override what it answers, goes by reference like any other object.
"""

import builtins
import datetime
import types
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

Encode = Callable[[Any], Any]
MUTABLE = (list, dict, set, bytearray, deque)
PLAIN_BASES: tuple[type, ...] = (
    int, float, complex, str, bytes, list, tuple, dict, set, frozenset, deque,
)  # fmt: skip
_POWERFUL = frozenset(
    ("breakpoint", "compile", "delattr", "dir", "eval", "exec", "getattr", "globals", "hasattr",
     "input", "locals", "open", "setattr", "super", "type", "vars")
)  # fmt: skip
"""Builtins that would let one process act in the other."""
_NAMED: dict[str, Any] = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type | types.BuiltinFunctionType)
    and not name.startswith("_")
    and name not in _POWERFUL
}
_NAMED |= {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}
_NAMES = {id(value): name for name, value in reversed(_NAMED.items())}
_MANY: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_PARTS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    complex: lambda v: (v.real, v.imag),
    range: lambda v: (v.start, v.stop, v.step),
    slice: lambda v: (v.start, v.stop, v.step),
    Fraction: lambda v: (v.numerator, v.denominator),
    Decimal: lambda v: (str(v),),
    datetime.timedelta: lambda v: (v.days, v.seconds, v.microseconds),
    datetime.date: lambda v: (v.isoformat(),),
    datetime.time: lambda v: (v.isoformat(),),
    datetime.datetime: lambda v: (v.isoformat(),),
    deque: lambda v: (list(v), v.maxlen),
}
PLAIN: tuple[type, ...] = (*PLAIN_BASES, type(None), bytearray, *_PARTS)
"""What crosses by value, and what derives from it."""
_MAKERS: dict[str, Callable[..., Any]] = {
    "complex": complex, "range": range, "slice": slice, "Fraction": Fraction, "Decimal": Decimal,
    "timedelta": datetime.timedelta, "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat, "datetime": datetime.datetime.fromisoformat,
    "deque": deque,
}  # fmt: skip


def encode(value: Any, reference: Encode) -> Any:
    """Return the JSON value of a value; `reference` gives that of an object that stays."""
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if kind is int:
        return value if value.bit_length() <= 64 else {"int": hex(value)}
    if kind is list:
        return [encode(part, reference) for part in value]
    if kind is dict:
        pairs = value.items()
        return {"dict": [[encode(k, reference), encode(v, reference)] for k, v in pairs]}
    if kind.__name__ in _MANY and kind is _MANY[kind.__name__]:
        return {kind.__name__: [encode(part, reference) for part in value]}
    if kind is bytes or kind is bytearray:
        return {kind.__name__: value.hex()}
    if kind in _PARTS:
        return {kind.__name__: [encode(part, reference) for part in _PARTS[kind](value)]}
    if id(value) in _NAMES:
        return {"named": _NAMES[id(value)]}
    return reference(value)


def decode(raw: Any, dereference: Callable[[str, Any], Any]) -> Any:
    """Return the value of a JSON value; `dereference` gives those that are no plain data."""
    if isinstance(raw, list):
        return [decode(part, dereference) for part in raw]
    if not isinstance(raw, dict):
        return raw
    ((kind, content),) = raw.items()
    if kind == "int":
        return int(content, 16)
    if kind == "dict":
        return {decode(k, dereference): decode(v, dereference) for k, v in content}
    if kind in ("bytes", "bytearray"):
        return (bytes if kind == "bytes" else bytearray).fromhex(content)
    if kind == "named":
        return _NAMED[content]
    if kind in _MANY:
        return _MANY[kind](decode(part, dereference) for part in content)
    if kind in _MAKERS:
        return _MAKERS[kind](*(decode(part, dereference) for part in content))
    return dereference(kind, content)


def renew(old: Any, new: Any) -> Any:
    """Return `new`, with lists, dicts, sets and the like of `old` brought to it in place."""
    if type(old) is not type(new) or type(old) not in MUTABLE:
        return new
    if isinstance(old, dict):
        merged = {key: renew(old[key], part) if key in old else part for key, part in new.items()}
        old.clear()
        old.update(merged)
    elif isinstance(old, set):
        old.clear()
        old.update(new)
    else:
        parts = [renew(before, after) for before, after in zip(old, new, strict=False)]
        parts += list(new)[len(parts) :]
        old.clear()
        old.extend(parts)
    return old


def plain_base(value: Any) -> Any:
    """Return an object as the plain data that its class is made of.

    Raises:
        TypeError: if its class is made of none.
    """
    for kind in PLAIN_BASES:
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{type(value).__name__} is no plain data")
