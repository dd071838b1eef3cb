"""How far implicit signals, thumbs and edits are to be trusted, on turns that verifiers judged.

    python -m benchmarks.attribution_signals [--quick]

The bundled recordings of `examples/traces` and, where it is there, what lies in the folder that
`MOL_DATA` names (`tau-bench/*.json`: users of several turns, judged by the task's reward). Each is
ingested into a lake of its own and attributed; the figures are rows of `v_signal_quality`. Where
a signal does not occur its figures are null. `conversations`: the same with a conversation for a
turn, for sources that judge only how a task ended: whether a signal was seen on any of its turns
against whether its verified turns all succeeded. Also: how many turns/s the signals are derived at.

`checks`: what answers show by themselves (`traces.attribution.form_checks`) beside what the
deployment's own checks said of the same turn: how often it had failed, succeeded, or nobody had
checked; of a check that includes this one (`tool_call` has the schema) that shows nothing, so those
are left out. `after_tool_error`: conversations that succeeded, of how many. Signals are measured
against the deployment's checks alone.
"""

# Everything put into the SQL here is declared here.
# ruff: noqa: S608

import json
import os
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb

from benchmarks import quick_asked
from serving.slots import load_profile
from traces.attribute import attribute
from traces.attribution.signal_quality import SignalQuality, signal_quality
from traces.attribution.signals import Exchange, implied
from traces.ingest import ingest
from traces.storage.lake import Lake

_ROOT = Path(__file__).parents[1]
BUNDLED = _ROOT / "examples" / "traces"
FAULTS = _ROOT / "examples" / "faults"
DATA = Path(os.environ.get("MOL_DATA", _ROOT.parent / "shared" / "data"))

_VERIFIED = "FROM turns JOIN outcomes o USING (turn_id) WHERE o.rule = 'verified'"
_KINDS_OF_VERIFIED = f"""
    SELECT kind, count(*) FILTER (NOT success), count(*) FILTER (success)
    FROM (SELECT DISTINCT conversation_id, s ->> 'kind' AS kind
          FROM (SELECT conversation_id, unnest(CAST(signals AS JSON[])) AS s
                FROM turns JOIN outcomes USING (turn_id) WHERE signals <> '[]'))
    JOIN (SELECT conversation_id, bool_and(success) AS success {_VERIFIED}
          GROUP BY conversation_id) USING (conversation_id)
    GROUP BY kind
"""

_CHECKS = """
    WITH said AS (SELECT turn_id, rule, success, unnest(CAST(signals AS JSON[])) AS s
                  FROM outcomes),
    shown AS (SELECT turn_id, rule, success, s ->> 'name' AS name FROM said
              WHERE (s ->> 'source') = 'derived' AND (s ->> 'kind') = 'verifier'
                AND (s ->> 'reference') IS NULL),
    owned AS (SELECT turn_id, list(s ->> 'name') AS names FROM said
              WHERE (s ->> 'source') <> 'derived' AND (s ->> 'kind') = 'verifier' GROUP BY turn_id),
    told AS (SELECT *, coalesce(list_contains(names, CASE name WHEN 'call_schema' THEN 'tool_call'
                    WHEN 'component_schema' THEN 'interface_schema' END), false) AS included
             FROM shown LEFT JOIN owned USING (turn_id))
    SELECT name, count(*) FILTER (rule = 'verified' AND NOT success AND NOT included),
           count(*) FILTER (rule = 'verified' AND success AND NOT included),
           count(*) FILTER (rule = 'checked'), count(*) FILTER (rule = 'verified' AND included)
    FROM told GROUP BY name ORDER BY name
"""


def measure(quick: bool = False) -> dict[str, Any]:
    """Return the quality of each signal by source, and the speed of deriving them."""
    sources = {"bundled": BUNDLED}
    if not quick:
        sources |= {"tau_bench": DATA / "tau-bench", "faults": FAULTS / "spool"}
    return {
        "sources": {
            name: by_signal(source) if source.exists() else None for name, source in sources.items()
        },
        "turns_per_s": round(turns_per_s(5_000 if quick else 50_000)),
    }


def by_signal(source: Path) -> dict[str, Any]:
    """Ingest and attribute a source in a lake of its own; return its signals' quality."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        ingest(home, source)
        own = source.parent / "profile.toml"
        attribute(home, load_profile(own) if own.exists() else load_profile())
        with Lake.open(home, read_only=True) as lake:
            qualities = signal_quality(lake.connection)
            conversations = by_conversation(lake.connection)
            checks, errors = by_check(lake.connection), by_tool_error(lake.connection)
    return {
        "n_failed": qualities[0].failed,
        "n_succeeded": qualities[0].succeeded,
        "signals": {quality.signal: _figures(quality) for quality in qualities},
        "conversations": conversations,
        "checks": checks,
        "after_tool_error": errors,
    }


def by_tool_error(connection: duckdb.DuckDBPyConnection) -> dict[str, list[int]]:
    """Return how many verified conversations succeeded, of how many, with a tool error and without.

    Errors of tools that a later call saw are no signal: this says how little they decide.
    """
    rows = connection.execute(
        "SELECT bool_or(coalesce(e.failed, false)) AS failed, any_value(v.success)"
        " FROM turns t LEFT JOIN (SELECT turn_id, bool_or(failed) AS failed FROM v_tool_results"
        f" GROUP BY turn_id) e USING (turn_id) JOIN (SELECT conversation_id, bool_and(success)"
        f" AS success {_VERIFIED} GROUP BY conversation_id) v USING (conversation_id)"
        " GROUP BY t.conversation_id"
    ).fetchall()
    return {
        name: [
            sum(good for had, good in rows if had is error),
            sum(had is error for had, _ in rows),
        ]
        for name, error in (("with", True), ("without", False))
    }


def by_check(connection: duckdb.DuckDBPyConnection) -> dict[str, dict[str, int]]:
    """Return what the deployment's own checks say of turns that fail by themselves."""
    rows = connection.execute(_CHECKS).fetchall()
    return {name: {"failed": failed, "succeeded": good, "only_shown": alone, "included": included}
            for name, failed, good, alone, included in rows}  # fmt: skip


def by_conversation(connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    """Return the quality of the implicit signals with a verified conversation for a turn."""
    failed, succeeded = connection.execute(
        "SELECT count(*) FILTER (NOT success), count(*) FILTER (success) FROM"
        f" (SELECT bool_and(success) AS success {_VERIFIED} GROUP BY conversation_id)"
    ).fetchall()[0]
    found = {
        kind: (of_failed, of_succeeded)
        for kind, of_failed, of_succeeded in connection.execute(_KINDS_OF_VERIFIED).fetchall()
    }
    rows: dict[str, Any] = {"n_failed": failed, "n_succeeded": succeeded}
    for kind in ("retry", "rephrase", "correction", "abandonment", "thanks"):
        of_failed, of_succeeded = found.get(kind, (0, 0))
        doubts = kind != "thanks"
        hits, of = (of_failed, failed) if doubts else (of_succeeded, succeeded)
        silent, without = (
            (succeeded - of_succeeded, succeeded) if doubts else (failed - of_failed, failed)
        )
        said = of_failed + of_succeeded
        rows[kind] = {"n": said} | {
            name: _rounded(k / n) if said and n else None
            for name, k, n in (("sensitivity", hits, of), ("specificity", silent, without))
        }
        for name, k, n in (("sensitivity", hits, of), ("specificity", silent, without)):
            rows[kind][f"{name}_95"] = _interval(connection, k, n) if said else None
    return rows


def _interval(connection: duckdb.DuckDBPyConnection, k: int, n: int) -> list[float | None]:
    ends = connection.execute("SELECT wilson_low($k, $n), wilson_high($k, $n)", {"k": k, "n": n})
    return [_rounded(end) for end in ends.fetchall()[0]]


def _figures(quality: SignalQuality) -> dict[str, Any]:
    """Return the figures of one signal, null where it was not seen on a verified turn."""
    n = quality.on_failed + quality.on_succeeded
    if not n:
        return {"n": 0, "sensitivity": None, "specificity": None, "precision": None}
    return {
        "n": n,
        "sensitivity": _rounded(quality.sensitivity),
        "sensitivity_95": [
            _rounded(quality.sensitivity_low_95),
            _rounded(quality.sensitivity_high_95),
        ],
        "specificity": _rounded(quality.specificity),
        "specificity_95": [
            _rounded(quality.specificity_low_95),
            _rounded(quality.specificity_high_95),
        ],
        "precision": _rounded(quality.precision),
        "failed_share": _rounded(quality.failed_share),
        "refused": quality.refused,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def turns_per_s(count: int) -> float:
    """Return how many plain turns of conversations of ten the signals are derived from a second."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    texts = (
        "Please write a function number {} that returns the sum of a list.",
        "What should I cook for dinner with rice and {} tomatoes?",
        "Thanks! Now remind me to call Anna at {} tomorrow.",
        "把第{}个会议改到下午三点，并通知所有人。",
    )
    talks = [
        [
            Exchange(
                f"{talk}-{turn}",
                str(talk),
                None,
                texts[(talk + turn) % 4].format(turn),
                "Done.",
                "ok",
                begin + timedelta(minutes=turn),
            )
            for turn in range(10)
        ]
        for talk in range(count // 10)
    ]
    start = time.perf_counter()
    for turns in talks:
        for index in range(len(turns)):
            implied(turns, index, begin)
    return count / (time.perf_counter() - start)


if __name__ == "__main__":
    print(json.dumps(measure(quick_asked(__doc__))))
