"""Run verifiers on the turns of the lake: what an answer shows by itself, and checks that crashed.

In: the lake at one snapshot, and which signals are about which turn (`judged.named`). Out: verdicts
of tier A, added to `judged.derived`: rows like those of `feedback`, stored only in the outcomes
they add to, derived anew each time. DuckDB picks the answers that there is something to check of.
"""

# Table and column names come from our own declarations; values are bound.

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import duckdb

from serving.records import Feedback, Message
from serving.slots import Profile
from traces.attribution.derived import keep
from traces.attribution.form_checks import UNFINISHED, FinalAnswer, failed_checks
from traces.attribution.outcomes import DERIVED
from traces.attribution.rechecking import recheck
from traces.config import AttributionConfig
from traces.ending import ended_at
from traces.storage.connections import lake_cursor
from traces.verifiers.check import Check

_FETCH_ROWS = 1000
INTERFACES = "interface_schema"
"""The verifier of slots that write interfaces."""

# An answer that a later one follows was not the last word: what it broke may have been mended.
_FINAL = """
    WITH replaced AS (SELECT supersedes AS hop_id FROM hops {at} WHERE supersedes <> hop_id),
    telling AS (
        SELECT hop_id, completion, tools, params, finish_reason, started_at, duration_s,
               contains(completion, '"tool_calls":[{{') AS calls,
               list_contains($interfaces, split_part(coalesce(served_name, model), '@', 1))
                   AS interface
        FROM (SELECT * FROM hops {at}) ANTI JOIN replaced USING (hop_id)
        WHERE role = 'answer' AND completion IS NOT NULL
          AND NOT list_contains($unfinished, coalesce(finish_reason, ''))
          AND (calls OR interface AND contains(completion, 'card')
               OR regexp_matches(params, 'response_format|structured_outputs|guided_json'))),
    places AS (
        SELECT turn_id, tail, unnest(hop_ids) AS hop_id, generate_subscripts(hop_ids, 1) AS place
        FROM turns {at} WHERE status = 'ok'),
    picked AS (
        SELECT * FROM places SEMI JOIN telling USING (hop_id)
        QUALIFY row_number() OVER (PARTITION BY turn_id ORDER BY place DESC) = 1),
    later AS (
        SELECT p.turn_id FROM picked p JOIN places l ON l.turn_id = p.turn_id AND l.place > p.place
        JOIN (SELECT hop_id FROM hops {at} WHERE role = 'answer' AND completion IS NOT NULL) h
             ON h.hop_id = l.hop_id
        ANTI JOIN replaced r ON r.hop_id = l.hop_id)
    SELECT p.turn_id, t.completion, t.tools, t.params, t.finish_reason, p.tail, t.interface,
           t.started_at, t.duration_s
    FROM picked p JOIN telling t USING (hop_id) ANTI JOIN later USING (turn_id)
    WHERE NOT t.calls OR t.tools <> '[]' OR contains(p.tail, '"role":"tool"')
"""


def verify(
    connection: duckdb.DuckDBPyConnection, profile: Profile, config: AttributionConfig, at: str
) -> None:
    """Add what verifiers find to `judged.derived`; `at` is a DuckLake `AT (...)` clause."""
    keep(connection, _of_form(connection, profile, at))
    keep(connection, recheck(connection, config.run_code, at))


def _of_form(
    connection: duckdb.DuckDBPyConnection, profile: Profile, at: str
) -> Iterator[Feedback]:
    cursor = lake_cursor(connection)
    interfaces = [slot.name for slot in profile.slots if INTERFACES in slot.verifiers]
    values = {"unfinished": [*UNFINISHED], "interfaces": interfaces}
    cursor.execute(_FINAL.format(at=at), values)
    while rows := cursor.fetchmany(_FETCH_ROWS):
        for turn_id, *answer, started_at, duration_s in rows:
            for name, check in _found(answer):
                yield _verdict(turn_id, name, check, ended_at(started_at, duration_s))


def _found(row: list[Any]) -> Iterator[tuple[str, Check]]:
    """Yield what an answer fails; a record that cannot be read says nothing."""
    final = _read(row)
    if final is not None:
        # Not guarded: a check raises nothing, whatever a log holds, and one that does is a defect.
        yield from failed_checks(final)


def _read(row: list[Any]) -> FinalAnswer | None:
    """Return an answer as its row holds it; None if it cannot be read."""
    answer, tools, params, finish_reason, tail, writes_interfaces = row
    try:
        return FinalAnswer(
            Message.model_validate_json(answer), tools, params, finish_reason,
            tuple(Message.model_validate(each) for each in json.loads(tail or "[]")),
            writes_interfaces,
        )  # fmt: skip
    except (ValueError, TypeError, RecursionError):
        # No JSON, not a message's, a tail that is no list, or one that is too deep.
        return None


def _verdict(turn_id: str, name: str, check: Check, created_at: datetime) -> Feedback:
    return Feedback(
        source=DERIVED,
        target_kind="turn",
        target_id=turn_id,
        kind="verifier",
        name=name,
        value=0.0,
        detail=check.detail,
        created_at=created_at,
        annotator="code",
    )
