"""A lake of made-up hops for the analytics questions, made inside DuckDB.

Two hops a turn (route and answer), thirty days; four slots with two versions each, four
workloads; nine turns of ten are judged, one of seven judged ones failed and is blamed. Texts are
short: the questions ask about numbers. The rows have the tables' own columns and are stored as
ingest stores them, a file a day and table or more.
"""

# Table and column names come from the lake's own declarations.
# ruff: noqa: S608

from datetime import timedelta
from pathlib import Path

import duckdb

from benchmarks.intake_data import STARTS
from traces.storage.lake import Lake

DAYS = 30
_SLOT = "'L' || CAST(hash(turn, 1) % 4 AS BIGINT)"
_DIGEST = "substr(sha256(concat(slot, day % 2)), 1, 12)"

_TURNS = f"""
CREATE TEMP TABLE made AS
SELECT turn, {_SLOT} AS slot, {{day}} AS day, 'turn-' || turn AS turn_id,
       'conversation-' || (turn // 4) AS conversation_id,
       'user-' || CAST(hash(turn // 4, 2) % 1000 AS BIGINT) AS "user",
       ['chat', 'agent', 'code', 'page'][1 + CAST(hash(turn, 3) % 4 AS BIGINT)] AS workload,
       'task-' || CAST(hash(turn // 4, 4) % 500 AS BIGINT) AS task,
       $start + to_microseconds(CAST((turn - {{first}}) * 86400e6 / {{turns}} AS BIGINT))
           AS started_at,
       'sha256:' || sha256('r' || turn) AS route_hop,
       'sha256:' || sha256('a' || turn) AS answer_hop,
       100 + CAST(hash(turn, 5) % 900 AS BIGINT) AS prompt_tokens,
       20 + CAST(hash(turn, 6) % 200 AS BIGINT) AS completion_tokens,
       0.2 + CAST(hash(turn, 7) % 4000 AS BIGINT) / 1000.0 AS duration_s,
       CAST(hash(turn, 8) % 100 AS BIGINT) AS luck, CAST(hash(turn, 9) % 100 AS BIGINT) AS drawn
FROM range({{first}}, {{first}} + {{turns}}) t(turn)
"""

_HOPS = f"""
INSERT INTO hops BY NAME
SELECT CASE role WHEN 'route' THEN route_hop ELSE answer_hop END AS hop_id,
       1 AS schema_version, 'mol' AS source, conversation_id, turn_id, "user",
       2 * turn + (role = 'answer')::BIGINT AS seq, role,
       CASE role WHEN 'route' THEN 'L0' ELSE slot END AS model,
       CASE role WHEN 'route' THEN 'L0@0a1b2c3d4e5f' ELSE concat(slot, '@', {_DIGEST}) END
           AS served_name,
       CAST([] AS UUID[]) AS message_ids, '[]' AS tools,
       '{{"max_tokens":256,"temperature":0.0}}' AS params,
       '{{"content":"answer ' || turn || '","role":"assistant"}}' AS completion,
       concat('chatcmpl-', role, '-', turn) AS response_id, 'stop' AS finish_reason,
       CASE WHEN luck = 0 AND role = 'answer' THEN 'engine_error' ELSE 'ok' END AS status,
       CASE WHEN role = 'route' THEN 1.0 END AS propensity,
       prompt_tokens, completion_tokens, prompt_tokens // 2 AS cached_tokens,
       started_at + to_milliseconds(CASE role WHEN 'route' THEN 0 ELSE 100 END) AS started_at,
       duration_s, duration_s / 8 AS ttft_s, false AS canary, workload, task,
       CAST($start AS DATE) AS day
FROM made, (VALUES ('route'), ('answer')) r(role) ORDER BY seq
"""

_RECORDS = f"""
INSERT INTO turns BY NAME
SELECT turn_id, 1 AS schema_version, 'mol' AS source, conversation_id, "user",
       turn % 4 AS position, 'question ' || turn AS request,
       '{{"content":"answer ' || turn || '","role":"assistant"}}' AS answer,
       slot, {_DIGEST} AS digest, CASE WHEN luck < 3 THEN 'fallback' ELSE 'routed' END AS decision,
       CASE WHEN luck = 0 THEN 'failed' ELSE 'ok' END AS status, [route_hop, answer_hop] AS hop_ids,
       ['chatcmpl-answer-' || turn] AS response_ids, started_at, 2 * duration_s AS duration_s,
       false AS canary, 'recorded' AS origin, workload, task, '[]' AS tail,
       CAST($start AS DATE) AS day
FROM made ORDER BY turn
"""

_OUTCOMES = """
INSERT INTO outcomes BY NAME
SELECT turn_id, CASE WHEN drawn < 10 THEN NULL ELSE drawn % 7 <> 0 END AS success,
       CASE WHEN drawn >= 10 THEN 'B' END AS tier,
       CASE WHEN drawn < 10 THEN 'unjudged' ELSE 'thumbed' END AS rule, '[]' AS signals
FROM made ORDER BY turn
"""

_BLAME = """
INSERT INTO blame BY NAME
SELECT turn_id, CASE WHEN luck < 20 THEN 'router' ELSE 'adapter' END AS klass,
       CASE WHEN luck < 20 THEN 'L0' ELSE slot END AS slot, 0.7 AS confidence,
       'made up' AS evidence, CASE WHEN luck < 20 THEN 'L' || (luck % 4) END AS right_slot,
       'benchmark' AS code_version
FROM made WHERE drawn >= 10 AND drawn % 7 = 0 ORDER BY turn
"""


def build(home: Path, hops: int) -> int:
    """Make a lake of about so many hops; return how many it holds."""
    turns = hops // 2 // DAYS
    with Lake.open(home) as lake:
        for day in range(DAYS):
            _add_day(lake, day, turns)
    return 2 * turns * DAYS


def _add_day(lake: Lake, day: int, turns: int) -> None:
    start = {"start": STARTS + timedelta(days=day)}
    made = _TURNS.format(day=day, first=day * turns, turns=turns)

    def work(connection: duckdb.DuckDBPyConnection) -> None:
        for statement in (made, _HOPS, _RECORDS):
            connection.execute(statement, start)
        for statement in (_OUTCOMES, _BLAME, "DROP TABLE made"):
            connection.execute(statement)

    lake.commit(work)
