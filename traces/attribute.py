"""Recompute outcomes and blame of all turns: what happened, and whose doing it was.

    for every conversation: settle each turn's feedback, blame the failed ones,
    and write the rows that differ in one transaction.

Outcomes and blame are functions of the lake and the profile; feedback may come
days late and an attribution may be repeated at will. If nothing changed there is
no commit and the snapshot id stays. By hand: `flows run attribute`.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import duckdb

from serving.records import Feedback, Hop, Record, Turn
from serving.slots import Profile
from traces.blame import Blame, Context, blame, may_blame
from traces.bodies import read_hops_by_id
from traces.lake import Lake
from traces.outcomes import Outcome, settle
from traces.standing import superseded_turns
from traces.tables import arrow_table, record_of

_FETCH_ROWS = 500
_CHUNK_TURNS = 2000
_WINDOW = timedelta(days=1)

Progress = Callable[[int, int], None]
"""Called with turns done and turns in all."""


class AttributeReport(Record):
    """What is known about the turns after attribution."""

    turns: int
    outcomes: dict[str, int]
    """Turns by `success`, `failure` and `unjudged`."""
    rules: dict[str, int]
    """Turns by the part of the outcome rule that decided."""
    blame: dict[str, int]
    """Failed or suspect turns by class."""
    by_slot: dict[str, dict[str, int]]
    """Slot to `turns` it answered, `failed` among them, and `blamed`: turns that
    are its adapter's fault, for the router also those it sent wrong. Turns that were
    asked again are not among them."""
    feedback_unmatched: int
    """Signals about turns that are not in the lake (yet)."""
    changed: int
    """Rows of outcomes and blame that this run wrote or removed."""
    snapshot_id: int


def attribute(home: Path, profile: Profile, progress: Progress | None = None) -> AttributeReport:
    """Settle outcomes and blame for every turn of the lake of `home`.

    Raises:
        LakeNotFound: if nothing was ingested yet.
        LakeUnavailable: if the lake cannot be written; it is as it was.
    """
    with Lake.open(home, read_only=True) as lake:
        judged = _judge(lake, profile, progress)
        signals = _count(lake, "SELECT count(*) FROM feedback")
    changed = _write(home, judged)
    with Lake.open(home, read_only=True) as lake:
        snapshot_id = lake.snapshot_id()
    words = {True: "success", False: "failure", None: "unjudged"}
    outcomes = judged.outcomes.values()
    return AttributeReport(
        turns=len(judged.outcomes),
        outcomes=dict(sorted(Counter(words[o.success] for o in outcomes).items())),
        rules=dict(sorted(Counter(o.rule for o in outcomes).items())),
        blame=dict(sorted(Counter(b.klass for b in judged.blames.values()).items())),
        by_slot=_by_slot(judged, profile),
        feedback_unmatched=signals - len(judged.signals),
        changed=changed,
        snapshot_id=snapshot_id,
    )


@dataclass(slots=True)
class _Judged:
    """What one attribution found, before it is written."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    blames: dict[str, Blame] = field(default_factory=dict)
    slots: dict[str, str | None] = field(default_factory=dict)
    signals: set[str] = field(default_factory=set)
    """Ids of the feedback that named a turn."""
    superseded: frozenset[str] = frozenset()
    """Ids of the turns that were asked again."""


def _judge(lake: Lake, profile: Profile, progress: Progress | None) -> _Judged:
    feedback, named = _feedback_by_turn(lake)
    total = _count(lake, "SELECT count(*) FROM turns")
    judged = _Judged(signals=named, superseded=superseded_turns(lake))
    for conversations in _chunks(_conversations(lake)):
        for turns in conversations:
            for turn in turns:
                judged.outcomes[turn.turn_id] = settle(
                    turn,
                    feedback.get(turn.turn_id, []),
                    superseded=turn.turn_id in judged.superseded,
                )
                judged.slots[turn.turn_id] = turn.slot
        hops = _hops(lake, [turn for turns in conversations for turn in turns
                            if may_blame(turn, judged.outcomes[turn.turn_id])])  # fmt: skip
        for turns in conversations:
            _blame_conversation(turns, hops, profile, judged)
        if progress is not None:
            progress(len(judged.outcomes), total)
    return judged


def _blame_conversation(
    turns: list[Turn], hops: dict[str, Hop], profile: Profile, judged: _Judged
) -> None:
    # What was asked again is in nobody's view any more.
    turns = [turn for turn in turns if turn.turn_id not in judged.superseded]
    settled = [(turn, judged.outcomes[turn.turn_id]) for turn in turns]
    for index, (turn, outcome) in enumerate(settled):
        if may_blame(turn, outcome):
            context = Context(tuple(turns[:index]), tuple(settled[index + 1 :]))
            own = [hops[i] for i in turn.hop_ids if i in hops]
            verdict = blame(turn, own, outcome, context, profile)
            if verdict is not None:
                judged.blames[turn.turn_id] = verdict


def _conversations(lake: Lake) -> Iterator[list[Turn]]:
    """Yield the turns of each conversation in order, the conversations by their start."""
    cursor = lake.connection.execute(
        "SELECT * FROM (SELECT *, min(started_at) OVER (PARTITION BY conversation_id) AS opened_at"
        " FROM turns) ORDER BY opened_at, conversation_id, position, started_at, turn_id"
    )
    names = [column[0] for column in cursor.description]

    def turns() -> Iterator[Turn]:
        while rows := cursor.fetchmany(_FETCH_ROWS):
            for row in rows:
                yield record_of(Turn, "turns", dict(zip(names, row, strict=True)))

    for _, conversation in groupby(turns(), key=lambda turn: turn.conversation_id):
        yield list(conversation)


def _chunks(conversations: Iterator[list[Turn]]) -> Iterator[list[list[Turn]]]:
    """Gather whole conversations up to about `_CHUNK_TURNS` turns."""
    chunk: list[list[Turn]] = []
    for conversation in conversations:
        chunk.append(conversation)
        if sum(map(len, chunk)) >= _CHUNK_TURNS:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _hops(lake: Lake, turns: list[Turn]) -> dict[str, Hop]:
    """Read the hops of these turns by id."""
    if not turns:
        return {}
    # The window lets Parquet statistics skip files; a day covers clocks that disagree.
    where = "hop_id IN (SELECT unnest($ids)) AND started_at BETWEEN $low AND $high"
    parameters = {
        "ids": [i for turn in turns for i in turn.hop_ids],
        "low": min(turn.started_at for turn in turns) - _WINDOW,
        "high": max(turn.started_at for turn in turns) + _WINDOW,
    }
    return dict(read_hops_by_id(lake.connection, where, parameters))


_TARGETS = """
WITH named AS (
    SELECT feedback_id, target_id AS turn_id FROM feedback WHERE target_kind = 'turn'
    UNION
    SELECT f.feedback_id, t.turn_id FROM feedback f
    JOIN (SELECT turn_id, unnest(response_ids) AS response_id FROM turns) t
      ON f.target_kind = 'response' AND f.target_id = t.response_id
    UNION
    -- An agent's span is no call; a word about it is about the turn of its trace.
    SELECT f.feedback_id, t.turn_id FROM feedback f
    JOIN span_events s
      ON s.name = 'span_agent' AND f.target_kind = 'response' AND f.target_id = s.span_id
    JOIN turns t ON t.turn_id IN ('otlp:' || s.trace_id, 'openinference:' || s.trace_id)
    UNION
    -- A word about a conversation is about its last turn so far. TensorZero's metrics do not
    -- tell whether they are about a response or an episode, which is a conversation.
    SELECT f.feedback_id, t.turn_id FROM feedback f
    JOIN turns t ON f.target_id = t.conversation_id AND (f.target_kind = 'conversation'
        OR f.target_kind = 'response' AND f.source = 'tensorzero')
    QUALIFY row_number() OVER (
        PARTITION BY f.feedback_id
        ORDER BY (t.started_at <= f.created_at) DESC, t.started_at DESC, t.turn_id) = 1
)
SELECT n.turn_id AS about, f.* FROM feedback f JOIN named n USING (feedback_id)
JOIN turns t ON t.turn_id = n.turn_id
ORDER BY f.created_at, f.feedback_id
"""


def _feedback_by_turn(lake: Lake) -> tuple[dict[str, list[Feedback]], set[str]]:
    cursor = lake.connection.execute(_TARGETS)
    names = [column[0] for column in cursor.description]
    found: dict[str, list[Feedback]] = defaultdict(list)
    named: set[str] = set()
    while rows := cursor.fetchmany(_FETCH_ROWS):
        for row in rows:
            values = dict(zip(names, row, strict=True))
            found[values["about"]].append(record_of(Feedback, "feedback", values))
            named.add(values["feedback_id"])
    return found, named


def _rows(records: Mapping[str, Outcome | Blame]) -> dict[str, dict[str, Any]]:
    return {key: record.model_dump(mode="json") for key, record in records.items()}


def _changes(
    lake: Lake, table: str, wanted: dict[str, dict[str, Any]]
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return ids to remove and rows to write, so that `table` holds what is wanted."""
    kind: type[Outcome] | type[Blame] = Outcome if table == "outcomes" else Blame
    cursor = lake.connection.execute(f"SELECT * FROM {table}")
    names = [column[0] for column in cursor.description]
    stored: dict[str, dict[str, Any]] = {}
    while rows := cursor.fetchmany(_FETCH_ROWS):
        for row in rows:
            record = record_of(kind, table, dict(zip(names, row, strict=True)))
            stored[record.turn_id] = record.model_dump(mode="json")
    stale = [key for key, values in stored.items() if wanted.get(key) != values]
    fresh = [values for key, values in wanted.items() if stored.get(key) != values]
    return stale, fresh


def _write(home: Path, judged: _Judged) -> int:
    """Bring both tables to what was judged, in one transaction; return rows changed."""
    wanted = {"outcomes": _rows(judged.outcomes), "blame": _rows(judged.blames)}
    with Lake.open(home) as lake:

        def work(connection: duckdb.DuckDBPyConnection) -> int:
            changed = 0
            for table, rows in wanted.items():
                stale, fresh = _changes(lake, table, rows)
                if stale:
                    connection.execute(
                        f"DELETE FROM {table} WHERE turn_id IN (SELECT unnest($ids))",
                        {"ids": stale},
                    )
                lake.insert(table, arrow_table(table, fresh))
                changed += len({*stale, *(row["turn_id"] for row in fresh)})
            return changed

        return lake.commit(work)


def _count(lake: Lake, sql: str) -> int:
    row = lake.connection.execute(sql).fetchone()
    assert row is not None
    return int(row[0])


def _by_slot(judged: _Judged, profile: Profile) -> dict[str, dict[str, int]]:
    names = [*profile.labels, *(slot for slot in judged.slots.values() if slot is not None)]
    counts = {name: {"turns": 0, "failed": 0, "blamed": 0} for name in dict.fromkeys(names)}
    for turn_id, slot in judged.slots.items():
        if slot is not None and turn_id not in judged.superseded:
            counts[slot]["turns"] += 1
            counts[slot]["failed"] += judged.outcomes[turn_id].success is False
    for verdict in judged.blames.values():
        if verdict.klass in ("adapter", "router") and verdict.slot in counts:
            counts[verdict.slot]["blamed"] += judged.outcomes[verdict.turn_id].success is False
    return counts
