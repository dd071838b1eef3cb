"""The harness in force for a turn: prompts, slots, rules and the trained router.

They follow from the profile and the slot table that the turn's lease was taken from, so a
turn that began under an older table keeps what it began with.
"""

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from serving.config import RouterConfig
from serving.errors import MolError
from serving.head import HeadInvalid, RouterHead
from serving.leases import Lease
from serving.loading import Verify
from serving.slot_table import SlotEntry, SlotFile, effective_profile
from serving.slots import Profile

_TABLES_IN_MEMORY = 8


@dataclass(frozen=True, slots=True)
class Harness:
    """What a turn is made with, beside its versions."""

    profile: Profile
    rules: tuple[tuple[str, str], ...]
    """Slot and routing rule, in the table's order."""
    head: RouterHead | None


class Harnesses:
    """Makes the harness of a slot table, once each."""

    def __init__(
        self, profile: Profile, home: Path, router: RouterConfig, verify: Verify | None = None
    ) -> None:
        """`verify` raises a `MolError` for a version that must not be loaded."""
        self._verify = verify
        self._profile = profile
        self._home = home
        self._router = router
        self._made: OrderedDict[int, tuple[SlotFile, Harness]] = OrderedDict()

    def of(self, lease: Lease) -> Harness:
        """Return the harness of a lease's table.

        Raises:
            HeadInvalid: if the table's router head cannot be used.
        """
        # By identity: comparing tables would cost more than the rest of a short turn.
        made = self._made.get(id(lease.slots))
        if made is not None and made[0].slots is lease.slots:
            return made[1]
        served = SlotFile.model_construct(slots=lease.slots)
        harness = self.make(served, lease.table)
        self._made[id(lease.slots)] = (served, harness)
        while len(self._made) > _TABLES_IN_MEMORY:
            self._made.popitem(last=False)
        return harness

    def check(self, table: SlotFile) -> None:
        """Refuse a table whose router head cannot be used.

        Raises:
            HeadInvalid: saying why.
        """
        head = self._head(table)
        if self._verify is not None and head is not None and head.champion and head.digest:
            try:
                self._verify(head.champion, head.digest, self._home / str(head.path))
            except MolError as error:
                raise HeadInvalid(f"{head.champion!r} is not loaded: {error}") from error
        self.make(table, table)

    def make(self, served: SlotFile, table: SlotFile) -> Harness:
        """Return the harness for the slots that are served of a table.

        Raises:
            HeadInvalid: if the table's router head cannot be used.
        """
        profile = effective_profile(self._profile, served)
        rules = tuple((e.slot, e.routing_rule) for e in served.slots if e.routing_rule)
        head, loaded = self._head(table), None
        if head is not None and head.path is not None:
            loaded = RouterHead.load(
                self._home / head.path, head.digest, effective_profile(self._profile, table).labels
            )
        return Harness(profile, rules, loaded)

    def _head(self, table: SlotFile) -> SlotEntry | None:
        """Return the head that a table routes by, None if there is none."""
        if self._router.mode != "head":
            return None
        return next((e for e in table.slots if e.role == "head" and e.path), None)
