"""The rows of all replays, at hand while turns are blamed.

Replays are few: each was paid for in engine calls. In: the lake at one snapshot, and which turns
are similar. Out: the rows of a turn, and those of turns like it.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import duckdb

from traces.attribution.replayed import Replay, Similar
from traces.storage.row_records import record_of

MOST_SIMILAR = 50
"""Replays of so many similar turns are added to a turn's own."""


@dataclass(frozen=True, slots=True)
class Replays:
    """Rows by turn, and turns by cluster."""

    by_turn: Mapping[str, Sequence[Replay]] = field(default_factory=dict)
    answered: Mapping[str, str] = field(default_factory=dict)
    """Slot that answered each replayed turn."""
    cluster_of: Mapping[str, int] = field(default_factory=dict)
    members: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Replayed turns of each cluster, in order of their ids."""

    @classmethod
    def of(
        cls, connection: duckdb.DuckDBPyConnection, at: str, cluster_of: Mapping[str, int]
    ) -> "Replays":
        """Read the replays of turns that still stand as they were when they were replayed."""
        relation = connection.execute(
            "SELECT r.*, t.slot AS answered FROM"
            f" (SELECT * FROM replays {at}) r JOIN judged.turns t USING (turn_id)"
            " WHERE NOT t.superseded ORDER BY r.turn_id, r.slot"
        )
        names = [column[0] for column in relation.description]
        by_turn: dict[str, list[Replay]] = defaultdict(list)
        answered: dict[str, str] = {}
        for values in relation.fetchall():
            row = dict(zip(names, values, strict=True))
            by_turn[row["turn_id"]].append(record_of(Replay, "replays", row))
            answered[row["turn_id"]] = row["answered"]
        members: dict[int, list[str]] = defaultdict(list)
        for turn_id in by_turn:
            if turn_id in cluster_of:
                members[cluster_of[turn_id]].append(turn_id)
        return cls(dict(by_turn), answered, cluster_of, dict(members))

    def rows(self, turn_id: str) -> Sequence[Replay]:
        """Return the rows of a turn; none if it was not replayed."""
        return self.by_turn.get(turn_id, ())

    def similar(self, turn_id: str) -> list[Similar]:
        """Return the replays of other turns like this one that the same slot answered."""
        cluster = self.cluster_of.get(turn_id)
        if cluster is None:
            return []
        alike = (
            other
            for other in self.members.get(cluster, ())
            if other != turn_id and self.answered[other] == self.answered[turn_id]
        )
        return [
            Similar(self.answered[other], self.by_turn[other])
            for other, _ in zip(alike, range(MOST_SIMILAR), strict=False)
        ]
