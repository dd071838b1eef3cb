"""The append-only log of slot changes; each event's hash covers the one before.

All functions work inside the caller's transaction.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from promotion.state import GENESIS, Event, EventKind, SlotState
from promotion.tables import CorruptRegistry, events_table, slots_table, utc_text
from serving.records import canonical_json
from serving.slot_table import SlotTraits


def append_event(
    connection: sa.Connection,
    state: SlotState,
    kind: EventKind,
    report_key: str | None,
    *,
    traits: SlotTraits | None = None,
    judged_by: str | None = None,
) -> Event:
    """Add the event that left a slot in this state."""
    payload: dict[str, Any] = {"state": state.model_dump(mode="json")}
    if traits is not None:
        payload["traits"] = traits.model_dump(mode="json")
    if judged_by is not None:
        payload["report"] = judged_by
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
    row = event.model_dump() | {"at": utc_text(event.at)}
    connection.execute(events_table.insert().values(row))
    return event


def read_events(connection: sa.Connection, slot: str | None = None) -> Iterator[Event]:
    """Yield the log, oldest first, of one slot or of all."""
    query = sa.select(events_table).order_by(events_table.c.seq)
    if slot is not None:
        query = query.where(events_table.c.slot == slot)
    for row in connection.execute(query):
        yield Event(**row._mapping)


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
    previous_hash, count = GENESIS, 0
    for count, event in enumerate(read_events(connection), start=1):
        before = last[event.slot].generation if event.slot in last else 0
        if (
            event.seq != count
            or event.previous_hash != previous_hash
            or event.hash != event.computed_hash
            or event.state.generation != before + 1
        ):
            raise _tampered(f"event {event.seq!r} of slot {event.slot!r}")
        last[event.slot], previous_hash = event.state, event.hash
        said = json.loads(event.payload).get("traits")
        traits |= {event.slot: said} if said is not None else {}
    for row in connection.execute(sa.select(slots_table)):
        slot, fields = row.slot, row._mapping
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
