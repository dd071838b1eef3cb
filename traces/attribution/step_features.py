"""What speaks for a step of a run of several agents being the decisive error.

In: a `TeamRun`. Out: for every step the value of each of `FEATURES`, in [0, 1]. They hold for
any log of several agents: what executors printed, what a step claims beyond what anybody showed
before it, what it assumes, where values of the last answer came from. None knows a name, a
question or a data set. `SAYS` has each in words, for evidence.
"""

import math
import re
from collections.abc import Sequence

from rapidfuzz import fuzz

from traces.attribution.team_run import TeamRun, Utterance, failed, idle, words

_ASSUMES = re.compile(
    r"\bassum(?:e|es|ed|ing|ption|ptions)\b|\bhypothetic\w*|\bplaceholders?\b|\bsimulat\w*"
    r"|\bmock(?:ed|up)?\b|\bdummy\b|\bmade[- ]up\b|\bfictional\b|\bfor demonstration\b"
    r"|\b(?:sample|example|synthetic) (?:data|dataset|values?|ids?|video|files?)\b"
    r"|\breplace (?:this )?with\b|\byour[_ ](?:api|actual|own)\w*|\bpath[/_]to\b|\bexample\.com\b"
    r"|\bX{3,}\b",
    re.IGNORECASE,
)
_LACKS = re.compile(
    r"\b(?:can(?:no|')t|cannot|unable to|not able to|do(?:es)? not have|don't have"
    r"|not possible to|failed to|did not|didn't|unfortunately|not available|inaccessible)\b",
    re.IGNORECASE,
)
_CLAIMS = re.compile(
    r"\b(?:i|we)(?: have|'ve)?(?: just| already| now| successfully| manually| carefully)?"
    r" (?:reviewed|checked|accessed|found|retrieved|located|visited|verified|watched|confirmed"
    r"|examined|gathered|identified|obtained|listened|transcribed|analy[sz]ed|searched)\b"
    r"|\bhere(?: is|'s| are) the\b|\bare as follows\b|\bthe following\b|\bas of\b",
    re.IGNORECASE,
)
_OBSERVES = re.compile(r"\AAddress:|\bviewport\b|\bscreenshot\b", re.IGNORECASE)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_NAME = re.compile(r"(?<![.!?\n:*] )(?<!\A)(?<!\n)\b[A-Z][\w'’-]{2,}")
_ANSWER_WORDS = 8
_SHORT_WORDS = 40
_RESTATED = 0.6
"""An opening that has fewer of the request's words works on something else."""
_REPEATED = 80
_CODE_CHARS = 4000
"""Of a piece of code that is compared with others."""
_MANY_VALUES, _MANY_NUMBERS = 30, 5
_HEAD_CHARS = 3000

SAYS: dict[str, str] = {
    "opening": "it opens the run",
    "strays": "it opens the run with another task than was asked",
    "opening_ran": "it opens the run with code that ran and was built upon",
    "writes_code": "it writes code",
    "first_wrong": "it is the first whose execution failed or gave nothing",
    "repeats": "it has nearly the same executed again",
    "assumes": "it assumes or makes up data",
    "lacks": "it says that something could not be had",
    "claims": "it claims findings without executing anything",
    "states_answer": "values of the last answer come from it, and nothing printed them before",
    "novel": "it brings in values that nothing printed before",
    "novel_numbers": "it brings in numbers that nothing printed before",
    "novel_unexecuted": "it brings in values, and nothing was executed in the whole run",
    "observes": "it only shows what was observed",
    "after_failure": "it follows a failed execution",
    "after_output": "it follows a successful execution",
    "after_idle": "it follows an executor that had nothing to do",
    "short": "it says little",
}
FEATURES = tuple(SAYS)


def values_of(text: str) -> frozenset[str]:
    """Return the numbers of a text and its words with a capital that begin no sentence."""
    numbers = (number.replace(",", "").rstrip(".") for number in _NUMBER.findall(text))
    return frozenset([*numbers, *(name.casefold() for name in _NAME.findall(text))])


def features(run: TeamRun) -> list[dict[str, float]]:
    """Return the features of each of the run's steps, in order."""
    steps = run.steps
    shown = _shown(run)
    origins = _origins(run, shown)
    executed = any(u.printed is not None for u in run.said)
    wrong = next((u.place for u in steps if u.went_wrong), None)
    return [
        {
            **_of_opening(run, place, step),
            **_of_execution(steps, place, step, wrong),
            **_of_text(steps, place, step),
            **_of_values(step, shown[step.place], origins, place, executed),
        }
        for place, step in enumerate(steps)
    ]


def _of_opening(run: TeamRun, place: int, step: Utterance) -> dict[str, float]:
    asked = set(words(run.request))
    restated = len(asked & set(words(step.text))) / max(1, len(asked))
    return {
        "opening": float(place == 0),
        "strays": float(place == 0 and bool(asked) and restated < _RESTATED),
        "opening_ran": float(
            place == 0 and bool(step.code) and step.printed is not None and not failed(step.printed)
        ),
    }


def _of_execution(
    steps: Sequence[Utterance], place: int, step: Utterance, wrong: int | None
) -> dict[str, float]:
    code = step.code[:_CODE_CHARS]
    before = [other.code[:_CODE_CHARS] for other in steps[:place] if other.code]
    again = bool(code) and any(
        fuzz.ratio(code, other, score_cutoff=_REPEATED) > _REPEATED for other in before
    )
    follows = step.follows
    return {
        "writes_code": float(place > 0 and bool(step.code)),
        "first_wrong": float(step.place == wrong),
        "repeats": float(again),
        "after_failure": float(follows is not None and failed(follows)),
        "after_output": float(follows is not None and not failed(follows) and not idle(follows)),
        "after_idle": float(follows is not None and idle(follows)),
    }


def _of_text(steps: Sequence[Utterance], place: int, step: Utterance) -> dict[str, float]:
    later = place > 0
    goes_on = place + 1 < len(steps) and steps[place + 1].speaker == step.speaker
    return {
        "assumes": float(later and _ASSUMES.search(step.text) is not None),
        "lacks": float(later and _LACKS.search(step.text) is not None),
        "claims": float(later and not step.code and _CLAIMS.search(step.text) is not None),
        "observes": float(goes_on and _OBSERVES.search(step.text[:_HEAD_CHARS]) is not None),
        "short": float(step.said_words < _SHORT_WORDS),
    }


def _of_values(
    step: Utterance,
    shown: frozenset[str],
    origins: dict[int, float],
    place: int,
    executed: bool,
) -> dict[str, float]:
    new = values_of(step.text) - shown if place else frozenset()
    told = frozenset() if step.code else new
    numbers = [value for value in told if value[0].isdigit()]
    return {
        "states_answer": origins.get(step.place, 0.0) if place else 0.0,
        "novel": _many(len(told), _MANY_VALUES),
        "novel_numbers": _many(len(numbers), _MANY_NUMBERS),
        "novel_unexecuted": 0.0 if executed else _many(len(new), _MANY_VALUES),
    }


def _many(count: int, enough: int) -> float:
    """Return how many something is, on a scale that flattens and ends at `enough`."""
    return min(1.0, math.log1p(count) / math.log1p(enough))


def _shown(run: TeamRun) -> dict[int, frozenset[str]]:
    """Return the values that stood in the request or the log before each utterance."""
    known = values_of(run.request)
    before = {}
    for utterance in run.said:
        before[utterance.place] = known
        known = known | values_of(utterance.text) | values_of(utterance.printed or "")
    return before


def _origins(run: TeamRun, shown: dict[int, frozenset[str]]) -> dict[int, float]:
    """Return the share of the last answer's values that each step was the first to say."""
    answer = next((u for u in reversed(run.steps) if u.said_words > _ANSWER_WORDS), None)
    wanted = values_of(answer.text) - values_of(run.request) if answer else frozenset()
    if not wanted:
        return {}
    return {
        step.place: len((values_of(step.text) & wanted) - shown[step.place]) / len(wanted)
        for step in run.steps
    }
