"""A slot's row: read it, check what may change it, change it together with its log.

All functions work inside the caller's transaction.
"""

import re
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from promotion.events import append_event, event_of_report
from promotion.gate import GateReport
from promotion.state import BASE, Change, EventKind, RegisteredVersion, SlotState
from promotion.tables import TRAITS, slots_table, utc_text, versions_table
from serving.errors import MolError
from serving.records import SLOT_PATTERN, short_digest
from serving.slot_table import SlotTraits


class UnknownSlot(MolError, LookupError):
    """No slot of this name was declared."""


class SlotInvalid(MolError, ValueError):
    """A slot cannot be added under this name."""


class PromotionRefused(MolError, RuntimeError):
    """The slot's champion may not be replaced like this; nothing has changed."""


class StaleGeneration(PromotionRefused):
    """The slot changed since it was looked at."""


def state_of(connection: sa.Connection, name: str) -> SlotState:
    """Return what a slot serves.

    Raises:
        UnknownSlot: naming those there are.
    """
    return state_in(slot_row(connection, name))


def slot_row(connection: sa.Connection, name: str) -> sa.Row[Any]:
    """Return a slot's row.

    Raises:
        UnknownSlot: naming those there are.
    """
    query = sa.select(slots_table).where(slots_table.c.slot == name)
    row = connection.execute(query).one_or_none()
    if row is None:
        known = connection.scalars(sa.select(slots_table.c.slot).order_by(slots_table.c.slot))
        listed = ", ".join(map(repr, known)) or "none"
        raise UnknownSlot(
            f"No slot {name!r} in the registry (there are {listed}). Run 'flows slots list'."
        )
    return row


def state_in(row: sa.Row[Any]) -> SlotState:
    """Return the part of a row that says what serves."""
    fields = {name: row._mapping[name] for name in SlotState.model_fields}
    return SlotState(**fields | {"canary_percent": fields["canary_percent"] or 0.0})


def traits_in(row: sa.Row[Any]) -> SlotTraits:
    """Return the part of a row that says what the slot is for."""
    said = {name: row._mapping[name] for name in TRAITS}
    return SlotTraits(**{name: value for name, value in said.items() if value is not None})


def declare_rows(connection: sa.Connection, slots: Mapping[str, SlotTraits | None]) -> None:
    """Add slots that are new, and tell what those are for of which nobody said it yet."""
    columns = slots_table.c
    known = set(connection.scalars(sa.select(columns.slot)))
    for name, traits in slots.items():
        fields = traits.model_dump() if traits else {}
        if name not in known:
            row = {"slot": name, "generation": 0} | fields
            connection.execute(slots_table.insert().values(row))
        elif fields:
            unsaid = slots_table.update().where(columns.slot == name, columns.role.is_(None))
            connection.execute(unsaid.values(fields))


def add_row(connection: sa.Connection, name: str) -> SlotState:
    """Add a slot and return it.

    Raises:
        SlotInvalid: if there is one of that name, or the name is none.
    """
    if re.fullmatch(SLOT_PATTERN, name) is None:
        raise SlotInvalid(
            f"{name!r} is no name of a slot: a letter, then at most 31 letters, digits, '_' or "
            "'-', such as 'L4'."
        )
    known = connection.scalar(sa.select(slots_table.c.slot).where(slots_table.c.slot == name))
    if known is not None:
        raise SlotInvalid(f"There is a slot {name!r} already. Change it with 'flows slots set'.")
    connection.execute(slots_table.insert().values(slot=name, generation=0))
    return SlotState.new(name)


def version_of(connection: sa.Connection, digest: str) -> RegisteredVersion | None:
    """Return a version by its digest, None if there is none."""
    query = sa.select(versions_table).where(versions_table.c.digest == digest)
    row = connection.execute(query).one_or_none()
    return None if row is None else RegisteredVersion(**row._mapping)


def version_row(version: RegisteredVersion) -> dict[str, Any]:
    """Return a version as its row."""
    return version.model_dump() | {"created_at": utc_text(version.created_at)}


def check_generation(state: SlotState, expected: int | None, then: str) -> None:
    """Raise StaleGeneration, saying what to do `then`, if the slot moved on from `expected`."""
    if expected not in (None, state.generation):
        raise StaleGeneration(
            f"Slot {state.slot!r} is at generation {state.generation!r}, not {expected!r}: "
            f"it changed meanwhile. {then}"
        )


def check_report(
    connection: sa.Connection, state: SlotState, version: RegisteredVersion, report: GateReport
) -> None:
    """Raise PromotionRefused unless the report passed for exactly this change."""
    told = f"Gate report {short_digest(report.key)!r}"
    again = f"Run 'flows run gate --slot {state.slot}' again."
    if report.verdict != "PASS":
        raise PromotionRefused(
            f"{told} says {report.verdict!r} for {version.name!r}, only 'PASS' promotes: "
            f"{report.reasons[0]} {_served(state)} Run 'flows run' when there are new traces."
        )
    claims = (
        ("slot", report.slot, state.slot),
        ("challenger", report.challenger_digest, version.digest),
        ("champion", report.champion_digest, state.champion),
        ("base", report.base_digest, version.base_digest),
        ("base", report.base_digest, state.base_digest or report.base_digest),
    )
    for what, claimed, actual in claims:
        if claimed != actual:
            raise PromotionRefused(
                f"{told} is about {what} {claimed or BASE!r}, but the {what} is "
                f"{actual or BASE!r}. {_served(state)} {again}"
            )
    used = event_of_report(connection, report.key)
    if used is not None:
        raise PromotionRefused(
            f"Gate report {short_digest(report.key)!r} promoted {version.name!r} before "
            f"(event {used!r}), and it was rolled back since; a report promotes once. "
            f"Run 'flows rollback {state.slot}' to go back to it, or 'flows run gate' with "
            "another seed."
        )


def swap(
    connection: sa.Connection,
    old: SlotState,
    new: SlotState,
    kind: EventKind,
    report_key: str | None = None,
    *,
    traits: SlotTraits | None = None,
    judged_by: str | None = None,
) -> Change:
    """Compare-and-swap the slot's row and append the event.

    `report_key` uses a gate report up; `judged_by` only names one.
    """
    columns = slots_table.c
    values = new.model_dump() | (traits.model_dump() if traits else {})
    result = connection.execute(
        slots_table.update()
        .where(columns.slot == old.slot, columns.generation == old.generation)
        .values(values)
    )
    if result.rowcount != 1:
        raise StaleGeneration(
            f"Slot {old.slot!r} left generation {old.generation!r} meanwhile. Run it again."
        )
    append_event(connection, new, kind, report_key, traits=traits, judged_by=judged_by)
    return Change(state=new, changed=True)


def _served(state: SlotState) -> str:
    return f"{state.slot!r} still serves {state.champion_name or BASE!r}."
