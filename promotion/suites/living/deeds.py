"""Deeds: what a user can ask of the home, how it is done, looked up and undone.

A subject is a table row: its tools, and what they can be told. All that compose scenarios work
on deeds alone, so that every change that a user may make is written once for all subjects.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from promotion.suites.household import DAYS, GENRES, ITEMS, NEWS, PEOPLE, ROOMS, TITLES
from promotion.suites.living.home import Fact, Facts, plain
from promotion.suites.living.scenario import Step, insist

Value = str | int


@dataclass(frozen=True, slots=True)
class Subject:
    """One kind of deed."""

    name: str
    """As in `home.DOMAINS`, and in the file of lines."""
    kind: str
    """First part of its facts."""
    tool: str
    reader: str
    """Tool that tells whether it is so."""
    value: str
    values: Sequence[Value]
    """What the tool is told, and the argument's name."""
    target: str = ""
    targets: Sequence[str] = ("",)
    """The room, title or person that it is about; none where `target` is empty."""
    cancel: str = ""
    """Tool that takes a counted entry away; a setting is set back instead."""
    counted: bool = True


_ROWS = (
    Subject("light", "light", "set_light", "get_light", "state", ("on", "off"), "room", ROOMS,
            counted=False),
    Subject("heating", "heating", "set_heating", "get_heating", "degrees", range(23, 29), "room",
            ROOMS, counted=False),
    Subject("timer", "timer", "set_timer", "get_timers", "minutes", range(3, 60),
            cancel="cancel_timer"),
    Subject("list", "list", "add_to_list", "read_list", "item", ITEMS, cancel="remove_from_list"),
    Subject("calendar", "event", "add_event", "read_calendar", "day", DAYS, "title", TITLES,
            cancel="remove_event"),
    Subject("message", "message", "send_message", "read_sent", "text", NEWS, "person", PEOPLE),
    Subject("music", "music", "play_music", "get_music", "genre", GENRES, counted=False),
)  # fmt: skip
SUBJECTS: Mapping[str, Subject] = {row.name: row for row in _ROWS}
_OF_KIND = {row.kind: row for row in _ROWS}


@dataclass(frozen=True, slots=True)
class Deed:
    """One thing that can be done, and what its setting was before."""

    subject: Subject
    target: str
    value: Value
    before: Value

    @property
    def arguments(self) -> dict[str, Value]:
        """What the subject's tool is told."""
        named = {self.subject.target: self.target} if self.subject.target else {}
        return {**named, self.subject.value: self.value}

    @property
    def fact(self) -> Fact:
        """What it makes so; counted ones contain the value."""
        named = (self.target,) if self.subject.target else ()
        return (self.subject.kind, *named, *((self.value,) if self.subject.counted else ()))

    @property
    def done(self) -> Facts:
        """What is so when it has been done, once."""
        return {self.fact: 1 if self.subject.counted else self.value}

    @property
    def undone(self) -> Facts:
        """What was so before."""
        return {self.fact: self.before}

    def do(self) -> Step:
        """Do it until it has been done."""
        return insist(self.subject.tool, **self.arguments)

    def undo(self) -> Step:
        """Take it back; nothing can be unsent."""
        return restored(self.fact, self.before, self.done[self.fact])

    def ensure(self) -> Step:
        """Look whether it is so, and do it if not."""
        look = {"room": self.target} if self.subject.target == "room" else {}
        result = yield from insist(self.subject.reader, **look)
        (found,) = result.values()
        wanted = {key: plain(value) for key, value in self.arguments.items()}
        value = wanted[self.subject.value]
        entry = wanted if self.subject.target else value
        if not (entry in found if self.subject.counted else value == found):
            result = yield from self.do()
        return result


def restored(fact: Fact, before: Value, now: Value) -> Step:
    """Make one fact as it was."""
    subject = _OF_KIND[str(fact[0])]
    if before == "none":
        return insist("stop_music")
    names = [name for name in (subject.target, subject.value) if name]
    if not subject.counted:
        return insist(subject.tool, **dict(zip(names, (*fact[1:], before), strict=True)))
    tool = subject.tool if int(before) > int(now) else subject.cancel
    return insist(tool, **dict(zip(names, fact[1:], strict=True)))


Relation = Literal["value", "target", "both", "pairs", "swap"]
"""How deeds differ: in the value alone, in the target alone, in both; `pairs` are two targets
with two values and the same two with two others; `swap` the same with the values exchanged."""


def draw(
    rng: random.Random, start: dict[Fact, Value], subject: Subject, relation: Relation, count: int
) -> list[Deed]:
    """Draw deeds that are still to be done in a home; settings that forbid that are changed."""
    paired = relation in ("pairs", "swap")
    targets = _several(rng, subject.targets, 2 if paired else count, relation == "value")
    values = _several(rng, subject.values, 2 if relation == "swap" else count, relation == "target")
    if paired and subject.target:
        targets *= 2
    if relation == "swap":
        values += values[::-1]
    deeds = [Deed(subject, t, v, 0) for t, v in zip(targets, values, strict=True)]
    return deeds if subject.counted else [_settled(rng, start, deed, values) for deed in deeds]


def fields(deeds: Sequence[Deed]) -> dict[str, Value]:
    """Return what a line may say of deeds: plain names for the first, `room2` for the second."""
    return {
        f"{name}{number if number > 1 else ''}": value
        for number, deed in enumerate(deeds, 1)
        for name, value in (*deed.arguments.items(), ("before", deed.before))
    }


def _several(rng: random.Random, pool: Sequence[Any], count: int, same: bool) -> list[Any]:
    if same or len(pool) == 1:
        return [rng.choice(pool)] * count
    if len(pool) < count:
        return [rng.choice(pool) for _ in range(count)]
    return rng.sample(pool, count)


def _settled(
    rng: random.Random, start: dict[Fact, Value], deed: Deed, values: Sequence[Value]
) -> Deed:
    taken = values if deed.subject.name != "light" else (deed.value,)
    if start[deed.fact] in taken:
        start[deed.fact] = rng.choice([v for v in deed.subject.values if v not in taken])
    return Deed(deed.subject, deed.target, deed.value, start[deed.fact])
