"""A slot's row: read it, check what may change it, change it together with its log.

All functions work inside the caller's transaction.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from promotion.events import append_event, event_of_report
from promotion.standing import (
    by_guards,
    contradicted_by,
    harm_of,
    hold_in,
    is_of_attempt,
    withdrawn_since,
)
from promotion.state import BASE, Change, EventKind, Override, RegisteredVersion, SlotState
from promotion.tables import TRAITS, record_in, slots_table
from serving.errors import MolError
from serving.records import SLOT_PATTERN, AdapterVersion, short_digest
from serving.slot_table import SlotTraits

if TYPE_CHECKING:
    # The command that goes back waits for no statistics.
    from promotion.gate import GateReport


class UnknownSlot(MolError, LookupError):
    """No slot of this name was declared."""


class SlotInvalid(MolError, ValueError):
    """A slot cannot be added under this name."""


class PromotionRefused(MolError, RuntimeError):
    """The slot's champion may not be replaced like this; nothing has changed."""


class SlotHeld(PromotionRefused):
    """A person holds the slot: no version gets more traffic in it until it is released."""


class ReportUnfounded(PromotionRefused):
    """No attempt that the registry knows ended in this report."""


class ReportOutdated(PromotionRefused):
    """A later attempt at the gate about the same two versions did not pass."""


class VersionWithdrawn(PromotionRefused):
    """The version was rolled back, and nothing newer speaks for it."""


class NoPrevious(MolError, RuntimeError):
    """The slot has nothing to go back to."""


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
    fields |= {"canary_percent": fields["canary_percent"] or 0.0}
    return record_in(SlotState, fields, row.slot)


def traits_in(row: sa.Row[Any]) -> SlotTraits:
    """Return the part of a row that says what the slot is for."""
    said = {name: row._mapping[name] for name in TRAITS}
    fields = {name: value for name, value in said.items() if value is not None}
    return record_in(SlotTraits, fields, row.slot)


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


def check_generation(state: SlotState, expected: int | None, then: str) -> None:
    """Raise StaleGeneration, saying what to do `then`, if the slot moved on from `expected`."""
    if expected not in (None, state.generation):
        raise StaleGeneration(
            f"Slot {state.slot!r} is at generation {state.generation!r}, not {expected!r}: "
            f"it changed meanwhile. {then}"
        )


def check_report(
    connection: sa.Connection,
    state: SlotState,
    version: RegisteredVersion,
    report: "GateReport",
    override: Override | None = None,
) -> None:
    """Raise PromotionRefused unless the report allows exactly this change.

    It must be what an attempt at the gate ended in, have passed, with no later one that did not,
    and be newer than the version's last rollback; a newer `override` of a person stands in for
    verdict and age, for nothing else.
    """
    told = f"Gate report {short_digest(report.key)!r}"
    again = f"Run {_commands_of(connection, state.slot)[0]!r} again."
    if override is not None:
        _check_override(state, version, report, override)
    elif report.verdict != "PASS":
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
    check_unused(connection, state, report)
    _check_standing(connection, state, version, report, override)
    check_attempted(connection, state, report)
    if override is None:
        _check_newest(connection, state, version, report)


def check_unused(connection: sa.Connection, state: SlotState, report: "GateReport") -> None:
    """Raise VersionWithdrawn, with the way back there is, if the report promoted before."""
    used = event_of_report(connection, report.key)
    if used is None:
        return
    challenger = AdapterVersion(slot=report.slot, digest=report.challenger_digest)
    gate, rollback = _commands_of(connection, state.slot)
    back = ""
    if state.previous == challenger.digest:
        harm = harm_of(connection, state.slot, challenger.digest)
        word = "" if harm is None else " --by NAME --reason TEXT"
        back = f"'{rollback}{word}' to go back to it, or "
    raise VersionWithdrawn(
        f"Gate report {short_digest(report.key)!r} promoted {challenger.name!r} before "
        f"(event {used!r}), and it was rolled back since; a report promotes once. "
        f"{_served(state)} Run {back}'{gate} --seed N' with another seed."
    )


def check_attempted(connection: sa.Connection, state: SlotState, report: "GateReport") -> None:
    """Raise ReportUnfounded unless a gate attempt in the registry ended in exactly this report."""
    if not is_of_attempt(connection, report.key):
        again, _ = _commands_of(connection, state.slot)
        raise ReportUnfounded(
            f"No attempt at the gate in this registry ended in report "
            f"{short_digest(report.key)!r}: the gate was killed before it could say so, or it was "
            f"altered, written by hand, or is another registry's. {_served(state)} "
            f"Run {again!r}; 'gates/{report.key}.json' can be deleted."
        )


def check_hold(connection: sa.Connection, state: SlotState) -> None:
    """Raise SlotHeld if a person holds the slot."""
    hold = hold_in(connection, state.slot)
    if hold is not None:
        raise SlotHeld(
            f"Slot {state.slot!r} is held by {hold.by!r} since {hold.since:%Y-%m-%d %H:%M %Z}: "
            f"{hold.reason!r}. {_served(state)} Run 'flows slots canary {state.slot} --release'."
        )


def check_trial(state: SlotState, digest: str) -> None:
    """Raise PromotionRefused if another version is on trial, which a canary would end unsaid."""
    if state.canary not in (None, digest):
        raise PromotionRefused(
            f"{state.canary_name!r} is on trial with {state.canary_percent:g}% of {state.slot!r}, "
            "and another canary would take its place. 'flows run canary' decides; or end it by "
            f"'flows slots canary {state.slot} --end' and run this again."
        )


def gone_back(
    connection: sa.Connection, state: SlotState, note: Mapping[str, Any] | None
) -> SlotState:
    """Return a slot with champion and previous swapped.

    Guards go back to whatever served before, harm or not: they have seen that the champion does
    more of it, and wait for nobody's word while it answers.

    Raises:
        NoPrevious: if there is nothing to go back to.
        VersionWithdrawn: if that was rolled back for harm, and `note` is neither the guards' nor
            names who wants it.
    """
    if state.previous is None:
        raise NoPrevious(
            f"Slot {state.slot!r} has no previous version to go back to; it serves "
            f"{state.champion_name or BASE!r}. Run 'flows adapters list'."
        )
    if state.previous == BASE:
        return state.moved(champion=None)
    harm, told = harm_of(connection, state.slot, state.previous), note or {}
    if harm is not None and not by_guards(told) and "by" not in told:
        raise VersionWithdrawn(
            f"{state.previous_name!r} was rolled back for harm at {harm.at:%Y-%m-%d %H:%M %Z}: "
            f"{harm.reason} {_served(state)} 'flows rollback {state.slot} --by NAME --reason TEXT' "
            "brings it back on a person's word."
        )
    return state.moved(champion=state.previous)


def _check_standing(
    connection: sa.Connection,
    state: SlotState,
    version: RegisteredVersion,
    report: "GateReport",
    override: Override | None,
) -> None:
    """Refuse what a person holds, and a version that was rolled back after the report."""
    check_hold(connection, state)
    gone = withdrawn_since(connection, state.slot, version.digest, report.key, override)
    if gone is not None:
        gate, _ = _commands_of(connection, state.slot)
        raise VersionWithdrawn(
            f"{version.name!r} was rolled back at {gone:%Y-%m-%d %H:%M %Z}, and gate report "
            f"{short_digest(report.key)!r} is older. {_served(state)} Only a new attempt at the "
            f"gate ('{gate} --seed N', another seed) or a person's new word "
            "('--override-by NAME --reason TEXT --expires DATE') brings it back."
        )


def _check_newest(
    connection: sa.Connection, state: SlotState, version: RegisteredVersion, report: "GateReport"
) -> None:
    """Refuse a report that the gate's last word on the same two versions contradicts."""
    said = contradicted_by(connection, report.key)
    if said is not None:
        gate, _ = _commands_of(connection, state.slot)
        raise ReportOutdated(
            f"Gate report {short_digest(report.key)!r} passed {version.name!r}, but a later one "
            f"({short_digest(said[1])!r}) says {said[0]!r}. {_served(state)} Only a new "
            f"attempt at the gate ('{gate} --seed N', another seed) or a person's word "
            "('--override-by NAME --reason TEXT --expires DATE') gives it traffic."
        )


def _check_override(
    state: SlotState, version: RegisteredVersion, report: "GateReport", override: Override
) -> None:
    claims = (
        ("report", override.report_key, report.key),
        ("slot", override.slot, state.slot),
        ("challenger", override.challenger, version.digest),
    )
    for what, claimed, actual in claims:
        if claimed != actual:
            raise PromotionRefused(
                f"The override of {override.by!r} is about {what} {claimed!r}, but the {what} is "
                f"{actual!r}. {_served(state)} Give one for this report."
            )
    if override.is_over:
        raise PromotionRefused(
            f"The override of {override.by!r} expired at {override.expires_at:%Y-%m-%d %H:%M %Z}. "
            f"{_served(state)} Give a new one."
        )


def overridden_by(override: Override | None) -> dict[str, str]:
    """Return what an event says of the override that allowed it; nothing without one."""
    return {} if override is None else {"override": override.id, "by": override.by}


def swap(
    connection: sa.Connection,
    old: SlotState,
    new: SlotState,
    kind: EventKind,
    report_key: str | None = None,
    *,
    traits: SlotTraits | None = None,
    judged_by: str | None = None,
    note: Mapping[str, Any] | None = None,
) -> Change:
    """Compare-and-swap the slot's row and append the event.

    `report_key` uses a gate report up; `judged_by` only names one. `note` says who did it,
    and why.
    """
    columns = slots_table.c
    # Not its name: SQLite would look for what refers to the old one among all versions.
    values = new.model_dump(exclude={"slot"}) | (traits.model_dump() if traits else {})
    result = connection.execute(
        slots_table.update()
        .where(columns.slot == old.slot, columns.generation == old.generation)
        .values(values)
    )
    if result.rowcount != 1:
        raise StaleGeneration(
            f"Slot {old.slot!r} left generation {old.generation!r} meanwhile. Run it again."
        )
    append_event(connection, new, kind, report_key, traits=traits, judged_by=judged_by, note=note)
    return Change(state=new, changed=True)


def _commands_of(connection: sa.Connection, slot: str) -> tuple[str, str]:
    """Return the commands that ask a slot's gate, and that go back in it."""
    if traits_in(slot_row(connection, slot)).role == "head":
        return "flows router train", "flows router rollback"
    return f"flows run gate --slot {slot}", f"flows rollback {slot}"


def _served(state: SlotState) -> str:
    return f"{state.slot!r} still serves {state.champion_name or BASE!r}."
