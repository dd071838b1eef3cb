"""Verify a short answer: the accepted words stand in it, and it is short."""

import re
from collections.abc import Sequence

from traces.verifiers.check import Check


def check_short_answer(text: str, accepted: Sequence[str], max_words: int = 24) -> Check:
    """Pass if one of `accepted` occurs as whole words in at most `max_words` words."""
    words = _words(text)
    if len(words) > max_words:
        return Check(False, f"{len(words)} words where at most {max_words} are wanted")
    line = f" {' '.join(words)} "
    for answer in accepted:
        if f" {' '.join(_words(answer))} " in line:
            return Check(True, "the expected answer is there")
    return Check(False, "the expected answer is missing")


def _words(text: str) -> list[str]:
    return re.findall(r"[\w]+", text.casefold())
