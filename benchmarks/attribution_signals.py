"""How far implicit signals, thumbs and edits are to be trusted, on turns that verifiers judged.

    python -m benchmarks.attribution_signals [--quick]

The bundled recordings of `examples/traces` and, where it is there, what lies in the folder that
`MOL_DATA` names (`tau-bench/*.json`: users of several turns, judged by the task's reward). Each is
ingested into a lake of its own and attributed; the figures are rows of `v_signal_quality`. Where
a signal does not occur its figures are null. `conversations`: the same with a conversation for a
turn, for sources that judge only how a task ended: whether a signal was seen on any of its turns
against whether its verified turns all succeeded. Also: how many turns/s the signals are derived at.
"""

# Everything put into the SQL here is declared here.
# ruff: noqa: S608

import json
import os
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb

from serving.slots import load_profile
from traces.attribute import attribute
from traces.attribution.signal_quality import SignalQuality, signal_quality
from traces.attribution.signals import Exchange, implied
from traces.ingest import ingest
from traces.storage.lake import Lake

_ROOT = Path(__file__).parents[1]
BUNDLED = _ROOT / "examples" / "traces"
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


def measure(quick: bool = False) -> dict[str, Any]:
    """Return the quality of each signal by source, and the speed of deriving them."""
    sources = {"bundled": BUNDLED}
    if not quick:
        sources["tau_bench"] = DATA / "tau-bench"
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
        attribute(home, load_profile())
        with Lake.open(home, read_only=True) as lake:
            qualities = signal_quality(lake.connection)
            conversations = by_conversation(lake.connection)
    return {
        "n_failed": qualities[0].failed,
        "n_succeeded": qualities[0].succeeded,
        "signals": {quality.signal: _figures(quality) for quality in qualities},
        "conversations": conversations,
    }


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
    print(json.dumps(measure(quick="--quick" in sys.argv[1:])))
