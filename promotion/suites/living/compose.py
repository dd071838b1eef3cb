"""A scenario in the making: what its makers share.

`Talk` collects lines, what a right solution does after each, and what must be so at the end.
The goal is written from what the user wants, never from what the solution does.
"""

import random
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from promotion.suites.living.deeds import SUBJECTS, Deed, Relation, Value, draw, fields
from promotion.suites.living.home import Effect, Fact, Facts, Fault, furnished
from promotion.suites.living.scenario import Change, Line, Scenario, Solution, Step

LINES: Mapping[str, Mapping[str, list[str]]] = tomllib.loads(
    (Path(__file__).parent.with_name("data") / "living.toml").read_text(encoding="utf-8")
)
_SAYS: Mapping[Effect, str] = {
    "none": "fails", "wait": "waits", "warned": "warns", "noise": "noise",
}  # fmt: skip


_FEW = 4
"""So many wordings are not dealt out."""


class Talk:
    """One scenario, line by line."""

    def __init__(self, rng: random.Random, number: int) -> None:
        """Begin in a furnished home; `number` is the template's among those of its subject."""
        self.rng = rng
        self.start: dict[Fact, Value] = furnished(rng)
        self.goal: dict[Fact, Value] = {}
        self._number = number
        self._used: set[str] = set()
        self._subjects: list[str] = []
        self._lines: list[Line] = []
        self._turns: list[tuple[Callable[[], Step], ...]] = []
        self._faults: list[Fault] = []

    def draw(self, subject: str, relation: Relation, count: int) -> list[Deed]:
        """Draw deeds that are still to be done, and offer their tools."""
        self.offer(subject)
        return draw(self.rng, self.start, SUBJECTS[subject], relation, count)

    def offer(self, subject: str) -> None:
        """Offer the tools of a subject."""
        if subject not in self._subjects:
            self._subjects.append(subject)

    def words(self, table: str, key: str, *deeds: Deed, **values: Value) -> str:
        """Word a line: of many wordings one of a template's own pair, of few any.

        Nobody says the same twice in one conversation.
        """
        options = LINES[table][key]
        dealt = len(options) > _FEW and table in SUBJECTS
        first = 2 * self._number + self.rng.randrange(2 if dealt else len(options))
        turned = [options[(first + more) % len(options)] for more in range(len(options))]
        chosen = next((option for option in turned if option not in self._used), turned[0])
        self._used.add(chosen)
        return chosen.format(**fields(deeds), **values)

    def say(
        self,
        text: str,
        *steps: Callable[[], Step],
        moves: Facts | None = None,
        unless: Facts | None = None,
    ) -> None:
        """Let the user say something; `steps` are what is right to do then."""
        self._lines.append(Line(text, moves, unless))
        self._turns.append(steps)

    def want(self, *deeds: Deed) -> None:
        """Add deeds to the goal."""
        for deed in deeds:
            self.goal |= deed.done

    def spoil(
        self,
        tool: str,
        effect: Effect = "none",
        *,
        times: int = 1,
        spares: int = 0,
        about: Value = "",
        says: str = "",
    ) -> None:
        """Let a tool go wrong; what it `says` is drawn where nothing is given."""
        if not says and effect != "claimed":
            says = self.words("any", _SAYS[effect])
        self._faults.append(Fault(tool, says, effect, times, spares, about))

    def scenario(self, label: str, changes: frozenset[Change]) -> Scenario:
        """Return the finished scenario."""
        turns = tuple(self._turns)

        def solution() -> Solution:
            for number, steps in enumerate(turns):
                if number:
                    yield None
                for step in steps:
                    yield from step()

        return Scenario(
            label, changes, tuple(self._subjects), self.start, tuple(self._lines), self.goal,
            solution, tuple(self._faults),
        )  # fmt: skip


Compose = Callable[[Talk], None]


@dataclass(frozen=True, slots=True)
class Template:
    """What scenarios of one cluster are made by."""

    label: str
    subject: str
    """Whose lines it draws on; templates of one subject are dealt different ones."""
    changes: frozenset[Change]
    compose: Compose

    def make(self, rng: random.Random, number: int) -> Scenario:
        """Make one scenario."""
        talk = Talk(rng, number)
        self.compose(talk)
        return talk.scenario(self.label, self.changes)


def template(label: str, subject: str, changes: str, compose: Compose) -> Template:
    """Make a template of changes written as `wish tool`; the label names all of it."""
    return Template(
        "-".join((*changes.split(), subject, label)), subject,
        frozenset(changes.split()), compose,  # type: ignore[arg-type]
    )  # fmt: skip


_ALIKE = frozenset({("heating", "light"), ("heating", "timer")})
"""Subjects of which "the same for the hall" or "make it 26" might be said alike."""


def elsewhere(subject: str, number: int) -> str:
    """Return another subject, by turns; never one that a short line would not tell from it."""
    others = [
        name
        for name in SUBJECTS
        if name != subject and tuple(sorted((name, subject))) not in _ALIKE
    ]
    return others[number % len(others)]


def sentences(*texts: str) -> str:
    """Join what is said in one breath; all but the last get a full stop if they have no end."""
    *first, last = texts
    return " ".join((*(text if text[-1] in ".!?" else f"{text}." for text in first), last))
