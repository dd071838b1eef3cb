"""Conversations as units: one count each, in the order in which they became final.

Serving draws the version by conversation (`serving.leases`), so turns of one conversation are
not independent: together they are one unit, and its badness on a guard is their mean. Where the
caller named neither conversation nor user, how it began draws the version: all that begins alike
is one unit. Pure.

The rule, for every guard:

- A unit is the conversation's turns since the canary began, up to the first pause of `quiet`,
  and only those by the version that had the first of them. What comes later, or from the other
  version because the canary has grown, is left out. What begins alike may never pause: of it the
  turns of the first `quiet` count.
- It is final once it was quiet, and its value is what was known at that moment. Nothing that
  comes afterwards changes it.
- Whether it failed may be told much later. A unit of which nobody had said anything when it
  became quiet is final for the guard on failures at the first word that settles one of its
  turns, and takes its place in the order there, at the end of what is known, not in the past.

So the past never changes: who looks again sees the same pairs, and more. That makes bets on
the next pair predictable, whenever somebody looks. It holds for what is in the lake; `known_until`
keeps back what may still be on its way there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from traces.arms import ArmTurn, ArmTurns


@dataclass(frozen=True, slots=True)
class Unit:
    """One conversation of one version."""

    key: str
    canary: bool
    final_at: datetime
    turns: tuple[ArmTurn, ...]

    @property
    def broken_calls(self) -> float:
        """Share of its turns with a tool call that no tool takes."""
        return sum(turn.broken_call for turn in self.turns) / len(self.turns)

    @property
    def refusals(self) -> float:
        """Share of its turns that refuse."""
        return sum(turn.refused for turn in self.turns) / len(self.turns)

    def slower_than(self, limit_s: float) -> float:
        """Return the share of its turns whose calls took longer."""
        return sum(turn.latency_s > limit_s for turn in self.turns) / len(self.turns)


@dataclass(frozen=True, slots=True)
class Judged:
    """A unit of which it is known whether it failed."""

    canary: bool
    final_at: datetime
    failures: float
    """Share of its judged turns that failed."""


def units_of(arms: ArmTurns, canary: str | None, quiet: timedelta) -> list[Unit]:
    """Return the units that are final, in that order; `canary` is the version's 12 digits."""
    ordered = sorted(arms.turns, key=lambda turn: (turn.unit, turn.started_at, turn.turn_id))
    found = []
    for key, members in groupby(ordered, key=lambda turn: turn.unit):
        turns = tuple(_first_sitting(list(members), quiet))
        final_at = max(turn.ended_at for turn in turns) + quiet
        if arms.known_until is not None and final_at <= arms.known_until:
            found.append(Unit(key, turns[0].version == canary, final_at, turns))
    return sorted(found, key=lambda unit: (unit.final_at, unit.key))


def judged_units(units: Iterable[Unit], known_until: datetime) -> list[Judged]:
    """Return the units of which somebody said how they went, in the order of that."""
    found = [judged for unit in units if (judged := judge(unit, known_until)) is not None]
    return sorted(found, key=lambda unit: unit.final_at)


def judge(unit: Unit, known_until: datetime) -> Judged | None:
    """Return how a unit went as of the first moment that this is known; None if it is not."""
    words = {signal.created_at for turn in unit.turns for signal in turn.signals}
    later = sorted(moment for moment in words if unit.final_at < moment <= known_until)
    for moment in (unit.final_at, *later):
        failed = [turn.failed_by(moment) for turn in unit.turns]
        settled = [one for one in failed if one is not None]
        if settled:
            return Judged(unit.canary, moment, sum(settled) / len(settled))
    return None


def _first_sitting(turns: Sequence[ArmTurn], quiet: timedelta) -> Iterable[ArmTurn]:
    """Yield a conversation's turns up to the first pause, or to the first by another version."""
    first = turns[0]
    ended = first.ended_at
    for turn in turns:
        if turn.version != first.version or turn.started_at > ended + quiet:
            return
        if first.nameless and turn.started_at > first.started_at + quiet:
            return
        yield turn
        ended = max(ended, turn.ended_at)
