"""Calls whose record came in pieces: the span here, what was said in it elsewhere.

A span without content is a hop without messages. The log records that name it wait in
`span_events`; whichever comes later completes the hop, which then replaces the one without. A
client library may make a second, empty span of the same call: of two hops of one trace with one
`response_id` the one that says nothing is left out. Both follow from what the lake holds, in
whatever order it came. In: rows about to be stored, inside a commit. Out: the hop rows to store.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from typing import Any

import duckdb
import pyarrow as pa

from serving.records import UNDATED, Hop, canonical_json
from traces.importers.genai import spoken_in
from traces.importers.rows import hop_row
from traces.importers.span_event_rows import AGENT, event_of
from traces.storage.bodies import read_hops_by_id

SPANS = frozenset({"otlp", "openinference", "mlflow"})
"""Sources whose hops are spans."""
_EVENTS_OF = "otlp"
_A_DAY = timedelta(days=1)
_ORDER = ("system", "user", "assistant", "tool", "choice")

Rows = dict[str, list[dict[str, Any]]]
Row = dict[str, Any]


def completed(connection: duckdb.DuckDBPyConnection, rows: Rows) -> tuple[list[Row], list[Row]]:
    """Bring hops and events together.

    Returns:
        The rows of `hops` to store, and those among them that complete hops stored before.
    """
    hops = rows.get("hops", [])
    spans = [hop for hop in hops if hop["source"] in SPANS]
    events = [row for row in rows.get("span_events", ()) if row["name"] != AGENT]
    if not spans and not events:
        return hops, []
    bare = {hop["span_id"]: hop for hop in spans if _is_bare(hop) and hop["source"] == _EVENTS_OF}
    told = _events(connection, events, list(bare.values()))
    made = {
        span_id: _complete_row(bare[span_id], told[span_id]) for span_id in bare if span_id in told
    }
    hops = [made.get(hop["span_id"], hop) if _is_bare(hop) else hop for hop in hops]
    late = _late(connection, told, events, {hop["span_id"] for hop in spans})
    return _without_twins(connection, [*hops, *late]), late


def _is_bare(hop: Row) -> bool:
    return not hop["message_ids"] and hop["completion"] is None


def _complete_row(hop: Row, events: Sequence[Row]) -> Row:
    values = {name: value for name, value in hop.items() if name in Hop.model_fields}
    # Rows hold JSON text where records have values.
    record = Hop.model_validate({**values, "messages": (), "completion": None})
    return hop_row(_complete(record, events)).values


def _complete(hop: Hop, rows: Iterable[Row]) -> Hop:
    """Return a hop with what its events say; how many they were stands in its parameters."""
    unique = {row["event_id"]: row for row in rows}
    ordered = sorted(unique.values(), key=_place)
    spoken = spoken_in({}, [event_of(row) for row in ordered])
    params = {**json.loads(hop.params), _EVENTS_OF: {"content_events": len(ordered)}}
    return hop.model_copy(
        update={
            "messages": spoken.messages,
            "completion": spoken.answer.message,
            "reasoning": spoken.answer.reasoning,
            "finish_reason": hop.finish_reason or spoken.answer.finish_reason,
            "tools": hop.tools if spoken.tools == "[]" else spoken.tools,
            "params": canonical_json(params),
        }
    )


def _place(row: Row) -> tuple[int, int, str]:
    """Return what events of a span are ordered by: time; of one time, the course of a talk."""
    rank = next((n for n, word in enumerate(_ORDER) if word in row["name"]), len(_ORDER))
    return row["seq"], rank, row["event_id"]


def _events(
    connection: duckdb.DuckDBPyConnection, incoming: Iterable[Row], bare: Iterable[Row]
) -> dict[str, list[Row]]:
    """Return the events of all spans concerned, stored ones and incoming ones."""
    told: dict[str, list[Row]] = defaultdict(list)
    for row in incoming:
        told[row["span_id"]].append(row)
    days = {span_id: rows[0]["day"] for span_id, rows in told.items()}
    days |= {hop["span_id"]: hop["day"] for hop in bare if hop["span_id"]}
    if not days:
        return told
    with_days = _window(days.values(), "day")
    connection.register("concerned_spans", pa.table({"span_id": sorted(days)}))
    cursor = connection.execute(
        "SELECT event_id, source, trace_id, span_id, name, seq, body FROM span_events"
        f" SEMI JOIN concerned_spans USING (span_id) WHERE name <> '{AGENT}' AND {with_days}"
    )
    names = [column[0] for column in cursor.description]
    for values in cursor.fetchall():
        row = dict(zip(names, values, strict=True))
        told[row["span_id"]].append(row)
    connection.unregister("concerned_spans")
    return told


def _late(
    connection: duckdb.DuckDBPyConnection,
    told: dict[str, list[Row]],
    incoming: Sequence[Row],
    here: set[str],
) -> list[Row]:
    """Take stored hops that incoming events complete out of the lake; return what they become."""
    days = {row["span_id"]: row["day"] for row in incoming if row["span_id"] not in here}
    if not days:
        return []
    where = (
        f"list_contains($spans, span_id) AND source = $source AND {_window(days.values(), 'day')}"
    )
    found = list(read_hops_by_id(connection, where, {"spans": sorted(days), "source": _EVENTS_OF}))
    made: list[Row] = []
    for hop_id, hop in found:
        whole = bool(hop.messages) or hop.completion is not None
        if hop.span_id is None or (whole and _EVENTS_OF not in json.loads(hop.params)):
            continue  # its span holds the content itself
        row = hop_row(_complete(hop, told[hop.span_id])).values
        if row["hop_id"] != hop_id:
            _remove(connection, [(hop_id, row["day"])])
            made.append(row)
    return made


def _without_twins(connection: duckdb.DuckDBPyConnection, hops: list[Row]) -> list[Row]:
    """Leave out empty hops of calls that another hop tells of; remove stored ones."""
    calls = [hop for hop in hops if hop["source"] in SPANS and hop["response_id"]]
    if not calls:
        return hops
    whole = {_call(hop) for hop in calls if not _is_bare(hop)}
    names = pa.table({"response_id": sorted({hop["response_id"] for hop in calls})})
    connection.register("incoming_responses", names)
    stored = connection.execute(
        "SELECT hop_id, day, turn_id, response_id, len(message_ids) = 0 AND completion IS NULL"
        " FROM hops SEMI JOIN incoming_responses USING (response_id)"
        f" WHERE list_contains($sources, source) AND {_window([h['day'] for h in calls], 'day')}",
        {"sources": sorted(SPANS)},
    ).fetchall()
    connection.unregister("incoming_responses")
    gone = []
    for hop_id, day, turn_id, response_id, is_bare in stored:
        call = _call({"turn_id": turn_id, "response_id": response_id})
        if not is_bare:
            whole.add(call)
        elif call in whole:
            gone.append((hop_id, day))
    _remove(connection, gone)
    return [hop for hop in hops if not (_is_bare(hop) and _call(hop) in whole)]


def _call(hop: Row) -> tuple[str, str]:
    """Return the trace, whatever dialect told of it, and the response."""
    return str(hop["turn_id"]).partition(":")[2], str(hop["response_id"])


def _window(days: Iterable[date], column: str) -> str:
    """Return a condition that keeps a look-up to the files of some days."""
    known = sorted(set(days))
    if known[0] <= UNDATED.date():
        return "true"
    # Literals, so that only the files of these days are looked into.
    return f"{column} BETWEEN DATE '{known[0] - _A_DAY}' AND DATE '{known[-1] + _A_DAY}'"


def _remove(connection: duckdb.DuckDBPyConnection, gone: Sequence[tuple[str, date]]) -> None:
    if gone:
        connection.execute(
            "DELETE FROM hops WHERE list_contains($days, day) AND hop_id IN (SELECT unnest($ids))",
            {"days": [day for _, day in gone], "ids": [hop_id for hop_id, _ in gone]},
        )
