"""Verify a short answer: the accepted words stand in it, no rejected ones, and it is short.

A number with its sign and decimals is one word, and so are a fraction, a power, a name that ends in
`+` or `#` (`C++`), and a character of a script without spaces. Unicode forms of one text (NFKC) are
alike, and so are a number with commas at its thousands and one without.

An answer that denies what is accepted ("not Paris") is wrong. Where nobody says what would be wrong
beside it (`rejected`), an answer that names several has no verdict: one of a list, "Paris or Rome",
another number that is said last. That "It is Rome." stands beside it only `rejected` can tell.
"""

import math
import re
import unicodedata
from collections.abc import Sequence

from traces.verifiers.candidates import several
from traces.verifiers.characters import UNSPACED, written_out
from traces.verifiers.check import Check

_LETTER = rf"[^\W{UNSPACED}]"
_SIGN = rf"(?:(?<!{_LETTER})-(?=\d))?"
"""A minus is one where no word stands right before it."""
_MARKS = r"(?:(?<=[^\W\d_])(?:\+\+|#|\+(?![\w+])))?"
_FORM = rf"{_SIGN}\d+(?:(?:[.,/]|\^-?)\d+)+|{_SIGN}{_LETTER}+{_MARKS}|[{UNSPACED}]"
_WORD = re.compile(_FORM)
_SIGNS = r"[,;/|\n=\u2248\u3001()\[\]{}+*\u00d7\u00f7?.\u3002]|:(?=\s|\Z)"
_TOKEN = re.compile(rf"{_FORM}|{_SIGNS}")
"""A word, or a sign that sets words off from others."""
_MINUS = re.compile("[-\u2212][$\u20ac\u00a3\u00a5]?")
_THOUSANDS = re.compile(r"(?<![\d.,/])[1-9]\d{0,2}(?:[,'\u2019]\d{3})+(?![\d/]|[,'\u2019]\d)")
_NOT = re.compile(r"n['\u2019]t\b")
_RIGHT = " ! "
"""Any accepted answer; no token is one."""
_DENIED = re.compile(
    r"(?<! why )(?<! if )(?<! or ) (?:not|never|cannot|neither|nor) "
    r"(?: (?:the|an?|be|in|at|of|from|to|called|named|really|actually|exactly|quite) )*\Z"
    r"|(?<! \u662f ) \u4e0d (?: (?:\u662f|\u5728|\u4e3a|\u7b49  \u4e8e) )+\Z"
    r"|(?<! [\u9664\u83ab\u65e0\u662f] ) \u975e \Z"
)
"""What denies the words that follow."""
_REACH = 100
"""Characters before an answer in which it may be denied."""
_CHARACTERS_A_WORD = 2
"""Of a script without spaces."""


def check_short_answer(
    text: str, accepted: Sequence[str], max_words: int = 24, rejected: Sequence[str] = ()
) -> Check:
    """Pass if one of `accepted` occurs as whole words in at most `max_words` words.

    None of `rejected` may stand beside it: who says several answers has given none.
    """
    found = check_words(text, accepted, max_words)
    if not found.passed:
        return found
    expected = [line for answer in accepted if (line := word_line(answer))]
    line = "".join(f" {token} " for token in _TOKEN.findall(_normal(text)))
    # What is part of an accepted answer is not said beside it.
    for answer in sorted(expected, key=len, reverse=True):
        words = [re.escape(f" {word} ") for word in answer.split()]
        line = re.sub(rf"(?: (?:{_SIGNS}) )*".join(words), _RIGHT, line)
    if _is_denied(line):
        return Check(False, "the expected answer is denied")
    said = "".join(f" {token} " for token in line.split() if token == "!" or _WORD.match(token))
    for other in rejected:
        if (wrong := word_line(other)) and wrong in said:
            return Check(False, f"beside the expected answer stands {other!r}"[:160])
    of_numbers = any(re.fullmatch(r" -?\d\S* ", answer) for answer in expected)
    doubt = None if rejected else several(line, of_numbers)
    return found if doubt is None else Check(None, doubt)


def check_words(text: str, accepted: Sequence[str], max_words: int) -> Check:
    """Pass if one of `accepted` occurs as whole words in at most `max_words`, whatever is said.

    Two characters of a script without spaces count as a word.
    """
    expected = [line for answer in accepted if (line := word_line(answer))]
    if not expected:
        return Check(None, "no accepted answer to look for")
    line = word_line(text)
    characters = len(re.findall(rf" [{UNSPACED}] ", line))
    count = len(line.split()) - characters + math.ceil(characters / _CHARACTERS_A_WORD)
    if count > max_words:
        return Check(False, f"{count} words where at most {max_words} are wanted")
    if not any(answer in line for answer in expected):
        return Check(False, "the expected answer is missing")
    return Check(True, "the expected answer is there")


def word_line(text: str) -> str:
    """Return the words of a text, each between blanks of its own; "" where there are none.

    Words stand in a text, as whole words and in this order, if their line is part of its line.
    """
    return "".join(f" {word} " for word in _WORD.findall(_normal(text)))


def _normal(text: str) -> str:
    plain = unicodedata.normalize("NFKC", written_out(text)).casefold()
    plain = _MINUS.sub("-", _NOT.sub(" not", plain))
    return _THOUSANDS.sub(lambda number: re.sub(r"\D", "", number[0]), plain)


def _is_denied(line: str) -> bool:
    """Return whether each of the accepted answers in a line is denied."""
    ends = (found.start() for found in re.finditer(_RIGHT, line))
    return all(_DENIED.search(line[max(0, end - _REACH) : end]) for end in ends)
