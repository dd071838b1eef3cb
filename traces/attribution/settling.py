"""Settle the outcomes of all turns: which signals are about which turn, and what they add up to.

A signal names a turn, a response, a span or a conversation; it may have come before what it is
about, or days later. In: the lake at one snapshot. Out: tables of a database of this process,
`judged.turns`, `judged.named` (which signals are about which turn) and `judged.outcomes`.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import duckdb

from serving.records import Feedback
from traces.attribution.blame import may_blame
from traces.attribution.outcomes import Outcome, settle
from traces.joins.standing import superseded_turns_sql
from traces.storage.tables import arrow_table, record_of

_FETCH_ROWS = 1000
_BATCH_ROWS = 5000

# A word about a conversation is about its last turn so far. TensorZero's metrics do not tell
# whether they are about a response or an episode, which is a conversation. An agent's span is
# no call; a word about it is about the turn of its trace.
_NAMED = """
    WITH signals AS (SELECT * FROM feedback {at}), stored AS (SELECT * FROM turns {at}),
    named AS (
        SELECT feedback_id, target_id AS turn_id FROM signals WHERE target_kind = 'turn'
        UNION
        SELECT f.feedback_id, t.turn_id FROM signals f
        JOIN (SELECT turn_id, unnest(response_ids) AS response_id FROM stored) t
          ON f.target_kind = 'response' AND f.target_id = t.response_id
        UNION
        SELECT f.feedback_id, t.turn_id FROM signals f
        JOIN (SELECT * FROM span_events {at}) s
          ON s.name = 'span_agent' AND f.target_kind = 'response' AND f.target_id = s.span_id
        JOIN stored t ON t.turn_id IN ('otlp:' || s.trace_id, 'openinference:' || s.trace_id)
        UNION
        SELECT f.feedback_id, t.turn_id FROM signals f
        JOIN stored t ON f.target_id = t.conversation_id AND (f.target_kind = 'conversation'
            OR f.target_kind = 'response' AND f.source = 'tensorzero')
        QUALIFY row_number() OVER (
            PARTITION BY f.feedback_id
            ORDER BY (t.started_at <= f.created_at) DESC, t.started_at DESC, t.position DESC,
                     t.turn_id) = 1)
    SELECT feedback_id, turn_id FROM named SEMI JOIN stored USING (turn_id)
"""


class _Ended(NamedTuple):
    """What settling needs of a turn."""

    turn_id: str
    status: str


def settle_turns(
    connection: duckdb.DuckDBPyConnection, at: str, done: Callable[[int], None]
) -> None:
    """Settle every turn; `at` is a DuckLake `AT (...)` clause, `done` is told of turns settled."""
    connection.execute(f"CREATE TABLE judged.named AS {_NAMED.format(at=at)}")
    connection.execute(
        f"""
        CREATE TABLE judged.turns AS
        SELECT turn_id, conversation_id, position, started_at, status, slot,
               turn_id IN ({superseded_turns_sql(at)}) AS superseded,
               turn_id IN (SELECT turn_id FROM judged.named) AS told
        FROM turns {at}
        """
    )
    connection.execute(
        "CREATE TABLE judged.outcomes AS SELECT *, true AS blamable FROM outcomes WHERE false"
    )
    settled = _settle_untold(connection)
    rows: list[tuple[Outcome, bool]] = []
    for turn, signals, superseded in _told(connection, at):
        outcome = settle(turn, signals, superseded=superseded)
        rows.append((outcome, may_blame(turn, outcome)))
        if len(rows) >= _BATCH_ROWS:
            _append(connection, rows)
            settled += len(rows)
            done(settled)
            rows = []
    _append(connection, rows)


def _settle_untold(connection: duckdb.DuckDBPyConnection) -> int:
    """Settle the turns that nobody said anything of: most, and of few kinds. Return how many."""
    kinds = connection.execute(
        "SELECT status, superseded, count(*) FROM judged.turns WHERE NOT told GROUP BY ALL"
    ).fetchall()
    for status, superseded, _ in kinds:
        turn = _Ended("", status)
        outcome = settle(turn, [], superseded=superseded)
        _append(connection, [(outcome, may_blame(turn, outcome))])
        connection.execute(
            "INSERT INTO judged.outcomes SELECT t.turn_id, o.* EXCLUDE (turn_id)"
            " FROM judged.turns t, judged.outcomes o WHERE o.turn_id = ''"
            " AND NOT t.told AND t.status = $status AND t.superseded = $superseded",
            {"status": status, "superseded": superseded},
        )
        connection.execute("DELETE FROM judged.outcomes WHERE turn_id = ''")
    return sum(count for _, _, count in kinds)


def _told(
    connection: duckdb.DuckDBPyConnection, at: str
) -> Iterator[tuple[_Ended, list[Feedback], bool]]:
    cursor = connection.cursor()
    cursor.execute("USE lake")
    cursor.execute(
        "SELECT t.turn_id, t.status, t.superseded, f.* FROM judged.named n"
        " JOIN judged.turns t USING (turn_id)"
        f" JOIN (SELECT * FROM feedback {at}) f USING (feedback_id) ORDER BY t.turn_id"
    )
    names = [column[0] for column in cursor.description]

    def rows() -> Iterator[dict[str, Any]]:
        while fetched := cursor.fetchmany(_FETCH_ROWS):
            yield from (dict(zip(names, row, strict=True)) for row in fetched)

    for turn_id, members in groupby(rows(), key=lambda row: row["turn_id"]):
        told = list(members)
        signals = [record_of(Feedback, "feedback", row) for row in told]
        yield _Ended(turn_id, told[0]["status"]), signals, told[0]["superseded"]


def _append(connection: duckdb.DuckDBPyConnection, rows: list[tuple[Outcome, bool]]) -> None:
    if not rows:
        return
    table = arrow_table("outcomes", [outcome.model_dump(mode="json") for outcome, _ in rows])
    table = table.append_column("blamable", [[blamable for _, blamable in rows]])
    connection.register("judged_rows", table)
    connection.execute("INSERT INTO judged.outcomes BY NAME SELECT * FROM judged_rows")
    connection.unregister("judged_rows")
