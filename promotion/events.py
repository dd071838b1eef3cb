"""The append-only log of slot changes; each event's hash covers the one before.

All functions work inside the caller's transaction.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from promotion.state import CHAMPION_MOVES, GENESIS, Event, EventKind, SlotState, Tenure
from promotion.tables import (
    TRAITS,
    CorruptRegistry,
    events_table,
    record_in,
    slots_table,
    utc_text,
)
from serving.records import canonical_json
from serving.slot_table import SlotTraits

_STREAMED = {"yield_per": 1000}


def append_event(
    connection: sa.Connection,
    state: SlotState,
    kind: EventKind,
    report_key: str | None,
    *,
    traits: SlotTraits | None = None,
    judged_by: str | None = None,
    note: Mapping[str, Any] | None = None,
) -> Event:
    """Add the event that left a slot in this state; `note` says who did it, and why."""
    payload: dict[str, Any] = {"state": state.model_dump(mode="json")}
    if traits is not None:
        payload["traits"] = traits.model_dump(mode="json")
    if judged_by is not None:
        payload["report"] = judged_by
    if note:
        payload["note"] = dict(note)
    newest = sa.select(events_table).order_by(events_table.c.seq.desc()).limit(1)
    last = connection.execute(newest).one_or_none()
    event = Event(
        seq=last.seq + 1 if last else 1,
        at=datetime.now(UTC),
        slot=state.slot,
        kind=kind,
        payload=canonical_json(payload),
        report_key=report_key,
        previous_hash=last.hash if last else GENESIS,
        hash="",
    )
    event = event.model_copy(update={"hash": event.computed_hash})
    row = event.model_dump() | {"at": utc_text(event.at), "champion": state.champion}
    connection.execute(events_table.insert().values(row))
    return event


def read_events(
    connection: sa.Connection, slot: str | None = None, newest: int | None = None
) -> Iterator[Event]:
    """Yield the log, oldest first, of one slot or of all; only the `newest` few if asked so."""
    query = sa.select(events_table).order_by(events_table.c.seq)
    if slot is not None:
        query = query.where(events_table.c.slot == slot)
    if newest is None:
        yield from map(event_in, connection.execution_options(yield_per=1000).execute(query))
        return
    rows = connection.execute(
        query.order_by(None).order_by(events_table.c.seq.desc()).limit(newest)
    )
    yield from map(event_in, reversed(rows.all()))


def event_in(row: sa.Row[Any]) -> Event:
    """Return a row as an event."""
    return record_in(Event, {name: row._mapping[name] for name in Event.model_fields}, row.seq)


def tenures(connection: sa.Connection, slot: str, newest: int) -> tuple[Tenure, ...]:
    """Return who served when in a slot, oldest first."""
    events = newest_moves(connection, newest, events_table.c.slot == slot)
    ends = [*(event.at for event in events[1:]), None]
    return tuple(map(_tenure, events, ends))


def tenures_of(
    connection: sa.Connection, slot: str, digest: str, newest: int
) -> tuple[Tenure, ...]:
    """Return when one version was its slot's champion, oldest first."""
    events = newest_moves(connection, newest, events_table.c.champion == digest)
    return tuple(_tenure(event, _next_move(connection, slot, event.seq)) for event in events)


def newest_moves(
    connection: sa.Connection, newest: int, which: sa.ColumnElement[bool]
) -> list[Event]:
    """Return the newest events that moved a champion, oldest first; a kind at a time, by index."""
    columns = events_table.c
    found: list[sa.Row[Any]] = []
    for kind in sorted(CHAMPION_MOVES):
        query = sa.select(events_table).where(which, columns.kind == kind)
        found += connection.execute(query.order_by(columns.seq.desc()).limit(newest)).all()
    return [event_in(row) for row in sorted(found, key=lambda row: row.seq)[-newest:]]


def canary_events(connection: sa.Connection, slot: str) -> tuple[Event, ...]:
    """Return the events since the canary that runs was first on trial; none without one.

    Oldest first; trials before it did harm, or was champion, are over for good.
    """
    columns = events_table.c
    last = next(read_events(connection, slot, newest=1), None)
    if last is None or last.state.canary is None:
        return ()
    digest = last.state.canary
    canaries = sa.and_(columns.slot == slot, columns.kind == "canary")
    harm = columns.payload.contains(f'"rolled_back":"{digest}"', autoescape=True)
    closed = [
        connection.scalar(sa.select(sa.func.max(columns.seq)).where(which)) or 0
        for which in (sa.and_(canaries, harm), columns.champion == digest)
    ]
    on_trial = columns.payload.contains(f'"canary":"{digest}"', autoescape=True)
    first = sa.select(sa.func.min(columns.seq)).where(canaries, on_trial, columns.seq > max(closed))
    since = sa.select(events_table).where(
        columns.slot == slot, columns.seq >= connection.scalar(first)
    )
    return tuple(map(event_in, connection.execute(since.order_by(columns.seq))))


def _next_move(connection: sa.Connection, slot: str, seq: int) -> datetime | None:
    """Return when the slot's champion moved first after an event, None if it did not."""
    columns = events_table.c
    query = sa.select(columns.seq, columns.at).order_by(columns.seq).limit(1)
    after = query.where(columns.slot == slot, columns.seq > seq)
    moves = [
        row
        for kind in sorted(CHAMPION_MOVES)
        for row in connection.execute(after.where(columns.kind == kind))
    ]
    return datetime.fromisoformat(min(moves)[1]) if moves else None


def _tenure(event: Event, until: datetime | None) -> Tenure:
    return Tenure(
        slot=event.slot,
        champion=event.state.champion,
        since=event.at,
        until=until,
        by=event.kind,
        generation=event.state.generation,
    )


def event_of_report(connection: sa.Connection, report_key: str) -> int | None:
    """Return the number of the event that a gate report caused, None if it caused none."""
    query = sa.select(events_table.c.seq).where(events_table.c.report_key == report_key)
    return connection.scalar(query)


def verify_events(connection: sa.Connection) -> int:
    """Recompute the whole log and compare its end with the slots; return its length.

    Raises:
        CorruptRegistry: naming the first event or slot that is not as written.
    """
    last: dict[str, SlotState] = {}
    traits: dict[str, Any] = {}
    count = 0
    log = sa.select(events_table).order_by(events_table.c.seq)
    with connection.execute(log, execution_options=_STREAMED) as rows:
        previous_hash = GENESIS
        for count, row in enumerate(rows, start=1):
            event = event_in(row)
            before = last[event.slot].generation if event.slot in last else 0
            if (
                event.seq != count
                or event.previous_hash != previous_hash
                or event.hash != event.computed_hash
                or event.state.generation != before + 1
                or event.state.champion != row.champion
            ):
                raise _tampered(f"event {event.seq!r} of slot {event.slot!r}")
            last[event.slot], previous_hash = event.state, event.hash
            said = json.loads(event.payload).get("traits")
            traits |= {event.slot: said} if said is not None else {}
    for row in connection.execute(sa.select(slots_table)):
        slot, fields = row.slot, row._mapping
        # Nothing else vouches for the traits of a slot that was never configured.
        said = {name: fields[name] for name in TRAITS if fields[name] is not None}
        record_in(SlotTraits, said, slot)
        state = last.get(slot, SlotState.new(slot)).model_dump()
        # A slot that was only declared, or never configured, has its traits from the profile.
        expected = state | traits.get(slot, {})
        if any((fields[k] or None) != (v or None) for k, v in expected.items()):
            raise _tampered(f"slot {slot!r} at generation {row.generation!r}")
    return count


def _tampered(what: str) -> CorruptRegistry:
    return CorruptRegistry(
        f"The registry's log does not match: {what} was altered or is missing its events. "
        "Restore the registry from a copy, and compare with 'flows adapters list'."
    )
