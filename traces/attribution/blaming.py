"""Blame all turns that failed or are suspect, conversation by conversation.

In: the tables of `traces.attribution.settling`, and the lake at the same snapshot. Out:
`judged.blame`. The turns stream by; of a conversation its latest turns are kept, without hops.
"""

# Table and column names come from our own declarations; values are bound.

from collections import deque
from collections.abc import Callable, Iterator
from itertools import groupby

import duckdb

from serving.records import Turn
from serving.slots import Profile
from traces.attribution.blame import Blame, Context, blame
from traces.attribution.outcomes import UNVERIFIED
from traces.attribution.settling import needs_blame
from traces.bundles import TurnBundle, read_bundles
from traces.storage.tables import arrow_table

_BATCH_ROWS = 5000
_REASON_CHARS = 300
_EARLIER_TURNS = 1000
"""How far back the words of a lost summary are looked for."""

# What was asked again is in nobody's view any more.
_PICKED = """
    CREATE TABLE judged.picked AS
    SELECT row_number() OVER () AS key, turn_id, blamable AS whole
    FROM (SELECT t.turn_id, o.blamable
          FROM judged.turns t JOIN judged.outcomes o USING (turn_id)
          WHERE NOT t.superseded AND t.conversation_id IN (
              SELECT conversation_id FROM judged.turns JOIN judged.outcomes USING (turn_id)
              WHERE blamable)
          ORDER BY t.conversation_id, t.position, t.started_at, t.turn_id)
"""


def blame_turns(
    connection: duckdb.DuckDBPyConnection, profile: Profile, at: str, done: Callable[[int], None]
) -> None:
    """Blame every turn that needs it; `at` and `done` are as in `settle_turns`."""
    connection.execute("CREATE TABLE judged.blame AS SELECT * FROM blame WHERE false")
    connection.execute(_PICKED)
    reader = connection.cursor()
    reader.execute("USE lake")
    bundles = read_bundles(
        reader, "SELECT key, turn_id, whole FROM judged.picked", outcomes="judged.outcomes", at=at
    )
    rows: list[Blame] = []
    seen = 0
    for _, conversation in groupby(bundles, key=lambda b: b.turn.conversation_id):
        for verdict in _verdicts(conversation, profile):
            seen += 1
            rows += [] if verdict is None else [verdict]
            if len(rows) >= _BATCH_ROWS:
                _append(connection, rows)
                done(seen)
                rows = []
    _append(connection, rows)


def _verdicts(conversation: Iterator[TurnBundle], profile: Profile) -> Iterator[Blame | None]:
    """Yield a verdict for each turn; the one after it is part of the evidence."""
    earlier: deque[Turn] = deque(maxlen=_EARLIER_TURNS)
    current = next(conversation, None)
    while current is not None:
        following = next(conversation, None)
        if needs_blame(current.turn, current.outcome):
            later = () if following is None else ((following.turn, following.outcome),)
            yield _verdict(current, Context(earlier, later), profile)
        else:
            yield None
        earlier.append(current.turn)
        current = following


def _verdict(bundle: TurnBundle, context: Context, profile: Profile) -> Blame | None:
    """Return what is to be said of one turn; whatever a record holds, it stops no other."""
    if bundle.outcome.rule == UNVERIFIED:
        return _unknown(bundle, "its verifiers crashed, hung or could not judge")
    try:
        return blame(bundle.turn, bundle.hops, bundle.outcome, context, profile)
    except Exception as error:
        return _unknown(bundle, f"the record cannot be explained: {type(error).__name__}: {error}")


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
