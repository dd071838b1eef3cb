"""Settle the outcomes of all turns: which signals are about which turn, and what they add up to.

A signal names a turn, a response, a span or a conversation; it may have been stored before what it
is about, or days later. In: the lake at one snapshot. Out: tables of a database of this process,
`judged.turns`, `judged.named` (which signals are about which turn), `judged.derived` (signals
that attribution derives itself) and `judged.outcomes`.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

from collections.abc import Callable, Collection, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import duckdb

from serving.records import Feedback
from serving.slots import Profile
from traces.attribution.blame import may_blame
from traces.attribution.derived import make_table
from traces.attribution.floods import find_floods
from traces.attribution.implying import PLACED, imply
from traces.attribution.outcomes import DERIVED, UNVERIFIED, Ended, Outcome, settle
from traces.attribution.signals import DATED
from traces.attribution.verifying import verify
from traces.config import AttributionConfig
from traces.joins.standing import superseded_turns_sql
from traces.storage.connections import lake_cursor
from traces.storage.row_records import record_of
from traces.storage.tables import arrow_table

_FETCH_ROWS = 1000
_BATCH_ROWS = 5000

# A word about a conversation is about its last turn so far; one that is earlier than all its turns
# is about none of them, unless it has no time. TensorZero's metrics do not tell whether they are
# about a response or an episode, which is a conversation. An agent's span is no call; a word about
# it is about the turn of its trace.
_NAMED = f"""
    WITH signals AS (SELECT * FROM feedback {{at}}), stored AS (SELECT * FROM turns {{at}}),
    named AS (
        SELECT feedback_id, target_id AS turn_id FROM signals WHERE target_kind = 'turn'
        UNION
        SELECT f.feedback_id, t.turn_id FROM signals f
        JOIN (SELECT turn_id, unnest(response_ids) AS response_id FROM stored) t
          ON f.target_kind = 'response' AND f.target_id = t.response_id
        UNION
        SELECT f.feedback_id, t.turn_id FROM signals f
        JOIN (SELECT * FROM span_events {{at}}) s
          ON s.name = 'span_agent' AND f.target_kind = 'response' AND f.target_id = s.span_id
        JOIN stored t ON t.turn_id IN ('otlp:' || s.trace_id, 'openinference:' || s.trace_id)
        UNION
        SELECT f.feedback_id, t.turn_id FROM signals f
        JOIN stored t ON f.target_id = t.conversation_id AND (f.target_kind = 'conversation'
            OR f.target_kind = 'response' AND f.source = 'tensorzero')
            AND (t.started_at <= f.created_at OR f.created_at < TIMESTAMPTZ '{DATED.isoformat()}')
        JOIN (SELECT conversation_id, {PLACED} AS placed FROM stored
              SEMI JOIN signals ON target_id = conversation_id GROUP BY ALL) p
          ON p.conversation_id = t.conversation_id
        QUALIFY row_number() OVER (
            PARTITION BY f.feedback_id
            ORDER BY (t.started_at <= f.created_at) DESC, if(p.placed, t.position, 0) DESC,
                     t.started_at DESC, t.position DESC, t.turn_id) = 1)
    SELECT feedback_id, turn_id FROM named SEMI JOIN stored USING (turn_id)
"""


# Calls of a turn that failed or were cut, but for those that a later attempt replaced.
_CALLS = """
    SELECT l.turn_id, bool_or(h.role = 'answer' AND h.finish_reason = 'length') AS truncated,
           bool_or(h.status IN ('engine_error', 'broken_stream')) AS engine_failed
    FROM (SELECT hop_id, role, finish_reason, status FROM hops {at}
          WHERE role = 'answer' AND finish_reason = 'length'
             OR status IN ('engine_error', 'broken_stream')) h
    ANTI JOIN (SELECT supersedes FROM hops {at} WHERE supersedes <> hop_id) s
           ON s.supersedes = h.hop_id
    JOIN (SELECT turn_id, unnest(hop_ids) AS hop_id FROM turns {at}) l USING (hop_id)
    GROUP BY l.turn_id
"""
_TURNS = """
    CREATE TABLE judged.turns AS
    SELECT t.turn_id, t.conversation_id, t.position, t.started_at, t.status, t.slot, t.canary,
           t."user", t.turn_id IN ({superseded}) AS superseded,
           coalesce(c.truncated, false) AS truncated,
           coalesce(c.engine_failed, false) AS engine_failed,
           t.turn_id IN (SELECT turn_id FROM judged.named
                         UNION ALL SELECT target_id FROM judged.derived) AS told
    FROM (SELECT * FROM turns {at}) t LEFT JOIN ({calls}) c USING (turn_id)
"""
_KIND = ("status", "superseded", "truncated", "engine_failed")
"""What the outcome of a turn that nobody said anything of follows from."""


class _Ended(NamedTuple):
    """What settling needs of a turn, and how."""

    turn_id: str
    user: str | None
    status: str
    superseded: bool = False
    truncated: bool = False
    engine_failed: bool = False

    def settle(self, signals: list[Feedback], strangers: Collection[str] = ()) -> Outcome:
        """Return its outcome."""
        return settle(
            self, signals, superseded=self.superseded, truncated=self.truncated,
            engine_failed=self.engine_failed, strangers=strangers,
        )  # fmt: skip


def settle_turns(
    connection: duckdb.DuckDBPyConnection,
    profile: Profile,
    config: AttributionConfig,
    at: str,
    done: Callable[[int], None],
) -> None:
    """Settle every turn; `at` is a DuckLake `AT (...)` clause, `done` is told of turns settled."""
    connection.execute(f"CREATE TABLE judged.named AS {_NAMED.format(at=at)}")
    make_table(connection)
    imply(connection, at)
    verify(connection, profile, config, at)
    calls = _CALLS.format(at=at)
    connection.execute(_TURNS.format(at=at, calls=calls, superseded=superseded_turns_sql(at)))
    connection.execute(
        "CREATE TABLE judged.outcomes AS SELECT *, true AS blamable FROM outcomes WHERE false"
    )
    find_floods(connection, profile, at)
    settled = _settle_untold(connection)
    rows: list[tuple[Outcome, bool]] = []
    for turn, signals, strangers in _told(connection, at):
        outcome = turn.settle(signals, strangers)
        rows.append((outcome, needs_blame(turn, outcome)))
        if len(rows) >= _BATCH_ROWS:
            _append(connection, rows)
            settled += len(rows)
            done(settled)
            rows = []
    _append(connection, rows)


def needs_blame(turn: Ended, outcome: Outcome) -> bool:
    """Whether something is to be said about whose doing the turn was."""
    return may_blame(turn, outcome) or outcome.rule == UNVERIFIED


def _settle_untold(connection: duckdb.DuckDBPyConnection) -> int:
    """Settle the turns that nobody said anything of: most, and of few kinds. Return how many."""
    kinds = connection.execute(
        f"SELECT {', '.join(_KIND)}, count(*) FROM judged.turns WHERE NOT told GROUP BY ALL"
    ).fetchall()
    same = " AND ".join(f"t.{name} = ${name}" for name in _KIND)
    for *values, _ in kinds:
        kind = dict(zip(_KIND, values, strict=True))
        turn = _Ended("", None, **kind)
        outcome = turn.settle([])
        _append(connection, [(outcome, needs_blame(turn, outcome))])
        connection.execute(
            "INSERT INTO judged.outcomes SELECT t.turn_id, o.* EXCLUDE (turn_id)"
            " FROM judged.turns t, judged.outcomes o WHERE o.turn_id = ''"
            f" AND NOT t.told AND {same}",
            kind,
        )
        connection.execute("DELETE FROM judged.outcomes WHERE turn_id = ''")
    return sum(count for *_, count in kinds)


def _told(
    connection: duckdb.DuckDBPyConnection, at: str
) -> Iterator[tuple[_Ended, list[Feedback], set[str]]]:
    """Yield the turns that something was said of, with it, and who of the users is a stranger."""
    cursor = lake_cursor(connection)
    cursor.execute(
        'SELECT t.turn_id, t."user" AS asked_by, t.status, t.superseded, t.truncated,'
        ' t.engine_failed, u."user" IS NULL AS stranger, w.words AS left_out, f.*'
        " FROM (SELECT * FROM judged.named"
        "       ANTI JOIN judged.left_out USING (turn_id, feedback_id)"
        "       UNION ALL SELECT feedback_id, target_id FROM judged.derived) n"
        " JOIN judged.turns t USING (turn_id)"
        f" JOIN (SELECT * FROM feedback {at}"
        "       UNION ALL BY NAME SELECT * FROM judged.derived) f USING (feedback_id)"
        ' LEFT JOIN (SELECT DISTINCT "user" FROM judged.turns) u ON u."user" = f."user"'
        " LEFT JOIN judged.floods w ON w.turn_id = t.turn_id"
        " ORDER BY t.turn_id"
    )
    names = [column[0] for column in cursor.description]

    def rows() -> Iterator[dict[str, Any]]:
        while fetched := cursor.fetchmany(_FETCH_ROWS):
            yield from (dict(zip(names, row, strict=True)) for row in fetched)

    for turn_id, members in groupby(rows(), key=lambda row: row["turn_id"]):
        told = list(members)
        signals = [record_of(Feedback, "feedback", row) for row in told]
        strangers = {row["user"] for row in told if row["stranger"] and row["user"] is not None}
        if told[0]["left_out"] is not None:
            signals.append(_note(turn_id, told[0]["left_out"], signals))
        kind = {name: told[0][name] for name in _KIND}
        yield _Ended(turn_id, told[0]["asked_by"], **kind), signals, strangers


def _note(turn_id: str, words: str, signals: list[Feedback]) -> Feedback:
    """Return the signal that stands in the row for those that it does not keep."""
    return Feedback(
        source=DERIVED, target_kind="turn", target_id=turn_id, kind="comment", name="left_out",
        detail=words, created_at=max(f.created_at for f in signals), annotator="code",
    )  # fmt: skip


def _append(connection: duckdb.DuckDBPyConnection, rows: list[tuple[Outcome, bool]]) -> None:
    if not rows:
        return
    table = arrow_table("outcomes", [outcome.model_dump(mode="json") for outcome, _ in rows])
    table = table.append_column("blamable", [[blamable for _, blamable in rows]])
    connection.register("judged_rows", table)
    connection.execute("INSERT INTO judged.outcomes BY NAME SELECT * FROM judged_rows")
    connection.unregister("judged_rows")
