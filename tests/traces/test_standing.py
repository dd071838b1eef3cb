"""Proves that what was superseded, attempt or turn, is shown but neither judged nor counted.

Real lake; made-up records.
"""

from pathlib import Path
from typing import Any

import pytest
from trace_records import PROFILE, at, hop, says, signal, turn_of, user, write_spool

from serving.records import Hop, Turn
from traces.analytics.views import query
from traces.attribute import attribute
from traces.attribution.blame import Context, blame
from traces.attribution.outcomes import settle
from traces.ingest import ingest
from traces.joins.standing import standing
from traces.read import read_turns

ROUTE = hop("route", "L0", completion=says("L2"))
FAILED = hop(status="engine_error", completion=None, error="503 busy", response_id=None)
RETRIED = hop(seq=2, started_at=at(1.5), supersedes=FAILED.hop_id)
SUMMARY = hop("summary", seq=3, started_at=at(2))
ATTEMPTS = [ROUTE, FAILED, RETRIED, SUMMARY]


def asked(turn_id: str, position: int, supersedes: str | None = None, **fields: Any) -> list[Any]:
    """Return a turn of one hop."""
    own: dict[str, Any] = {"turn_id": turn_id, "started_at": at(10 * position)}
    answer = hop(response_id=f"r-{turn_id}", **own)
    return [answer, turn_of([answer], position=position, supersedes=supersedes, **own | fields)]


def test_of_two_attempts_the_later_one_stands() -> None:
    assert standing(ATTEMPTS) == (ROUTE, RETRIED, SUMMARY)
    assert standing([ROUTE, FAILED]) == (ROUTE, FAILED)


def test_of_three_attempts_the_last_one_stands() -> None:
    third = hop(seq=3, supersedes=RETRIED.hop_id)

    assert standing([FAILED, RETRIED, third]) == (third,)


def test_an_attempt_that_was_replaced_is_nobody_s_failure() -> None:
    turn = turn_of(ATTEMPTS)
    failed = settle(turn, [signal(value=0.0)])

    verdict = blame(turn, ATTEMPTS, failed, Context(), PROFILE)

    assert verdict is not None
    assert verdict.label == "adapter:L2"
    assert not verdict.evidence.startswith("two answers")


def test_an_attempt_that_was_not_replaced_is_still_a_failed_call() -> None:
    hops = [ROUTE, FAILED]
    turn = turn_of(hops, status="failed", slot=None)

    verdict = blame(turn, hops, settle(turn, []), Context(), PROFILE)

    assert verdict is not None
    assert (verdict.label, verdict.evidence) == (
        "fallback",
        "the answer engine call failed: 503 busy",
    )


def test_a_missing_hop_is_noticed_beside_a_replaced_one() -> None:
    turn = turn_of([*ATTEMPTS, hop(seq=9)])

    verdict = blame(turn, ATTEMPTS, settle(turn, [signal(value=0.0)]), Context(), PROFILE)

    assert verdict is not None
    assert (verdict.klass, verdict.evidence) == ("unknown", "1 hops are missing")


@pytest.mark.parametrize("status", ["ok", "failed", "abandoned"])
def test_a_turn_asked_again_has_no_outcome_whatever_was_said(status: str) -> None:
    turn = turn_of([hop()], status=status)

    outcome = settle(turn, [signal(value=1.0), signal("thumb", -1.0)], superseded=True)

    assert (outcome.success, outcome.tier, outcome.rule) == (None, None, "superseded")
    assert blame(turn, [hop()], outcome, Context(), PROFILE) is None


@pytest.fixture
def lake(home: Path, tmp_path: Path) -> Path:
    """Turns a, b, c of one conversation: a failed, b asked it again, c asked b again."""
    records = [
        *asked("a", 0),
        *asked("b", 1, supersedes="a"),
        *asked("c", 2, supersedes="b"),
        *asked("self", 3, supersedes="self", conversation_id="c2"),
        *(signal(value=0.0, target_id=turn_id) for turn_id in ("a", "b")),
        *(signal(value=1.0, target_id=turn_id) for turn_id in ("c", "self")),
    ]
    ingest(home, write_spool(tmp_path / "s.jsonl", records))
    return home


def test_turns_asked_again_count_in_no_rate(lake: Path) -> None:
    report = attribute(lake, PROFILE)

    assert report.outcomes == {"success": 2, "unjudged": 2}
    assert report.rules == {"superseded": 2, "verified": 2}
    assert report.blame == {}
    assert report.by_slot["L2"] == {"turns": 2, "failed": 0, "blamed": 0}
    assert report.feedback_unmatched == 0
    rates = query(lake, "SELECT sum(turns), avg(success_rate) FROM v_success_by_slot")[1]
    assert rates == [(2, 1.0)]
    assert query(lake, "SELECT sum(turns) FROM v_routing")[1] == [(2,)]


def test_the_turn_that_asks_again_may_come_later(home: Path, tmp_path: Path) -> None:
    ingest(home, write_spool(tmp_path / "1.jsonl", [*asked("a", 0), signal(target_id="a")]))
    before = attribute(home, PROFILE)
    ingest(home, write_spool(tmp_path / "2.jsonl", asked("b", 1, supersedes="a")))
    after = attribute(home, PROFILE)

    assert (before.blame, after.blame) == ({"adapter": 1}, {})
    assert after.rules == {"superseded": 1, "unjudged": 1}
    assert {b.turn.turn_id: b.blame for b in read_turns(home)} == {"a": None, "b": None}


def test_what_only_a_turn_asked_again_said_was_lost_by_no_summary(
    home: Path, tmp_path: Path
) -> None:
    def story(supersedes: str | None) -> list[Hop | Turn]:
        first = hop(slot="L0", turn_id="a", messages=(user("My cat is Biscuit."),))
        again = hop(slot="L0", turn_id="b", messages=(user("My cat is old."),), started_at=at(5))
        last = hop(turn_id="t1", messages=(user("Print its name."),), started_at=at(20))
        return [
            first, again, last,
            turn_of([first], turn_id="a", request="My cat is Biscuit."),
            turn_of([again], turn_id="b", position=1, request="My cat is old.",
                    supersedes=supersedes),
            turn_of([last], turn_id="t1", position=2, request="Print its name."),
        ]  # fmt: skip

    labels = []
    for n, supersedes in enumerate((None, "a")):
        edit = signal("edit", None, correction=says('print("Biscuit")'))
        spool = write_spool(tmp_path / f"{n}.jsonl", [*story(supersedes), edit])
        ingest(home / str(n), spool)
        attribute(home / str(n), PROFILE)
        labels += [b.blame.label for b in read_turns(home / str(n)) if b.blame]

    assert labels == ["summary:L0", "adapter:L2"]


def test_replaced_attempts_are_retried_not_failed_in_the_errors_view(
    home: Path, tmp_path: Path
) -> None:
    lost = hop(seq=7, status="broken_stream", started_at=at(3))
    records = [*ATTEMPTS, lost, turn_of([*ATTEMPTS, lost])]
    ingest(home, write_spool(tmp_path / "s.jsonl", records))

    sql = "SELECT status, hops, failed, retried FROM v_errors WHERE role = 'answer' ORDER BY 1"
    assert query(home, sql)[1] == [("broken_stream", 1, 1, 0), ("engine_error", 1, 0, 1)]
