"""Verify a short answer: the accepted words stand in it, and it is short.

A number with its decimals is one word, and so is a character of a script without spaces.
"""

import re
from collections.abc import Sequence

from traces.verifiers.check import Check

_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"\d+(?:[.,]\d+)+|[{_UNSPACED}]|[^\W{_UNSPACED}]+")


def check_short_answer(text: str, accepted: Sequence[str], max_words: int = 24) -> Check:
    """Pass if one of `accepted` occurs as whole words in at most `max_words` words."""
    expected = [words for answer in accepted if (words := _words(answer))]
    if not expected:
        return Check(None, "no accepted answer to look for")
    words = _words(text)
    if len(words) > max_words:
        return Check(False, f"{len(words)} words where at most {max_words} are wanted")
    line = f" {' '.join(words)} "
    if any(f" {' '.join(answer)} " in line for answer in expected):
        return Check(True, "the expected answer is there")
    return Check(False, "the expected answer is missing")


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
