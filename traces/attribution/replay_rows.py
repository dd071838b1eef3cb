"""The rows of all replays, at hand while turns are blamed.

Replays are few: each was paid for in engine calls. In: the lake at one snapshot, and which turns
are similar. Out: the rows of a turn, and those of turns like it that the same versions answered.
What was checked against another reference than a turn has now counts nowhere.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb

from traces.attribution.outcomes import Outcome
from traces.attribution.references import references_of
from traces.attribution.replayed import Replay, Similar, current
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
        """Read the replays of turns that still stand, with the reference that they have now."""
        relation = connection.execute(
            "SELECT r.*, t.slot AS answered FROM"
            f" (SELECT * FROM replays {at}) r JOIN judged.turns t USING (turn_id)"
            " WHERE NOT t.superseded ORDER BY r.turn_id, r.slot"
        )
        names = [column[0] for column in relation.description]
        found: dict[str, list[Replay]] = defaultdict(list)
        answered: dict[str, str] = {}
        for values in relation.fetchall():
            row = dict(zip(names, values, strict=True))
            found[row["turn_id"]].append(record_of(Replay, "replays", row))
            answered[row["turn_id"]] = row["answered"]
        relation = connection.execute(
            "SELECT * FROM judged.outcomes"
            f" SEMI JOIN (SELECT turn_id FROM replays {at}) USING (turn_id) ORDER BY turn_id"
        )
        names = [column[0] for column in relation.description]
        by_turn: dict[str, list[Replay]] = {}
        for values in relation.fetchall():
            outcome = dict(zip(names, values, strict=True))
            rows = _current(found.get(outcome["turn_id"], ()), outcome)
            if rows:
                by_turn[outcome["turn_id"]] = rows
        members: dict[int, list[str]] = defaultdict(list)
        for turn_id in by_turn:
            if turn_id in cluster_of:
                members[cluster_of[turn_id]].append(turn_id)
        return cls(by_turn, answered, cluster_of, dict(members))

    def rows(self, turn_id: str) -> Sequence[Replay]:
        """Return the rows of a turn, one a slot; none if it was not replayed."""
        return self.by_turn.get(turn_id, ())

    def similar(self, turn_id: str) -> list[Similar]:
        """Return the replays of other turns like this one: same slot that answered, same arms.

        Were an arm of another version, or missing, turns of other difficulty would be added to
        it than to the rest.
        """
        cluster = self.cluster_of.get(turn_id)
        if cluster is None or turn_id not in self.by_turn:
            return []
        arms = _versions(self.by_turn[turn_id])
        alike = (
            other
            for other in self.members.get(cluster, ())
            if other != turn_id
            and self.answered[other] == self.answered[turn_id]
            and _versions(self.by_turn[other]) == arms
        )
        return [
            Similar(self.answered[other], self.by_turn[other])
            for other, _ in zip(alike, range(MOST_SIMILAR), strict=False)
        ]


def _current(rows: Sequence[Replay], outcome: Mapping[str, Any]) -> list[Replay]:
    """Return the rows that were checked against what the turn is checked against now."""
    try:
        references = references_of(record_of(Outcome, "outcomes", outcome))
        return [] if references is None else [*current(rows, references.name).values()]
    except (ValueError, RecursionError):
        return []  # whatever a record holds, it stops no other turn


def _versions(rows: Sequence[Replay]) -> dict[str, str | None]:
    return {row.slot: row.digest for row in rows}
