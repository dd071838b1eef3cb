"""What later stages read: turns with their hops, outcome and blame, and preference pairs.

In: a home folder. Out: `TurnBundle`s, ordered by turn id, one at a time; `PreferencePair`s.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from serving.records import Message
from traces.attribution.replayed import Preference
from traces.bundles import TurnBundle as TurnBundle
from traces.bundles import read_bundles
from traces.storage.connections import lake_cursor
from traces.storage.frugality import little_memory
from traces.storage.lake import Lake
from traces.storage.row_records import record_of

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


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """A better and a worse answer of one adapter, with what it was shown."""

    preference: Preference
    prompt: tuple[Message, ...]
    """What the hop saw."""
    tools: str
    """JSON text of the tools it was offered."""


def read_preferences(
    home: Path, *, slot: str | None = None, snapshot: int | None = None
) -> Iterator[PreferencePair]:
    """Yield preference pairs ordered by turn id and pair id.

    Only of turns whose failure still stands at the latest attribution, with the replay that made
    the pair: a later check may have passed the worse answer, or replaced what was checked against.

    `slot` keeps the pairs of that slot's adapters; `snapshot` reads the lake as it was.

    Raises:
        LakeNotFound: if nothing was ingested yet.
    """
    with Lake.open(home, read_only=True) as lake, little_memory(lake.connection):
        at = f"AT (VERSION => {int(snapshot if snapshot is not None else lake.snapshot_id())})"
        where = "slot = $slot" if slot is not None else "true"
        values = {"slot": slot} if slot is not None else None
        bundles = read_bundles(
            lake.connection,
            "SELECT DISTINCT turn_id AS key, turn_id, true AS whole"
            f" FROM preferences {at} WHERE {where}"
            f" AND turn_id IN (SELECT turn_id FROM blame {at} WHERE verdict IS NOT NULL)",
            values,
            outcomes=f"outcomes {at}",
            at=at,
        )
        cursor = lake_cursor(lake.connection)
        for bundle in bundles:
            hops = {hop.hop_id: hop for hop in bundle.hops}
            cursor.execute(
                f"SELECT * FROM preferences {at}"
                f" WHERE turn_id = $turn AND {where} ORDER BY pair_id",
                {"turn": bundle.turn.turn_id, **(values or {})},
            )
            names = [column[0] for column in cursor.description]
            for row in cursor.fetchall():
                pair = record_of(Preference, "preferences", dict(zip(names, row, strict=True)))
                hop = hops.get(pair.hop_id)
                if hop is not None:
                    yield PreferencePair(pair, hop.messages, hop.tools)
