"""Rows of joined turns, made by SQL from their hops and client requests.

In: two relations of the connection, and hops as in the lake.
`join_places (turn_id, hop_id, place, started_at)`: which hops are a turn's, from place 1.
`join_asked`: what is known of a turn but from its hops; see `ASKED`.
Out: rows of `turns` in `join_after`; their `position` is still to be found. A `part` of them is
made, and later stored, at a time.
"""

# Names come from our own declarations; values are bound.
# ruff: noqa: S608

import duckdb

from serving.records import NO_KEY, SCHEMA_VERSION
from traces.ending import MAX_DURATION_S

ASKED = """
CREATE OR REPLACE TEMP TABLE join_asked (
    turn_id VARCHAR, source VARCHAR, conversation_id VARCHAR, "user" VARCHAR,
    started_us BIGINT, ended_us BIGINT,
    request VARCHAR,         -- what the client asked; NULL: as the hops say
    routed_request VARCHAR,  -- the same of a turn without an answer hop
    answer VARCHAR, response_ids VARCHAR[], decision VARCHAR, abandoned BOOLEAN, error VARCHAR)
"""
"""What client requests say of a turn, and who it is where its hops do not know."""

PLACES = """
CREATE OR REPLACE TEMP TABLE join_places (
    turn_id VARCHAR, hop_id VARCHAR, place BIGINT, started_at TIMESTAMPTZ)
"""

HOP_COLUMNS = (
    'hop_id, source, conversation_id, turn_id, "user", seq, role, model, served_name, message_ids,'
    " completion, response_id, span_id, status, error, started_at, duration_s, canary, workload,"
    " task, day"
)
"""What the rows are made from, and what they are grouped by."""

_PART_TURNS = 30_000
"""Lists of ids and rows about to be written are held in memory."""

_NAME = "coalesce(served_name, model)"

# One row a turn; texts are fetched afterwards by place, for they would not fit in memory.
_SUMS = f"""
    SELECT turn_id,
           arg_min(source, place) AS source,
           arg_min(conversation_id, place) AS conversation_id,
           arg_min(nullif("user", ''), place) AS "user",
           arg_min(workload, place) AS workload, arg_min(task, place) AS task,
           -- Sorted afterwards: an ordered aggregate is slow where groups are small.
           list_sort(list({{'place': place, 'hop_id': hop_id, 'ids': CASE WHEN role = 'answer'
                            THEN [response_id, span_id] ELSE [] END}})) AS parts,
           min(epoch_us(started_at)) AS started_us,
           -- An older lake may hold any number, and one beyond a BIGINT is an error here.
           max(epoch_us(started_at) + round(
               greatest({-MAX_DURATION_S}, least(duration_s, {MAX_DURATION_S})) * 1e6)::BIGINT)
               AS ended_us,
           bool_or(canary) AS canary,
           max(place) FILTER (role = 'route') AS route_place,
           min(place) FILTER (role = 'answer') AS first_answer,
           max(place) FILTER (role = 'answer') AS last_answer,
           arg_max({{'status': status, 'why': coalesce(nullif(error, ''), status), 'error': error,
                     'slot': split_part({_NAME}, '@', 1),
                     'digest': nullif(substr({_NAME}, strpos({_NAME}, '@') + 1), {_NAME})}},
                   place) FILTER (role = 'answer') AS last,
           arg_max(coalesce(nullif(error, ''), status), place) FILTER (status <> 'ok') AS broken
    FROM members GROUP BY turn_id
"""

_GIVEN = "list_filter(ids, lambda id: id <> '')"
# In order; comparing each with each only where some are the same.
_UNIQUE = f"""
    CASE WHEN len(list_distinct({_GIVEN})) = len({_GIVEN}) THEN {_GIVEN}
         ELSE list_filter({_GIVEN}, lambda id, i: list_position({_GIVEN}, id) = i) END
"""

_STATUS = """
    CASE WHEN abandoned THEN 'abandoned'
         WHEN client_error IS NOT NULL THEN 'failed'
         WHEN last IS NULL THEN CASE WHEN client_answer IS NOT NULL THEN 'ok'
                                     WHEN broken IS NOT NULL THEN 'failed' ELSE 'abandoned' END
         WHEN last.status IN ('engine_error', 'broken_stream') THEN 'failed'
         WHEN last.status = 'abandoned' THEN 'abandoned'
         ELSE 'ok' END
"""

_ERROR = """
    CASE WHEN abandoned THEN client_error
         WHEN client_error IS NOT NULL THEN
             CASE WHEN len(hop_ids) = 0 THEN 'request refused: ' || client_error
                  WHEN broken IS NOT NULL THEN client_error || ' (' || broken || ')'
                  ELSE client_error END
         WHEN last IS NULL THEN CASE WHEN client_answer IS NOT NULL THEN NULL
                                     ELSE coalesce(broken, 'no answer hop') END
         WHEN last.status IN ('engine_error', 'broken_stream') THEN last.why
         WHEN last.status = 'abandoned' THEN last.error END
"""

# How the turn got its slot: as the harness says, else as the hops show.
_DECISION = """
    CASE WHEN contains(said, 'fallback') THEN 'fallback'
         WHEN route_place IS NULL THEN
             CASE WHEN contains(said, 'sticky') OR resumes THEN 'sticky' ELSE 'direct' END
         WHEN last IS NOT NULL AND said IS NULL AND chosen IS DISTINCT FROM last.slot
             THEN 'fallback'
         ELSE 'routed' END
"""


def days_of(connection: duckdb.DuckDBPyConnection, relation: str) -> str:
    """Return a condition on `day` that holds for all rows of a relation.

    It names literals, so that DuckLake looks only into the files of these days.
    """
    low, high = connection.execute(f"SELECT min(day), max(day) FROM {relation}").fetchall()[0]
    return "false" if low is None else f"day BETWEEN DATE '{low}' AND DATE '{high}'"


def add_rows(connection: duckdb.DuckDBPyConnection, hops: str) -> None:
    """Add the rows of all turns of `join_places` and `join_asked` to `join_after`.

    `hops` is the relation that has their hops. Turns of about the same time are made together,
    so that only the hops of that time are looked at.
    """
    connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE join_parts AS
        SELECT turn_id, low, high, (row_number() OVER () - 1) // {_PART_TURNS} AS part FROM (
            SELECT turn_id, min(started_at) AS low, max(started_at) AS high
            FROM (SELECT turn_id, started_at FROM join_places UNION ALL
                  SELECT turn_id, make_timestamp(started_us) AT TIME ZONE 'UTC' FROM join_asked)
            GROUP BY turn_id ORDER BY low, turn_id)
        """
    )
    parts = connection.execute(
        "SELECT part, min(low), max(high) FROM join_parts GROUP BY part ORDER BY part"
    ).fetchall()
    first = connection.execute("SELECT coalesce(max(part), -1) + 1 FROM join_after").fetchall()
    for part, low, high in parts:
        which = f"turn_id IN (SELECT turn_id FROM join_parts WHERE part = {part})"
        days = f"day BETWEEN DATE '{low.date()}' AND DATE '{high.date()}'"
        times = f"started_at BETWEEN '{low}' AND '{high}'"
        own = f"SELECT {HOP_COLUMNS} FROM {hops} WHERE {days} AND {times}"
        connection.execute(
            f"INSERT INTO join_after BY NAME SELECT *, {first[0][0] + part} AS part"
            f" FROM ({_rows_sql(own, days, which)})"
        )


def _rows_sql(hops: str, days: str, which: str) -> str:
    return f"""
    WITH places AS (SELECT * EXCLUDE (started_at) FROM join_places WHERE {which}),
    members AS NOT MATERIALIZED (
        SELECT p.turn_id, p.place, h.* EXCLUDE (turn_id)
        FROM ({hops}) h JOIN places p USING (hop_id)),
    asked_for AS (SELECT * FROM join_asked WHERE {which}),
    sums AS ({_SUMS}),
    {_texts(days)},
    said AS (
        SELECT s.turn_id, m.completion FROM sums s
        JOIN members m ON m.turn_id = s.turn_id AND m.place = s.last_answer),
    chosen AS (
        SELECT s.turn_id, trim(json_extract_string(m.completion, '$.content'),
                               chr(32) || chr(9) || chr(10) || chr(13)) AS chosen
        FROM sums s JOIN members m ON m.turn_id = s.turn_id AND m.place = s.route_place),
    facts AS (
        SELECT turn_id, coalesce(a.source, s.source) AS source,
               coalesce(a.conversation_id, nullif(s.conversation_id, '{NO_KEY}'), turn_id)
                   AS conversation_id,
               coalesce(a."user", s."user") AS "user",
               coalesce(a.request, CASE WHEN s.first_answer IS NULL THEN a.routed_request END,
                        t.request, '') AS request,
               coalesce(a.answer, d.completion) AS answer,
               coalesce(list_transform(s.parts, lambda p: p.hop_id), []) AS hop_ids,
               list_concat(coalesce(a.response_ids, []),
                           flatten(coalesce(list_transform(s.parts, lambda p: p.ids), []))) AS ids,
               coalesce(a.started_us, s.started_us) AS started_us,
               greatest(coalesce(a.ended_us, s.ended_us), coalesce(s.ended_us, a.ended_us))
                   AS ended_us,
               coalesce(s.canary, false) AS canary, s.workload, s.task, s.route_place,
               s.last, s.broken, coalesce(t.resumes, false) AS resumes, c.chosen,
               coalesce(a.abandoned, false) AS abandoned, a.error AS client_error,
               a.answer AS client_answer, a.decision AS said
        FROM sums s FULL JOIN asked_for a USING (turn_id)
        LEFT JOIN texts t USING (turn_id) LEFT JOIN said d USING (turn_id)
        LEFT JOIN chosen c USING (turn_id))
    SELECT turn_id, {SCHEMA_VERSION} AS schema_version, source, conversation_id, "user",
           request, answer,
           CASE WHEN last.status = 'ok' THEN last.slot END AS slot,
           CASE WHEN last.status = 'ok' THEN last.digest END AS digest,
           {_DECISION} AS decision, {_STATUS} AS status, {_ERROR} AS error,
           hop_ids, {_UNIQUE} AS response_ids, make_timestamp(started_us) AT TIME ZONE 'UTC'
               AS started_at,
           greatest(0, ended_us - started_us) / 1e6 AS duration_s, canary,
           NULL::VARCHAR AS supersedes, 'joined' AS origin, workload, task, '[]' AS tail,
           CAST(make_timestamp(started_us) AS DATE) AS day
    FROM facts
    """


def _texts(days: str) -> str:
    """Render what each turn was asked: the last user message of its first answer hop.

    Most often that is the last message; only of the others are all messages looked up.
    """
    return f"""
    bodies AS (SELECT day, message_id, role, body FROM messages WHERE {days}),
    asked AS (
        SELECT s.turn_id, m.day, m.message_ids, m.message_ids[-1] AS final, s.first_answer
        FROM sums s JOIN members m
          ON m.turn_id = s.turn_id AND m.place = coalesce(s.first_answer, 1)),
    ends AS (
        SELECT a.*, b.role, CASE WHEN b.role = 'user' THEN b.body END AS body
        FROM asked a LEFT JOIN bodies b ON b.day = a.day AND b.message_id = a.final),
    seen AS (
        SELECT turn_id, day, unnest(message_ids) AS message_id,
               generate_subscripts(message_ids, 1) AS place
        FROM ends WHERE body IS NULL),
    earlier AS (
        SELECT s.turn_id, arg_max(b.body, s.place) AS body
        FROM seen s JOIN bodies b ON b.day = s.day AND b.message_id = s.message_id
        WHERE b.role = 'user' GROUP BY s.turn_id),
    texts AS (
        SELECT turn_id,
               json_extract_string(coalesce(n.body, e.body), '$.content') AS request,
               n.first_answer IS NOT NULL AND n.role = 'tool' AS resumes
        FROM ends n LEFT JOIN earlier e USING (turn_id))
    """
