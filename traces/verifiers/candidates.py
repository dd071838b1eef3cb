"""Whether a short answer may be an answer to anything: several candidates, of which one is right.

In: an answer as a line of words and marks, each between blanks of its own, in which `!` stands for
every accepted answer. Out: why it cannot be told which one is meant; None where nothing says so.
It looks at lists ("Rome, Paris, London"), at "or", and at the numbers beside a right number.
"""

import re
from itertools import groupby

_NUMBER = r" (?:-?\d[\d.,/^-]*|!) "
_BETWEEN = r"(?: [,;/|\n\u3001] | (?:and|or|\u548c|\u6216) )"
_IS = (
    r" (?:[=\u2248:]|is|are|was|be|equals?|makes?|gives?|totals?|\u662f|\u4e3a|\u7b49  \u4e8e"
    r"|\u5f97) "
)
_TOLD = re.compile(rf"{_IS}(?=({_NUMBER}))")
"""Numbers that are said to be something."""
_ROW = re.compile(rf"{_NUMBER}(?:{_BETWEEN}*{_NUMBER})+")
"""Numbers one after the other."""
_FEW = 3
"""Words of an item of a list, items that make a list, numbers that make a guess."""
_OR = re.compile(
    r" ! (?: , )? (?:or|\u6216(?:  \u8005)?|\u8fd8  \u662f)  (?!! |so |more |less |not )"
    r"|(?<! !)(?<! !  ,)  (?:or|\u6216(?:  \u8005)?)  ! "
)
_STOP = re.compile(r" [^\w\s,;/|\u3001!-] ")
_BREAK = re.compile(_BETWEEN)


def several(line: str, of_numbers: bool) -> str | None:
    """Return why a line names several answers; `of_numbers`: an accepted one is a number."""
    if _OR.search(line):
        return "beside the expected answer stands another one, after 'or'"
    if of_numbers and _guesses(line):
        return "beside the expected number stand others"
    if any(map(_is_list, _STOP.split(line))):
        return "the expected answer is one of a list"
    return None


def _guesses(line: str) -> bool:
    told = _TOLD.findall(line)
    if told:
        return told[-1] != " ! " or _in_row(line)
    others = set(re.findall(_NUMBER, line)) - {" ! "}
    return len(others) >= _FEW or _in_row(line)


def _in_row(line: str) -> bool:
    rows = [set(re.findall(_NUMBER, row[0])) for row in _ROW.finditer(line)]
    return any(" ! " in row and len(row) > 1 for row in rows)


def _is_list(part: str) -> bool:
    """Return whether an accepted answer is one item of several; a sentence may begin the list."""
    items = [item.split() for item in _BREAK.split(part)]
    if len(items[0]) > _FEW:
        items[0] = items[0][-1:]
    for short, run in groupby(items, key=_is_short):
        answers = ["!" in item for item in run]
        if short and any(answers) and answers.count(False) >= _FEW - 1:
            return True
    return False


def _is_short(item: list[str]) -> bool:
    few = _FEW if "".join(item).isascii() else 2 * _FEW  # a word of Chinese has two characters
    return 0 < len(item) <= few
