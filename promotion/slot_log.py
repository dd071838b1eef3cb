"""What a slot's log says now, asked of an index and not of the whole log.

In: a slot of the registry. Out: the few events that tell what runs, who holds it, what was
withdrawn. The registry has one of these as `log`.
"""

from datetime import datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa

from promotion.events import canary_events, event_in, newest_moves
from promotion.overrides import find_override
from promotion.standing import Hold, Withdrawn, harm_of, hold_in, withdrawn_in
from promotion.state import Event, Override
from promotion.tables import Database, events_table, gate_attempts_table

if TYPE_CHECKING:
    # The command that goes back waits for no statistics.
    from promotion.gate import GateReport


class SlotLog:
    """Questions to the log of a registry's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def canary(self, slot: str) -> tuple[Event, ...]:
        """Return the events since the canary that runs was first on trial; none without one."""
        with self._database.reading() as connection:
            return canary_events(connection, slot)

    def moves(self, slot: str, newest: int) -> tuple[Event, ...]:
        """Return the newest events that moved the champion, oldest first."""
        with self._database.reading() as connection:
            return tuple(newest_moves(connection, newest, events_table.c.slot == slot))

    def hold(self, slot: str) -> Hold | None:
        """Return the hold that a slot is on, None if it is on none."""
        with self._database.reading() as connection:
            return hold_in(connection, slot)

    def override(self, report: "GateReport") -> Override | None:
        """Return the newest override of a report that lasts, else the last to end."""
        with self._database.reading() as connection:
            return find_override(connection, report)

    def report_keys(
        self, slot: str | None = None, challenger: str | None = None
    ) -> tuple[str, ...]:
        """Return the keys of the reports that attempts at the gate ended in, oldest attempt first.

        A report on the disk that is not among them says nothing that the gate said.
        """
        columns = gate_attempts_table.c
        answered = sa.select(columns.report_key).where(columns.report_key.is_not(None))
        query = answered.order_by(columns.seq)
        if slot is not None:
            query = query.where(columns.slot == slot)
        if challenger is not None:
            query = query.where(columns.challenger == challenger)
        with self._database.reading() as connection:
            return tuple(connection.scalars(query))

    def resumed_at(self, slot: str) -> datetime | None:
        """Return when a person last let the loop go on with a slot, None if nobody did."""
        columns = events_table.c
        query = sa.select(events_table).where(columns.slot == slot, columns.kind == "hold")
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(columns.seq.desc()))
            return next((e.at for e in map(event_in, rows) if e.note.get("resumes")), None)

    def withdrawn(self, slot: str | None = None) -> dict[str, Withdrawn]:
        """Return the versions of a slot, or of all, that stand rolled back, by digest."""
        with self._database.reading() as connection:
            return withdrawn_in(connection, slot)

    def harm(self, slot: str, digest: str) -> Withdrawn | None:
        """Return how a version was rolled back for harm that no promotion lifted, if it was."""
        with self._database.reading() as connection:
            return harm_of(connection, slot, digest)
