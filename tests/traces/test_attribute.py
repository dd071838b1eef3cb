"""Proves attribution and reading over one lake. Real DuckLake; made-up traffic."""

from pathlib import Path

import pytest
from trace_records import (
    PROFILE,
    at,
    calls,
    hop,
    says,
    signal,
    traffic,
    turn_of,
    user,
    write_spool,
)

from serving.records import Feedback, Hop, Turn
from traces.attribute import attribute
from traces.ingest import ingest
from traces.read import read_turns


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attribute")
    ingest(folder / ".mol", write_spool(folder / "s.jsonl", traffic(9)))
    attribute(folder / ".mol", PROFILE)
    return folder / ".mol"


def test_turns_failures_and_blame_are_counted_by_slot(lake: Path) -> None:
    report = attribute(lake, PROFILE)

    assert report.turns == 9
    assert report.outcomes == {"failure": 3, "success": 6}
    assert report.blame == {"adapter": 3}
    assert report.by_slot["L2"] == {"turns": 9, "failed": 3, "blamed": 3}
    assert report.by_slot["L0"] == {"turns": 0, "failed": 0, "blamed": 0}


def test_attributing_again_changes_nothing(lake: Path) -> None:
    first, second = attribute(lake, PROFILE), attribute(lake, PROFILE)

    assert second.changed == 0
    assert second.snapshot_id == first.snapshot_id


def test_late_feedback_by_any_target_changes_only_its_turn(home: Path, tmp_path: Path) -> None:
    records = traffic(3)
    ingest(home, write_spool(tmp_path / "a.jsonl", [r for r in records if r not in records[4::5]]))
    before = attribute(home, PROFILE)
    late = [
        signal("thumb", -1.0, target_kind="response", target_id="r1"),
        signal("thumb", 1.0, target_kind="conversation", target_id="c0", created_at=at(99)),
        signal("thumb", 1.0, target_id="t-unseen"),
    ]
    ingest(home, write_spool(tmp_path / "b.jsonl", late))

    after = attribute(home, PROFILE)

    assert before.rules == {"unjudged": 3}
    assert after.rules == {"thumbed": 2, "unjudged": 1}
    assert after.feedback_unmatched == 1
    found = {b.turn.turn_id: b.outcome.success for b in read_turns(home)}
    assert found == {"t00000": None, "t00001": False, "t00002": True}


def test_a_router_s_fault_counts_for_the_router(home: Path, tmp_path: Path) -> None:
    hops = [hop("route", "L0", completion=says("L2")), hop()]
    edit = signal("edit", None, correction=calls("light", room="kitchen"))
    ingest(home, write_spool(tmp_path / "s.jsonl", [*hops, turn_of(hops), edit]))

    report = attribute(home, PROFILE)

    assert report.by_slot["L0"]["blamed"] == 1
    assert report.by_slot["L2"] == {"turns": 1, "failed": 1, "blamed": 0}


def test_what_follows_a_failure_is_evidence(home: Path, tmp_path: Path) -> None:
    records: list[Hop | Turn | Feedback] = []
    for place, slot in enumerate(("L2", "L1", "L2")):
        shared = {"turn_id": f"t{place}", "response_id": f"r{place}"}
        hops = [
            hop("route", slot="L0", completion=says(slot), started_at=at(10 * place), **shared),
            hop(slot=slot, started_at=at(10 * place + 1), **shared),
        ]
        turn = turn_of(hops, turn_id=f"t{place}", position=place, started_at=at(10 * place))
        thumb = signal("thumb", 1.0 if place else -1.0, user="u1", target_id=turn.turn_id)
        records += [*hops, turn, thumb]
    ingest(home, write_spool(tmp_path / "s.jsonl", records))

    attribute(home, PROFILE)

    labels = {b.turn.turn_id: b.blame.label for b in read_turns(home) if b.blame}
    assert labels == {"t0": "router:L0"}


def test_a_lost_word_is_found_across_the_turns_of_a_conversation(
    home: Path, tmp_path: Path
) -> None:
    first = hop(slot="L0", turn_id="t0", messages=(user("My cat is called Biscuit."),))
    second = hop(turn_id="t1", messages=(user("Print its name."),), started_at=at(20))
    edit = signal("edit", None, correction=says('print("Biscuit")'))
    records = [
        first,
        turn_of([first], turn_id="t0", request="My cat is called Biscuit."),
        second,
        turn_of([second], turn_id="t1", position=1, request="Print its name."),
        edit,
    ]
    ingest(home, write_spool(tmp_path / "s.jsonl", records))
    attribute(home, PROFILE)

    labels = {b.turn.turn_id: b.blame.label for b in read_turns(home) if b.blame}
    assert labels == {"t1": "summary:L0"}


def test_turns_are_read_in_order_with_all_that_is_known(lake: Path) -> None:
    bundles = list(read_turns(lake))

    assert [b.turn.turn_id for b in bundles] == sorted(b.turn.turn_id for b in bundles)
    assert all([h.hop_id for h in b.hops] == list(b.turn.hop_ids) for b in bundles)
    assert [b.blame is not None for b in bundles] == [b.outcome.success is False for b in bundles]


def test_a_slot_and_a_snapshot_narrow_what_is_read(lake: Path) -> None:
    assert len(list(read_turns(lake, slot="L2"))) == 9
    assert list(read_turns(lake, slot="L1")) == []
    assert list(read_turns(lake, snapshot=1)) == []
