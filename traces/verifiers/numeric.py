r"""Verify a number: the answer's number is the expected one, within a tolerance.

Which number an answer gives, in this order:

1. that of the last `\boxed{...}`, or of what stands after the last `####` (the marks that
   reasoning data sets use), where one is there and holds a number;
2. else the last number of the text, so that one which says "12 and not 7" is read as 7.

A number may have a sign, thousands separators in groups of three (comma, apostrophe, no-break or
thin space), a decimal point, an exponent (`1.5e3`, `1.5 x 10^3`), or be a fraction (`3/4`). A
currency before it and a unit, `%`, an ordinal's letters or bold marks after it are left aside and
nothing is converted: `1.5 km` is 1.5, `50%` is 50. What only looks like a number is none: digits
within a word (`H2O`, `v2`), dates, times, versions, ranges and odd groups (`2024-05-01`, `10:30`,
`1.2.3`, `5-7`, `1,23`).
"""

import math
import re
from fractions import Fraction

from traces.verifiers.check import Check

_GROUP = "[,'\u2019\u00a0\u2009\u202f]"
_RUN = re.compile(
    r"(?<!\w)(?P<sign>[-+\u2212])?[$\u20ac\u00a3\u00a5]?"
    r"(?P<body>\.?\d(?:[\d.,:/^'\u2019\u00a0\u2009\u202f-]*\d)?)"
    r"(?:[eE](?P<exponent>[-+]?\d{1,4})(?!\w)"
    r"|\s?[x*\u00d7]\s?10\^\{?(?P<power>[-+\u2212]?\d{1,4})\}?)?"
    r"(?P<unit>\w*)"
)
_BODY = re.compile(
    rf"(?P<whole>\d{{1,3}}(?:{_GROUP}\d{{3}})+|\d*)(?P<part>\.\d+)?(?:/(?P<under>\d+))?"
)
_BOXED = re.compile(r"\\boxed\s*\{([^{}]{0,200})\}")
_MAX_DIGITS = 400
"""A longer number is no answer."""


def check_numeric(text: str, value: float, tolerance: float = 1e-6, absolute: float = 0.0) -> Check:
    """Pass if the answer's number is within `tolerance * |value|`, or `absolute`, of `value`."""
    if not (isinstance(value, int) or math.isfinite(value)):
        return Check(None, f"the expected value {value!r} is no number")
    if not (0 <= tolerance < math.inf and 0 <= absolute < math.inf):
        return Check(None, f"tolerances are from 0 on, got {tolerance!r} and {absolute!r}")
    given = number_of(text)
    if given is None:
        return Check(False, "no number in the answer")
    # By its decimal digits, as an answer writes it: 0.1 is not the binary fraction next to it.
    wanted = Fraction(str(value)) if isinstance(value, float) else Fraction(value)
    if abs(given - wanted) <= max(Fraction(tolerance) * abs(wanted), Fraction(absolute)):
        return Check(True, "the expected number")
    return Check(False, f"another number than the expected {str(value)[:40]}")


def number_of(text: str) -> Fraction | None:
    """Return the number that an answer gives; None if there is none."""
    boxed = _BOXED.findall(text)
    marked = boxed[-1] if boxed else text.rpartition("####")[2] if "####" in text else ""
    found = _last(marked)
    return _last(text) if found is None else found


def _last(text: str) -> Fraction | None:
    found = None
    for run in _RUN.finditer(text):
        number = _value(run)
        found = found if number is None else number
    return found


def _value(run: re.Match[str]) -> Fraction | None:
    body = _BODY.fullmatch(run["body"])
    if body is None or any(c.isdigit() or c == "_" for c in run["unit"]):
        return None
    under = int(body["under"]) if body["under"] and len(body["under"]) <= _MAX_DIGITS else None
    if len(run["body"]) > _MAX_DIGITS or (body["under"] and not under):
        return None
    digits = re.sub(_GROUP, "", body["whole"]) or "0"
    value = Fraction(digits + (body["part"] or "")) / (under or 1)
    exponent = int((run["exponent"] or run["power"] or "0").replace("\u2212", "-"))
    value = value * Fraction(10) ** exponent
    return -value if run["sign"] in ("-", "\u2212") else value
