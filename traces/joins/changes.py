"""What came in since turns were last joined, found by DuckLake's change feed.

The mark is a row of `offsets`: the newest snapshot that the join has seen and how much there
was. In: a connection inside a commit. Out: `Changes`, and two temporary tables:
`join_turn_ids`, turns without a record that got hops; `join_conversations`, conversations whose
recorded turns changed. Where the feed does not reach back that far (the snapshot has expired),
or something was taken out of the lake, `everything` is to be joined again.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

from dataclasses import dataclass
from typing import Any

import duckdb

from traces.sources.source import Offset

MARK = "join"
_VERSION = 3
"""Moves when joining the same rows gives other turns."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What the join has to look at."""

    before: Offset
    after: Offset
    """The mark that goes with it."""
    everything: bool
    sources: tuple[str, ...] = ()
    """Sources whose hops without a turn id, or whose client requests, got company."""
    news: bool = True
    """Whether the mark has to move."""


def find_changes(connection: duckdb.DuckDBPyConnection) -> Changes:
    """Compare the lake with the mark."""
    rows = connection.execute(
        "SELECT consumed_bytes, consumed_digest FROM offsets WHERE source_id = $id", {"id": MARK}
    ).fetchall()
    before = Offset(*rows[0]) if rows else Offset()
    now = _state(connection)
    after = Offset(now[0], _digest(*now[1:]))
    _create(connection, "join_turn_ids", "SELECT NULL::VARCHAR AS turn_id WHERE false")
    _create(connection, "join_conversations", "SELECT NULL::VARCHAR AS conversation_id WHERE false")
    known = _counts(before)
    if known is not None and before.consumed_bytes == now[0]:
        return Changes(before, after, everything=False, news=False)
    low = before.consumed_bytes + 1
    if known is not None and _exists(connection, low) and _read_feed(connection, low, known, now):
        return _since(connection, before, after)
    return Changes(before, after, everything=True, sources=_all_sources(connection))


def next_mark(connection: duckdb.DuckDBPyConnection) -> Offset:
    """Return the mark for a commit under way that brings nothing to join.

    It makes the next snapshot: that no other commit can get in between is the lake's promise.
    """
    snapshot, hops, requests = _state(connection)
    return Offset(snapshot + 1, _digest(hops, requests))


def _state(connection: duckdb.DuckDBPyConnection) -> tuple[int, int, int]:
    """Return the newest snapshot, and how many hops and requests there are."""
    row: tuple[int, int, int] = connection.execute(
        "SELECT (SELECT id FROM current_snapshot()),"
        " (SELECT count(*) FROM hops), (SELECT count(*) FROM requests)"
    ).fetchall()[0]
    return row


def _digest(hops: int, requests: int) -> str:
    return f"{_VERSION}:{hops}:{requests}"


def _exists(connection: duckdb.DuckDBPyConnection, snapshot_id: int) -> bool:
    """Return whether a snapshot has not expired; to ask the feed for it would end the commit."""
    rows = connection.execute(
        "SELECT 1 FROM __ducklake_metadata_lake.ducklake_snapshot WHERE snapshot_id = $id",
        {"id": snapshot_id},
    ).fetchall()
    return bool(rows)


def _counts(mark: Offset) -> tuple[int, int] | None:
    """Return hops and requests at the mark; None if it is of another version, or missing."""
    parts = mark.consumed_digest.split(":")
    if parts[0] != str(_VERSION):
        return None
    return int(parts[1]), int(parts[2])


def _create(connection: duckdb.DuckDBPyConnection, table: str, query: str) -> None:
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {table} AS {query}")


def _read_feed(
    connection: duckdb.DuckDBPyConnection,
    low: int,
    known: tuple[int, int],
    now: tuple[int, int, int],
) -> bool:
    """Read what was added and taken out; return whether that is all that happened."""

    def feed(table: str, what: str = "insertions") -> str:
        return f"ducklake_table_{what}('lake', 'main', '{table}', {low}, {now[0]})"

    for table, query in {
        # A hop that is told of again replaces what it was.
        "join_fresh": f"""
            SELECT turn_id, source, min(day) AS day, max(day) AS last_day, sum(n) AS hops,
                   bool_or(n < 0) AS shrank
            FROM (SELECT turn_id, source, day, 1 AS n FROM {feed("hops")} UNION ALL
                  SELECT turn_id, source, day, -1 FROM {feed("hops", "deletions")})
            GROUP BY turn_id, source""",
        "join_fresh_requests": f"SELECT source, count(*) AS requests FROM {feed('requests')}"
        " GROUP BY ALL",
        "join_recorded": "SELECT DISTINCT turn_id, source, conversation_id"
        f" FROM {feed('turns')} WHERE origin = 'recorded'",
        "join_replaced": "SELECT turn_id, conversation_id, origin"
        f" FROM {feed('turns', 'deletions')}",
    }.items():
        _create(connection, table, query)
    added = connection.execute(
        "SELECT (SELECT coalesce(sum(hops), 0) FROM join_fresh),"
        " (SELECT coalesce(sum(requests), 0) FROM join_fresh_requests),"
        " (SELECT count(*) FROM join_replaced ANTI JOIN join_recorded USING (turn_id)"
        "  WHERE origin = 'recorded')"
    ).fetchall()[0]
    return (known[0] + added[0], known[1] + added[1], 0) == (*now[1:], added[2])


def _since(connection: duckdb.DuckDBPyConnection, before: Offset, after: Offset) -> Changes:
    _create(connection, "join_turn_ids",
            "SELECT turn_id, min(day) AS day, max(last_day) AS last_day, bool_or(shrank) AS shrank"
            " FROM join_fresh ANTI JOIN join_recorded USING (turn_id)"
            " WHERE turn_id IS NOT NULL GROUP BY turn_id")  # fmt: skip
    if _any(connection, "join_turn_ids"):
        connection.execute(
            "DELETE FROM join_turn_ids WHERE turn_id IN"
            " (SELECT turn_id FROM turns WHERE origin = 'recorded')"
        )
    _create(connection, "join_conversations",
            "SELECT conversation_id FROM join_recorded UNION"
            " SELECT conversation_id FROM join_replaced SEMI JOIN join_recorded USING (turn_id)"
            )  # fmt: skip
    sources = connection.execute(
        "SELECT source FROM join_fresh WHERE turn_id IS NULL"
        " UNION SELECT source FROM join_fresh_requests"
        # A recorded turn may take hops that had none.
        " UNION SELECT source FROM hops WHERE turn_id IS NULL"
        "  AND source IN (SELECT source FROM join_recorded)"
        " ORDER BY source"
    ).fetchall()
    news = any(
        _any(connection, table) for table in ("join_fresh", "join_fresh_requests", "join_recorded")
    )
    return Changes(before, after, False, tuple(row[0] for row in sources), news)


def _any(connection: duckdb.DuckDBPyConnection, table: str) -> bool:
    rows: list[Any] = connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchall()
    return bool(rows)


def _all_sources(connection: duckdb.DuckDBPyConnection) -> tuple[str, ...]:
    rows = connection.execute(
        "SELECT source FROM hops WHERE turn_id IS NULL"
        " UNION SELECT source FROM requests ORDER BY source"
    ).fetchall()
    return tuple(row[0] for row in rows)
