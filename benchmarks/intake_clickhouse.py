"""The analytics questions in ClickHouse's SQL, asked by the Python of an environment with chdb.

    PYTHON benchmarks/intake_clickhouse.py < task.json

In: JSON with `tables` (name to Parquet glob), `names` of questions and `rounds`. Out: JSON with
each question's `seconds` a round and its `rows`. Imports nothing of this project. Each query
computes what `traces/analytics/questions.py` asks, to the last digit: quantiles are exact on both
sides.
"""

# Everything put into these texts is declared here.
# ruff: noqa: S608

import json
import sys
import time
from typing import Any

_Z = 1.959963984540054


def _rate(k: str, n: str) -> str:
    """Return columns of a share with Wilson's interval; like the lake's macros."""
    half = f"{_Z} * sqrt({k} * ({n} - {k}) / {n} + {_Z * _Z / 4})"
    return (
        f"if({n} > 0, {k} / {n}, NULL) AS success_rate,"
        f" if({n} > 0, if({k} = 0, 0., ({k} + {_Z * _Z / 2} - {half}) / ({n} + {_Z * _Z})), NULL)"
        f" AS low_95,"
        f" if({n} > 0, if({k} = {n}, 1., ({k} + {_Z * _Z / 2} + {half}) / ({n} + {_Z * _Z})), NULL)"
        f" AS high_95"
    )


_JUDGED = """FROM {turns} t LEFT JOIN {outcomes} o ON t.turn_id = o.turn_id
    WHERE coalesce(o.rule, '') <> 'superseded'"""
_COUNTS = "count() AS turns, count(o.success) AS judged, countIf(o.success) AS succeeded"
_NAME = "coalesce(served_name, model)"
_SPLIT = (
    "splitByChar('@', name)[1] AS slot, nullIf(arrayElement(splitByChar('@', name), 2), '')"
    " AS digest"
)

QUERIES: dict[str, str] = {
    "success_by_slot": f"""
        SELECT slot, turns, judged, succeeded, {_rate("succeeded", "judged")}
        FROM (SELECT t.slot AS slot, {_COUNTS} {_JUDGED} GROUP BY slot) ORDER BY slot""",
    "success_by_version": f"""
        SELECT slot, digest, judged, succeeded, {_rate("succeeded", "judged")}
        FROM (SELECT t.slot AS slot, t.digest AS digest, {_COUNTS} {_JUDGED}
              AND t.slot LIKE 'L_' GROUP BY slot, digest) ORDER BY slot, digest""",
    "success_by_day": f"""
        SELECT day, judged, succeeded, {_rate("succeeded", "judged")}
        FROM (SELECT t.day AS day, {_COUNTS} {_JUDGED} AND t.slot = 'L1'
              AND t.day BETWEEN toDate('2026-11-02') AND toDate('2026-12-01') GROUP BY day)
        ORDER BY day""",
    "success_by_workload": f"""
        SELECT workload, turns, judged, succeeded / judged AS success_rate
        FROM (SELECT t.workload AS workload, {_COUNTS} {_JUDGED} GROUP BY workload)
        ORDER BY workload NULLS FIRST""",
    "tasks": f"""
        SELECT workload, task, count() AS attempts, countIf(success) AS passed,
               passed / nullIf(count(success), 0) AS pass_rate,
               multiIf(count(success) = 0, 'unjudged', passed = count(success), 'all',
                       passed = 0, 'none', 'mixed') AS passes
        FROM (SELECT t.workload AS workload, t.task AS task, t.conversation_id AS conversation_id,
                     min(o.success) AS success {_JUDGED} AND t.task IS NOT NULL
              GROUP BY workload, task, conversation_id)
        GROUP BY workload, task ORDER BY pass_rate, task LIMIT 20""",
    "routing": """
        SELECT decision, answered_by, should_be, turns, succeeded FROM (
            SELECT t.decision AS decision, t.slot AS answered_by,
                   if(b.klass = 'router', b.right_slot, coalesce(b.right_slot, t.slot))
                       AS should_be,
                   count() AS turns, countIf(o.success) AS succeeded
            FROM {turns} t LEFT JOIN {outcomes} o ON t.turn_id = o.turn_id
                 LEFT JOIN {blame} b ON t.turn_id = b.turn_id
            WHERE coalesce(o.rule, '') <> 'superseded'
            GROUP BY decision, answered_by, should_be)
        WHERE answered_by <> should_be ORDER BY turns DESC, answered_by, should_be""",
    "blame": """
        SELECT klass, slot, count() AS turns, avg(confidence) AS mean_confidence
        FROM {blame} GROUP BY klass, slot ORDER BY turns DESC, klass, slot""",
    "latency": f"""
        SELECT {_SPLIT}, role, hops, p50_s, p95_s, ttft_p50_s FROM (
            SELECT {_NAME} AS name, role, count() AS hops,
                   quantileExactInclusiveIf(0.5)(duration_s, duration_s > 0) AS p50_s,
                   quantileExactInclusiveIf(0.95)(duration_s, duration_s > 0) AS p95_s,
                   quantileExactInclusive(0.5)(ttft_s) AS ttft_p50_s
            FROM {{hops}} GROUP BY name, role)
        WHERE slot LIKE 'L_' ORDER BY slot, digest, role""",
    "cost": f"""
        WITH prices AS (SELECT * FROM values('slot String, prompt Float64, cached Float64,
            completion Float64', ('L0', 0.10, 0.01, 0.40), ('L1', 0.10, 0.01, 0.40),
            ('L2', 0.20, 0.02, 0.80), ('L3', 0.20, 0.02, 0.80)))
        SELECT toMonday(day) AS week, slot, sum(p) AS prompt_tokens, sum(c) AS completion_tokens,
               round(sum((p - coalesce(k, 0)) * prompt + coalesce(k, 0) * cached
                         + c * completion) / 1e6, 6) AS dollars
        FROM (SELECT day, {_SPLIT}, p, c, k FROM (
                SELECT day, {_NAME} AS name, role, workload, sum(prompt_tokens) AS p,
                       sum(completion_tokens) AS c, sum(cached_tokens) AS k
                FROM {{hops}} GROUP BY day, name, role, workload)) h
             JOIN prices ON h.slot = prices.slot
        GROUP BY week, slot ORDER BY week, slot""",
    "prefix_cache": f"""
        SELECT {_SPLIT}, hops, p AS prompt_tokens, k AS cached_tokens, k / p AS cached_share
        FROM (SELECT {_NAME} AS name, count() AS hops, sum(prompt_tokens) AS p,
                     sum(cached_tokens) AS k
              FROM {{hops}} WHERE cached_tokens IS NOT NULL GROUP BY name)
        ORDER BY slot, digest""",
}
"""Question to query; `{table}` stands for the table's files."""


def main() -> None:
    """Answer the task on stdin."""
    from chdb.session import Session  # type: ignore[import-not-found]

    task = json.load(sys.stdin)
    tables = {name: f"file('{glob}', Parquet)" for name, glob in task["tables"].items()}
    session = Session()
    answers: dict[str, Any] = {}
    for name in task["names"]:
        query = QUERIES[name].format(**tables)
        seconds: list[float] = []
        for _ in range(task["rounds"]):
            started = time.perf_counter()
            found = session.query(query, "JSONCompactEachRow").bytes()
            seconds.append(time.perf_counter() - started)
        answers[name] = {
            "seconds": seconds,
            "rows": [json.loads(line) for line in found.splitlines()],
        }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
