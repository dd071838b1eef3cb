"""Joined turns: what the lake's hops make of themselves where nobody recorded a turn.

- Hops that name a turn without a record (spans of a trace) are that turn, in whatever order
  and however late they come. Only the turns that got hops are made anew.
- Hops that name none are joined by `traces.join`, all of a source if it got new ones.

A turn's position is its place by time among all turns of its conversation, recorded ones
included. In: a connection inside a commit, and `Changes`. Out: the rows of `turns`.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

import duckdb

from traces.changes import Changes
from traces.loose import join_loose
from traces.tables import TABLES
from traces.turn_rows import ASKED, PLACES, add_rows, days_of

_COLUMNS = [f'"{c.name}"' for c in TABLES["turns"] if c.name != "position"]
_CONTENT = f"hash({', '.join(_COLUMNS)})"
_HOPS = (
    'SELECT hop_id, source, conversation_id, turn_id, "user", seq, role, model, served_name,'
    " message_ids, completion, response_id, span_id, status, error, started_at, duration_s,"
    " canary, workload, task, day FROM"
)


def remake(connection: duckdb.DuckDBPyConnection, changes: Changes) -> tuple[int, int]:
    """Bring the joined turns to what the hops say, as far as `changes` concern them.

    Returns:
        Turns that are new, and turns that changed or went away.
    """
    if not _concerned(connection, changes):
        return 0, 0
    _write_after(connection, changes)
    _find_before(connection, changes)
    connection.execute(_POSITIONS)
    return _apply(connection)


def _write_after(connection: duckdb.DuckDBPyConnection, changes: Changes) -> None:
    """Write the turns as they are to be."""
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE join_after AS SELECT {', '.join(_COLUMNS)} FROM turns"
        " WHERE false"
    )
    _group_named(connection, changes)
    for source in changes.sources:
        connection.execute(PLACES)
        connection.execute(ASKED)
        join_loose(connection, source)
        add_rows(
            connection, f"{_HOPS} hops WHERE turn_id IS NULL", days_of(connection, "join_loose")
        )


def _concerned(connection: duckdb.DuckDBPyConnection, changes: Changes) -> bool:
    """Whether there are joined turns, or are to be: a lake may hold recorded ones alone."""
    if changes.everything or changes.sources:
        return True
    found = connection.execute(
        "SELECT 1 FROM join_turn_ids UNION ALL"
        " (SELECT 1 FROM turns WHERE origin = 'joined' AND conversation_id IN"
        "  (SELECT conversation_id FROM join_conversations)) LIMIT 1"
    ).fetchall()
    return bool(found)


def _group_named(connection: duckdb.DuckDBPyConnection, changes: Changes) -> None:
    """Make the rows of turns that their hops name."""
    hops = (
        f"{_HOPS} hops WHERE turn_id IS NOT NULL AND turn_id NOT IN"
        " (SELECT turn_id FROM turns WHERE origin = 'recorded')"
    )
    if not changes.everything:
        _read_touched(connection, changes)
        hops = "SELECT * FROM join_hops"
    connection.execute(PLACES)
    connection.execute(ASKED)
    connection.execute(
        "INSERT INTO join_places BY NAME SELECT turn_id, hop_id,"
        " row_number() OVER (PARTITION BY turn_id"
        "  ORDER BY seq, started_at, len(message_ids), hop_id) AS place"
        f" FROM ({hops})"
    )
    add_rows(connection, hops, days_of(connection, f"({hops})"))


def _read_touched(connection: duckdb.DuckDBPyConnection, changes: Changes) -> None:
    """Gather all hops of the turns that got or lost some, in `join_hops`.

    What came in is in few files of its own; the rest is looked up on the days of these turns.
    """
    low, high = changes.before.consumed_bytes + 1, changes.after.consumed_bytes
    shrank = connection.execute("SELECT bool_or(shrank) FROM join_turn_ids").fetchall()[0][0]
    which = "false" if shrank else "turn_id IN (SELECT turn_id FROM join_turn_ids)"
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE join_hops AS {_HOPS}"
        f" ducklake_table_insertions('lake', 'main', 'hops', {low}, {high}) WHERE {which}"
    )
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE join_known AS SELECT turn_id, unnest([day,"
        " CAST(started_at + to_microseconds((duration_s * 1e6)::BIGINT) AS DATE)]) AS day"
        " FROM turns WHERE origin = 'joined' AND turn_id IN (SELECT turn_id FROM join_turn_ids)"
    )
    if shrank:
        connection.execute(
            "INSERT INTO join_known SELECT turn_id, unnest([day, last_day]) FROM join_turn_ids"
        )
    connection.execute(
        f"INSERT INTO join_hops {_HOPS} hops WHERE {days_of(connection, 'join_known')}"
        " AND turn_id IN (SELECT turn_id FROM join_known)"
        " AND hop_id NOT IN (SELECT hop_id FROM join_hops)"
    )


def _find_before(connection: duckdb.DuckDBPyConnection, changes: Changes) -> None:
    """Write `join_before`: the rows to compare with, and others of the same conversations."""
    if changes.everything:
        remade = "true"
    else:
        remade = """
            turn_id IN (SELECT turn_id FROM join_turn_ids)
            OR list_contains($sources, source) AND turn_id NOT IN
               (SELECT turn_id FROM hops
                WHERE turn_id IS NOT NULL AND list_contains($sources, source))
        """
    sources = {} if changes.everything else {"sources": list(changes.sources)}
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE join_before AS SELECT turn_id, conversation_id, started_at,"
        f" day, position, {_CONTENT} AS content, true AS remade"
        f" FROM turns WHERE origin = 'joined' AND ({remade})",
        sources,
    )
    connection.execute(
        "INSERT INTO join_conversations SELECT conversation_id FROM join_before"
        " UNION SELECT conversation_id FROM join_after"
    )
    connection.execute(
        "INSERT INTO join_before SELECT turn_id, conversation_id, started_at, day, position,"
        " NULL, false FROM turns WHERE origin = 'joined'"
        " AND conversation_id IN (SELECT conversation_id FROM join_conversations)"
        " AND turn_id NOT IN (SELECT turn_id FROM join_before)"
    )


_POSITIONS = """
    CREATE OR REPLACE TEMP TABLE join_positions AS
    SELECT turn_id, count(*) FILTER (recorded) OVER by_time
           + count(*) FILTER (NOT recorded) OVER in_order - 1 AS position
    FROM (
        SELECT turn_id, conversation_id, started_at, false AS recorded FROM join_after
        UNION ALL
        SELECT turn_id, conversation_id, started_at, false FROM join_before WHERE NOT remade
        UNION ALL
        SELECT turn_id, conversation_id, started_at, true FROM turns WHERE origin = 'recorded'
        AND conversation_id IN (SELECT conversation_id FROM join_conversations))
    WINDOW by_time AS (PARTITION BY conversation_id ORDER BY started_at),
           in_order AS (PARTITION BY conversation_id ORDER BY started_at, turn_id
                        ROWS UNBOUNDED PRECEDING)
    QUALIFY NOT recorded
"""

_FATES = f"""
    CREATE OR REPLACE TEMP TABLE join_fates AS
    SELECT turn_id, b.day, p.position,
           CASE WHEN b.turn_id IS NULL THEN 'new'
                WHEN b.remade AND a.turn_id IS NULL THEN 'gone'
                WHEN a.content <> b.content THEN 'changed'
                WHEN p.position <> b.position THEN 'moved' END AS fate
    FROM join_before b
    FULL JOIN (SELECT turn_id, {_CONTENT} AS content FROM join_after) a USING (turn_id)
    LEFT JOIN join_positions p USING (turn_id)
"""


def _apply(connection: duckdb.DuckDBPyConnection) -> tuple[int, int]:
    """Write what differs."""
    connection.execute(_FATES)
    counts = dict(
        connection.execute("SELECT fate, count(*) FROM join_fates GROUP BY fate").fetchall()
    )

    def having(*fates: str) -> str:
        names = "', '".join(fates)
        return f"join_fates WHERE fate IN ('{names}')"

    if counts.keys() & {"changed", "gone"}:
        days = days_of(connection, having("changed", "gone"))
        connection.execute(
            f"DELETE FROM turns WHERE {days} AND origin = 'joined' AND turn_id IN"
            f" (SELECT turn_id FROM {having('changed', 'gone')})"
        )
    if counts.keys() & {"changed", "new"}:
        connection.execute(
            "INSERT INTO turns BY NAME SELECT a.*, f.position FROM join_after a"
            f" JOIN (SELECT turn_id, position FROM {having('changed', 'new')}) f USING (turn_id)"
        )
    if "moved" in counts:
        days = days_of(connection, having("moved"))
        connection.execute(
            "UPDATE turns SET position = f.position FROM"
            f" (SELECT turn_id, position FROM {having('moved')}) f"
            f" WHERE turns.turn_id = f.turn_id AND turns.origin = 'joined' AND turns.{days}"
        )
    updated = sum(counts.get(fate, 0) for fate in ("changed", "gone", "moved"))
    return counts.get("new", 0), updated
