"""What later stages read: turns with their hops, outcome and blame, streamed in order.

In: a home folder. Out: `TurnBundle`s, ordered by turn id, one at a time.
"""

from collections.abc import Iterator
from pathlib import Path

from traces.bundles import TurnBundle as TurnBundle
from traces.bundles import read_bundles
from traces.storage.frugality import little_memory
from traces.storage.lake import Lake

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608


def read_turns(
    home: Path, *, slot: str | None = None, snapshot: int | None = None
) -> Iterator[TurnBundle]:
    """Yield turns ordered by turn id.

    `slot` keeps the turns that slot answered; `snapshot` reads the lake as it was.

    Raises:
        LakeNotFound: if nothing was ingested yet.
    """
    with Lake.open(home, read_only=True) as lake, little_memory(lake.connection):
        at = f"AT (VERSION => {int(snapshot if snapshot is not None else lake.snapshot_id())})"
        where = "slot = $slot" if slot is not None else "true"
        yield from read_bundles(
            lake.connection,
            f"SELECT turn_id AS key, turn_id, true AS whole FROM turns {at} WHERE {where}",
            {"slot": slot} if slot is not None else None,
            outcomes=f"outcomes {at}",
            at=at,
        )
