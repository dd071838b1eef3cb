"""What route calls were asked, without the prompt around it.

A route call shows the user's text followed by the router's prompt. Turns that also have an
answer call show what that prompt is; the others, and the match of client requests to calls,
need the text without it. In: `join_loose`, `join_labels` and `join_groups`. Out: `join_routed`,
the texts of groups without an answer, and what groups may be about where requests are matched.
"""

# Names come from our own declarations; values are bound.
# ruff: noqa: S608

from collections.abc import Sequence

import duckdb

from traces.joins.histories import text_hash_sql
from traces.joins.join import Group

_MAX_PROMPTS = 100
_FETCH_ROWS = 2000


def strip_prompts(connection: duckdb.DuckDBPyConnection, days: str) -> None:
    """Find the texts of route calls and the prompts around them; write `join_routed`.

    `days` is a condition on `day` that holds for all hops. The most frequent prompts count,
    should a router put something new into each.
    """
    connection.execute(_texts_sql(days))
    connection.execute(
        """
        CREATE OR REPLACE TEMP TABLE join_prompts AS
        SELECT substr(r.text, length(a.text) + 1) AS prompt
        FROM join_route_texts r JOIN join_route_texts a USING (number)
        WHERE r.role = 'route' AND r.first AND a.role = 'answer' AND a.text <> ''
          AND starts_with(r.text, a.text) AND r.text <> a.text
        GROUP BY prompt ORDER BY count(*) DESC, prompt LIMIT $limit
        """,
        {"limit": _MAX_PROMPTS},
    )
    connection.execute(
        """
        CREATE OR REPLACE TEMP TABLE join_routed AS
        SELECT r.number, coalesce(
            arg_max(left(r.text, length(r.text) - length(p.prompt)), length(p.prompt)),
            any_value(r.text)) AS text
        FROM join_route_texts r LEFT JOIN join_prompts p ON suffix(r.text, p.prompt)
        WHERE r.role = 'route' AND r.first
          AND r.number NOT IN (SELECT number FROM join_route_texts WHERE role = 'answer')
        GROUP BY r.number
        """
    )


def tell_texts(connection: duckdb.DuckDBPyConnection, groups: Sequence[Group]) -> None:
    """Tell each group what its route calls were asked, as far as the prompt is known."""
    cursor = connection.execute(
        f"""
        SELECT r.number, list({text_hash_sql("left(r.text, length(r.text) - length(p.prompt))")})
                   FILTER (p.prompt IS NOT NULL),
               CASE WHEN count(p.prompt) = 0 THEN any_value(r.text) END
        FROM join_route_texts r LEFT JOIN join_prompts p ON suffix(r.text, p.prompt)
        WHERE r.role = 'route' GROUP BY r.number, r.n
        """
    )
    while rows := cursor.fetchmany(_FETCH_ROWS):
        for number, hashes, unknown in rows:
            groups[number].texts += tuple(hashes or ())
            groups[number].route_texts += (unknown,) if unknown else ()


def _texts_sql(days: str) -> str:
    """Render the texts of route hops, and of the first answers of groups that begin with one."""
    return f"""
    CREATE OR REPLACE TEMP TABLE join_route_texts AS
    WITH groups AS (SELECT *, unnest(range(first_n, last_n + 1)) AS n FROM join_groups),
    hops AS (SELECT l.n, l.day, l.role, l.message_ids, g.number, l.n = g.first_n AS first
             FROM join_loose l JOIN groups g USING (n)),
    routed AS (SELECT number FROM hops WHERE first AND role = 'route'),
    answers AS (SELECT min(n) AS n FROM hops SEMI JOIN routed USING (number)
                WHERE role = 'answer' GROUP BY number),
    wanted AS (SELECT * FROM hops WHERE role = 'route'
               UNION ALL SELECT hops.* FROM hops SEMI JOIN answers USING (n)),
    seen AS (SELECT n, day, unnest(message_ids) AS message_id,
                    generate_subscripts(message_ids, 1) AS place FROM wanted),
    final AS (SELECT s.n, arg_max(s.message_id, s.place) AS message_id
              FROM seen s JOIN join_labels l USING (day, message_id)
              WHERE l.role = 'user' GROUP BY s.n)
    SELECT w.number, w.n, w.role, w.first, json_extract_string(m.body, '$.content') AS text
    FROM wanted w JOIN final f USING (n)
    JOIN (SELECT * FROM messages WHERE {days}) m
      ON m.day = w.day AND m.message_id = f.message_id
    """
