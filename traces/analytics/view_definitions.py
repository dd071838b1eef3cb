"""The analytics views of the lake, gathered; `traces.analytics.views` answers queries on them.

They are stored in the lake itself, with their one-line texts as comments, so that any
DuckDB that attaches the catalog sees them. Views read no bodies but `v_hops`,
`v_tool_results` and `v_preferences`, and are grouped by `day` where they can be, so that a
condition on it skips files.
"""

from traces.analytics import (
    cost_views,
    lineage_views,
    replay_views,
    signal_views,
    success_views,
    tool_views,
)
from traces.analytics.view import Macro, View
from traces.storage.bodies import hops_sql

MACROS: tuple[Macro, ...] = success_views.MACROS

VIEWS: tuple[View, ...] = (
    View(
        "v_turns",
        "One row a turn with its outcome and blame label.",
        """
        SELECT t.turn_id, t.conversation_id, t.position, t."user" AS user_id, t.day,
               t.started_at, t.duration_s, t.workload, t.task, t.slot, t.digest, t.decision,
               t.status, t.error, t.request, json_extract_string(t.answer, '$.content') AS answer,
               o.success, o.tier, o.rule,
               CASE WHEN b.slot IS NULL THEN b.klass ELSE b.klass || ':' || b.slot END AS blame,
               b.confidence, b.evidence, b.right_slot, b.method, b.verdict, b.hop_id, t.canary,
               o.truncated
        FROM turns t LEFT JOIN outcomes o USING (turn_id) LEFT JOIN blame b USING (turn_id)
        """,
    ),
    View("v_hops", "One row an engine call, with the messages it saw as JSON text.", hops_sql()),
    *success_views.VIEWS,
    *cost_views.VIEWS,
    *tool_views.VIEWS,
    *lineage_views.VIEWS,
    *replay_views.VIEWS,
    *signal_views.VIEWS,
)
