"""What a slot's log says of its versions and of persons' words: rolled back, on hold.

Nothing of this is kept a second time: it follows from the events. In: the caller's transaction.
Out: holds, and the versions that were withdrawn.

A version is rolled back when harm ended its canary, or a rollback took it out as champion; it is
so until it becomes champion again. A report that was made before cannot bring it back: only one
about a gate attempt made since, or a person's override given since. Where harm was the reason,
a rollback brings it back on a person's word alone, each time until it is promoted again; only the
guards need none, where the champion after it does harm in its turn. While a slot is on hold, no
version gets more traffic in it; going back stays possible.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from promotion.events import event_in
from promotion.state import BASE, CHAMPION_MOVES, Event, EventKind, Override
from promotion.tables import events_table, gate_attempts_table, slots_table
from serving.records import Record

_LIFT: frozenset[EventKind] = frozenset({"bootstrap", "promote"})
"""What lifts harm from a version: it is champion by a report again, and not by going back."""


class Hold(Record):
    """A person's word that a slot stays as it is."""

    slot: str
    by: str
    reason: str
    since: datetime


class Withdrawn(Record):
    """A version that was rolled back."""

    slot: str
    digest: str
    at: datetime
    reason: str
    by: str | None = None
    """Who did it, where somebody said so; `canary` where it happened by itself."""
    harm: bool = False
    """Whether it did harm in traffic, by the canary's guards."""


def withdrawn_in(connection: sa.Connection, slot: str | None = None) -> dict[str, Withdrawn]:
    """Return the versions of a slot, or of all, that stand rolled back, by digest.

    Where harm was a reason that no promotion lifted, it is the one told, whoever rolled back last.
    """
    columns = events_table.c
    names = [slot] if slot is not None else connection.scalars(sa.select(slots_table.c.slot)).all()
    found: dict[str, tuple[int, Withdrawn]] = {}
    harmed: dict[str, tuple[int, Withdrawn]] = {}
    for name in names:
        of_slot = sa.select(events_table).where(columns.slot == name)
        ends = columns.payload.contains('"rolled_back"', autoescape=True)
        # One kind at a time, so that their index serves it instead of a pass over the slot's log.
        rows = [
            *connection.execute(of_slot.where(columns.kind == "rollback")),
            *connection.execute(of_slot.where(columns.kind == "canary", ends)),
        ]
        for row in sorted(rows, key=lambda row: row.seq):
            event = event_in(row)
            digest = _left(event)
            if digest not in (None, BASE):
                found[str(digest)] = event.seq, _withdrawn(event, str(digest))
                if by_guards(event.note):
                    harmed[str(digest)] = found[str(digest)]
    standing = {}
    for digest, (seq, gone) in found.items():
        if not _champion_since(connection, digest, seq, CHAMPION_MOVES):
            at, harm = harmed.get(digest, (seq, gone))
            lifted = _champion_since(connection, digest, at, _LIFT)
            standing[digest] = gone if lifted else harm
    return standing


def hold_in(connection: sa.Connection, slot: str) -> Hold | None:
    """Return the hold that a slot is on, None if it is on none."""
    columns = events_table.c
    query = sa.select(events_table).where(columns.slot == slot, columns.kind == "hold")
    for row in connection.execute(query.order_by(columns.seq.desc())):
        event = event_in(row)
        if "held" in event.note:
            return _hold(event) if event.note["held"] else None
    return None


def withdrawn_since(
    connection: sa.Connection, slot: str, digest: str, report_key: str, override: Override | None
) -> datetime | None:
    """Return when a version was rolled back, if nothing newer speaks for it; else None.

    Newer is a gate attempt of this report, or an override, that was made afterwards.
    """
    event = next(_ends_of(connection, slot, digest), None)
    if event is None or (override is not None and given_in(connection, override) > event.seq):
        return None
    attempts = gate_attempts_table.c
    # By the log's order: the clocks of whoever wrote the two need not agree.
    newer = sa.select(attempts.attempt).where(
        attempts.report_key == report_key, attempts.after_event >= event.seq
    )
    return None if connection.execute(newer).first() is not None else event.at


def given_in(connection: sa.Connection, override: Override) -> int:
    """Return the number of the event in which an override was given; 0 if it is in none."""
    columns = events_table.c
    query = sa.select(sa.func.max(columns.seq)).where(
        columns.slot == override.slot,
        columns.kind == "override",
        columns.payload.contains(override.id, autoescape=True),
    )
    return connection.scalar(query) or 0


def is_of_attempt(connection: sa.Connection, report_key: str) -> bool:
    """Return whether a gate attempt ended in the report of this key.

    The key is a digest of the whole report, so one that was altered, or was made without an
    attempt, has another.
    """
    attempts = gate_attempts_table.c
    known = sa.select(attempts.attempt).where(attempts.report_key == report_key)
    return connection.execute(known).first() is not None


def contradicted_by(connection: sa.Connection, report_key: str) -> tuple[str, str] | None:
    """Return verdict and report of the newest answered attempt about a report's two versions.

    None if that is the report's own attempt or one before, or if it passed too.
    """
    columns = gate_attempts_table.c
    attempts = sa.select(gate_attempts_table).order_by(columns.seq.desc()).limit(1)
    own = connection.execute(attempts.where(columns.report_key == report_key)).first()
    if own is None:
        return None
    later = attempts.where(
        columns.slot == own.slot,
        columns.champion.is_not_distinct_from(own.champion),
        columns.challenger == own.challenger,
        columns.seq > (own.seq or 0),
        columns.verdict.is_not(None),
    )
    newest = connection.execute(later).first()
    if newest is None or newest.verdict == "PASS":
        return None
    return newest.verdict, newest.report_key


def harm_of(connection: sa.Connection, slot: str, digest: str) -> Withdrawn | None:
    """Return how a version was rolled back for harm, None if it was not, or was promoted since.

    A rollback that brought it back on a person's word does not lift it: who goes on going back
    and forth says so each time.
    """
    ends = _ends_of(connection, slot, digest)
    event = next((event for event in ends if by_guards(event.note)), None)
    if event is None or _champion_since(connection, digest, event.seq, _LIFT):
        return None
    return _withdrawn(event, digest)


def by_guards(note: Mapping[str, Any]) -> bool:
    """Return whether an event's note is that of guards that took a version out for its harm.

    They name what they took out; a person's note never does.
    """
    return "rolled_back" in note


def _ends_of(connection: sa.Connection, slot: str, digest: str) -> Iterator[Event]:
    """Yield the events that took a version out of the traffic, newest first."""
    columns = events_table.c
    about = columns.payload.contains(digest, autoescape=True)
    query = sa.select(events_table).where(columns.slot == slot, about)
    # One kind at a time, so that their index serves it instead of a pass over the slot's log.
    kinds = [connection.execute(query.where(columns.kind == k)) for k in ("rollback", "canary")]
    rows = [row for found in kinds for row in found]
    for row in sorted(rows, key=lambda row: row.seq, reverse=True):
        event = event_in(row)
        if _left(event) == digest:
            yield event


def _left(event: Event) -> str | None:
    """Return what a rollback, or the end of a canary, took out."""
    return event.state.previous if event.kind == "rollback" else event.note.get("rolled_back")


def _champion_since(
    connection: sa.Connection, digest: str, seq: int, by: Collection[EventKind]
) -> bool:
    columns = events_table.c
    later = sa.select(columns.seq).where(
        columns.champion == digest, columns.kind.in_(sorted(by)), columns.seq > seq
    )
    return connection.execute(later.limit(1)).first() is not None


def _hold(event: Event) -> Hold:
    note = event.note
    return Hold(slot=event.slot, by=note["by"], reason=note["reason"], since=event.at)


def _withdrawn(event: Event, digest: str) -> Withdrawn:
    reason = str(event.note.get("reason", "went back to the version before"))
    return Withdrawn(
        slot=event.slot,
        digest=digest,
        at=event.at,
        reason=reason,
        by=event.note.get("by"),
        harm=by_guards(event.note),
    )
