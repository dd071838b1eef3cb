"""Turns with all that is known about them, in one sorted stream.

A turn's calls repeat each other's messages, so the stream brings a turn, then each message of
its calls once, then the calls. DuckDB gathers and sorts on disk where memory is short; Python
holds one turn at a time. In: a relation that says which turns, in which order. Out: `TurnBundle`s.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import duckdb
import orjson
import pyarrow as pa

from serving.records import Hop, Message, Turn
from traces.attribution.blame import Blame
from traces.attribution.outcomes import Outcome
from traces.storage.bodies import hop_of
from traces.storage.row_records import record_of
from traces.storage.tables import TABLES, Column

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
    # One join after the other: together they would not fit in memory.
    for statement in _statements(picked, outcomes, at):
        connection.execute(statement, parameters if "$" in statement else None)
    reader = connection.execute(
        "SELECT * FROM bundle_parts ORDER BY key, kind, place"
    ).to_arrow_reader(_BATCH_ROWS)
    parts = (_Part(*row) for batch in reader for row in zip(*_values(batch), strict=True))
    for _, one in groupby(parts, key=lambda part: part.key):
        yield _bundle(one)


class _Part(NamedTuple):
    """A turn, one of the messages of its hops, or one of these."""

    key: Any
    kind: int
    place: int
    message_id: str | None
    text: str
    """JSON text of the row, or of the message."""


def _values(batch: pa.RecordBatch) -> list[list[Any]]:
    return [column.to_pylist() for column in batch.columns]


def _row(table: str, alias: str) -> str:
    """Render a row as JSON text: it sorts many times as fast as a nested value."""
    pairs = ", ".join(f"'{c.name}', {_value(c, alias)}" for c in TABLES[table])
    return f"json_object({pairs})"


def _value(column: Column, alias: str) -> str:
    name = f'{alias}."{column.name}"'
    return f"strftime({name}, '%Y-%m-%dT%H:%M:%S.%fZ')" if column.kind == "time" else name


def _statements(picked: str, outcomes: str, at: str) -> Iterator[str]:
    """Render what fills `bundle_parts`: turns (kind 0), messages (1) and hops (2)."""
    yield f"CREATE OR REPLACE TEMP TABLE bundle_picked AS {picked}"
    yield f"""
        CREATE OR REPLACE TEMP TABLE bundle_links AS
        SELECT p.key, unnest(t.hop_ids) AS hop_id, generate_subscripts(t.hop_ids, 1) AS place
        FROM bundle_picked p JOIN (SELECT * FROM turns {at}) t USING (turn_id) WHERE p.whole
    """
    yield f"""
        CREATE OR REPLACE TEMP TABLE bundle_parts AS
        SELECT p.key, 0 AS kind, 0::BIGINT AS place, NULL::VARCHAR AS message_id,
               json_object('turn', {_row("turns", "t")},
                   'outcome', CASE WHEN o.turn_id IS NOT NULL THEN {_row("outcomes", "o")} END,
                   'blame', CASE WHEN b.turn_id IS NOT NULL THEN {_row("blame", "b")} END
               )::VARCHAR AS text
        FROM bundle_picked p JOIN (SELECT * FROM turns {at}) t USING (turn_id)
        LEFT JOIN (SELECT * FROM {outcomes}) o ON o.turn_id = p.turn_id
        LEFT JOIN (SELECT * FROM blame {at}) b ON b.turn_id = p.turn_id
    """
    yield f"""
        INSERT INTO bundle_parts
        SELECT l.key, 2, l.place, NULL, {_row("hops", "h")}::VARCHAR
        FROM bundle_links l JOIN (SELECT * FROM hops {at}) h ON h.hop_id = l.hop_id
    """
    yield f"""
        INSERT INTO bundle_parts
        SELECT s.key, 1, 0, s.message_id::VARCHAR, m.body
        FROM (SELECT DISTINCT l.key, h.day, unnest(h.message_ids) AS message_id
              FROM bundle_links l JOIN (SELECT * FROM hops {at}) h USING (hop_id)) s
        JOIN (SELECT * FROM messages {at}) m
          ON m.day = s.day AND m.message_id = s.message_id
    """


def _bundle(parts: Iterator[_Part]) -> TurnBundle:
    first = orjson.loads(next(parts).text)
    turn = record_of(Turn, "turns", first["turn"])
    outcome = Outcome(turn_id=turn.turn_id, success=None, tier=None, rule="unjudged")
    if first["outcome"] is not None:
        outcome = record_of(Outcome, "outcomes", first["outcome"])
    messages: dict[str, Message] = {}
    hops: list[Hop] = []
    for part in parts:
        if part.message_id is not None:
            messages[part.message_id] = Message.model_validate_json(part.text)
        else:
            row = orjson.loads(part.text)
            hops.append(hop_of(row, row["message_ids"], messages))
    blame = first["blame"]
    return TurnBundle(
        turn, tuple(hops), outcome, None if blame is None else record_of(Blame, "blame", blame)
    )
