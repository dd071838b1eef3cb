"""Put a challenger in its slot, or go back: artifact, registry, then `slots.json`.

In: a gate report and a check of the artifact on disk. Out: the registry's new
champion and `<home>/slots.json`, which serving reads: per slot the champion's
name and folder. The registry decides; the file is a copy of it, written last.
A run killed in between is finished by running it again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from promotion.registry import Note, Registry
from promotion.signing import check_signature
from promotion.slot_rows import PromotionRefused
from promotion.state import BASE, Change, RegisteredVersion, SlotState
from serving.disk import DiskFull, write_atomic
from serving.errors import MolError
from serving.records import Record
from serving.slot_table import (
    SlotEntry,
    SlotFile,
    SlotTableInvalid,
    SlotTraits,
    read_slot_file,
    slot_file_bytes,
)

if TYPE_CHECKING:
    # The command that goes back waits for no statistics.
    from promotion.gate import GateReport

Verify = Callable[[Path], object]
"""Raises if the adapter folder is not what its digest says or cannot be served."""


class RegistryEmpty(MolError, RuntimeError):
    """The registry knows nothing of what `slots.json` has in service; nothing was written."""


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
    home: Path, report: "GateReport", *, verify: Verify, registry_url: str | None = None
) -> PromotionResult:
    """Make the challenger of a passed, or by a person overridden, report champion of its slot.

    `verify` gets the artifact's folder before anything changes, overridden or not. Doing it
    again changes nothing and says so.

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
            override = registry.log.override(report)
            registry.check(report, override)
            check_artifact(home, registry, version, verify)
            change = registry.promote(
                report.slot, version.digest, state.generation, report, override
            )
        export_slots(home, registry)
    words = "now serves" if change.changed else "serves already"
    return _result(change, f"Slot {report.slot!r} {words} {version.name!r}")


def rollback(
    home: Path,
    slot: str,
    *,
    verify: Verify | None = None,
    registry_url: str | None = None,
    note: Note | None = None,
) -> PromotionResult:
    """Swap champion and previous of a slot; `note` says `by` whom, and for which `reason`.

    If an earlier rollback was killed before `slots.json` was written, or was made in another home
    of the same registry, that one is finished instead of being undone; a `note` that is not its
    own is then not used, and the message says so.

    Raises:
        NoPrevious: if there is nothing to go back to.
        PromotionRefused: if the artifact to go back to is missing.
        VersionWithdrawn: if it was rolled back for harm, and `note` names nobody.
        UnknownSlot: naming the slots there are.
    """
    unused = ""
    with Registry.open(registry_url or home) as registry:
        check_copy(home, registry)
        state, exported = registry.slot(slot), read_slots(home).get(slot)
        moves = registry.log.moves(slot, newest=1)
        left = exported is None or exported.champion != state.champion_name
        if left and moves and moves[-1].kind == "rollback":
            change = Change(state=state, changed=False)
            if note and dict(note) != moves[-1].note:
                unused = (
                    f" Nothing else was done, and the word of {note.get('by')!r} was not used: run "
                    f"the same again to go back to {state.previous_name!r}."
                )
        else:
            if state.previous not in (None, BASE):
                version = registry.version(str(state.previous))
                check_artifact(home, registry, version, verify)
            change = registry.rollback(slot, state.generation, note)
        export_slots(home, registry)
    serves = change.state.champion_name or BASE
    words = "went back to" if change.changed else "finished going back to"
    result = _result(change, f"Slot {slot!r} {words} {serves!r}")
    return result.model_copy(update={"message": result.message + unused})


def bootstrap(
    home: Path, registry: Registry, slot: str, digest: str, verify: Verify | None = None
) -> Change:
    """Make a checked version champion of a slot that never had one, without a gate.

    Raises:
        PromotionRefused: if the slot had another champion, or the artifact is missing.
        SignatureRefused: if it is unsigned, or altered since it was signed.
    """
    check_artifact(home, registry, registry.version(digest), verify)
    return registry.bootstrap(slot, digest)


def begin_canary(
    home: Path,
    report: "GateReport",
    percent: float,
    *,
    verify: Verify,
    registry_url: str | None = None,
) -> PromotionResult:
    """Give the challenger of a passed, or by a person overridden, report a part of its traffic.

    Raises:
        PromotionRefused: if the report does not allow it or the artifact is missing.
        UnknownSlot, UnknownAdapter: if the registry does not know one of them.
    """
    with Registry.open(registry_url or home) as registry:
        state, version = registry.slot(report.slot), registry.version(report.challenger_digest)
        override = registry.log.override(report)
        registry.check(report, override)
        check_artifact(home, registry, version, verify)
        change = registry.begin_canary(
            report.slot, version.digest, percent, report, state.generation, override=override
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

    Raises:
        RegistryEmpty: if no slot of the registry ever served a version, but one in the file did.
        DiskFull: if it could not be written; the registry stays as it is.
    """
    path = home / "slots.json"
    check_copy(home, registry)
    while True:
        content = slot_file_bytes(slot_table(registry))
        if path.is_file() and path.read_bytes() == content:
            return path
        try:
            write_atomic(path, content)
        except DiskFull as error:
            why = getattr(error.__cause__, "strerror", None) or error.__cause__
            raise DiskFull(
                f"The registry {registry.label!r} is as asked for, but its copy {str(path)!r}, "
                f"which serving reads, is not yet: {why}. Free some space and run the same command "
                "again, which then writes the copy."
            ) from error


def check_copy(home: Path, registry: Registry) -> None:
    """Refuse an empty registry where `slots.json` has versions in service: it is another one.

    Raises:
        RegistryEmpty: naming both.
    """
    there = next((e for e in read_slots(home).slots if e.champion or e.previous), None)
    if there is not None and all(state.never_served for state in registry.slots()):
        path = str(home / "slots.json")
        raise RegistryEmpty(
            f"Registry {registry.label!r} never had a version in service, but {path!r} says that "
            f"{there.slot!r} serves {there.champion or BASE!r} (generation {there.generation}). "
            "Nothing was written. Name the right one as 'url' under '[registry]' or restore it "
            f"from a copy; to start with this one, move {path!r} away."
        )


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
    back = None if state.previous == BASE else state.previous
    return SlotEntry(
        **traits.model_dump(),
        slot=state.slot,
        champion=state.champion_name,
        digest=state.champion,
        path=registry.version(state.champion).path if state.champion else None,
        previous=state.previous_name,
        previous_digest=back,
        previous_path=registry.version(back).path if back else None,
        canary=state.canary_name,
        canary_digest=state.canary,
        canary_path=registry.version(state.canary).path if state.canary else None,
        canary_percent=state.canary_percent,
        generation=state.generation,
    )


def check_artifact(
    home: Path, registry: Registry, version: RegisteredVersion, verify: Verify | None = None
) -> None:
    """Check that a version's folder is there, signed by a known key, and passes `verify`.

    Raises:
        PromotionRefused: if the folder is missing.
        SignatureRefused: if it is unsigned, or altered since it was signed.
    """
    path = home / version.path
    if not path.is_dir():
        raise PromotionRefused(
            f"Adapter {version.name!r} is registered, but its folder {str(path)!r} is missing; "
            "nothing was changed. Restore the folder or run 'flows run train' again."
        )
    check_signature(path, version.name, version.digest, registry.signers.keys())
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
