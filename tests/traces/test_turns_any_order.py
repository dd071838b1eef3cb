"""Proves that turns follow from what the lake holds, not from how it came to hold it.

Spans, recorded turns, logged calls without a turn, and a harness's calls and client requests
are made up by chance and stored in parts in any order. Real lakes, real joins.
"""

import random
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_records import (
    at,
    calls,
    capture_hop,
    capture_request,
    hop,
    result,
    says,
    turn_of,
    user,
)

from serving.records import NO_KEY, Message
from traces.importers.mindlab import parse
from traces.importers.rows import Row, hop_row, turn_row
from traces.joins.turns import refresh_turns
from traces.storage.lake import Lake
from traces.storage.store import store_rows


def spans(chance: random.Random) -> Iterator[Row]:
    """Yield calls of several traces of few sessions; some days apart, some at the same time."""
    for trace in range(chance.randint(0, 5)):
        session = f"c{chance.randint(0, 2)}"
        asked = (user(f"q{trace}"), calls("f"), result("r"))[: chance.choice([1, 1, 3])]
        for n in range(chance.randint(1, 4)):
            yield hop_row(
                hop(
                    chance.choice(["answer", "answer", "route", "summary"]),
                    chance.choice(["L1", "L2"]),
                    source=chance.choice(["otlp", "openinference"]),
                    turn_id=f"otlp:t{trace}",
                    conversation_id=session,
                    seq=chance.randint(0, 3),
                    started_at=at(trace + chance.choice([0, 5, 5, 300_000, chance.random()])),
                    messages=asked,
                    completion=chance.choice([None, says("L1"), says(f"a{n}")]),
                    status=chance.choice(["ok", "ok", "engine_error", "abandoned"]),
                    response_id=chance.choice([None, "r", f"r{trace}{n}"]),
                    span_id=f"s{trace}{n}",
                    user=chance.choice([None, "", "u"]),
                )
            )


def recorded(chance: random.Random) -> Iterator[Row]:
    """Yield turns with their hops, some told twice, some hops that name no turn."""
    for n in range(chance.randint(0, 4)):
        session = f"c{chance.randint(0, 2)}"
        named = None if n % 2 and chance.random() < 0.5 else f"m{n}"
        hops = [
            hop(turn_id=named, conversation_id=session, seq=i, started_at=at(7 * n + i))
            for i in range(chance.randint(1, 3))
        ]
        yield from map(hop_row, hops)
        for _ in range(chance.randint(0, 2)):
            told = turn_of(
                hops[: chance.randint(1, len(hops))],
                turn_id=chance.choice([f"m{n}", f"otlp:t{n}"]),
                conversation_id=chance.choice([session, "c9"]),
            )
            yield turn_row(told, "recorded")


def logged(chance: random.Random) -> Iterator[Row]:
    """Yield calls of conversations that only their histories and tool calls hold together."""
    for talk in range(chance.randint(0, 3)):
        history: list[Message] = []

        def call(said: Message, n: float, talk: int = talk, history: Any = history) -> Row:
            row = hop_row(
                hop(
                    source="openai",
                    turn_id=None,
                    conversation_id=chance.choice([NO_KEY, NO_KEY, f"c{talk}"]),
                    messages=tuple(history),
                    completion=said,
                    started_at=at(3 * talk + n),
                    user=f"u{talk % 2}",
                )
            )
            history.append(said)
            return row

        for n in range(chance.randint(1, 4)):
            history.append(user(chance.choice(["hi", f"x{talk}{n}"])))
            made = calls("f", chance.choice(["call_0", f"k{talk}{n}"]))
            said = chance.choice([says("yo"), says(f"z{talk}{n}"), made])
            yield call(said, 2 * n)
            if said.tool_calls:
                history.append(result("ok", said.tool_calls[0].id))
                yield call(says(f"done{n}"), 2 * n + 1)


def captured(chance: random.Random) -> Iterator[Row]:
    """Yield a harness's calls, any of them lost, and what its clients sent."""
    for n in range(chance.randint(0, 4)):
        key, text = chance.choice([f"k{n}", "k"]), chance.choice([f"Book {n}.", "Hi."])
        ts = 100 + n * chance.choice([0.3, 10])
        lines = [
            capture_hop(key, "route", "L0", text, ts, said="L1"),
            capture_hop(key, "answer", "L1", text, ts + 0.1),
            capture_hop(key, "summary", "L1", text, ts + 0.2),
            capture_request(text, ts - 0.1, 3, "x", request={"user": chance.choice(["u1", "u2"])}),
            {"ts": ts + 2, "path": "/v1/chat/completions", "note": "client closed early"},
        ]
        for line in lines:
            if chance.random() < 0.8:
                yield from parse(line, None)


def store(lake: Lake, rows: list[Row]) -> None:
    tables: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        tables.setdefault(row.table, []).append(row.values)
    lake.commit(lambda connection: store_rows(lake, tables))
    refresh_turns(lake)


def turns(lake: Lake) -> list[tuple[Any, ...]]:
    return lake.connection.execute("SELECT * FROM turns ORDER BY turn_id").fetchall()


@given(st.integers(0, 10**6))
@settings(
    max_examples=4, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
def test_the_same_rows_in_any_order_and_number_of_parts_are_the_same_turns(seed: int) -> None:
    chance = random.Random(seed)
    rows = [row for kind in (spans, recorded, logged, captured) for row in kind(chance)]
    parts = sorted(chance.randint(0, len(rows)) for _ in range(chance.randint(1, 3)))
    with (
        tempfile.TemporaryDirectory() as folder,
        Lake.open(Path(folder) / "at once") as one,
        Lake.open(Path(folder) / "in parts") as other,
    ):
        store(one, rows)
        chance.shuffle(rows)
        for low, high in pairwise([0, *parts, len(rows)]):
            store(other, rows[low:high])

        assert turns(other) == turns(one)
        ids = [hop_id for turn in turns(one) for hop_id in turn[13]]
        assert len({turn[0] for turn in turns(one)}) == len(turns(one))
        loose = other.connection.execute(
            "SELECT count(*) FROM hops WHERE turn_id IS NULL"
        ).fetchall()
        assert len(ids) >= loose[0][0]


@given(st.integers(0, 10**6))
@settings(
    max_examples=3, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
def test_joining_only_what_is_new_gives_what_joining_everything_does(seed: int) -> None:
    chance = random.Random(seed)
    rows = [row for kind in (spans, recorded, logged, captured) for row in kind(chance)]
    chance.shuffle(rows)
    with tempfile.TemporaryDirectory() as folder, Lake.open(Path(folder)) as lake:
        half = len(rows) // 2
        for part in (rows[:half], rows[half:]):
            store(lake, part)
            lake.connection.execute("DELETE FROM offsets WHERE source_id = 'join'")

            assert refresh_turns(lake) == (0, 0)
