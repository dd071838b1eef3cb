"""Questions that an engineer asks of deployment logs, with the SQL that answers each.

One text for `docs/analytics.md`, its test, and the benchmark: those `at_scale` read many
rows of large tables and are timed over millions of hops. Plain DuckDB SQL on the views
and tables of the lake. The ids are those of the bundled example.
"""

from dataclasses import dataclass
from textwrap import dedent


@dataclass(frozen=True, slots=True)
class Question:
    """One question; `name` never changes, for docs and benchmark refer to it."""

    name: str
    asks: str
    sql: str
    at_scale: bool = True


def _question(name: str, asks: str, sql: str, at_scale: bool = True) -> Question:
    return Question(name, asks, dedent(sql).strip(), at_scale)


QUESTIONS = (
    _question(
        "success_by_slot",
        "How often does each slot succeed, and how sure is that?",
        """
        SELECT slot, turns, judged, succeeded, success_rate, low_95, high_95
        FROM v_success_by_slot ORDER BY slot
        """,
    ),
    _question(
        "success_by_version",
        "Is the new version better than the one before?",
        """
        SELECT slot, digest, judged, succeeded, success_rate, low_95, high_95
        FROM v_success_by_version WHERE slot LIKE 'L_' ORDER BY slot, digest
        """,
    ),
    _question(
        "success_by_day",
        "How did one slot do from day to day?",
        """
        SELECT day, sum(judged) AS judged, sum(succeeded) AS succeeded,
               sum(succeeded) / sum(judged) AS success_rate,
               wilson_low(sum(succeeded), sum(judged)) AS low_95,
               wilson_high(sum(succeeded), sum(judged)) AS high_95
        FROM v_success
        WHERE slot = 'L1' AND day BETWEEN DATE '2026-11-02' AND DATE '2026-12-01'
        GROUP BY day ORDER BY day
        """,
    ),
    _question(
        "success_by_workload",
        "Which kind of work goes wrong?",
        """
        SELECT workload, sum(turns) AS turns, sum(judged) AS judged,
               sum(succeeded) / nullif(sum(judged), 0) AS success_rate
        FROM v_success_by_workload GROUP BY workload ORDER BY workload NULLS FIRST
        """,
    ),
    _question(
        "tasks",
        "Which tasks are passed every time, now and then, or never?",
        """
        SELECT workload, task, attempts, passed, pass_rate, passes
        FROM v_tasks ORDER BY pass_rate, task LIMIT 20
        """,
    ),
    _question(
        "conversations",
        "In which conversations did most go wrong?",
        """
        SELECT conversation_id, user_id, day, turns, failed, unjudged
        FROM v_conversations ORDER BY failed DESC, conversation_id LIMIT 5
        """,
        at_scale=False,
    ),
    _question(
        "routing",
        "What does the router send to the wrong slot?",
        """
        SELECT decision, answered_by, should_be, turns, succeeded
        FROM v_routing WHERE answered_by <> should_be ORDER BY turns DESC, answered_by, should_be
        """,
    ),
    _question(
        "blame",
        "Whose doing are the failures?",
        """
        SELECT klass, slot, sum(turns) AS turns,
               sum(turns * mean_confidence) / sum(turns) AS mean_confidence
        FROM v_blame GROUP BY klass, slot ORDER BY turns DESC, klass, slot
        """,
    ),
    _question(
        "tools",
        "Which tools fail, and how often?",
        """
        SELECT name, count(*) AS results, count(*) FILTER (failed) AS failed,
               wilson_low(count(*) FILTER (failed), count(*)) AS low_95,
               wilson_high(count(*) FILTER (failed), count(*)) AS high_95
        FROM v_tool_results GROUP BY name ORDER BY failed DESC, results DESC, name
        LIMIT 12
        """,
        at_scale=False,
    ),
    _question(
        "latency",
        "How long do calls take, by version and role?",
        """
        SELECT slot, digest, role, hops, p50_s, p95_s, ttft_p50_s
        FROM v_latency WHERE slot LIKE 'L_' ORDER BY slot, digest, role
        """,
    ),
    _question(
        "cost",
        "What does a week cost, at these prices a million tokens?",
        """
        WITH prices (slot, prompt, cached, completion) AS
            (VALUES ('L0', 0.10, 0.01, 0.40), ('L1', 0.10, 0.01, 0.40),
                    ('L2', 0.20, 0.02, 0.80), ('L3', 0.20, 0.02, 0.80))
        SELECT date_trunc('week', day)::DATE AS week, slot, sum(prompt_tokens) AS prompt_tokens,
               sum(completion_tokens) AS completion_tokens,
               round(sum((prompt_tokens - coalesce(cached_tokens, 0)) * prompt
                         + coalesce(cached_tokens, 0) * cached
                         + completion_tokens * completion) / 1e6, 6) AS dollars
        FROM v_tokens JOIN prices USING (slot)
        GROUP BY week, slot ORDER BY week, slot
        """,
    ),
    _question(
        "prefix_cache",
        "How much of the prompts is found in the engine's prefix cache?",
        """
        SELECT slot, digest, sum(hops) AS hops, sum(prompt_tokens) AS prompt_tokens,
               sum(cached_tokens) AS cached_tokens,
               sum(cached_tokens) / sum(prompt_tokens) AS cached_share
        FROM v_prefix_cache GROUP BY slot, digest ORDER BY slot, digest
        """,
    ),
    _question(
        "feedback",
        "What do verifiers and users say?",
        """
        SELECT kind, name, annotator, sum(signals) AS signals,
               sum(signals * mean_value) / sum(signals) AS mean_value
        FROM v_feedback GROUP BY kind, name, annotator ORDER BY kind, name, annotator
        """,
        at_scale=False,
    ),
    _question(
        "funnel",
        "What came in, and what became of it?",
        """
        SELECT step, reason, n FROM v_funnel ORDER BY place, step, n DESC, reason
        """,
    ),
    _question(
        "served",
        "Who served when?",
        """
        SELECT slot, digest, min(day) AS first_day, max(day) AS last_day, sum(turns) AS turns,
               avg(share) AS mean_share
        FROM v_served WHERE slot LIKE 'L_' GROUP BY slot, digest ORDER BY slot, first_day
        """,
    ),
    _question(
        "tenures",
        "And what does the registry say?",
        """
        SELECT slot, digest, kind, since, until, began_by, turns
        FROM v_tenures ORDER BY slot, since
        """,
        at_scale=False,
    ),
    _question(
        "learned_from",
        "What did the version that gave this answer learn from?",
        """
        SELECT digest, split, duty, source, count(*) AS rows,
               count(DISTINCT learned_turn_id) AS turns
        FROM v_learned_from WHERE starts_with(turn_id, 'sha256:fb35fca67873')
        GROUP BY ALL ORDER BY split DESC, rows DESC, duty, source
        """,
        at_scale=False,
    ),
    _question(
        "taught",
        "And back: which versions learned from this user's turns?",
        """
        SELECT t.request, l.duty, l.source, l.split, l.slot, l.digest, l.gate_verdict
        FROM v_lessons l JOIN v_turns t USING (turn_id)
        WHERE t.user_id = 'user-24' ORDER BY t.started_at, l.example_id
        """,
        at_scale=False,
    ),
)
