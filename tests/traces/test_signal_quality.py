"""Proves how far signals are said to be trusted: counts, intervals, corrected shares, refusals.

Real DuckLake; made-up conversations whose counts are typed beside them.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest
from trace_records import PROFILE, at, hop, signal, turn_of, user, write_spool

from serving.records import Feedback, Hop, Turn
from traces.attribute import attribute
from traces.attribution.signal_quality import SignalQuality, in_words, signal_quality
from traces.ingest import ingest
from traces.storage.lake import Lake

_HOUR_S = 3600.0


def conversation(n: int, value: float | None, reply: str) -> list[Hop | Turn | Feedback]:
    """Return a turn that a verifier gave a value, or none, and what the user said next."""
    records: list[Hop | Turn | Feedback] = []
    for place, request in enumerate((f"Sort the list of all {n} friends.", reply)):
        shared: dict[str, Any] = {"conversation_id": f"c{n}", "turn_id": f"t{n}-{place}"}
        started = at(_HOUR_S * n + 60 * place)
        answer = hop(started_at=started, messages=(user(request),), **shared)
        records += [answer, turn_of([answer], request=request, position=place, **shared)]
    if value is not None:
        records.append(signal(value=value, target_id=f"t{n}-0", created_at=at(_HOUR_S * n + 5)))
    return records


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 failures of which 30 are corrected, 60 successes of which 3 are, 20 thanked.

    Of 50 turns that nobody verified 20 are corrected.
    """
    wrong, plain, thanks = "That's wrong.", "What is a tree?", "Thank you!"
    talks = [(0.0, wrong)] * 30 + [(0.0, plain)] * 10
    talks += [(1.0, wrong)] * 3 + [(1.0, thanks)] * 20 + [(1.0, plain)] * 37
    talks += [(None, wrong)] * 20 + [(None, plain)] * 30
    records = [r for n, (value, reply) in enumerate(talks) for r in conversation(n, value, reply)]
    folder = tmp_path_factory.mktemp("quality")
    ingest(folder / ".mol", write_spool(folder / "s.jsonl", records))
    attribute(folder / ".mol", PROFILE)
    return folder / ".mol"


def quality(home: Path) -> dict[str, SignalQuality]:
    with Lake.open(home, read_only=True) as lake:
        return {q.signal: q for q in signal_quality(lake.connection)}


def test_a_signal_is_counted_where_verifiers_judged(home: Path) -> None:
    found = quality(home)["correction"]

    assert (found.failed, found.succeeded) == (40, 60)
    assert (found.on_failed, found.on_succeeded) == (30, 3)
    assert found.sensitivity == 30 / 40
    assert found.specificity == 57 / 60
    assert found.precision == 30 / 33
    wilson = binomtest(57, 60).proportion_ci(method="wilson")
    assert (found.specificity_low_95, found.specificity_high_95) == pytest.approx(
        (wilson.low, wilson.high)
    )


def test_what_else_failed_is_corrected_by_rogan_and_gladen(home: Path) -> None:
    found = quality(home)["correction"]

    # The 50 first turns without a verdict, and the 150 second ones, which nobody corrects.
    assert (found.unverified, found.on_unverified) == (200, 20)
    assert found.failed_share == pytest.approx((20 / 200 + 57 / 60 - 1) / (30 / 40 + 57 / 60 - 1))


def test_thanks_speak_for_a_turn(home: Path) -> None:
    found = quality(home)["thanks"]

    assert found.sensitivity == 20 / 60
    assert found.specificity == 1.0
    assert found.refused is None
    assert found.failed_share == 1.0


def test_no_share_is_told_where_the_signal_says_nothing(home: Path, tmp_path: Path) -> None:
    found = quality(home)["retry"]
    assert (found.failed_share, found.precision) == (None, None)
    assert found.refused == "not seen on a verified turn"

    # As often on successes as on failures: nothing.
    talks = [(value, "That's wrong.") for value in (0.0, 1.0)] * 2
    records = [r for n, (value, reply) in enumerate(talks) for r in conversation(n, value, reply)]
    ingest(tmp_path, write_spool(tmp_path / "s.jsonl", records))
    attribute(tmp_path, PROFILE)
    found = quality(tmp_path)["correction"]
    assert found.information == 0.0
    assert found.failed_share is None
    assert found.refused == "sensitivity + specificity - 1 is below 0.1"


def test_derived_signals_are_in_the_outcome_and_nowhere_else(home: Path) -> None:
    with Lake.open(home, read_only=True) as lake:
        stored = lake.connection.execute("SELECT DISTINCT kind FROM feedback").fetchall()
        told = lake.connection.execute(
            "SELECT rule, signals FROM outcomes WHERE turn_id = 't100-0'"
        ).fetchall()
    assert stored == [("verifier",)]
    ((rule, signals),) = told
    assert rule == "suspect"
    assert [(s["kind"], s["source"]) for s in json.loads(signals)] == [("correction", "derived")]


def test_attributing_again_finds_the_same_signals(home: Path) -> None:
    assert attribute(home, PROFILE).changed == 0


def test_one_line_tells_what_was_right_how_often(home: Path) -> None:
    line = in_words(list(quality(home).values()))
    assert line is not None
    assert line.startswith("right on verified turns: correction 91% of 33, thanks 100% of 20")
    assert in_words([]) is None
