"""The analytics views, as SQL over the lake's tables; `traces.views` answers queries on them.

They are stored in the lake itself, with these texts as comments, so that any
DuckDB that attaches the catalog sees them.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

import hashlib
from dataclasses import dataclass

from traces.bodies import hops_sql


@dataclass(frozen=True, slots=True)
class View:
    """A named query with one line that says what a row is."""

    name: str
    doc: str
    sql: str

    @property
    def comment(self) -> str:
        """Text stored with the view; it changes with the SQL, so that old lakes are updated."""
        return f"{self.doc} [{hashlib.sha256(self.sql.encode()).hexdigest()[:8]}]"


_SLOT_OF_HOP = "split_part(coalesce(h.served_name, h.model), '@', 1)"
_VERSION_OF_HOP = "nullif(split_part(coalesce(h.served_name, h.model), '@', 2), '')"

VIEWS: tuple[View, ...] = (
    View("v_hops", "One row an engine call, with the messages it saw as JSON text.", hops_sql()),
    View(
        "v_turns",
        "One row a turn with its outcome and blame label.",
        """
        SELECT t.turn_id, t.conversation_id, t.position, t."user" AS user_id, t.started_at,
               t.slot, t.digest, t.decision, t.status, t.error, t.request,
               json_extract_string(t.answer, '$.content') AS answer,
               o.success, o.tier, o.rule,
               CASE WHEN b.slot IS NULL THEN b.klass ELSE b.klass || ':' || b.slot END AS blame,
               b.confidence, b.evidence
        FROM turns t LEFT JOIN outcomes o USING (turn_id) LEFT JOIN blame b USING (turn_id)
        """,
    ),
    View(
        "v_success_by_slot",
        "Success rate by slot, version and day; turns without a verdict are counted apart, "
        "turns asked again not at all.",
        """
        SELECT t.slot, t.digest, CAST(t.started_at AS DATE) AS day, count(*) AS turns,
               count(*) FILTER (o.success) AS succeeded,
               count(*) FILTER (NOT o.success) AS failed,
               count(*) FILTER (o.success IS NULL) AS unjudged,
               count(*) FILTER (o.success) / nullif(count(o.success), 0) AS success_rate
        FROM turns t LEFT JOIN outcomes o USING (turn_id)
        WHERE o.rule IS DISTINCT FROM 'superseded' GROUP BY ALL
        """,
    ),
    View(
        "v_blame",
        "Failed or suspect turns by blame class, slot and the slot that should have answered.",
        """
        SELECT b.klass, b.slot, b.right_slot, count(*) AS turns,
               avg(b.confidence) AS mean_confidence
        FROM blame b GROUP BY ALL
        """,
    ),
    View(
        "v_routing",
        "Routing confusion: slot that answered against slot that should have, by decision.",
        """
        SELECT t.decision, t.slot AS answered_by,
               CASE WHEN b.klass = 'router' THEN b.right_slot
                    ELSE coalesce(b.right_slot, t.slot) END AS should_be,
               count(*) AS turns, count(*) FILTER (o.success) AS succeeded
        FROM turns t LEFT JOIN outcomes o USING (turn_id) LEFT JOIN blame b USING (turn_id)
        WHERE o.rule IS DISTINCT FROM 'superseded' GROUP BY ALL
        """,
    ),
    View(
        "v_latency",
        "Latency in seconds and tokens by slot, version and role of the hop; attempts that a "
        "later one replaced are `retried`, not `failed`.",
        f"""
        SELECT {_SLOT_OF_HOP} AS slot, {_VERSION_OF_HOP} AS digest, h.role, count(*) AS hops,
               quantile_cont(h.duration_s, 0.5) AS p50_s,
               quantile_cont(h.duration_s, 0.95) AS p95_s,
               quantile_cont(h.ttft_s, 0.5) AS ttft_p50_s,
               sum(h.prompt_tokens) AS prompt_tokens,
               sum(h.completion_tokens) AS completion_tokens,
               sum(h.cached_tokens) / nullif(sum(h.prompt_tokens), 0) AS cached_share,
               count(*) FILTER (h.status <> 'ok' AND r.hop_id IS NULL) AS failed,
               count(r.hop_id) AS retried
        FROM hops h LEFT JOIN (SELECT DISTINCT supersedes AS hop_id FROM hops) r
          ON r.hop_id = h.hop_id
        GROUP BY ALL
        """,
    ),
    View(
        "v_feedback",
        "Signals by kind, name and day.",
        """
        SELECT f.kind, f.name, CAST(f.created_at AS DATE) AS day, count(*) AS signals,
               avg(f.value) AS mean_value
        FROM feedback f GROUP BY ALL
        """,
    ),
    View(
        "v_funnel",
        "What came in and what became of it, one row a step and reason.",
        """
        SELECT 'hops' AS step, h.status AS reason, count(*) AS n FROM hops h GROUP BY ALL
        UNION ALL
        SELECT 'quarantined', q.reason, count(*) FROM quarantine q GROUP BY ALL
        UNION ALL
        SELECT 'turns', t.status, count(*) FROM turns t GROUP BY ALL
        UNION ALL
        SELECT 'outcomes', o.rule, count(*) FROM outcomes o GROUP BY ALL
        UNION ALL
        SELECT 'blame', b.klass, count(*) FROM blame b GROUP BY ALL
        """,
    ),
)
