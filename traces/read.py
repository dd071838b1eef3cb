"""What later stages read: turns with their hops, outcome and blame, streamed in order.

In: a home folder. Out: `TurnBundle`s, ordered by turn id. DuckDB sorts on disk
where memory is short; Python holds one turn at a time.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

from serving.records import Hop, Turn
from traces.blame import Blame
from traces.bodies import hops_sql
from traces.lake import Lake
from traces.outcomes import Outcome
from traces.tables import TABLES, readable, record_of

_BATCH_ROWS = 1000


@dataclass(frozen=True, slots=True)
class TurnBundle:
    """A turn with all that is known about it."""

    turn: Turn
    hops: tuple[Hop, ...]
    """In the turn's order; shorter than `turn.hop_ids` if hops are missing."""
    outcome: Outcome
    """`unjudged` until the turn was attributed."""
    blame: Blame | None
    """None for a turn that did not fail."""


def read_turns(
    home: Path, *, slot: str | None = None, snapshot: int | None = None
) -> Iterator[TurnBundle]:
    """Yield turns ordered by turn id.

    `slot` keeps the turns that slot answered; `snapshot` reads the lake as it was.

    Raises:
        LakeNotFound: if nothing was ingested yet.
    """
    with Lake.open(home, read_only=True) as lake:
        yield from _bundles(lake, "t.slot = $slot" if slot else "true", slot, snapshot)


def _bundles(
    lake: Lake, where: str, value: str | None, snapshot: int | None
) -> Iterator[TurnBundle]:
    at = f"AT (VERSION => {int(snapshot)})" if snapshot is not None else ""
    columns = [f't."{c.name}" AS "t_{c.name}"' for c in TABLES["turns"]] + [
        f'{alias}."{c.name}" AS "{alias}_{c.name}"'
        for alias, table in (("h", "v_hops"), ("o", "outcomes"), ("b", "blame"))
        for c in readable(table)
    ]
    reader = lake.connection.execute(
        f"WITH picked AS (SELECT * FROM (SELECT * FROM turns {at}) t WHERE {where}),"
        " links AS (SELECT turn_id, unnest(hop_ids) AS hop_id,"
        " generate_subscripts(hop_ids, 1) AS place FROM picked)"
        f" SELECT {', '.join(columns)} FROM picked t"
        " LEFT JOIN links l ON l.turn_id = t.turn_id"
        f" LEFT JOIN ({hops_sql(at)}) h ON h.hop_id = l.hop_id"
        f" LEFT JOIN (SELECT * FROM outcomes {at}) o ON o.turn_id = t.turn_id"
        f" LEFT JOIN (SELECT * FROM blame {at}) b ON b.turn_id = t.turn_id"
        " ORDER BY t.turn_id, l.place",
        {"slot": value} if value is not None else None,
    ).to_arrow_reader(_BATCH_ROWS)
    for _, rows in groupby(_rows(reader), key=lambda row: row["t_turn_id"]):
        yield _bundle(list(rows))


def _rows(reader: pa.RecordBatchReader) -> Iterator[dict[str, Any]]:
    for batch in reader:
        yield from batch.to_pylist()


def _bundle(rows: list[dict[str, Any]]) -> TurnBundle:
    first = rows[0]
    turn = record_of(Turn, "turns", first, "t_")
    outcome = Outcome(turn_id=turn.turn_id, success=None, tier=None, rule="unjudged")
    if first["o_turn_id"] is not None:
        outcome = record_of(Outcome, "outcomes", first, "o_")
    return TurnBundle(
        turn=turn,
        hops=tuple(
            record_of(Hop, "v_hops", row, "h_") for row in rows if row["h_hop_id"] is not None
        ),
        outcome=outcome,
        blame=record_of(Blame, "blame", first, "b_") if first["b_turn_id"] is not None else None,
    )
