"""The registry: which adapter version each slot serves, and how that came about.

Versions are immutable and named by digest. A slot points at its champion; the
pointer moves only by compare-and-swap on the slot's `generation`, in one
transaction with an event whose hash covers the event before it. A promotion
needs a gate report that passed for exactly this champion and this challenger.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from promotion.events import read_events, verify_events
from promotion.gate import GateReport
from promotion.slot_rows import (
    PromotionRefused,
    add_row,
    check_generation,
    check_report,
    declare_rows,
    slot_row,
    state_in,
    state_of,
    swap,
    traits_in,
    version_of,
    version_row,
)
from promotion.state import (
    BASE,
    CHAMPION_MOVES,
    Change,
    Event,
    RegisteredVersion,
    SlotState,
    Tenure,
)
from promotion.tables import Database, prefix_query, slots_table, versions_query, versions_table
from serving.errors import MolError
from serving.records import parse_adapter_name
from serving.slot_table import SlotTraits


class UnknownAdapter(MolError, LookupError):
    """No version, or more than one, answers to this name."""


class VersionConflict(MolError, ValueError):
    """A digest is registered already with other content."""


class NoPrevious(MolError, RuntimeError):
    """The slot has nothing to go back to."""


class Registry:
    """Slots, versions and events in one database; use as a context manager."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, where: Path | str, slots: Iterable[str] | Mapping[str, SlotTraits] = ()) -> Self:
        """Open or create the registry of a home folder, or of a database URL.

        `slots` are declared if they are new, with what they are for where it is told.

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

    def declare(self, slots: Iterable[str] | Mapping[str, SlotTraits]) -> None:
        """Make slots known; what is known about them already stays as it is."""
        told = slots if isinstance(slots, Mapping) else dict.fromkeys(slots)
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(slots_table.c.slot, slots_table.c.role))
            known = {row.slot: row.role for row in rows}
        news = {
            name: traits
            for name, traits in told.items()
            if name not in known or (known[name] is None and traits is not None)
        }
        if news:
            with self._database.writing() as connection:
                declare_rows(connection, news)

    def add(self, slot: str, traits: SlotTraits) -> Change:
        """Add a slot that serves the base until a version is promoted in it.

        Raises:
            SlotInvalid: if there is one of that name, or the name is none.
        """
        with self._database.writing() as connection:
            state = add_row(connection, slot)
            return swap(connection, state, state.changed(), "configure", traits=traits)

    def configure(
        self, slot: str, changes: Mapping[str, Any], expected_generation: int | None = None
    ) -> Change:
        """Say anew what a slot is for, in the fields of `SlotTraits` that are given.

        Raises:
            UnknownSlot: naming those there are.
            StaleGeneration: if the slot is not at `expected_generation` any more.
        """
        with self._database.writing() as connection:
            row = slot_row(connection, slot)
            state, before = state_in(row), traits_in(row)
            check_generation(state, expected_generation, "Look at 'flows slots list'.")
            traits = SlotTraits.model_validate(before.model_dump() | dict(changes))
            if traits == before:
                return Change(state=state, changed=False)
            return swap(connection, state, state.changed(), "configure", traits=traits)

    def traits(self) -> dict[str, SlotTraits]:
        """Return what each slot is for, in order of name."""
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(slots_table).order_by(slots_table.c.slot))
            return {row.slot: traits_in(row) for row in rows}

    def register(self, version: RegisteredVersion) -> RegisteredVersion:
        """Add a version; a second time returns the first, with its metrics and time.

        Raises:
            UnknownSlot: if its slot was not declared.
            VersionConflict: if its digest has another slot, origin or path.
        """
        with self._database.writing() as connection:
            state_of(connection, version.slot)
            known = version_of(connection, version.digest)
            if known is None:
                connection.execute(versions_table.insert().values(version_row(version)))
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
            return tuple(map(state_in, rows))

    def slot(self, name: str) -> SlotState:
        """Return one slot.

        Raises:
            UnknownSlot: naming those there are.
        """
        with self._database.reading() as connection:
            return state_of(connection, name)

    def versions(
        self, slot: str | None = None, limit: int = 50, offset: int = 0
    ) -> tuple[RegisteredVersion, ...]:
        """Return versions, newest first, of one slot or of all.

        Raises:
            UnknownSlot: naming those there are.
        """
        with self._database.reading() as connection:
            if slot is not None:
                state_of(connection, slot)
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
            if not state.never_served:
                raise PromotionRefused(
                    f"Slot {slot!r} serves {state.champion_name or BASE!r} already; only a slot "
                    "without history is set up without a gate. Run 'flows run gate'."
                )
            new = state.moved(champion=digest, base_digest=version.base_digest, previous=None)
            return swap(connection, state, new, "bootstrap")

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
            check_report(connection, state, version, report)
            check_generation(state, expected_generation, "Run 'flows promote' again.")
            new = state.moved(champion=digest, base_digest=version.base_digest)
            return swap(connection, state, new, "promote", report.key)

    def check(self, report: GateReport) -> None:
        """Raise what `promote` would raise for this report, without changing anything.

        Raises:
            PromotionRefused: if the report allows no promotion now.
        """
        with self._moving(report.slot, report.challenger_digest) as (connection, state, version):
            check_report(connection, state, version, report)

    def rollback(self, slot: str, expected_generation: int | None = None) -> Change:
        """Swap champion and previous of a slot.

        Raises:
            NoPrevious: if there is nothing to go back to.
            StaleGeneration: if the slot is not at `expected_generation` any more.
        """
        with self._database.writing() as connection:
            state = state_of(connection, slot)
            again = f"Look at 'flows adapters list' and run 'flows rollback {slot}' again."
            check_generation(state, expected_generation, again)
            if state.previous is None:
                raise NoPrevious(
                    f"Slot {slot!r} has no previous version to go back to; it serves "
                    f"{state.champion_name or BASE!r}. Run 'flows adapters list'."
                )
            champion = None if state.previous == BASE else state.previous
            return swap(connection, state, state.moved(champion=champion), "rollback")

    def begin_canary(
        self,
        slot: str,
        digest: str,
        percent: float,
        report: GateReport,
        expected_generation: int | None = None,
    ) -> Change:
        """Give a version a part of the slot's traffic, on the word of a gate report.

        The report is not used up: it may promote the version later.

        Raises:
            PromotionRefused: if the report would not allow a promotion now, or the part is
                not above 0 and at most 100 percent.
            StaleGeneration: if the slot is not at `expected_generation` any more.
        """
        if not 0 < percent <= 100:
            raise PromotionRefused(
                f"A canary gets more than 0 and at most 100 percent, not {percent!r}. "
                f"'flows slots canary {slot} --end' ends one."
            )
        with self._moving(slot, digest) as (connection, state, version):
            check_report(connection, state, version, report)
            check_generation(state, expected_generation, "Look at 'flows slots list'.")
            if (state.canary, state.canary_percent) == (digest, percent):
                return Change(state=state, changed=False)
            new = state.changed(canary=digest, canary_percent=float(percent))
            return swap(connection, state, new, "canary", judged_by=report.key)

    def end_canary(self, slot: str, expected_generation: int | None = None) -> Change:
        """Give all of the slot's traffic back to its champion.

        Raises:
            StaleGeneration: if the slot is not at `expected_generation` any more.
        """
        with self._database.writing() as connection:
            state = state_of(connection, slot)
            check_generation(state, expected_generation, "Look at 'flows slots list'.")
            if state.canary is None:
                return Change(state=state, changed=False)
            new = state.changed(canary=None, canary_percent=0.0)
            return swap(connection, state, new, "canary")

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
        events = [event for event in self.events(slot) if event.kind in CHAMPION_MOVES]
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
            state, version = state_of(connection, slot), version_of(connection, digest)
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
