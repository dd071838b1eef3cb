"""Phrases by which users tell what they think of an answer, in English and Chinese.

In: a request. Out: the phrase it contains, or None. The phrases are in `phrases.toml`; English
is matched on whole words, Chinese by substring. What is quoted or code is no word of the user's.
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("phrases.toml")
HEAD_CHARS = 240
"""How much of a request is looked at: users say first what they think, then paste."""

_QUOTED = re.compile(
    r"```.*?(?:```|\Z)|`[^`]*`|\"[^\"]*\"|[“„][^“”„]*”|«[^«»]*»|「[^「」]*」|『[^『』]*』|《[^《》]*》"
    r"|^>.*$",
    re.DOTALL,
)
_APOSTROPHES = re.compile("['’‘ʼ]")
_DASH = re.compile(r"\s-+\s")
_ENDS = ".,;:!?\n()[]~"
_CLAUSE_END = re.compile(rf"[{re.escape(_ENDS)}…—–，。；：！？、（）～]+")
_GAP = re.compile(r"[^\w|]+")
_CJK = re.compile(r"[㐀-鿿]")
_BAR = " | "
# Most text is ASCII, which a table turns many times as fast as patterns.
_WORDS = {
    code: chr(code).lower() if re.match(r"[\w|]", chr(code)) else None if chr(code) == "'" else " "
    for code in range(128)
}
_CLAUSES = _WORDS | dict.fromkeys(map(ord, _ENDS), "|")


@dataclass(frozen=True, slots=True)
class Said:
    """A text made ready for matching."""

    clauses: str
    """Words between single spaces, with spaces at both ends and a bar between clauses."""
    words: str
    """The same without bars."""
    compact: str
    """Without spaces and bars; empty where no Chinese is in it."""


@cache
def phrase_file() -> dict[str, Any]:
    """Return the content of `phrases.toml`."""
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


def said(text: str) -> Said:
    """Make the head of a text ready for matching."""
    head = text[: 4 * HEAD_CHARS]
    if '"' in head or "`" in head or head.startswith(">") or not head.isascii():
        head = _QUOTED.sub(" _ ", head)
    head = head[:HEAD_CHARS]
    if "-" in head:
        head = _DASH.sub("|", _APOSTROPHES.sub("", head))
    if head.isascii():
        ended, chinese = head.translate(_CLAUSES), False
    else:
        ended = _CLAUSE_END.sub("|", _APOSTROPHES.sub("", head.lower()))
        ended, chinese = _GAP.sub(" ", ended), _CJK.search(head) is not None
    parts = [" ".join(part.split()) for part in ended.split("|")]
    clauses = f" {_BAR.join(part for part in parts if part)} "
    words = clauses.replace(_BAR, " ")
    return Said(clauses, words, words.replace(" ", "") if chinese else "")


class Phrases:
    """The phrases of one signal."""

    def __init__(self, name: str) -> None:
        """Take the section `name` of the phrase file."""
        file = phrase_file()
        en, zh = file[name]["en"], file[name]["zh"]
        self._anywhere = _spaced(en["anywhere"])
        self._opening = _spaced(en["opening"])
        self._bare = tuple(f"{phrase}| " for phrase in _spaced(en["bare"]))
        self._guards = _guards(en["guards"])
        self._cancel = _spaced([*en.get("own_fault", ()), *en.get("contrast", ())])
        self._lead = _spaced(file["interjections"]["en"])
        self._zh_anywhere = tuple(zh["anywhere"])
        self._zh_opening = tuple(zh["opening"])
        self._zh_bare = frozenset(zh["bare"])
        self._zh_guards = _longest_first(zh["guards"])
        self._zh_cancel = (*zh.get("own_fault", ()), *zh.get("contrast", ()))
        self._zh_lead = _longest_first(file["interjections"]["zh"])

    def find(self, text: Said, *, asked: bool = False) -> str | None:
        """Return the phrase that a text contains, None if it has none or takes it back.

        `asked`: the text follows a question, which an opening or bare phrase may answer.
        """
        found = self._english(text.clauses, text.words, asked)
        if found is not None:
            if _first(self._cancel, text.words) is not None:
                return None
            # Guards are rare and dear: they are looked for only where there is a phrase.
            clauses = self._guards.sub(" _", text.clauses)
            found = self._english(clauses, clauses.replace(_BAR, " "), asked)
        if found is None and text.compact:
            found = self._chinese(text, asked)
        return None if found is None else found.strip(" |")

    def _english(self, clauses: str, words: str, asked: bool) -> str | None:
        found = _first(self._anywhere, words)
        if found is not None or asked:
            return found
        while True:
            if words.startswith(self._opening):
                return next(phrase for phrase in self._opening if words.startswith(phrase))
            ended = f"{clauses}| "
            if ended.startswith(self._bare):
                return next(phrase for phrase in self._bare if ended.startswith(phrase))
            if not clauses.startswith(self._lead):
                return None
            lead = next(word for word in self._lead if clauses.startswith(word))
            clauses = " " + clauses[len(lead) :].lstrip(" |")
            words = clauses.replace(_BAR, " ")

    def _chinese(self, text: Said, asked: bool) -> str | None:
        compact = text.compact
        if any(word in compact for word in self._zh_cancel):
            return None
        first = text.clauses.split("|", 1)[0].replace(" ", "")
        if not asked and first in self._zh_bare:
            return first
        for guard in self._zh_guards:
            compact = compact.replace(guard, "_")
        found = _first(self._zh_anywhere, compact)
        while found is None and not asked:
            found = next((p for p in self._zh_opening if compact.startswith(p)), None)
            lead = next((word for word in self._zh_lead if compact.startswith(word)), None)
            if lead is None:
                break
            compact = compact[len(lead) :]
        return found


def plain(phrase: str) -> str:
    """Return an English phrase as `said` renders text."""
    if phrase.isascii():
        return " ".join(phrase.translate(_WORDS).split())
    return " ".join(_GAP.sub(" ", _APOSTROPHES.sub("", phrase.lower())).split())


def _spaced(phrases: Iterable[str]) -> tuple[str, ...]:
    return _longest_first(f" {plain(phrase)} " for phrase in phrases)


def _guards(phrases: Iterable[str]) -> re.Pattern[str]:
    """Return what matches any of the phrases, whether or not clauses end inside."""
    texts = _longest_first(plain(phrase) for phrase in phrases)
    joined = "|".join(text.replace(" ", r"(?: \|)? ") for text in texts)
    return re.compile(f" (?:{joined})(?= )")


def _longest_first(phrases: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(phrases), key=lambda phrase: (-len(phrase), phrase)))


def _first(phrases: tuple[str, ...], text: str) -> str | None:
    for phrase in phrases:
        if phrase in text:
            return phrase
    return None
