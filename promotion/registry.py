"""The registry: which adapter version each slot serves, and how that came about.

Versions are immutable and named by digest. A slot points at its champion; the
pointer moves only by compare-and-swap on the slot's `generation`, in one
transaction with an event whose hash covers the event before it. A promotion
needs a gate report that passed for exactly this champion and this challenger.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import sqlalchemy as sa

from promotion.events import read_events, tenures, tenures_of, verify_events
from promotion.signers import Signers
from promotion.slot_log import SlotLog
from promotion.slot_rows import (
    PromotionRefused,
    add_row,
    check_generation,
    check_hold,
    check_report,
    check_trial,
    declare_rows,
    gone_back,
    overridden_by,
    slot_row,
    state_in,
    state_of,
    swap,
    traits_in,
)
from promotion.state import (
    BASE,
    Change,
    Event,
    Override,
    RegisteredVersion,
    SlotState,
    Tenure,
)
from promotion.tables import Database, slots_table
from promotion.version_rows import (
    UnknownAdapter,
    add_version,
    find_version,
    list_versions,
    made_since,
    unsigned_versions,
    version_of,
)
from serving.slot_table import SlotTraits

if TYPE_CHECKING:
    # The command that goes back waits for no statistics.
    from promotion.gate import GateReport

Note = Mapping[str, Any]
"""Who changed a slot, and why: `by`, `reason` and what else is worth keeping."""


class Registry:
    """Slots, versions and events in one database; use as a context manager."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.label = database.label
        """The file or address, as messages name it."""
        self.signers = Signers(database)
        self.log = SlotLog(database)

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
            return add_version(connection, version)

    def registered(self, digest: str) -> RegisteredVersion | None:
        """Return the version of exactly this digest, None if there is none."""
        with self._database.reading() as connection:
            return version_of(connection, digest)

    def unsigned(self) -> tuple[RegisteredVersion, ...]:
        """Return the versions that no key has signed, oldest first."""
        with self._database.reading() as connection:
            return unsigned_versions(connection)

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
            return list_versions(connection, slot, limit, offset)

    def made_since(self, moment: datetime | None) -> tuple[int, tuple[RegisteredVersion, ...]]:
        """Return how many versions there are, and those made at a moment or later; None: all."""
        with self._database.snapshot() as connection:
            return made_since(connection, moment)

    def version(self, reference: str) -> RegisteredVersion:
        """Return the version called `L2@3fa9c1d2e4b5`, or whose digest starts so (4 digits on).

        Raises:
            UnknownAdapter: if there is none or more than one, naming some.
            InvalidAdapterName: if it has an `@` but is no adapter name.
        """
        with self._database.reading() as connection:
            return find_version(connection, reference)

    def bootstrap(self, slot: str, digest: str) -> Change:
        """Make a registered version champion of a slot that never had one, without a gate.

        Raises:
            PromotionRefused: if the slot had another champion, a person holds it, or the version
                is not its own.
        """
        with self._moving(slot, digest) as (connection, state, version):
            if state.champion == digest:
                return Change(state=state, changed=False)
            if not state.never_served:
                raise PromotionRefused(
                    f"Slot {slot!r} serves {state.champion_name or BASE!r} already; only a slot "
                    "without history is set up without a gate. Run 'flows run gate'."
                )
            check_hold(connection, state)
            new = state.moved(champion=digest, base_digest=version.base_digest, previous=None)
            return swap(connection, state, new, "bootstrap")

    def promote(
        self,
        slot: str,
        digest: str,
        expected_generation: int,
        report: "GateReport",
        override: Override | None = None,
    ) -> Change:
        """Make a version champion on the word of a gate report, or of a person who overrides it.

        Raises:
            PromotionRefused: if the report did not pass, speaks of another champion, challenger,
                slot or base, was used before, or is of no attempt at the gate.
            StaleGeneration: if the slot is not at `expected_generation` any more.
        """
        with self._moving(slot, digest) as (connection, state, version):
            if state.champion == digest:
                return Change(state=state, changed=False)
            check_report(connection, state, version, report, override)
            check_generation(state, expected_generation, "Run 'flows promote' again.")
            new = state.moved(champion=digest, base_digest=version.base_digest)
            note = overridden_by(override)
            return swap(connection, state, new, "promote", report.key, note=note)

    def check(self, report: "GateReport", override: Override | None = None) -> None:
        """Raise what `promote` would raise for this report, without changing anything.

        Raises:
            PromotionRefused: if the report allows no promotion now.
        """
        with self._moving(report.slot, report.challenger_digest) as (connection, state, version):
            check_report(connection, state, version, report, override)

    def rollback(
        self, slot: str, expected_generation: int | None = None, note: Note | None = None
    ) -> Change:
        """Swap champion and previous of a slot.

        Raises:
            NoPrevious: if there is nothing to go back to.
            VersionWithdrawn: if that was rolled back for harm, and `note` has neither `by` nor
                the guards' `rolled_back`.
            StaleGeneration: if the slot is not at `expected_generation` any more.
        """
        with self._database.writing() as connection:
            state = state_of(connection, slot)
            again = f"Look at 'flows adapters list' and run 'flows rollback {slot}' again."
            check_generation(state, expected_generation, again)
            new = gone_back(connection, state, note)
            return swap(connection, state, new, "rollback", note=note)

    def begin_canary(
        self,
        slot: str,
        digest: str,
        percent: float,
        report: "GateReport",
        expected_generation: int | None = None,
        *,
        override: Override | None = None,
        note: Note | None = None,
    ) -> Change:
        """Give a version a part of the slot's traffic, on the word of a gate report or an override.

        The report is not used up: it may promote the version later.

        Raises:
            PromotionRefused: if the report would not allow a promotion now, another version is on
                trial, or the part is not above 0 and below 100 percent.
            StaleGeneration: if the slot is not at `expected_generation` any more.
        """
        # With all of it nothing would be beside the canary, and no guard could see harm.
        if not 0 < percent < 100:
            raise PromotionRefused(
                f"A canary gets more than 0 and less than 100 percent, not {percent!r}. "
                f"'flows promote {slot}' gives all traffic, 'flows slots canary {slot} --end' none."
            )
        with self._moving(slot, digest) as (connection, state, version):
            check_report(connection, state, version, report, override)
            check_generation(state, expected_generation, "Look at 'flows slots list'.")
            check_trial(state, digest)
            if (state.canary, state.canary_percent) == (digest, percent):
                return Change(state=state, changed=False)
            new = state.changed(canary=digest, canary_percent=float(percent))
            told = overridden_by(override) | dict(note or {})
            return swap(connection, state, new, "canary", judged_by=report.key, note=told)

    def end_canary(
        self, slot: str, expected_generation: int | None = None, note: Note | None = None
    ) -> Change:
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
            return swap(connection, state, new, "canary", note=note)

    def remark(
        self,
        slot: str,
        kind: Literal["hold", "override"],
        note: Note,
        expected_generation: int | None = None,
    ) -> Change:
        """Log who decided what about a slot; what it serves stays.

        Raises:
            StaleGeneration: if the slot is not at `expected_generation` any more.
        """
        with self._database.writing() as connection:
            state = state_of(connection, slot)
            check_generation(state, expected_generation, "Look at 'flows slots list'.")
            return swap(connection, state, state.changed(), kind, note=note)

    def events(self, slot: str | None = None, newest: int | None = None) -> tuple[Event, ...]:
        """Return the log, oldest first, of one slot or of all; only the `newest` if asked so."""
        with self._database.reading() as connection:
            return tuple(read_events(connection, slot, newest))

    def history(
        self, slot: str, digest: str | None = None, newest: int = 1000
    ) -> tuple[Tenure, ...]:
        """Return who served when in a slot, or when one version did, oldest first.

        Raises:
            UnknownSlot: naming those there are.
        """
        with self._database.reading() as connection:
            state_of(connection, slot)
            if digest is None:
                return tenures(connection, slot, newest)
            return tenures_of(connection, slot, digest, newest)

    def verify_chain(self) -> int:
        """Recompute the whole log and compare it with the slots; return the number of events.

        Raises:
            CorruptRegistry: naming the first event or slot that is not as written.
        """
        with self._database.snapshot() as connection:
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
