"""What a slot's log says of versions on trial: the canary that runs, the newest promotion. Pure."""

import json
from collections.abc import Iterable
from datetime import datetime, timedelta

from promotion.state import BASE, CHAMPION_MOVES, Event
from serving.records import AdapterVersion, Record


class Trial(Record):
    """A time in which a version had a part of the traffic."""

    since: datetime
    until: datetime | None = None
    """None while it has it."""


class Rollout(Record):
    """A canary that runs, as the log tells it."""

    slot: str
    digest: str
    percent: float
    trials: tuple[Trial, ...]
    """Its times on trial beside this champion, oldest first; the last one goes on.

    Who ends a canary and begins it again has the same evidence. Only harm that the guards found
    closes it, as a new gate attempt or a person's word is needed then, and being champion.
    """
    step_at: datetime
    """When it got the traffic that it has."""
    report_key: str | None
    """Gate report that allowed it."""

    @property
    def name(self) -> str:
        """Name it is served under."""
        return AdapterVersion(slot=self.slot, digest=self.digest).name

    @property
    def began_at(self) -> datetime:
        """When the first trial began whose evidence counts."""
        return self.trials[0].since


class Promoted(Record):
    """The newest promotion of a slot, if nothing has moved its champion since."""

    slot: str
    digest: str
    previous: str | None
    """Champion before; None for the bare base model."""
    promoted_at: datetime
    previous_since: datetime
    report_key: str


def rollout_of(events: Iterable[Event]) -> Rollout | None:
    """Return the canary that a slot's events leave running, None if there is none.

    Those since its first trial are enough, oldest first (`Registry.log.canary`).
    """
    running: Rollout | None = None
    beside: str | None = None
    ended: dict[tuple[str, str | None], tuple[Trial, ...]] = {}
    for event in events:
        state = event.state
        if running is not None and running.digest != state.canary:
            over = running.trials[-1].model_copy(update={"until": event.at})
            ended[running.digest, beside] = (*running.trials[:-1], over)
            running = None
        closed = (event.note.get("rolled_back"), state.champion)
        ended = {key: past for key, past in ended.items() if key[0] not in closed}
        if state.canary is None:
            continue
        if running is None:
            beside = state.champion
            running = Rollout(
                slot=event.slot,
                digest=state.canary,
                percent=state.canary_percent,
                trials=(*ended.get((state.canary, beside), ()), Trial(since=event.at)),
                step_at=event.at,
                report_key=_report_key(event),
            )
        elif running.percent != state.canary_percent:
            key = _report_key(event) or running.report_key
            grown = {"percent": state.canary_percent, "step_at": event.at, "report_key": key}
            running = running.model_copy(update=grown)
    return running


def promoted_of(events: Iterable[Event]) -> Promoted | None:
    """Return a slot's newest promotion, None if a rollback or nothing came last.

    The newest two moves of its champion are enough, oldest first (`Registry.log.moves`).
    """
    found: Promoted | None = None
    since: datetime | None = None
    for event in events:
        if event.kind not in CHAMPION_MOVES:
            continue
        state, found = event.state, None
        if event.kind == "promote" and state.champion and state.previous and event.report_key:
            found = Promoted(
                slot=event.slot,
                digest=state.champion,
                previous=None if state.previous == BASE else state.previous,
                promoted_at=event.at,
                # The base may have served since before the first event.
                previous_since=since or event.at - timedelta(days=30),
                report_key=event.report_key,
            )
        since = event.at
    return found


def _report_key(event: Event) -> str | None:
    key = json.loads(event.payload).get("report")
    return None if key is None else str(key)
