"""The slot table: which slots there are and which version each of them serves.

The registry writes it as `<home>/slots.json`; serving reads it. Adding a slot, giving it
another version or splitting a canary off is another table, never another program.
"""

from pathlib import Path, PurePosixPath
from typing import Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from serving.disk import write_atomic
from serving.errors import MolError
from serving.records import (
    SCHEMA_VERSION,
    SLOT_PATTERN,
    Record,
    canonical_json,
    parse_adapter_name,
    short_digest,
)
from serving.routing import parse_rule
from serving.slots import Profile, Slot

SlotRole = Literal["router", "expert", "head"]
"""`router` writes routes, `expert` answers, `head` is the small network that routes instead."""
Tier = Literal["core", "extra"]
DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"


class SlotTableInvalid(MolError, ValueError):
    """A slot table cannot be read or contradicts itself."""


class StaleTable(MolError, RuntimeError):
    """A slot table was made from another one than is in force."""


class SlotTraits(Record):
    """What a slot is for, whichever version it serves."""

    role: SlotRole = "expert"
    description: str = ""
    """What the router is told about it."""
    routing_rule: str = ""
    """Words and phrases, separated by commas, that ask for this slot; `!` before one makes it
    override the router."""
    tier: Tier = "core"
    """An `extra` slot that cannot be loaded is left out; the server is ready without it."""
    system: str = ""
    """System prompt of its answer hops, where the profile has none."""
    offers_tools: bool = False
    """Whether the client's tools are passed to it."""

    @field_validator("routing_rule")
    @classmethod
    def _is_a_rule(cls, rule: str) -> str:
        parse_rule(rule)
        return rule


class SlotEntry(SlotTraits):
    """One slot and what it serves, as `slots.json` says it."""

    slot: str = Field(pattern=SLOT_PATTERN)
    champion: str | None = None
    """Served name, `L2@3fa9c1d2e4b5`; None for the bare base model."""
    digest: str | None = Field(default=None, pattern=DIGEST_PATTERN)
    path: str | None = None
    """The champion's folder, relative to the home folder."""
    previous: str | None = None
    """Name a rollback returns to, `base`, or None."""
    previous_digest: str | None = Field(default=None, pattern=DIGEST_PATTERN)
    """With `previous_path`, so that the engine has it ready; tables of earlier code lack both."""
    previous_path: str | None = None
    canary: str | None = None
    """Served name of the version that gets a part of the traffic."""
    canary_digest: str | None = Field(default=None, pattern=DIGEST_PATTERN)
    canary_path: str | None = None
    canary_percent: float = Field(default=0.0, ge=0.0, le=100.0)
    """Part of the conversations that the canary answers."""
    generation: int = Field(default=0, ge=0)
    """Counts the changes of this slot."""

    @field_validator("path", "canary_path", "previous_path")
    @classmethod
    def _stays_inside(cls, path: str | None) -> str | None:
        if path is not None:
            parts = PurePosixPath(path)
            if parts.is_absolute() or ".." in parts.parts or not parts.parts or "\0" in path:
                raise ValueError(f"path {path!r} must be relative to the home folder, inside it")
        return path

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        _check_version(self.slot, "champion", self.champion, self.digest, self.path)
        _check_version(self.slot, "canary", self.canary, self.canary_digest, self.canary_path)
        if self.previous_digest is not None or self.previous_path is not None:
            told = (self.previous, self.previous_digest, self.previous_path)
            _check_version(self.slot, "previous", *told)
        if self.canary is None and self.canary_percent:
            raise ValueError(f"canary_percent {self.canary_percent!r} needs a canary")
        if self.canary is not None and self.canary == self.champion:
            raise ValueError(f"canary {self.canary!r} is the champion already")
        return self


class SlotFile(Record):
    """The content of `slots.json`."""

    schema_version: int = SCHEMA_VERSION
    slots: tuple[SlotEntry, ...]

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.schema_version != SCHEMA_VERSION:
            raise ValueError(
                f"schema_version {self.schema_version!r} is not {SCHEMA_VERSION!r}, which is read"
            )
        names = [entry.slot for entry in self.slots]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"slot {twice[0]!r} stands there twice")
        return self

    def get(self, slot: str) -> SlotEntry | None:
        """Return a slot's entry, None if there is none."""
        return next((entry for entry in self.slots if entry.slot == slot), None)


def read_slot_file(path: Path) -> SlotFile:
    """Read a slot table.

    Raises:
        SlotTableInvalid: if the file cannot be read or a field is wrong.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SlotTableInvalid(
            f"Cannot read the slot table {str(path)!r}: {error.strerror or error}. "
            "'flows serve' writes it."
        ) from error
    return parse_slot_file(data, f"Slot table {str(path)!r}")


def parse_slot_file(data: bytes, called: str = "The slot table") -> SlotFile:
    """Read a slot table from JSON.

    Raises:
        SlotTableInvalid: naming the first field that is wrong.
    """
    try:
        return SlotFile.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "as a whole"
        given = first["input"]
        shown = "" if isinstance(given, dict | list | SlotTraits) else f", got {given!r:.80}"
        raise SlotTableInvalid(
            f"{called}: {field}: {first['msg']}{shown}. 'flows serve' writes a right one."
        ) from error


def slot_file_bytes(table: SlotFile) -> bytes:
    """Return a slot table as it is written."""
    return (canonical_json(table.model_dump(mode="json")) + "\n").encode()


def write_slot_file(path: Path, table: SlotFile) -> None:
    """Write a slot table as a whole.

    Raises:
        DiskFull: if it could not be stored; the file is as it was.
    """
    write_atomic(path, slot_file_bytes(table))


def check_newer(old: SlotFile, new: SlotFile) -> None:
    """Raise StaleTable unless `new` follows on `old`, slot by slot."""
    for entry in old.slots:
        other = new.get(entry.slot)
        if other is None:
            raise StaleTable(
                f"The table has no slot {entry.slot!r}, which is in force at generation "
                f"{entry.generation!r}. Read the table again and change that one."
            )
        if other != entry and other.generation <= entry.generation:
            raise StaleTable(
                f"Slot {entry.slot!r} is in force at generation {entry.generation!r}; a change "
                f"of it needs a higher one than {other.generation!r}. Read the table again."
            )


def effective_profile(profile: Profile, table: SlotFile) -> Profile:
    """Return the profile with the table's slots, those of role `head` apart.

    The profile's own slots keep their prompts and order, a slot that only the table knows
    comes after them; a description in the table wins. The router stays in any case. A table
    without slots changes nothing.
    """
    entries = {entry.slot: entry for entry in table.slots if entry.role != "head"}
    if not entries:
        return profile
    slots = [
        _described(slot, entries.get(slot.name))
        for slot in profile.slots
        if slot.name in entries or slot.name == profile.router
    ]
    known = set(profile.labels)
    slots += [
        Slot(
            name=entry.slot,
            description=entry.description,
            system=entry.system,
            offers_tools=entry.offers_tools,
        )
        for entry in entries.values()
        if entry.slot not in known
    ]
    return profile.model_copy(update={"slots": tuple(slots)})


def traits_of(profile: Profile, slot: Slot) -> SlotTraits:
    """Return what a slot is for, as the profile says it."""
    return SlotTraits(
        role="router" if slot.name == profile.router else "expert",
        description=slot.description,
        system=slot.system,
        offers_tools=slot.offers_tools,
    )


def _described(slot: Slot, entry: SlotEntry | None) -> Slot:
    if entry is None or not entry.description or entry.description == slot.description:
        return slot
    return slot.model_copy(update={"description": entry.description})


def _check_version(
    slot: str, what: str, name: str | None, digest: str | None, path: str | None
) -> None:
    """Refuse a version of which a part is missing or whose name is another's."""
    if name is None and digest is None and path is None:
        return
    if name is None or digest is None or path is None:
        raise ValueError(f"{what} of slot {slot!r} needs name, digest and path, or none of them")
    owner, short = parse_adapter_name(name)
    if owner != slot or short != short_digest(digest):
        raise ValueError(
            f"{what} {name!r} is not the name of digest {short_digest(digest)!r} in slot {slot!r}"
        )
