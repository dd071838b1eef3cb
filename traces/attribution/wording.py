"""Requests in the words of others: which leave out what the others fill in.

    wordings = Wordings.of(answered)      # (request, answer) of turns that succeeded
    wordings.blanks("Count down minutes.")

"Count down 36 minutes" and "Count down 5 minutes" were both answered rightly, and differently. A
request that says the same without the number is not determined by its words. No model is asked,
and no language is known: words are compared, not understood.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from traces.attribution.literals import folded

_WORD = re.compile(r"\w+")
_BACK = frozenset(
    word
    for line in ("it that this them those these there one ones", "它 这 那 这个 那个")
    for word in line.split()
)
"""Words that may point back to something said before."""
POINTING = _BACK | frozenset(
    word
    for line in (
        "thing things something someone somewhere anything some any other which what",
        "某 某个",
    )
    for word in line.split()
)
"""Words that name nothing, however rare they are."""
_MIN_WORDS = 2
_MOST_ADDED = 3
_MOST_COMPARED = 300
"""Successful requests that one request is compared with."""

_Told = tuple[frozenset[str], object]
"""Words of a request, and what was answered."""


@dataclass(frozen=True, slots=True)
class Wordings:
    """Successful requests by their words."""

    told: Sequence[_Told] = ()
    having: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Which of them have a word."""
    whole: Set[frozenset[str]] = frozenset()
    """All that were said."""

    @classmethod
    def of(cls, answered: Iterable[tuple[str, object]]) -> "Wordings":
        """Index requests that succeeded, given with something that tells their answers apart."""
        told = list(dict.fromkeys((_naming(request), answer) for request, answer in answered))
        having: dict[str, list[int]] = defaultdict(list)
        for number, (words, _) in enumerate(told):
            for word in words:
                having[word].append(number)
        return cls(told, dict(having), {words for words, _ in told})

    def blanks(self, request: str, *, alone: bool) -> int:
        """Return in how many ways others filled in what this request leaves open.

        Each way is another answer. 0 where the request was answered well as it is, where it may
        point back to something (not `alone`), or is too short to compare.
        """
        words = _naming(request)
        if len(words) < _MIN_WORDS or (not alone and points_back(request)):
            return 0
        if words in self.whole or any(word not in self.having for word in words):
            return 0
        rarest = min(sorted(words), key=lambda word: len(self.having[word]))
        ways: set[frozenset[str]] = set()
        answers = set()
        for number in self.having[rarest][:_MOST_COMPARED]:
            others, answer = self.told[number]
            if words < others and len(others) - len(words) <= _MOST_ADDED:
                ways.add(others - words)
                answers.add(answer)
        return min(len(ways), len(answers))


def points_back(request: str) -> bool:
    """Whether a request has a word that may point back to something said before."""
    return not _BACK.isdisjoint(words_of(request))


def words_of(request: str) -> set[str]:
    """Return a request's words, folded."""
    return set(_WORD.findall(folded(request)))


def _naming(request: str) -> frozenset[str]:
    return frozenset(words_of(request) - POINTING)
