"""Whether a request says again, in other words, what the request before it said.

Lexical and strict: a request that asks the same of something else ("... in Rome" after "... in
Paris") is a new request, however alike the two texts are. In: two requests. Out: how alike.
"""

import re
from functools import cache, lru_cache

from rapidfuzz import fuzz
from rapidfuzz.distance import OSA

from traces.attribution.phrases import phrase_file, plain

SIMILAR = 0.75
"""Least Dice coefficient of the words that carry content."""
_LEAST_COMMON = 2
_MOST_MISSPELT = 2
_LEAST_RATIO = 45.0
"""Least `token_sort_ratio` (0 to 100) of the whole texts."""
_LONGEST_CHARS = 4000
_SIGN = re.compile(r"[㐀-鿿]|[^\W_㐀-鿿]+")


# A request is looked at twice: after the one before it and before the next.
@lru_cache(maxsize=64)
def normalised(text: str) -> str:
    """Return a text without case, punctuation and runs of blanks."""
    return plain(text.replace("|", " "))


def repeatable(text: str) -> bool:
    """Whether a normalised request may come twice and mean each time what it says."""
    whole, english, chinese = _repeatable()
    return text in whole or not english.isdisjoint(text.split()) or (
        not text.isascii() and any(word in text for word in chinese)
    )  # fmt: skip


def rephrased(before: str, after: str, *, asked: bool) -> float | None:
    """Return how alike two normalised requests are, None where the later says something else.

    `asked`: a question stands between them, so that a longer request may be its answer.
    """
    shorter, longer = sorted((len(before), len(after)))
    if not shorter or longer > 3 * shorter + 20 or longer > _LONGEST_CHARS:
        return None
    old, new = _content(before), _content(after)
    gone, come = old.keys() - new.keys(), new.keys() - old.keys()
    # Each word but a misspelt one must have come from the other text, or gone from it.
    if len(gone) > _MOST_MISSPELT < len(come):
        return None
    if fuzz.token_sort_ratio(before, after, score_cutoff=_LEAST_RATIO) == 0.0:
        return None
    _leave_out_misspelt(gone, come)
    common = len(old) - len(gone)
    # Something else in the place of what was there is another request.
    if (gone and come) or common < _LEAST_COMMON or (asked and come):
        return None
    # What is asked comes first: "delete ..." after "show ..." is another request, too.
    if come and next(iter(new)) in come:
        return None
    if any(not word.isalpha() for word in gone | come):
        return None
    likeness = 2 * common / (len(old) + len(new))
    return likeness if likeness >= SIMILAR else None


def _leave_out_misspelt(gone: set[str], come: set[str]) -> None:
    """Take out of both sets the words that differ by a typing error only."""
    for word in sorted(gone):
        twin = next((other for other in sorted(come) if _misspelt(word, other)), None)
        if twin is not None:
            gone.discard(word)
            come.discard(twin)


def _misspelt(word: str, other: str) -> bool:
    if word[0] != other[0] or not (word.isalpha() and other.isalpha()):
        return False
    length = min(len(word), len(other))
    allowed = 0 if length < 4 else 1 if length < 8 else 2
    return OSA.distance(word, other, score_cutoff=allowed) <= allowed


@lru_cache(maxsize=64)
def _content(text: str) -> dict[str, None]:
    """Return the words that say what for, in order: of Chinese, the characters."""
    words, signs = _asking()
    if text.isascii():
        found = text.replace("_", " ").split()
    else:
        found = _SIGN.findall(signs.sub(" ", text))
    return {word: None for word in found if word not in words}


@cache
def _asking() -> tuple[frozenset[str], re.Pattern[str]]:
    file = phrase_file()["asking"]
    signs = sorted(file["zh"], key=len, reverse=True)
    return frozenset(file["en"]), re.compile("|".join(map(re.escape, signs)))


@cache
def _repeatable() -> tuple[frozenset[str], frozenset[str], tuple[str, ...]]:
    file = phrase_file()["repeatable"]
    return frozenset(file["whole"]), frozenset(file["words_en"]), tuple(file["words_zh"])
