"""Joined turns: what the lake's hops make of themselves where nobody recorded a turn.

- Hops that name a turn without a record (spans of a trace) are that turn, in whatever order
  and however late they come. Only the turns that got hops are made anew.
- Hops that name none are joined by `traces.joins.join`, all of a source if it got new ones.

A turn's position is its place by time among all turns of its conversation, recorded ones
included. In: a connection inside a commit, and `Changes`. Out: the rows of `turns`.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

import duckdb

from traces.joins.changes import Changes
from traces.joins.loose import join_loose
from traces.joins.turn_rows import ASKED, HOP_COLUMNS, PLACES, add_rows, days_of
from traces.storage.tables import TABLES

_COLUMNS = [f'"{c.name}"' for c in TABLES["turns"] if c.name != "position"]
_CONTENT = f"hash({', '.join(_COLUMNS)})"


def remake(connection: duckdb.DuckDBPyConnection, changes: Changes) -> tuple[int, int]:
    """Bring the joined turns to what the hops say, as far as `changes` concern them.

    Returns:
        Turns that are new, and turns that changed or went away.
    """
    if not _concerned(connection, changes):
        return 0, 0
    _write_after(connection, changes)
    _find_before(connection, changes)
    _find_positions(connection)
    return _apply(connection)


def _write_after(connection: duckdb.DuckDBPyConnection, changes: Changes) -> None:
    """Write the turns as they are to be."""
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE join_after AS SELECT {', '.join(_COLUMNS)},"
        " 0::BIGINT AS part FROM turns WHERE false"
    )
    _group_named(connection, changes)
    for source in changes.sources:
        connection.execute(PLACES)
        connection.execute(ASKED)
        join_loose(connection, source)
        add_rows(connection, "hops")


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
    hops = "hops"
    if not changes.everything:
        _read_touched(connection, changes)
        hops = "join_hops"
    connection.execute(PLACES)
    connection.execute(ASKED)
    connection.execute(
        "INSERT INTO join_places BY NAME SELECT turn_id, hop_id, started_at,"
        " row_number() OVER (PARTITION BY turn_id"
        "  ORDER BY seq, started_at, len(message_ids), hop_id) AS place"
        f" FROM {hops} WHERE turn_id IS NOT NULL"
        " AND turn_id NOT IN (SELECT turn_id FROM turns WHERE origin = 'recorded')"
    )
    add_rows(connection, hops)


def _read_touched(connection: duckdb.DuckDBPyConnection, changes: Changes) -> None:
    """Gather all hops of the turns that got or lost some, in `join_hops`.

    What came in is in few files of its own; the rest is looked up on the days of these turns.
    """
    low, high = changes.before.consumed_bytes + 1, changes.after.consumed_bytes
    shrank = connection.execute("SELECT bool_or(shrank) FROM join_turn_ids").fetchall()[0][0]
    which = "false" if shrank else "turn_id IN (SELECT turn_id FROM join_turn_ids)"
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE join_hops AS SELECT {HOP_COLUMNS} FROM"
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
    days = days_of(connection, "join_known")
    connection.execute(
        f"INSERT INTO join_hops SELECT {HOP_COLUMNS} FROM hops WHERE {days}"
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
        f" day, hop_ids[1] AS first_hop, position, {_CONTENT} AS content, true AS remade"
        f" FROM turns WHERE origin = 'joined' AND ({remade})",
        sources,
    )
    connection.execute(
        "INSERT INTO join_conversations SELECT conversation_id FROM join_before"
        " UNION SELECT conversation_id FROM join_after"
    )
    connection.execute(
        "INSERT INTO join_before SELECT turn_id, conversation_id, started_at, day,"
        " hop_ids[1], position, NULL, false FROM turns WHERE origin = 'joined'"
        " AND conversation_id IN (SELECT conversation_id FROM join_conversations)"
        " AND turn_id NOT IN (SELECT turn_id FROM join_before)"
    )


def _find_positions(connection: duckdb.DuckDBPyConnection) -> None:
    """Write `join_positions`.

    Many logs tell no time, or whole seconds: of turns that began at the same time, the one whose
    first call saw less of the conversation came first.
    """
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE join_order AS"
        " SELECT turn_id, conversation_id, started_at, day, hop_ids[1] AS first_hop"
        " FROM join_after UNION ALL"
        " SELECT turn_id, conversation_id, started_at, day, first_hop"
        " FROM join_before WHERE NOT remade"
    )
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE join_ties AS SELECT first_hop, day FROM join_order"
        " QUALIFY count(*) OVER (PARTITION BY conversation_id, started_at) > 1"
    )
    # A turn's first hop lies on its day, or just after midnight.
    days = days_of(connection, "(SELECT unnest([day, day + 1]) AS day FROM join_ties)")
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE join_saw AS SELECT hop_id, len(message_ids) AS saw"
        f" FROM hops WHERE {days} AND hop_id IN (SELECT first_hop FROM join_ties)"
    )
    connection.execute(_POSITIONS)


_POSITIONS = """
    CREATE OR REPLACE TEMP TABLE join_positions AS
    SELECT turn_id, count(*) FILTER (recorded) OVER by_time
           + count(*) FILTER (NOT recorded) OVER in_order - 1 AS position
    FROM (
        SELECT o.turn_id, o.conversation_id, o.started_at, coalesce(s.saw, 0) AS saw,
               false AS recorded
        FROM join_order o LEFT JOIN join_saw s ON s.hop_id = o.first_hop
        UNION ALL
        SELECT turn_id, conversation_id, started_at, 0, true FROM turns
        WHERE origin = 'recorded'
        AND conversation_id IN (SELECT conversation_id FROM join_conversations))
    WINDOW by_time AS (PARTITION BY conversation_id ORDER BY started_at),
           in_order AS (PARTITION BY conversation_id ORDER BY started_at, saw, turn_id
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
        _insert(connection, f"SELECT turn_id, position FROM {having('changed', 'new')}")
    if "moved" in counts:
        days = days_of(connection, having("moved"))
        connection.execute(
            "UPDATE turns SET position = f.position FROM"
            f" (SELECT turn_id, position FROM {having('moved')}) f"
            f" WHERE turns.turn_id = f.turn_id AND turns.origin = 'joined' AND turns.{days}"
        )
    updated = sum(counts.get(fate, 0) for fate in ("changed", "gone", "moved"))
    return counts.get("new", 0), updated


def _insert(connection: duckdb.DuckDBPyConnection, chosen: str) -> None:
    """Store rows part by part: Parquet files are made in memory."""
    parts = connection.execute(
        f"SELECT DISTINCT part FROM join_after SEMI JOIN ({chosen}) USING (turn_id) ORDER BY part"
    ).fetchall()
    for (part,) in parts:
        connection.execute(
            f"INSERT INTO turns BY NAME SELECT a.* EXCLUDE (part), f.position FROM join_after a"
            f" JOIN ({chosen}) f USING (turn_id) WHERE a.part = {part}"
        )
