"""Verify a short answer: the accepted words stand in it, no rejected ones, and it is short.

A number with its sign and decimals is one word, and so are a fraction, a name that ends in `+` or
`#` (`C++`), and a character of a script without spaces. Unicode forms of one text (NFKC) are alike.
"""

import re
import unicodedata
from collections.abc import Sequence

from traces.verifiers.check import Check

_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_LETTER = rf"[^\W{_UNSPACED}]"
_SIGN = rf"(?:(?<!{_LETTER})-(?=\d))?"
"""A minus is one where no word stands right before it."""
_MARKS = r"(?:(?<=[^\W\d_])(?:\+\+|#|\+(?![\w+])))?"
_WORD = re.compile(rf"{_SIGN}\d+(?:[.,/]\d+)+|{_SIGN}{_LETTER}+{_MARKS}|[{_UNSPACED}]")
_MINUS = re.compile("[-\u2212][$\u20ac\u00a3\u00a5]?")


def check_short_answer(
    text: str, accepted: Sequence[str], max_words: int = 24, rejected: Sequence[str] = ()
) -> Check:
    """Pass if one of `accepted` occurs as whole words in at most `max_words` words.

    None of `rejected` may stand beside it: who says several answers has given none.
    """
    expected = [line for answer in accepted if (line := word_line(answer))]
    if not expected:
        return Check(None, "no accepted answer to look for")
    line = word_line(text)
    count = len(line.split())
    if count > max_words:
        return Check(False, f"{count} words where at most {max_words} are wanted")
    if not any(answer in line for answer in expected):
        return Check(False, "the expected answer is missing")
    # What is part of an accepted answer is not said beside it.
    for answer in sorted(expected, key=len, reverse=True):
        line = line.replace(answer, " | ")
    for other in rejected:
        if (words := word_line(other)) and words in line:
            return Check(False, f"beside the expected answer stands {other!r}"[:160])
    return Check(True, "the expected answer is there")


def word_line(text: str) -> str:
    """Return the words of a text, each between blanks of its own; "" where there are none.

    Words stand in a text, as whole words and in this order, if their line is part of its line.
    """
    plain = unicodedata.normalize("NFKC", text).casefold().replace("\u2044", "/")
    return "".join(f" {word} " for word in _WORD.findall(_MINUS.sub("-", plain)))
