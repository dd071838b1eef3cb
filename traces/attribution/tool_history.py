"""What tools gave back elsewhere: to the same call, and how their results look.

    history = ToolHistory.of(connection, at)
    history.elsewhere[turn_id][call_id]    # results of equal calls nearest in time
    history.shapes[source][name]           # how results look where turns went well

The same call is the same tool, offered among the same tools by the same source, with the same
arguments. In: the lake at one snapshot, and `judged.outcomes`. Only what failed turns called is
looked for, and only where the results differ; at most `MAX_CALLS` calls are kept.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb

from traces.attribution.tool_results import COMPARED_CHARS, Elsewhere, Shapes

MAX_CALLS = 10_000
"""Calls of failed turns, drawn by hash, whose results elsewhere are kept."""
_NEIGHBOURS = 3
"""Results of the same call before and after, each."""
_LAST_MESSAGES = 16
"""Results stand near the end of what the next call of the turn saw."""

_CALLED = """
    CREATE TABLE judged.called AS
    SELECT turn_id, source, "user", tools, began, made.id AS call_id, made.name AS name,
           coalesce(list_sort(map_entries(TRY_CAST(TRY_CAST(made.arguments AS JSON)
               AS MAP(VARCHAR, JSON))))::VARCHAR, made.arguments) AS arguments
    FROM (SELECT l.turn_id, l.source, l."user", hash(h.tools) AS tools, h.started_at AS began,
                 unnest(CAST(h.completion -> 'tool_calls'
                     AS STRUCT(id VARCHAR, name VARCHAR, arguments VARCHAR)[])) AS made
          FROM (SELECT hop_id, completion, tools, started_at FROM hops {at}
                WHERE role = 'answer' AND contains(completion, '"tool_calls":[{{')) h
          JOIN (SELECT turn_id, source, "user", unnest(hop_ids) AS hop_id FROM turns {at}) l
            USING (hop_id))
"""
# A result that a call of the turn saw, or that ended it. Where the ids of calls repeat within a
# view, nobody can tell which call it was of.
_RESULTS = f"""
    CREATE TABLE judged.results AS
    SELECT turn_id, call_id, any_value(content) AS content FROM (
        SELECT turn_id, body ->> 'tool_call_id' AS call_id, body ->> 'content' AS content
        FROM (SELECT turn_id, unnest(CAST(tail AS JSON[])) AS body
              FROM turns {{at}} WHERE tail <> '[]')
        UNION ALL
        SELECT s.turn_id, m.body ->> 'tool_call_id', m.body ->> 'content'
        FROM (SELECT l.turn_id, h.day, unnest(h.message_ids[-{_LAST_MESSAGES}:]) AS message_id
              FROM (SELECT turn_id, unnest(hop_ids) AS hop_id FROM turns {{at}}
                    WHERE turn_id IN (SELECT turn_id FROM judged.called)) l
              JOIN (SELECT hop_id, day, message_ids FROM hops {{at}} WHERE role <> 'route') h
                USING (hop_id)) s
        JOIN (SELECT day, message_id, body FROM messages {{at}} WHERE role = 'tool') m
          ON m.day = s.day AND m.message_id = s.message_id)
    WHERE call_id IS NOT NULL GROUP BY turn_id, call_id HAVING min(content) = max(content)
"""
_SHAPES = """
    SELECT c.source, c.name,
           CASE WHEN NOT json_valid(r.content) THEN 'text' ELSE CASE json_type(r.content)
               WHEN 'OBJECT' THEN 'object' WHEN 'ARRAY' THEN 'array' ELSE 'value' END END AS shape,
           count(*)
    FROM judged.called c JOIN judged.results r USING (turn_id, call_id)
    JOIN judged.outcomes o USING (turn_id) WHERE o.success GROUP BY ALL
"""
_ELSEWHERE = f"""
    WITH same AS (
        SELECT c.turn_id, c.call_id, c."user", c.began,
               left(r.content, {COMPARED_CHARS}) AS content,
               hash(c.source, c.tools, c.name, c.arguments) AS key
        FROM judged.called c JOIN judged.results r USING (turn_id, call_id)),
    near AS (
        SELECT *, list({{'turn': turn_id, 'user': "user", 'at': epoch(began), 'content': content}})
                  OVER (PARTITION BY key ORDER BY began, turn_id, call_id
                        ROWS BETWEEN {_NEIGHBOURS} PRECEDING AND {_NEIGHBOURS} FOLLOWING) AS others
        FROM same SEMI JOIN (SELECT s.key FROM same s JOIN judged.outcomes o USING (turn_id)
                             WHERE o.blamable) w USING (key))
    SELECT n.turn_id, n.call_id, n."user", epoch(n.began), n.others
    FROM near n JOIN judged.outcomes o USING (turn_id)
    WHERE o.blamable AND len(list_distinct([each.content FOR each IN n.others])) > 1
    ORDER BY hash(n.turn_id), n.turn_id, n.call_id LIMIT {MAX_CALLS}
"""


@dataclass(frozen=True, slots=True)
class ToolHistory:
    """What tools gave back elsewhere."""

    elsewhere: Mapping[str, Mapping[str, Sequence[Elsewhere]]] = field(default_factory=dict)
    """By turn and call."""
    shapes: Mapping[str, Mapping[str, Shapes]] = field(default_factory=dict)
    """By source and tool."""

    @classmethod
    def of(cls, connection: duckdb.DuckDBPyConnection, at: str) -> "ToolHistory":
        """Compare the calls of `judged.outcomes`; `at` is a DuckLake `AT (...)` clause."""
        connection.execute(_CALLED.format(at=at))
        connection.execute(_RESULTS.format(at=at))
        shapes: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
        for source, name, shape, count in connection.execute(_SHAPES).fetchall():
            shapes[source][name][shape] = count
        elsewhere: dict[str, dict[str, Sequence[Elsewhere]]] = defaultdict(dict)
        for turn_id, call_id, user, when, others in connection.execute(_ELSEWHERE).fetchall():
            elsewhere[turn_id][call_id] = _others(turn_id, user, when, others)
        connection.execute("DROP TABLE judged.called")
        connection.execute("DROP TABLE judged.results")
        return cls(dict(elsewhere), {source: dict(each) for source, each in shapes.items()})


def _others(
    turn_id: str, user: str | None, when: float, rows: Sequence[Mapping[str, Any]]
) -> list[Elsewhere]:
    return [
        Elsewhere(row["content"], row["at"] - when, user is not None and row["user"] == user)
        for row in rows
        if row["turn"] != turn_id
    ]
