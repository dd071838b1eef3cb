"""Views on engine calls: latency, tokens, prefix cache, errors; and on what came in.

They read no bodies. A hop's slot and version are in the name that answered; grouping
by that name first and splitting it after takes a third off a scan of many hops.
"""

# Everything put into these texts is declared here.
# ruff: noqa: S608

from traces.analytics.view import View

_NAME = "coalesce(h.served_name, h.model) AS name"
_SPLIT = "split_part(name, '@', 1) AS slot, nullif(split_part(name, '@', 2), '') AS digest"

# Two quantiles of one column together cost as much as one.
_TIMES = """count(*) AS hops,
                     quantile_cont(h.duration_s, [0.5, 0.95]) FILTER (h.duration_s > 0) AS took,
                     quantile_cont(h.ttft_s, [0.5, 0.95]) AS began"""
_QUANTILES = """hops, took[1] AS p50_s, took[2] AS p95_s,
               began[1] AS ttft_p50_s, began[2] AS ttft_p95_s"""

_TOKENS = """count(*) AS hops, count(h.prompt_tokens) AS hops_counted,
               sum(h.prompt_tokens)::BIGINT AS prompt_tokens,
               sum(h.completion_tokens)::BIGINT AS completion_tokens,
               sum(h.cached_tokens)::BIGINT AS cached_tokens"""

VIEWS = (
    View(
        "v_latency",
        "Latency in seconds by slot, version and role of the hop: of the whole call, and to its "
        "first token where it was streamed.",
        f"""
        SELECT {_SPLIT}, role, {_QUANTILES}
        FROM (SELECT {_NAME}, h.role, {_TIMES} FROM hops h GROUP BY ALL)
        """,
    ),
    View(
        "v_latency_by_day",
        "As v_latency, by day.",
        f"""
        SELECT day, {_SPLIT}, role, {_QUANTILES}
        FROM (SELECT h.day, {_NAME}, h.role, {_TIMES} FROM hops h GROUP BY ALL)
        """,
    ),
    View(
        "v_tokens",
        "Tokens by day, slot, version, role and workload; `hops_counted` are those whose engine "
        "told. Money: join your prices, see docs/analytics.md.",
        f"""
        SELECT day, {_SPLIT}, * EXCLUDE (day, name)
        FROM (SELECT h.day, {_NAME}, h.role, h.workload, {_TOKENS} FROM hops h GROUP BY ALL)
        """,
    ),
    View(
        "v_prefix_cache",
        "Prompt tokens found in the engine's prefix cache by day, slot and version, among hops "
        "whose engine told.",
        f"""
        SELECT day, {_SPLIT}, * EXCLUDE (day, name),
               cached_tokens / nullif(prompt_tokens, 0) AS cached_share
        FROM (SELECT h.day, {_NAME}, count(*) AS hops,
                     sum(h.prompt_tokens)::BIGINT AS prompt_tokens,
                     sum(h.cached_tokens)::BIGINT AS cached_tokens
              FROM hops h WHERE h.cached_tokens IS NOT NULL GROUP BY ALL)
        """,
    ),
    View(
        "v_errors",
        "Hops that did not end well by day, slot, version, role and status; attempts that a "
        "later one replaced are `retried`, the others `failed`.",
        f"""
        SELECT day, {_SPLIT}, * EXCLUDE (day, name)
        FROM (SELECT h.day, {_NAME}, h.role, h.status, count(*) AS hops,
                     count(r.hop_id) AS retried, count(*) - count(r.hop_id) AS failed
              FROM hops h LEFT JOIN (SELECT DISTINCT supersedes AS hop_id FROM hops
                                     WHERE supersedes IS NOT NULL) r USING (hop_id)
              WHERE h.status <> 'ok' GROUP BY ALL)
        """,
    ),
    View(
        "v_feedback",
        "Signals by day, kind, name and who judged.",
        """
        SELECT f.day, f.kind, f.name, f.annotator, count(*) AS signals,
               avg(f.value) AS mean_value
        FROM feedback f GROUP BY ALL
        """,
    ),
    View(
        "v_funnel",
        "What came in and what became of it, in order: one row a step and reason.",
        """
        SELECT 1 AS place, 'hops' AS step, h.status AS reason, count(*) AS n
        FROM hops h GROUP BY ALL
        UNION ALL
        SELECT 2, 'feedback', f.kind, count(*) FROM feedback f GROUP BY ALL
        UNION ALL
        SELECT 3, 'quarantined', q.reason, count(*) FROM quarantine q GROUP BY ALL
        UNION ALL
        SELECT 4, 'turns', t.status, count(*) FROM turns t GROUP BY ALL
        UNION ALL
        SELECT 5, 'outcomes', o.rule, count(*) FROM outcomes o GROUP BY ALL
        UNION ALL
        SELECT 6, 'blame', b.klass, count(*) FROM blame b GROUP BY ALL
        UNION ALL
        SELECT 7, 'rows of ' || l.slot, l.split, count(DISTINCT l.example_id)
        FROM lessons l GROUP BY ALL
        """,
    ),
)
