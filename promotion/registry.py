"""The registry: which adapter version each slot serves, and how that came about.

Versions are immutable and named by digest. A slot points at its champion; the
pointer moves only by compare-and-swap on the slot's `generation`, in one
transaction with an event whose hash covers the event before it. A promotion
needs a gate report that passed for exactly this champion and this challenger.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from promotion.events import append_event, event_of_report, read_events, verify_events
from promotion.gate import GateReport
from promotion.state import (
    BASE,
    Change,
    Event,
    EventKind,
    RegisteredVersion,
    SlotState,
    Tenure,
)
from promotion.tables import (
    Database,
    prefix_query,
    slots_table,
    utc_text,
    versions_query,
    versions_table,
)
from serving.errors import MolError
from serving.records import parse_adapter_name, short_digest


class UnknownSlot(MolError, LookupError):
    """No slot of this name was declared."""


class UnknownAdapter(MolError, LookupError):
    """No version, or more than one, answers to this name."""


class VersionConflict(MolError, ValueError):
    """A digest is registered already with other content."""


class PromotionRefused(MolError, RuntimeError):
    """The slot's champion may not be replaced like this; nothing has changed."""


class StaleGeneration(PromotionRefused):
    """The slot changed since it was looked at."""


class NoPrevious(MolError, RuntimeError):
    """The slot has nothing to go back to."""


class Registry:
    """Slots, versions and events in one database; use as a context manager."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, where: Path | str, slots: Iterable[str] = ()) -> Self:
        """Open or create the registry of a home folder, or of a database URL.

        `slots` are declared if they are new.

        Raises:
            CorruptRegistry: if it is not a registry.
            RegistryUnavailable: if it cannot be reached.
        """
        registry = cls(Database(where))
        try:
            registry.declare(slots)
        except BaseException:
            registry.close()
            raise
        return registry

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def declare(self, slots: Iterable[str]) -> None:
        """Make slots known; those that are known already stay as they are."""
        known = {state.slot for state in self.slots()}
        missing = [name for name in dict.fromkeys(slots) if name not in known]
        if not missing:
            return
        with self._database.writing() as connection:
            known = set(connection.scalars(sa.select(slots_table.c.slot)))
            rows = [{"slot": name, "generation": 0} for name in missing if name not in known]
            if rows:
                connection.execute(slots_table.insert(), rows)

    def register(self, version: RegisteredVersion) -> RegisteredVersion:
        """Add a version; a second time returns the first, with its metrics and time.

        Raises:
            UnknownSlot: if its slot was not declared.
            VersionConflict: if its digest has another slot, origin or path.
        """
        with self._database.writing() as connection:
            _state(connection, version.slot)
            known = _version(connection, version.digest)
            if known is None:
                connection.execute(versions_table.insert().values(_row(version)))
                return version
        for field in ("slot", "base_digest", "manifest_digest", "run_key", "path"):
            if getattr(known, field) != getattr(version, field):
                raise VersionConflict(
                    f"Adapter {known.name!r} is registered with {field} {getattr(known, field)!r}, "
                    f"not {getattr(version, field)!r}; a version never changes. "
                    f"Run 'flows adapters show {known.name}'."
                )
        return known

    def slots(self) -> tuple[SlotState, ...]:
        """Return all slots in order of name."""
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(slots_table).order_by(slots_table.c.slot))
            return tuple(SlotState(**row._mapping) for row in rows)

    def slot(self, name: str) -> SlotState:
        """Return one slot.

        Raises:
            UnknownSlot: naming those there are.
        """
        with self._database.reading() as connection:
            return _state(connection, name)

    def versions(
        self, slot: str | None = None, limit: int = 50, offset: int = 0
    ) -> tuple[RegisteredVersion, ...]:
        """Return versions, newest first, of one slot or of all.

        Raises:
            UnknownSlot: naming those there are.
        """
        with self._database.reading() as connection:
            if slot is not None:
                _state(connection, slot)
            rows = connection.execute(versions_query(slot, limit, offset))
            return tuple(RegisteredVersion(**row._mapping) for row in rows)

    def version(self, reference: str) -> RegisteredVersion:
        """Return the version called `L2@3fa9c1d2e4b5`, or whose digest starts so (4 digits on).

        Raises:
            UnknownAdapter: if there is none or more than one, naming some.
            InvalidAdapterName: if it has an `@` but is no adapter name.
        """
        slot, prefix = parse_adapter_name(reference) if "@" in reference else (None, reference)
        prefix = prefix.removeprefix("sha256:")
        with self._database.reading() as connection:
            found: list[RegisteredVersion] = []
            if len(prefix) >= 4 and set(prefix) <= set("0123456789abcdef"):
                rows = connection.execute(prefix_query(prefix))
                found = [RegisteredVersion(**row._mapping) for row in rows]
            matches = [v for v in found if slot in (None, v.slot)]
            if len(matches) == 1:
                return matches[0]
            rows = connection.execute(versions_query(slot, 5, 0))
            known = [RegisteredVersion(**row._mapping).name for row in rows]
        listed = ", ".join(repr(v.name) for v in matches) or ", ".join(map(repr, known)) or "none"
        raise UnknownAdapter(
            f"{'More than one' if matches else 'No'} adapter {reference!r} in the registry "
            f"(there {'are' if matches else 'are, newest first,'} {listed}). "
            "Run 'flows adapters list'."
        )

    def bootstrap(self, slot: str, digest: str) -> Change:
        """Make a registered version champion of a slot that never had one, without a gate.

        Raises:
            PromotionRefused: if the slot had another champion, or the version is not its own.
        """
        with self._moving(slot, digest) as (connection, state, version):
            if state.champion == digest:
                return Change(state=state, changed=False)
            if state.generation > 0:
                raise PromotionRefused(
                    f"Slot {slot!r} serves {state.champion_name or BASE!r} already; only a slot "
                    "without history is set up without a gate. Run 'flows run gate'."
                )
            new = state.moved(champion=digest, base_digest=version.base_digest, previous=None)
            return _swap(connection, state, new, "bootstrap", None)

    def promote(
        self, slot: str, digest: str, expected_generation: int, report: GateReport
    ) -> Change:
        """Make a version champion on the word of a gate report.

        Raises:
            PromotionRefused: if the report did not pass, speaks of another champion,
                challenger, slot or base, or was used before.
            StaleGeneration: if the slot is not at `expected_generation` any more.
        """
        with self._moving(slot, digest) as (connection, state, version):
            if state.champion == digest:
                return Change(state=state, changed=False)
            _check_report(connection, state, version, report)
            if state.generation != expected_generation:
                raise StaleGeneration(
                    f"Slot {slot!r} is at generation {state.generation!r}, not "
                    f"{expected_generation!r}: it changed meanwhile. Run 'flows promote' again."
                )
            new = state.moved(champion=digest, base_digest=version.base_digest)
            return _swap(connection, state, new, "promote", report.key)

    def check(self, report: GateReport) -> None:
        """Raise what `promote` would raise for this report, without changing anything.

        Raises:
            PromotionRefused: if the report allows no promotion now.
        """
        with self._moving(report.slot, report.challenger_digest) as (connection, state, version):
            _check_report(connection, state, version, report)

    def rollback(self, slot: str, expected_generation: int | None = None) -> Change:
        """Swap champion and previous of a slot.

        Raises:
            NoPrevious: if there is nothing to go back to.
            StaleGeneration: if the slot is not at `expected_generation` any more.
        """
        with self._database.writing() as connection:
            state = _state(connection, slot)
            if expected_generation not in (None, state.generation):
                raise StaleGeneration(
                    f"Slot {slot!r} is at generation {state.generation!r}, not "
                    f"{expected_generation!r}: it changed meanwhile. "
                    f"Look at 'flows adapters list' and run 'flows rollback {slot}' again."
                )
            if state.previous is None:
                raise NoPrevious(
                    f"Slot {slot!r} has no previous version to go back to; it serves "
                    f"{state.champion_name or BASE!r}. Run 'flows adapters list'."
                )
            champion = None if state.previous == BASE else state.previous
            return _swap(connection, state, state.moved(champion=champion), "rollback", None)

    def events(self, slot: str | None = None) -> tuple[Event, ...]:
        """Return the log, oldest first, of one slot or of all."""
        with self._database.reading() as connection:
            return tuple(read_events(connection, slot))

    def history(self, slot: str) -> tuple[Tenure, ...]:
        """Return who served when in a slot, oldest first.

        Raises:
            UnknownSlot: naming those there are.
        """
        self.slot(slot)
        events = self.events(slot)
        ends = [*(event.at for event in events[1:]), None]
        return tuple(
            Tenure(
                slot=slot,
                champion=event.state.champion,
                since=event.at,
                until=until,
                by=event.kind,
                generation=event.state.generation,
            )
            for event, until in zip(events, ends, strict=False)
        )

    def verify_chain(self) -> int:
        """Recompute the whole log and compare it with the slots; return the number of events.

        Raises:
            CorruptRegistry: naming the first event or slot that is not as written.
        """
        with self._database.writing() as connection:
            return verify_events(connection)

    @contextmanager
    def _moving(
        self, slot: str, digest: str
    ) -> Iterator[tuple[sa.Connection, SlotState, RegisteredVersion]]:
        """Open a write transaction on a slot and a version that may become its champion."""
        with self._database.writing() as connection:
            state, version = _state(connection, slot), _version(connection, digest)
            if version is None:
                raise UnknownAdapter(
                    f"No adapter {digest!r} in the registry. Run 'flows adapters list'."
                )
            if version.slot != slot:
                raise PromotionRefused(
                    f"Adapter {version.name!r} belongs to slot {version.slot!r}, not {slot!r}. "
                    f"Run 'flows adapters list --slot {slot}'."
                )
            yield connection, state, version


def _check_report(
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


def _served(state: SlotState) -> str:
    return f"{state.slot!r} still serves {state.champion_name or BASE!r}."


def _swap(
    connection: sa.Connection,
    old: SlotState,
    new: SlotState,
    kind: EventKind,
    report_key: str | None,
) -> Change:
    """Compare-and-swap the slot's row and append the event, in the caller's transaction."""
    columns = slots_table.c
    result = connection.execute(
        slots_table.update()
        .where(columns.slot == old.slot, columns.generation == old.generation)
        .values(new.model_dump())
    )
    if result.rowcount != 1:
        raise StaleGeneration(
            f"Slot {old.slot!r} left generation {old.generation!r} meanwhile. Run it again."
        )
    append_event(connection, new, kind, report_key)
    return Change(state=new, changed=True)


def _state(connection: sa.Connection, name: str) -> SlotState:
    query = sa.select(slots_table).where(slots_table.c.slot == name)
    row = connection.execute(query).one_or_none()
    if row is None:
        known = connection.scalars(sa.select(slots_table.c.slot).order_by(slots_table.c.slot))
        listed = ", ".join(map(repr, known)) or "none"
        raise UnknownSlot(
            f"No slot {name!r} in the registry (there are {listed}). Run 'flows adapters list'."
        )
    return SlotState(**row._mapping)


def _version(connection: sa.Connection, digest: str) -> RegisteredVersion | None:
    query = sa.select(versions_table).where(versions_table.c.digest == digest)
    row = connection.execute(query).one_or_none()
    return None if row is None else RegisteredVersion(**row._mapping)


def _row(version: RegisteredVersion) -> dict[str, Any]:
    return version.model_dump() | {"created_at": utc_text(version.created_at)}
