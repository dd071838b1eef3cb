"""Blame all turns that failed or are suspect, conversation by conversation.

What the turn itself shows comes first, then what similar turns show, then what a replay of the
turn found; all are asked anew at every attribution, so that late evidence counts.

In: the tables of `traces.attribution.settling`, and the lake at the same snapshot. Out:
`judged.blame`. The turns stream by; of a conversation its latest turns are kept, without hops.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

import duckdb

from serving.records import Turn
from serving.slots import Profile
from traces.attribution.blame import Blame, Context, blame
from traces.attribution.outcomes import UNVERIFIED
from traces.attribution.pooled import Pool
from traces.attribution.replay_rows import Replays
from traces.attribution.replayed import from_replay
from traces.attribution.settling import needs_blame
from traces.attribution.tool_history import ToolHistory
from traces.bundles import TurnBundle, read_bundles
from traces.config import AttributionConfig
from traces.storage.connections import lake_cursor
from traces.storage.tables import arrow_table

_BATCH_ROWS = 5000
_FETCH_ROWS = 1000
_REASON_CHARS = 300
_EARLIER_TURNS = 1000
"""How far back the words of a lost summary are looked for."""

# What was asked again is in nobody's view any more, and of what follows a turn the next is enough.
_PICKED = """
    CREATE TABLE judged.picked AS
    SELECT row_number() OVER () AS key, turn_id, blamable AS whole
    FROM (SELECT t.turn_id, o.blamable
          FROM judged.turns t JOIN judged.outcomes o USING (turn_id)
          WHERE NOT t.superseded AND t.conversation_id IN (
              SELECT conversation_id FROM judged.turns JOIN judged.outcomes USING (turn_id)
              WHERE blamable)
          WINDOW told AS (
              PARTITION BY t.conversation_id ORDER BY t.position, t.started_at, t.turn_id
              ROWS BETWEEN 1 PRECEDING AND UNBOUNDED FOLLOWING)
          QUALIFY bool_or(o.blamable) OVER told
          ORDER BY t.conversation_id, t.position, t.started_at, t.turn_id)
"""
# A summary that was written anew replaces the one before.
_SUMMARIES = """
    SELECT p.turn_id, h.hop_id, json_extract_string(h.completion, '$.content')
    FROM judged.picked p
    JOIN (SELECT turn_id, unnest(hop_ids) AS hop_id, generate_subscripts(hop_ids, 1) AS place
          FROM turns {at}) l USING (turn_id)
    JOIN (SELECT hop_id, completion FROM hops {at}
          WHERE role = 'summary' AND status = 'ok' AND completion IS NOT NULL) h USING (hop_id)
    ORDER BY p.key, l.place
"""

_Summary = tuple[str, str]
"""Id of the hop, and what it said."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is asked of every failed turn."""

    profile: Profile
    config: AttributionConfig
    pool: Pool
    replays: Replays
    tools: ToolHistory = field(default_factory=ToolHistory)


def blame_turns(
    connection: duckdb.DuckDBPyConnection,
    profile: Profile,
    config: AttributionConfig,
    at: str,
    done: Callable[[int], None],
) -> None:
    """Blame every turn that needs it; `at` and `done` are as in `settle_turns`."""
    connection.execute("CREATE TABLE judged.blame AS SELECT * FROM blame WHERE false")
    connection.execute(_PICKED)
    pool = Pool.of(connection, at, profile.router, config.cluster_similarity)
    replays = Replays.of(connection, at, pool.cluster_of)
    evidence = Evidence(profile, config, pool, replays, ToolHistory.of(connection, at))
    picked = "SELECT key, turn_id, whole FROM judged.picked"
    bundles = read_bundles(lake_cursor(connection), picked, outcomes="judged.outcomes", at=at)
    told = _with_summaries(bundles, _summaries(lake_cursor(connection), at))
    rows: list[Blame] = []
    seen = 0
    for _, conversation in groupby(told, key=lambda pair: pair[0].turn.conversation_id):
        for verdict in _verdicts(conversation, evidence):
            seen += 1
            rows += [] if verdict is None else [verdict]
            if len(rows) >= _BATCH_ROWS:
                _append(connection, rows)
                done(seen)
                rows = []
    _append(connection, rows)


def _summaries(cursor: duckdb.DuckDBPyConnection, at: str) -> Iterator[tuple[str, str, str]]:
    cursor.execute(_SUMMARIES.format(at=at))
    while rows := cursor.fetchmany(_FETCH_ROWS):
        yield from rows


def _with_summaries(
    bundles: Iterator[TurnBundle], summaries: Iterator[tuple[str, str, str]]
) -> Iterator[tuple[TurnBundle, _Summary | None]]:
    """Pair each turn with the summary that was made of it; both come in the same order."""
    head = next(summaries, None)
    for bundle in bundles:
        found: _Summary | None = None
        while head is not None and head[0] == bundle.turn.turn_id:
            found = head[1], head[2] or ""
            head = next(summaries, None)
        yield bundle, found


def _verdicts(
    conversation: Iterator[tuple[TurnBundle, _Summary | None]], evidence: Evidence
) -> Iterator[Blame | None]:
    """Yield a verdict for each turn; the one after it is part of the evidence."""
    earlier: deque[Turn] = deque(maxlen=_EARLIER_TURNS)
    summaries: dict[str, _Summary] = {}
    pair = next(conversation, None)
    while pair is not None:
        current, summary = pair
        pair = next(conversation, None)
        if needs_blame(current.turn, current.outcome):
            later = () if pair is None else ((pair[0].turn, pair[0].outcome),)
            elsewhere = evidence.tools.elsewhere.get(current.turn.turn_id, {})
            shapes = evidence.tools.shapes.get(current.turn.source, {})
            told = Context(earlier, later, summaries, elsewhere, shapes)
            yield explain(current, told, evidence)
        else:
            yield None
        if len(earlier) == _EARLIER_TURNS:
            summaries.pop(earlier[0].turn_id, None)
        earlier.append(current.turn)
        if summary is not None:
            summaries[current.turn.turn_id] = summary


def explain(bundle: TurnBundle, context: Context, evidence: Evidence) -> Blame | None:
    """Return what is to be said of one turn; whatever a record holds, it stops no other."""
    if bundle.outcome.rule == UNVERIFIED:
        return _unknown(bundle, "its verifiers crashed, hung or could not judge")
    try:
        return _explained(bundle, context, evidence)
    except Exception as error:
        return _unknown(bundle, f"the record cannot be explained: {type(error).__name__}: {error}")


def _explained(bundle: TurnBundle, context: Context, evidence: Evidence) -> Blame | None:
    turn, outcome = bundle.turn, bundle.outcome
    found = blame(turn, bundle.hops, outcome, context, evidence.profile)
    if found is None:
        return None
    found = evidence.pool.adjust(found, turn, outcome)
    rows = evidence.replays.rows(turn.turn_id)
    if not rows:
        return found
    return from_replay(
        found, rows, turn, bundle.hops, outcome, evidence.profile, evidence.config.false_router,
        similar=evidence.replays.similar(turn.turn_id),
    )  # fmt: skip


def _unknown(bundle: TurnBundle, reason: str) -> Blame:
    return Blame(
        turn_id=bundle.turn.turn_id, klass="unknown", slot=None, confidence=0.0,
        evidence=reason[:_REASON_CHARS],
    )  # fmt: skip


def _append(connection: duckdb.DuckDBPyConnection, rows: list[Blame]) -> None:
    if rows:
        table = arrow_table("blame", [row.model_dump(mode="json") for row in rows])
        connection.register("judged_rows", table)
        connection.execute("INSERT INTO judged.blame BY NAME SELECT * FROM judged_rows")
        connection.unregister("judged_rows")
