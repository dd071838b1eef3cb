"""The view on what tools gave back: one row a result, and whether it reports an error.

A result belongs to the turn of the call that first saw it: it stands after the last answer in
that call's prompt. Results that no call saw are in the turn's tail. What an error is, is said once,
in `traces.verifiers.tool_result`.
"""

# Everything put into these texts is declared here.
# ruff: noqa: S608

from traces.analytics.view import View
from traces.verifiers.tool_result import FAILED_SQL

_CALLS = "CAST({} AS STRUCT(id VARCHAR, name VARCHAR, arguments VARCHAR)[])"
_NAME = "list_filter(r.calls, lambda c: c.id = r.tool_call_id)[1].name"

VIEWS = (
    View(
        "v_tool_results",
        "One row a tool result: the turn that it came in, the call it answers, the tool's name, "
        "the text, and whether it reports an error.",
        f"""
        WITH answers AS (
            SELECT t.turn_id, h.hop_id, h.day, h.message_ids
            FROM (SELECT turn_id, unnest(hop_ids) AS hop_id FROM turns) t
            JOIN hops h USING (hop_id)
            ANTI JOIN (SELECT supersedes AS hop_id FROM hops) s USING (hop_id)
            WHERE h.role = 'answer'
        ),
        seen AS (
            SELECT u.turn_id, u.hop_id, u.spot, m.role, m.body,
                   max(u.spot) FILTER (m.role = 'assistant') OVER (PARTITION BY u.hop_id) AS spoke
            FROM (SELECT *, unnest(message_ids) AS message_id,
                         generate_subscripts(message_ids, 1) AS spot FROM answers) u
            JOIN messages m ON m.day = u.day AND m.message_id = u.message_id
            WHERE m.role IN ('tool', 'assistant')
        ),
        results AS (
            SELECT r.turn_id, r.body, {_CALLS.format("s.body -> 'tool_calls'")} AS calls
            FROM seen r LEFT JOIN seen s ON s.hop_id = r.hop_id AND s.spot = r.spoke
            WHERE r.role = 'tool' AND r.spot > coalesce(r.spoke, 0)
            UNION ALL
            SELECT turn_id, body, {_CALLS.format("answer -> 'tool_calls'")}
            FROM (SELECT turn_id, answer, unnest(CAST(tail AS JSON[])) AS body
                  FROM turns WHERE tail <> '[]')
            WHERE body ->> 'role' = 'tool'
        )
        SELECT r.turn_id, r.tool_call_id, {_NAME} AS name, r.content, {FAILED_SQL} AS failed
        FROM (SELECT turn_id, calls, body ->> 'tool_call_id' AS tool_call_id,
                     body ->> 'content' AS content FROM results) r
        """,
    ),
)
