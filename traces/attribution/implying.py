"""Derive the implicit signals of every conversation of the lake.

In: the turns at one snapshot. Out: rows of `judged.derived`.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

from collections.abc import Iterator, Sequence
from datetime import UTC
from itertools import groupby
from typing import Any

import duckdb

from serving.records import NO_KEY, Feedback
from traces.attribution.derived import keep
from traces.attribution.signals import Exchange, implied
from traces.storage.connections import lake_cursor

_FETCH_ROWS = 1000
_COMPARED_CHARS = 4000

PLACED = "count(DISTINCT position) = count(*)"
"""Whether each turn of a conversation has a place of its own: then places are their order, also
where clocks run backwards. Turns that were asked anew from an earlier place share it; they, and
what followed them, are in order of time."""

# A conversation of one turn that was answered tells nothing. Of long requests the beginning is
# read, and a digest tells whether they are the same; of answers, whether they end with a question.
_EXCHANGES = f"""
    SELECT turn_id, conversation_id, "user",
           CASE WHEN length(request) > {_COMPARED_CHARS}
                THEN request[:{_COMPARED_CHARS}] || ' ' || md5(request) ELSE request END,
           CASE WHEN said <> '' THEN right(said, 240)
                WHEN json_array_length(answer, '$.tool_calls') > 0 THEN 'call' ELSE said END,
           status, started_at AT TIME ZONE 'UTC', duration_s, supersedes
    FROM (SELECT *, json_extract_string(answer, '$.content') AS said FROM turns {{at}}) t
    JOIN (SELECT conversation_id, count(*) AS turns, {PLACED} AS placed FROM turns {{at}}
          WHERE conversation_id <> '{NO_KEY}' GROUP BY conversation_id) c USING (conversation_id)
    WHERE c.turns > 1 OR status <> 'ok' OR coalesce(said, '') = ''
    ORDER BY conversation_id, if(c.placed, position, 0), started_at, position, turn_id
"""
_KNOWN_UNTIL = """
    SELECT max(known) FROM (SELECT started_at AS known FROM turns {at}
                            UNION ALL SELECT created_at FROM feedback {at})
    WHERE known <= now()
"""


def imply(connection: duckdb.DuckDBPyConnection, at: str) -> None:
    """Add implicit signals to `judged.derived`; `at` is a DuckLake `AT (...)` clause."""
    keep(connection, _signals(connection, at))


def _signals(connection: duckdb.DuckDBPyConnection, at: str) -> Iterator[Feedback]:
    cursor = lake_cursor(connection)
    known = cursor.execute(_KNOWN_UNTIL.format(at=at)).fetchall()[0][0]
    cursor.execute(_EXCHANGES.format(at=at))

    def exchanges() -> Iterator[Exchange]:
        while fetched := cursor.fetchmany(_FETCH_ROWS):
            yield from map(_exchange, fetched)

    for _, members in groupby(exchanges(), key=lambda turn: turn.conversation_id):
        turns = list(members)
        for index in range(len(turns)):
            yield from implied(turns, index, known)


def _exchange(row: Sequence[Any]) -> Exchange:
    *said, started_at, duration_s, supersedes = row
    # A time with a zone would be ten times as dear to fetch.
    return Exchange._make((*said, started_at.replace(tzinfo=UTC), duration_s, supersedes))
