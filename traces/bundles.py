"""Turns with all that is known about them, in one sorted stream.

A turn's calls repeat each other's messages, so the stream brings a turn, then each message of
its calls once, then the calls. DuckDB sorts on disk where memory is short; Python holds one
turn at a time. In: a relation that says which turns, in which order. Out: `TurnBundle`s.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import duckdb

from serving.records import Hop, Message, Turn
from traces.blame import Blame
from traces.bodies import hop_of
from traces.outcomes import Outcome
from traces.tables import TABLES, record_of

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


def read_bundles(
    connection: duckdb.DuckDBPyConnection,
    picked: str,
    parameters: dict[str, Any] | None = None,
    *,
    outcomes: str = "outcomes",
    at: str = "",
) -> Iterator[TurnBundle]:
    """Yield turns in order.

    `picked` is a query for `key`, the order, `turn_id`, and `whole`, whether with its hops;
    `outcomes` the relation of the outcomes; `at` a DuckLake `AT (...)` clause.
    """
    reader = connection.execute(_stream_sql(picked, outcomes, at), parameters).to_arrow_reader(
        _BATCH_ROWS
    )
    rows = (row for batch in reader for row in batch.to_pylist())
    for _, parts in groupby(rows, key=lambda row: row["key"]):
        yield _bundle(parts)


def _packed(table: str, alias: str) -> str:
    columns = ", ".join(f'"{c.name}" := {alias}."{c.name}"' for c in TABLES[table])
    return f"CASE WHEN {alias}.{TABLES[table][0].name} IS NOT NULL THEN struct_pack({columns}) END"


def _stream_sql(picked: str, outcomes: str, at: str) -> str:
    hop = ", ".join(
        f'"{c.name}" := h."{c.name}"' for c in TABLES["hops"] if c.name != "message_ids"
    )
    return f"""
    WITH picked AS MATERIALIZED ({picked}),
    stored AS NOT MATERIALIZED (
        SELECT p.key, p.whole, t.* FROM picked p JOIN (SELECT * FROM turns {at}) t USING (turn_id)),
    links AS MATERIALIZED (
        SELECT key, unnest(hop_ids) AS hop_id, generate_subscripts(hop_ids, 1) AS place
        FROM stored WHERE whole),
    told AS NOT MATERIALIZED (
        SELECT l.key, l.place, h.* FROM links l
        JOIN (SELECT * FROM hops {at}) h USING (hop_id)),
    said AS (SELECT DISTINCT key, day, unnest(message_ids) AS message_id FROM told)
    SELECT t.key, 0 AS kind, 0 AS place, {_packed("turns", "t")} AS turn,
           {_packed("outcomes", "o")} AS outcome, {_packed("blame", "b")} AS blame,
           NULL AS message_id, NULL AS body, NULL AS hop, NULL AS message_ids
    FROM stored t LEFT JOIN (SELECT * FROM {outcomes}) o USING (turn_id)
    LEFT JOIN (SELECT * FROM blame {at}) b USING (turn_id)
    UNION ALL
    SELECT s.key, 1, 0, NULL, NULL, NULL, s.message_id::VARCHAR, m.body, NULL, NULL
    FROM said s JOIN (SELECT * FROM messages {at}) m USING (day, message_id)
    UNION ALL
    SELECT h.key, 2, h.place, NULL, NULL, NULL, NULL, NULL, struct_pack({hop}),
           h.message_ids::VARCHAR[]
    FROM told h
    ORDER BY 1, 2, 3
    """


def _bundle(parts: Iterator[dict[str, Any]]) -> TurnBundle:
    first = next(parts)
    turn = record_of(Turn, "turns", first["turn"])
    outcome = Outcome(turn_id=turn.turn_id, success=None, tier=None, rule="unjudged")
    if first["outcome"] is not None:
        outcome = record_of(Outcome, "outcomes", first["outcome"])
    messages: dict[str, Message] = {}
    hops: list[Hop] = []
    for part in parts:
        if part["hop"] is None:
            messages[part["message_id"]] = Message.model_validate_json(part["body"])
        else:
            hops.append(hop_of(part["hop"], part["message_ids"], messages))
    blame = first["blame"]
    return TurnBundle(
        turn, tuple(hops), outcome, None if blame is None else record_of(Blame, "blame", blame)
    )
