"""A scenario of the living suite: a home, what the user says, and what must be so at the end.

A scenario is judged by the home that a conversation leaves. What it should have changed is
`goal`, compared with the same home in which only the other people acted; whatever else differs
is a side effect. Nothing that a model says counts.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from promotion.suites.living.home import Fact, Facts, Fault, Home, plain_facts, tools_of
from serving.records import content_id
from traces.verifiers.check import Check

Change = Literal["wish", "tool", "state"]
"""What changes on the way: the user's wish, how a tool behaves, or the state of the home."""

Solution = Generator[tuple[str, dict[str, Any]] | None, dict[str, Any], None]
"""A right way through: yields calls (name, arguments) and is sent their results; yields None
where a turn ends. What it knows of the home it has read with tools."""


@dataclass(frozen=True, slots=True)
class Line:
    """What the user says next, and what others did to the home meanwhile."""

    text: str
    moves: Facts | None = None
    """What somebody else makes so before the user speaks, unnoticed by the model."""
    unless: Facts | None = None
    """The user only says it if one of these is not so: a reminder."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One conversation with a home."""

    template: str
    """What it was made from; the cluster of its item."""
    changes: frozenset[Change]
    domains: tuple[str, ...]
    start: Facts
    lines: tuple[Line, ...]
    goal: Facts
    """What must be so at the end, and would not be if the model did nothing."""
    solution: Callable[[], Solution]
    faults: tuple[Fault, ...] = ()

    @property
    def tools(self) -> tuple[dict[str, Any], ...]:
        """The tools that the model is offered."""
        return tools_of(self.domains)

    @property
    def scenario_id(self) -> str:
        """Content hash of all that happens and of what is wanted."""
        lines = [[line.text, _rows(line.moves), _rows(line.unless)] for line in self.lines]
        faults = [[f.tool, f.says, f.effect, f.times, f.spares, f.about] for f in self.faults]
        parts = [self.template, list(self.domains), _rows(self.start), lines, faults]
        return content_id([*parts, _rows(self.goal)])

    def home(self) -> Home:
        """Return the home as the conversation finds it."""
        return Home(self.start, self.faults, self.tools)

    def judge(self, left: Home) -> Check:
        """Score the home that a conversation left.

        The grade is the share of `goal` that was brought about, less a share for each side
        effect; passed is all of it without any.
        """
        untouched = Home(self.start)
        for line in self.lines:
            untouched.set(line.moves or {})
        goal = plain_facts(self.goal)
        met = sum(left.facts.get(fact, 0) == value for fact, value in goal.items())
        side_effects = sorted(
            " ".join(map(str, fact))
            for fact in left.facts.keys() | untouched.facts.keys()
            if fact not in goal and left.facts.get(fact, 0) != untouched.facts.get(fact, 0)
        )
        found = f"{met} of {len(goal)} brought about"
        if side_effects:
            found += f"; besides: {', '.join(side_effects)}"[:120]
        score = max(0.0, (met - len(side_effects)) / len(goal))
        return Check(met == len(goal) and not side_effects, found, score)


Step = Generator[tuple[str, dict[str, Any]], dict[str, Any], dict[str, Any]]
"""A few calls of a solution; returns what the last of them said."""


def insist(name: str, **arguments: Any) -> Step:
    """Call a tool until it does as told or reads without doubt; part of a solution."""
    while True:
        result = yield name, arguments
        if "ok" in result or not result.keys() & {"error", "warning", "status"}:
            return result


def _rows(facts: Mapping[Fact, str | int] | None) -> Sequence[Sequence[Any]]:
    return sorted(([*fact, value] for fact, value in (facts or {}).items()), key=str)
