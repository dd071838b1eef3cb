"""What the registry keeps, as records: versions, slots, events.

Immutable; the registry turns them into rows and back.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import AwareDatetime, Field, field_validator

from serving.records import SLOT_PATTERN, AdapterVersion, Record, content_id

BASE = "base"
"""What `SlotState.previous` says where the bare base model served before."""
GENESIS = "genesis"
"""`previous_hash` of the first event."""
EventKind = Literal["bootstrap", "promote", "rollback", "canary", "configure", "hold", "override"]
CHAMPION_MOVES: frozenset[EventKind] = frozenset({"bootstrap", "promote", "rollback"})
"""Events after which a slot may have another champion; the others leave it.

`canary` begins, changes or ends a canary, `configure` says anew what the slot is for, `hold`
stops or resumes a canary's growth, and `override` lets a report promote that cannot by itself."""


class RegisteredVersion(AdapterVersion):
    """One adapter version with its origin."""

    slot: str = Field(pattern=SLOT_PATTERN)
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    base_digest: str
    manifest_digest: str | None = None
    """Dataset it learned from; None for an imported adapter."""
    run_key: str | None = None
    metrics: dict[str, Any] = Field(default_factory=dict)
    path: str
    """Its folder, relative to the home folder."""
    created_at: AwareDatetime
    signer: str | None = None
    """Fingerprint of the key that signed its artifact."""

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise ValueError(f"path {path!r} must be relative to the home folder and stay in it")
        return path


class SlotState(Record):
    """What a slot serves."""

    slot: str
    base_digest: str | None
    """Base model of its adapters; None until the first one."""
    champion: str | None
    """Digest; None while the bare base model serves."""
    previous: str | None
    """What a rollback returns to: a digest, `base`, or None if there is nothing."""
    canary: str | None
    """Digest of the version that gets a part of the traffic."""
    canary_percent: float = 0.0
    generation: int
    """Counts the changes."""

    @property
    def never_served(self) -> bool:
        """Whether no version was ever its champion."""
        return self.champion is None and self.previous is None

    @property
    def champion_name(self) -> str | None:
        """Name the champion is served under; None for the base."""
        return _served_name(self.slot, self.champion)

    @property
    def previous_name(self) -> str | None:
        """Name of the previous champion, `base`, or None."""
        return BASE if self.previous == BASE else _served_name(self.slot, self.previous)

    @property
    def canary_name(self) -> str | None:
        """Name the canary is served under."""
        return _served_name(self.slot, self.canary)

    @classmethod
    def new(cls, slot: str) -> Self:
        """Return a slot that never changed."""
        return cls(
            slot=slot, base_digest=None, champion=None, previous=None, canary=None, generation=0
        )

    def moved(self, **changes: str | None) -> Self:
        """Return the slot one generation on, with its champion as previous and no canary.

        A canary was judged against the champion that goes.
        """
        left = {"previous": self.champion or BASE, "canary": None, "canary_percent": 0.0}
        return self.changed(**left | changes)

    def changed(self, **changes: Any) -> Self:
        """Return the slot one generation on."""
        return self.model_copy(update={**changes, "generation": self.generation + 1})


class Change(Record):
    """What a request left behind."""

    state: SlotState
    changed: bool
    """False if the slot was as asked already."""


class Override(Record):
    """A person's word that lets a report promote: it did not pass, or is from before a rollback."""

    id: str
    report_key: str
    slot: str
    challenger: str
    """Digest."""
    by: str
    """Who says so."""
    reason: str
    expires_at: AwareDatetime
    at: AwareDatetime

    @property
    def is_over(self) -> bool:
        """Whether it has expired."""
        return self.expires_at <= datetime.now(UTC)


class Event(Record):
    """One entry of the log: a slot's state after a change."""

    seq: int
    at: AwareDatetime
    slot: str
    kind: EventKind
    payload: str
    """JSON text: the slot's new `state`, its `traits` where they changed, for a canary the
    key of the gate `report` that allowed it, and a `note` of who did it and why."""
    report_key: str | None
    previous_hash: str
    hash: str

    @field_validator("payload")
    @classmethod
    def _says_a_state(cls, payload: str) -> str:
        said = json.loads(payload)
        if not isinstance(said, dict) or not isinstance(said.get("note", {}), dict):
            raise ValueError("a payload is an object, and so is its note")
        SlotState.model_validate(said.get("state"))
        return payload

    @property
    def computed_hash(self) -> str:
        """What `hash` must be."""
        return content_id(self.model_dump(mode="json", exclude={"hash"}))

    @property
    def state(self) -> SlotState:
        """The slot after this event."""
        return SlotState.model_validate(json.loads(self.payload)["state"])

    @property
    def note(self) -> dict[str, Any]:
        """Who did it and why, where somebody said it."""
        return dict(json.loads(self.payload).get("note", {}))


class Tenure(Record):
    """A version's time as champion."""

    slot: str
    champion: str | None
    """Digest; None for the bare base model."""
    since: AwareDatetime
    until: AwareDatetime | None
    """None while it serves."""
    by: EventKind
    generation: int


def _served_name(slot: str, digest: str | None) -> str | None:
    return None if digest is None else AdapterVersion(slot=slot, digest=digest).name
