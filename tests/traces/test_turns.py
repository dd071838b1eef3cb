"""Proves how turns are made of spans: in any order, late, and only as far as something came in.

Real lakes, stored and joined as an ingest does; the spans are made up.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from trace_records import at, calls, hop, result, says, turn_of, user

from serving.records import NO_KEY, Hop, Turn
from traces.importers.rows import hop_row, turn_row
from traces.joins.turns import refresh_turns
from traces.storage.lake import Lake
from traces.storage.row_records import record_of
from traces.storage.store import store_rows

DAY_S = 86_400.0


def span(trace: str, seconds: float, **fields: Any) -> Hop:
    """Return an engine call as a tracer records it."""
    known: dict[str, Any] = {
        "source": "otlp",
        "turn_id": f"otlp:{trace}",
        "conversation_id": "session",
        "seq": int(seconds * 1e6),
        "started_at": at(seconds),
        "response_id": f"r-{trace}-{seconds}",
        "span_id": f"s-{trace}-{seconds}",
    }
    return hop(**known | fields)


@pytest.fixture
def lake(home: Path) -> Iterator[Lake]:
    with Lake.open(home) as lake:
        yield lake


def take(lake: Lake, *records: Hop | Turn) -> tuple[int, int]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        row = hop_row(record) if isinstance(record, Hop) else turn_row(record, "recorded")
        rows.setdefault(row.table, []).append(row.values)
    lake.commit(lambda connection: store_rows(lake, rows))
    return refresh_turns(lake)


def turns(lake: Lake) -> list[Turn]:
    cursor = lake.connection.execute("SELECT * FROM turns ORDER BY started_at, turn_id")
    names = [column[0] for column in cursor.description]
    return [
        record_of(Turn, "turns", dict(zip(names, row, strict=True))) for row in cursor.fetchall()
    ]


PLANNER = span("a", 0, slot="L1", workload="travel", user="", task="t-7",
               messages=(user("Plan a trip."),), completion=calls("search"))  # fmt: skip
SEARCHER = span("a", 5, slot="L2", user="u2", messages=(user("Find trains."),),
                completion=says("Two trains."))  # fmt: skip
LAST = span("a", 3 * DAY_S, slot="L1", duration_s=2.0, completion=says("Take the first."),
            messages=(user("Plan a trip."), calls("search"), result("Two trains.")))  # fmt: skip


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2, 0)])
def test_the_spans_of_a_trace_are_one_turn_however_they_come(
    lake: Lake, order: tuple[int, ...]
) -> None:
    spans = [PLANNER, SEARCHER, LAST]
    for place in order:
        take(lake, spans[place])

    (turn,) = turns(lake)

    assert turn == Turn(
        turn_id="otlp:a",
        source="otlp",
        conversation_id="session",
        user="u2",
        position=0,
        request="Plan a trip.",
        answer=says("Take the first."),
        slot="L1",
        digest="3fa9c1d2e4b5",
        decision="direct",
        status="ok",
        hop_ids=tuple(one.hop_id for one in spans),
        response_ids=tuple(i for one in spans for i in (one.response_id, one.span_id) if i),
        started_at=at(0),
        duration_s=3 * DAY_S + 2.0,
        workload="travel",
        task="t-7",
    )


def test_a_trace_that_comes_late_takes_its_place_in_the_conversation(lake: Lake) -> None:
    take(lake, span("c", 30), span("b", 20), span("x", 1, conversation_id="other"))
    before = {t.turn_id: t.position for t in turns(lake)}
    first = hop(turn_id="m", conversation_id="session", started_at=at(5))
    take(lake, span("a", 10), first, turn_of([first], turn_id="m", started_at=at(5),
                                                       conversation_id="session"))  # fmt: skip

    after = {t.turn_id: t.position for t in turns(lake)}

    assert before == {"otlp:b": 0, "otlp:c": 1, "otlp:x": 0}
    assert after == {"m": 0, "otlp:a": 1, "otlp:b": 2, "otlp:c": 3, "otlp:x": 0}


ENDS: dict[str, tuple[dict[str, Any], tuple[str, str | None, str | None]]] = {
    "well": ({}, ("ok", None, "L2")),
    "busy": ({"status": "engine_error", "error": "503"}, ("failed", "503", None)),
    "cut": ({"status": "broken_stream", "error": ""}, ("failed", "broken_stream", None)),
    "left": ({"status": "abandoned", "error": "gone"}, ("abandoned", "gone", None)),
    "lost": ({"role": "route"}, ("abandoned", "no answer hop", None)),
    "down": ({"role": "route", "status": "engine_error", "error": "5"}, ("failed", "5", None)),
}


def test_how_a_trace_ended_is_told_by_its_last_answer(lake: Lake) -> None:
    spans = [
        one
        for trace, (fields, _) in ENDS.items()
        for one in (
            span(trace, 0, role="route", completion=says(" L2\n")),
            span(trace, 1, **fields),
        )
    ]
    take(lake, *spans)

    found = {t.turn_id: (t.status, t.error, t.slot) for t in turns(lake)}

    assert found == {f"otlp:{trace}": ending for trace, (_, ending) in ENDS.items()}
    assert {t.request for t in turns(lake)} == {"Sort a list."}


def test_a_recorded_turn_keeps_its_hops_from_the_join(lake: Lake) -> None:
    hops = [hop(seq=n, started_at=at(n)) for n in range(3)]
    take(lake, hops[0], turn_of(hops[:2]))
    take(lake, *hops[1:])

    (turn,) = turns(lake)

    assert turn == turn_of(hops[:2])


def test_of_two_records_the_one_with_more_hops_then_the_one_that_ended_stands(lake: Lake) -> None:
    hops = [hop(seq=n, started_at=at(n)) for n in range(2)]
    records = [turn_of(hops[:1]), turn_of(hops, status="abandoned"), turn_of(hops, tail=[]),
               turn_of(hops, tail=[user("Thanks.")])]  # fmt: skip
    random.Random(2).shuffle(records)
    for record in records:
        take(lake, record)

    assert turns(lake) == [turn_of(hops, tail=[user("Thanks.")])]


def test_a_hop_that_is_replaced_or_taken_out_changes_its_turn(lake: Lake) -> None:
    take(lake, span("a", 0), span("a", 1, completion=says("old")), span("b", 2))

    def forget(where: str) -> tuple[int, int]:
        lake.commit(lambda c: c.execute(f"DELETE FROM hops WHERE {where}") and None)
        return refresh_turns(lake)

    forget("seq = 1000000")
    take(lake, span("a", 1.5, completion=says("new")))
    replaced = turns(lake)

    assert [len(t.hop_ids) for t in replaced] == [2, 1]
    assert replaced[0].answer == says("new")
    assert forget("turn_id = 'otlp:a'") == (0, 2)
    assert [(t.turn_id, t.position) for t in turns(lake)] == [("otlp:b", 0)]


def test_without_the_snapshot_of_its_mark_the_join_looks_at_everything(lake: Lake) -> None:
    connection = lake.connection
    take(lake, span("a", 0))
    mark = connection.execute("SELECT * FROM offsets WHERE source_id = 'join'").fetchall()
    take(lake, span("a", 1), span("b", 2))
    joined = turns(lake)
    # As if killed before the second join, and found weeks later.
    connection.execute("DELETE FROM turns; DELETE FROM offsets WHERE source_id = 'join'")
    connection.executemany("INSERT INTO offsets VALUES (?, ?, ?, ?, ?)", mark)
    connection.execute("CALL ducklake_expire_snapshots('lake', older_than => now())")
    feed = f"'lake', 'main', 'hops', {mark[0][2] + 1}, {lake.snapshot_id()}"
    with pytest.raises(duckdb.InvalidInputException, match="No snapshot found"):
        connection.execute(f"FROM ducklake_table_insertions({feed})")

    assert refresh_turns(lake) == (2, 0)
    assert turns(lake) == joined


def test_joining_again_changes_nothing(lake: Lake) -> None:
    take(lake, span("a", 0), hop(turn_id=None, conversation_id="k"))
    first = lake.snapshot_id()

    assert refresh_turns(lake) == (0, 0)
    assert lake.snapshot_id() == first


def test_turns_that_began_at_the_same_time_are_in_the_order_of_their_histories(
    lake: Lake,
) -> None:
    talk = [user("One?"), says("1"), user("Two?"), says("2"), user("Three?"), says("3")]
    steps = [
        hop(source="openai", turn_id=None, conversation_id=key, started_at=at(0), seq=0,
            messages=tuple(talk[:place]), completion=talk[place])
        for place in (1, 3, 5) for key in ("k", NO_KEY)
    ]  # fmt: skip
    random.Random(1).shuffle(steps)
    for step in steps:
        take(lake, step)

    found = sorted(turns(lake), key=lambda t: (t.conversation_id, t.position))

    assert [t.request for t in found] == ["One?", "Two?", "Three?"] * 2
    assert [t.position for t in found] == [0, 1, 2] * 2
