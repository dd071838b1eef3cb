"""Proves that it does not matter when feedback comes: before its turn, days after it, or twice.

Real lakes and real attribution; only the traffic is made up.
"""

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from trace_records import (
    PROFILE,
    at,
    hop,
    says,
    signal,
    tables,
    traffic,
    write_spool,
)

from serving.records import Feedback, Hop, Turn
from traces.attribute import attribute
from traces.ingest import ingest

Records = list[Hop | Turn | Feedback]

WEEK = timedelta(days=7)


def records() -> tuple[Records, Records]:
    """Return hops and turns, some of them to be joined, and what was said about them later."""
    whole = [record for record in traffic(6) if not isinstance(record, Feedback)]
    bare = hop(conversation_id="c9", turn_id="t9", response_id="r9", started_at=at(500))
    said: Records = [
        signal(value=0.0, target_id="t00000", created_at=at(900)),
        signal(value=1.0, target_id="t00000", created_at=at(901), name="tool_call"),
        signal("thumb", -1.0, target_id="r1", target_kind="response", created_at=at(60) + WEEK),
        signal("thumb", 1.0, target_id="r1", target_kind="response", created_at=at(61) + WEEK),
        signal("edit", None, target_id="t00002", correction=says("better"), created_at=at(70)),
        signal("thumb", -1.0, target_id="c1", target_kind="conversation", created_at=at(45)),
        signal("thumb", -1.0, target_id="r9", target_kind="response", created_at=at(600) + WEEK),
        signal("comment", None, target_id="nobody", detail="about no turn", created_at=at(5)),
    ]
    return [*whole, bare], said


def judged(home: Path) -> dict[str, Any]:
    attribute(home, PROFILE)
    return tables(home)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("expected")
    traces, said = records()
    ingest(folder / "home", write_spool(folder / "s.jsonl", [*traces, *said]))
    return judged(folder / "home")


def test_the_signals_matter(expected: dict[str, Any]) -> None:
    rules = {row[0]: row[1] for row in expected["outcomes"]}

    assert rules["t00000"] is False
    assert rules["t00001"] is not None
    assert rules["t9"] is False
    assert expected["blame"]


@pytest.mark.parametrize("seed", range(3))
def test_feedback_in_any_order_gives_the_same_outcomes(
    home: Path, tmp_path: Path, expected: dict[str, Any], seed: int
) -> None:
    traces, said = records()
    chance = random.Random(seed)
    everything = [*traces, *said, *said]
    chance.shuffle(everything)
    for n in range(0, len(everything), 13):
        ingest(home, write_spool(tmp_path / f"{n}.jsonl", everything[n : n + 13]))
        if n == 13:
            attribute(home, PROFILE)

    assert judged(home) == expected


def test_feedback_for_turns_not_yet_seen_waits_for_them(
    home: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    traces, said = records()
    ingest(home, write_spool(tmp_path / "said.jsonl", said))
    early = attribute(home, PROFILE)
    ingest(home, write_spool(tmp_path / "traces.jsonl", traces))

    assert early.feedback_unmatched == len(said)
    assert judged(home) == expected


def test_a_late_signal_changes_only_its_own_turn(home: Path, tmp_path: Path) -> None:
    ingest(home, write_spool(tmp_path / "a.jsonl", traffic(4)))
    before = {row[0]: row for row in judged(home)["outcomes"]}
    late = signal("thumb", -1.0, target_id="r2", target_kind="response", created_at=at(0) + WEEK)

    ingest(home, write_spool(tmp_path / "b.jsonl", [late, late]))

    after = {row[0]: row for row in judged(home)["outcomes"]}
    assert [key for key in after if after[key] != before[key]] == ["t00002"]
