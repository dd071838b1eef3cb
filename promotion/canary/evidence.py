"""The evidence about a version on trial, from what is in the lake."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from promotion.canary.config import CanaryConfig
from promotion.canary.guards import MOST_DURATIONS, Evidence, paired_evidence
from promotion.canary.trials import Promoted, Rollout
from promotion.canary.units import Judged, Unit, judged_units, units_of
from serving.records import short_digest
from traces.arms import ArmTurn, ArmTurns, read_arms
from traces.errors import LakeNotFound

_TURNS_A_CONVERSATION = 5
"""So many turns are read for each conversation that is watched."""
_LATENCY_FROM = timedelta(days=7)
"""How long before a canary the champion's call times are taken from."""


@dataclass(frozen=True, slots=True)
class Side:
    """Conversations of one champion."""

    units: tuple[Unit, ...]
    judged: tuple[Judged, ...]
    whole: bool = False
    """Whether these are all that are to be looked at."""
    turns: tuple[ArmTurn, ...] = ()
    """What the units were made from."""


def canary_evidence(
    home: Path, rollout: Rollout, champion: str | None, config: CanaryConfig
) -> Evidence:
    """Return what the guards say of a canary beside its champion, in all its trials.

    Between two of them nothing was drawn, so what the champion answered then is no comparison.
    """
    slot, began_at = rollout.slot, rollout.began_at
    pair = (rollout.digest, champion)
    parts = [_read(home, slot, pair, trial.since, trial.until) for trial in rollout.trials]
    turns = tuple(turn for part in parts for turn in part.turns)
    now = ArmTurns(turns, parts[-1].known_until)
    before = _read(
        home, slot, (champion,), began_at - _LATENCY_FROM, began_at, newest=MOST_DURATIONS
    )
    side = _side(now, rollout.digest, config)
    earlier_s = [turn.latency_s for turn in before.turns]
    return with_openings(paired_evidence(side.units, side.judged, config, earlier_s), side.turns)


def with_openings(evidence: Evidence, turns: Iterable[ArmTurn]) -> Evidence:
    """Return evidence with how much of the traffic told nobody's conversation apart."""
    units = [turn.unit for turn in turns if turn.nameless]
    return replace(evidence, nameless_turns=len(units), openings=len(set(units)))


def sides_of(home: Path, promoted: Promoted, config: CanaryConfig) -> tuple[Side, Side]:
    """Return the last conversations of the champion before a promotion, and the next one's first.

    Of either at most `watch_conversations`, and so many turns for each.
    """
    most = config.watch_conversations * _TURNS_A_CONVERSATION
    moment = promoted.promoted_at
    old = _read(
        home, promoted.slot, (promoted.previous,), promoted.previous_since, moment, newest=most
    )
    new = _read(home, promoted.slot, (promoted.digest,), moment, oldest=most)
    before, now = (_side(arms, promoted.digest, config) for arms in (old, new))
    whole = len(new.turns) == most or len(now.units) >= config.watch_conversations
    return before, replace(now, whole=whole)


def _side(arms: ArmTurns, canary: str, config: CanaryConfig) -> Side:
    units = units_of(arms, short_digest(canary), timedelta(seconds=config.quiet_s))
    judged = judged_units(units, arms.known_until) if arms.known_until is not None else []
    return Side(tuple(units), tuple(judged), turns=arms.turns)


def _read(
    home: Path,
    slot: str,
    digests: tuple[str | None, ...],
    since: datetime,
    until: datetime | None = None,
    *,
    newest: int | None = None,
    oldest: int | None = None,
) -> ArmTurns:
    try:
        return read_arms(home, slot, digests, since, until, newest=newest, oldest=oldest)
    except LakeNotFound:
        return ArmTurns((), None)
