"""Verify a text by exact match with one of the accepted texts.

Equal means equal after Unicode normalisation (NFKC), without regard to letter case, to white
space at the ends and to how much of it stands between words; 10² is not 102. Punctuation counts,
but for one full stop at the end (`.` or `。`), which a sentence has and a word has not.
"""

import unicodedata
from collections.abc import Sequence

from traces.verifiers.characters import written_out
from traces.verifiers.check import Check

_STOPS = (".", "\u3002")


def check_exact(text: str, accepted: Sequence[str]) -> Check:
    """Pass if the text is one of `accepted`."""
    if not accepted:
        return Check(None, "no accepted text to compare with")
    given = _normal(text)
    if not given:
        return Check(False, "the answer is empty")
    if given in {_normal(one) for one in accepted}:
        return Check(True, "the expected text")
    return Check(False, "another text than the expected one")


def _normal(text: str) -> str:
    words = " ".join(unicodedata.normalize("NFKC", written_out(text)).casefold().split())
    if words.endswith(_STOPS) and not words[:-1].endswith(_STOPS):
        return words[:-1].rstrip()
    return words
