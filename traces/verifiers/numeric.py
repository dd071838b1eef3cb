r"""Verify a number: the answer's number is the expected one, within a tolerance.

Which number an answer gives, in this order:

1. that of the last `\boxed{...}`, where one is there and not empty: the only number in it;
2. the last of what stands after the last `####`, the other mark that reasoning data sets use;
3. else the last number of the text, so that one which says "12 and not 7" is read as 7.

A number may have a sign, thousands separators in groups of three (comma, apostrophe, no-break or
thin space), a decimal point, an exponent (`1.5e3`, `1.5 x 10^3`), or be a fraction (`3/4`, `½`,
`\frac{3}{4}`). A currency before it and a unit, `%`, an ordinal's letters or bold marks after it
are left aside and nothing is converted: `1.5 km` is 1.5, `50%` is 50. What only looks like a number
is none: digits within a word (`H2O`, `v2`), dates, times, versions and ranges (`2024-05-01`,
`10:30`, `1.2.3`, `5-7`).

What may well be a number and is not read has no verdict, for no part of it is the answer: what is
to be computed (`2^10`, `7 + 5`, `2\pi`, `\sqrt{2}`), mixed numbers (`3 1/2`), groups that may be
decimals or thousands (`1,23`, `1 000`), scales (`3 million`, `3万`), several numbers in a box.
"""

import math
import re
from fractions import Fraction
from typing import Literal

from traces.verifiers.characters import UNSPACED, written_out
from traces.verifiers.check import Check
from traces.verifiers.mathematics import UNREAD, boxed, plain

Number = Fraction | Literal["unread"]

_GROUP = "[,'\u2019\u00a0\u2009\u202f]"
_LETTER = rf"[^\W{UNSPACED}]"
_RUN = re.compile(
    rf"(?<!{_LETTER})(?P<sign>[-+\u2212])?[$\u20ac\u00a3\u00a5]?"
    r"(?P<body>\.?\d(?:[\d.,:/^'\u2019\u00a0\u2009\u202f-]*\d)?)"
    r"(?:[eE](?P<exponent>[-+]?\d{1,4})(?!\w)"
    r"|\s?[x*\u00d7]\s?10(?:\^|\*\*)\{?(?P<power>[-+\u2212]?\d{1,4})\}?(?![\d^]))?"
    rf"(?P<unit>{_LETTER}*)"
    rf"|{UNREAD}"
)
_BODY = re.compile(
    rf"(?P<whole>\d{{1,3}}(?:{_GROUP}\d{{3}})+|\d*)(?P<part>\.\d+)?(?:/(?P<under>\d+))?"
)
_LIKE_A_DATE = re.compile(r"\d+(?:-\d+)+|\d+(?:/\d+){2,}|[\d.,]*:[\d:.,-]*|\d+(?:\.\d+){2,}")
_DATE = re.compile(
    r"(?<!\d)(?:\d{1,4}年\d{1,2}月(?:\d{1,2}[日号])?|\d{1,2}月\d{1,2}[日号]|\d{1,2}[点时]\d{1,2}分?)"
)
_JOIN = re.compile(
    r"[^\S\n]*(?:[-+*/^\u2212\u00d7\u00f7\u00b7{}$]*|[xX]|plus|minus|times)[^\S\n]*|\("
)
"""What stands between the parts of an expression."""
_BEFORE = re.compile(r"[\^\u00d7\u00f7]\s?\Z|[-+\u2212]\Z|[^\W\d_)]\s?\+\s?\Z|\)\s?\+\s?\Z")
_AFTER = re.compile(
    r"[)\s]?\s?\^|\s?[+\u00d7\u00f7]\s?[^\W\d_(]|\s?(?:[万萬亿億]|[千百](?![克米瓦卡]))"
    r"|\s{1,3}(?:hundred|thousand|million|billion|trillion|dozen|lakh|crore)\b",
    re.IGNORECASE,
)
_UNKNOWNS = frozenset(("x", "y", "z", "n", "i", "e", "k", "bn", "mn"))
"""Units that are none: letters of formulas, and scales."""
_OPERATOR = re.compile(r"[-+*^\u2212\u00d7\u00f7!]|(?<![^\W\d])/|/(?![^\W\d])")
_MAX_DIGITS = 400
"""A longer number is no answer."""


def check_numeric(text: str, value: float, tolerance: float = 1e-6, absolute: float = 0.0) -> Check:
    """Pass if the answer's number is within `tolerance * |value|`, or `absolute`, of `value`."""
    if not (isinstance(value, int) or math.isfinite(value)):
        return Check(None, f"the expected value {value!r} is no number")
    if not (0 <= tolerance < math.inf and 0 <= absolute < math.inf):
        return Check(None, f"tolerances are from 0 on, got {tolerance!r} and {absolute!r}")
    given = number_of(text)
    if given == "unread":
        return Check(None, "what the answer gives is not read: more than one plain number")
    if given is None:
        return Check(False, "no number in the answer")
    # By its decimal digits, as an answer writes it: 0.1 is not the binary fraction next to it.
    wanted = Fraction(str(value)) if isinstance(value, float) else Fraction(value)
    if abs(given - wanted) <= max(Fraction(tolerance) * abs(wanted), Fraction(absolute)):
        return Check(True, "the expected number")
    return Check(False, f"another number than the expected {str(value)[:40]}")


def number_of(text: str) -> Number | None:
    """Return the number that an answer gives; None if there is none, "unread" if it may be one."""
    box = boxed(text)
    if box is not None and box.strip():
        return _only(_written(box))
    numbers = _numbers(_written(text.rpartition("####")[2])) if "####" in text else []
    numbers = numbers or _numbers(_written(text))
    return numbers[-1] if numbers else None


def _written(text: str) -> str:
    return _DATE.sub("|", plain(written_out(text)))


def _only(text: str) -> Number | None:
    """Return the one number of a text that holds nothing else to compute."""
    text = re.sub(r"\A\s*([-\u2212])\s+(?=[\d.$])", r"\1", text)
    numbers = set(_numbers(text))
    if not numbers:
        return "unread" if _RUN.search(text) else None
    rest = _RUN.sub(" ", text)
    return numbers.pop() if len(numbers) == 1 and not _OPERATOR.search(rest) else "unread"


def _numbers(text: str) -> list[Number]:
    """Return the numbers of a text in their order; "unread" for each that is part of another."""
    found: list[Number] = []
    end = None
    for run in _RUN.finditer(text):
        number = _value(run)
        if number is None:
            end = None
            continue
        joined = end is not None and _JOIN.fullmatch(text, end, run.start())
        before = text[max(0, run.start() - 4) : run.start()]
        if joined or _BEFORE.search(before) or _AFTER.match(text, run.end()):
            number = "unread"
        found.append(number)
        end = run.end()
    return found


def _value(run: re.Match[str]) -> Number | None:
    """Return what one run of digits says; None if it only looks like a number."""
    if run["body"] is None:
        return "unread"
    if any(c.isdecimal() or c == "_" for c in run["unit"]) or len(run["body"]) > _MAX_DIGITS:
        return None
    body = _BODY.fullmatch(run["body"])
    if body is None:
        return None if _LIKE_A_DATE.fullmatch(run["body"]) else "unread"
    under = int(body["under"] or "1")
    if under == 0 or run["unit"] in _UNKNOWNS:
        return "unread"
    digits = re.sub(_GROUP, "", body["whole"]) or "0"
    value = Fraction(digits + (body["part"] or "")) / under
    exponent = int((run["exponent"] or run["power"] or "0").replace("\u2212", "-"))
    value = value * Fraction(10) ** exponent
    return -value if run["sign"] in ("-", "\u2212") else value
