"""Put a challenger in its slot, or go back: artifact, registry, then `slots.json`.

In: a gate report and a check of the artifact on disk. Out: the registry's new
champion and `<home>/slots.json`, which serving reads: per slot the champion's
name and folder. The registry decides; the file is a copy of it, written last.
A run killed in between is finished by running it again.
"""

from collections.abc import Callable
from pathlib import Path

from promotion.gate import GateReport
from promotion.registry import Registry
from promotion.slot_rows import PromotionRefused
from promotion.state import BASE, Change, SlotState
from serving.disk import write_atomic
from serving.records import Record
from serving.slot_table import (
    SlotEntry,
    SlotFile,
    SlotTableInvalid,
    SlotTraits,
    read_slot_file,
    slot_file_bytes,
)

Verify = Callable[[Path], object]
"""Raises if the adapter folder is not what its digest says or cannot be served."""


class PromotionResult(Record):
    """What a promotion, a rollback or a canary left behind."""

    slot: str
    changed: bool
    champion: str | None
    """Served name; None for the bare base model."""
    previous: str | None
    generation: int
    message: str


def promote(
    home: Path, report: GateReport, *, verify: Verify, registry_url: str | None = None
) -> PromotionResult:
    """Make the challenger of a passed report champion of its slot.

    `verify` gets the artifact's folder before anything changes. Doing it again
    changes nothing and says so.

    Raises:
        PromotionRefused: if the report does not allow it or the artifact is missing.
        UnknownSlot, UnknownAdapter: if the registry does not know one of them.
    """
    with Registry.open(registry_url or home) as registry:
        state = registry.slot(report.slot)
        version = registry.version(report.challenger_digest)
        if state.champion == version.digest:
            change = Change(state=state, changed=False)
        else:
            registry.check(report)
            _check_artifact(home, version.path, version.name, verify)
            change = registry.promote(report.slot, version.digest, state.generation, report)
        export_slots(home, registry)
    words = "now serves" if change.changed else "serves already"
    return _result(change, f"Slot {report.slot!r} {words} {version.name!r}")


def rollback(
    home: Path, slot: str, *, verify: Verify | None = None, registry_url: str | None = None
) -> PromotionResult:
    """Swap champion and previous of a slot.

    If an earlier rollback was killed before `slots.json` was written, that one
    is finished instead of being undone.

    Raises:
        NoPrevious: if there is nothing to go back to.
        PromotionRefused: if the artifact to go back to is missing.
        UnknownSlot: naming the slots there are.
    """
    with Registry.open(registry_url or home) as registry:
        state = registry.slot(slot)
        events = registry.events(slot)
        exported = {entry.slot: entry.generation for entry in read_slots(home).slots}
        if events and events[-1].kind == "rollback" and exported.get(slot) != state.generation:
            change = Change(state=state, changed=False)
        else:
            if state.previous not in (None, BASE):
                version = registry.version(str(state.previous))
                _check_artifact(home, version.path, version.name, verify)
            change = registry.rollback(slot, state.generation)
        export_slots(home, registry)
    serves = change.state.champion_name or BASE
    words = "went back to" if change.changed else "finished going back to"
    return _result(change, f"Slot {slot!r} {words} {serves!r}")


def begin_canary(
    home: Path,
    report: GateReport,
    percent: float,
    *,
    verify: Verify,
    registry_url: str | None = None,
) -> PromotionResult:
    """Give the challenger of a passed report a part of its slot's traffic.

    Raises:
        PromotionRefused: if the report does not allow it or the artifact is missing.
        UnknownSlot, UnknownAdapter: if the registry does not know one of them.
    """
    with Registry.open(registry_url or home) as registry:
        state, version = registry.slot(report.slot), registry.version(report.challenger_digest)
        registry.check(report)
        _check_artifact(home, version.path, version.name, verify)
        change = registry.begin_canary(
            report.slot, version.digest, percent, report, state.generation
        )
        export_slots(home, registry)
    words = f"Slot {report.slot!r} gives {percent:g}% of its traffic to {version.name!r}"
    return _result(change, words)


def end_canary(home: Path, slot: str, *, registry_url: str | None = None) -> PromotionResult:
    """Give all of a slot's traffic back to its champion.

    Raises:
        UnknownSlot: naming the slots there are.
    """
    with Registry.open(registry_url or home) as registry:
        change = registry.end_canary(slot)
        export_slots(home, registry)
    words = "has no canary any more" if change.changed else "had no canary"
    return _result(change, f"Slot {slot!r} {words}")


def export_slots(home: Path, registry: Registry) -> Path:
    """Write `slots.json` from the registry and return its path; unchanged content stays.

    Looks again after writing: of several writers, whoever is last has written
    what the registry says.
    """
    path = home / "slots.json"
    while True:
        content = slot_file_bytes(slot_table(registry))
        if path.is_file() and path.read_bytes() == content:
            return path
        write_atomic(path, content)


def read_slots(home: Path) -> SlotFile:
    """Return what `slots.json` says; no slots if it is missing or damaged, as it is only a copy."""
    try:
        return read_slot_file(home / "slots.json")
    except SlotTableInvalid:
        return SlotFile(slots=())


def slot_table(registry: Registry) -> SlotFile:
    """Return the slot table that the registry stands for."""
    states = registry.slots()  # first, so that no slot is added between the two
    traits = registry.traits()
    return SlotFile(slots=tuple(_entry(registry, s, traits[s.slot]) for s in states))


def _entry(registry: Registry, state: SlotState, traits: SlotTraits) -> SlotEntry:
    return SlotEntry(
        **traits.model_dump(),
        slot=state.slot,
        champion=state.champion_name,
        digest=state.champion,
        path=registry.version(state.champion).path if state.champion else None,
        previous=state.previous_name,
        canary=state.canary_name,
        canary_digest=state.canary,
        canary_path=registry.version(state.canary).path if state.canary else None,
        canary_percent=state.canary_percent,
        generation=state.generation,
    )


def _check_artifact(home: Path, relative: str, name: str, verify: Verify | None) -> None:
    path = home / relative
    if not path.is_dir():
        raise PromotionRefused(
            f"Adapter {name!r} is registered, but its folder {str(path)!r} is missing; nothing was "
            "changed. Restore the folder or run 'flows run train' again."
        )
    if verify is not None:
        verify(path)


def _result(change: Change, words: str) -> PromotionResult:
    state = change.state
    return PromotionResult(
        slot=state.slot,
        changed=change.changed,
        champion=state.champion_name,
        previous=state.previous_name,
        generation=state.generation,
        message=f"{words} (generation {state.generation}).",
    )
