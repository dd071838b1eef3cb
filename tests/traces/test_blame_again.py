"""Proves that blame found by a replay lasts as long as its evidence, and is shown with it.

Real lake and attribution; the arms of the replay are written by the test, no engine is asked.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from trace_records import PROFILE, at, hop, says, signal, turn_of, user, write_spool

from flows.turn_page import turn_lines
from serving.records import content_id
from traces.attribute import attribute
from traces.attribution.blame import Blame
from traces.attribution.replayed import CODE_VERSION, ArmConfig
from traces.config import AttributionConfig, LakeConfig
from traces.ingest import ingest
from traces.lookup import find_turns
from traces.read import read_turns
from traces.storage.lake import Lake
from traces.storage.tables import arrow_table
from traces.storage.upkeep import upkeep

REFERENCE = {"verifier": "exact", "accepted": ["blue"]}
FAILED = signal(value=0.0, name="somebody's", reference=json.dumps(REFERENCE), created_at=at(5))


def arm(slot: str, successes: int) -> dict[str, Any]:
    how = ArmConfig(
        reference=content_id(REFERENCE), version="served", view="recorded", tools="recorded",
        temperature=0.7, asked=8,
    )  # fmt: skip
    return {
        "turn_id": "t1", "slot": slot, "digest": "3fa9c1d2e4b5", "samples": 8,
        "successes": successes, "config": how.model_dump_json(), "code_version": CODE_VERSION,
        "created_at": at(60),
    }  # fmt: skip


@pytest.fixture
def lake(home: Path, tmp_path: Path) -> Path:
    hops = [hop("route", "L0", completion=says("L2")), hop(messages=(user("sky?"),))]
    ingest(home, write_spool(tmp_path / "s.jsonl", [*hops, turn_of(hops), FAILED]))
    attribute(home, PROFILE)
    with Lake.open(home) as opened:
        rows = [arm("L2", 0), arm("L1", 8), arm("L3", 0)]
        opened.commit(lambda _: opened.insert("replays", arrow_table("replays", rows)))
    return home


def blamed(home: Path) -> Blame:
    (bundle,) = read_turns(home)
    assert bundle.blame is not None
    return bundle.blame


def test_blame_found_by_a_replay_is_found_again_and_shown(lake: Path) -> None:
    attribute(lake, PROFILE)
    first = blamed(lake)

    again = attribute(lake, PROFILE)

    assert again.changed == 0
    assert blamed(lake) == first
    assert (first.method, first.verdict) == ("replay", "router")
    assert (first.klass, first.slot, first.right_slot) == ("router", "L0", "L1")
    page = "\n".join(line.plain for line in turn_lines(find_turns(lake, "t1")[0]))
    assert "found by replay" in page
    assert "decisive call 1: route by L0@3fa9c1d2e4b5" in page
    assert "verdict of the replay: router" in page


def test_other_evidence_drops_what_a_replay_found(lake: Path, tmp_path: Path) -> None:
    attribute(lake, PROFILE)
    late = signal(
        value=0.0, name="somebody's", created_at=at(90),
        reference=json.dumps(REFERENCE | {"accepted": ["grey"]}),
    )  # fmt: skip
    ingest(lake, write_spool(tmp_path / "late.jsonl", [late]))

    attribute(lake, PROFILE)

    assert (blamed(lake).method, blamed(lake).verdict) == ("structure", None)


def test_a_turn_that_turns_out_well_is_blamed_on_nobody(lake: Path, tmp_path: Path) -> None:
    ingest(
        lake,
        write_spool(
            tmp_path / "late.jsonl", [turn_of([hop()], turn_id="t2", supersedes="t1"), hop()]
        ),
    )

    attribute(lake, PROFILE)

    assert all(b.blame is None for b in read_turns(lake) if b.turn.turn_id == "t1")


def test_replays_leave_the_lake_with_their_turn(lake: Path) -> None:
    upkeep(lake, LakeConfig(keep_days=1))

    with Lake.open(lake, read_only=True) as opened:
        left = opened.connection.execute(
            "SELECT (SELECT count(*) FROM replays), (SELECT count(*) FROM turns)"
        ).fetchone()
    assert left == (0, 0)


def test_settings_say_how_often_the_router_may_be_wronged(lake: Path) -> None:
    attribute(lake, PROFILE, config=AttributionConfig(false_router=1e-6))

    assert blamed(lake).verdict != "router"
