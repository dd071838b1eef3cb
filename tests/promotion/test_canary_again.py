"""Canaries that were ended by hand and begun again, and traffic that names no conversation.

Proved: the evidence against a version goes on where it was, whoever begins it again, and what was
not drawn is none of it; the status line says so, and says how little counts where callers name
neither conversation nor user. Registry and lake are real; see `canary_traffic`.
"""

from pathlib import Path

import pytest
from canary_traffic import (
    QUIET_S,
    SLOT,
    make_home,
    name,
    report_of,
    settle,
    start_canary,
    traffic,
    verify_of,
    whole,
)
from registry_records import attempted

from promotion.canary.config import CanaryConfig
from promotion.canary.rollout import RolloutReport, known_before, run_canary
from promotion.promote import begin_canary, end_canary
from promotion.registry import Registry
from serving.records import NO_KEY

CONFIG = CanaryConfig(min_pairs=20, quiet_s=QUIET_S, steps=(20, 50))
BAD = {"champion": 0.2, "canary": 0.6}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_home(tmp_path / "home")


def look(home: Path) -> RolloutReport:
    return run_canary(home, SLOT, CONFIG, verify_of=verify_of)


def test_who_ends_a_canary_and_begins_it_again_has_the_same_evidence(home: Path) -> None:
    report = start_canary(home)
    settle(home, traffic("a", 36, BAD, 50, seed=5), "a")
    before = look(home)
    assert before.evidence > 1
    assert "on trial before" not in before.message
    assert known_before(home, SLOT, CONFIG) is None

    end_canary(home, SLOT)
    assert known_before(home, SLOT, CONFIG) is None
    # What only the champion answered was not drawn, so it is no comparison.
    settle(home, traffic("between", 40, {"champion": 1.0}, 0), "between")
    begin_canary(home, attempted(home, report_of(1, 2, seed=7)), 50, verify=whole)
    again = look(home)
    assert (again.evidence, again.guards) == (before.evidence, before.guards)
    assert (again.status, again.pairs) == ("insufficient", 0)
    assert "It was on trial before, since " in again.message
    told = known_before(home, SLOT, CONFIG)
    assert told is not None
    assert f"evidence {before.evidence:.3g} to 1" in told

    end_canary(home, SLOT)
    begin_canary(home, report, 50, verify=whole)
    settle(home, traffic("b", 90, {"champion": 0.1, "canary": 0.9}, 50, seed=6), "b")
    found = look(home)
    assert (found.status, found.evidence >= 100) == ("rolled_back", True)
    with Registry.open(home) as registry:
        assert len(registry.log.withdrawn(SLOT)) == 1


def test_the_status_says_how_little_traffic_counts_that_names_nobody(home: Path) -> None:
    start_canary(home)
    records = traffic("n", 60, BAD, 50)
    hops = [record for record in records if hasattr(record, "served_name")]
    assert {hop.served_name for hop in hops} == {name(1), name(2)}
    nameless = {"conversation_id": NO_KEY, "turn_id": None, "messages": hops[0].messages}
    settle(home, [hop.model_copy(update=nameless) for hop in hops], "n")
    assert " 61 turns named neither conversation nor user: by how they begin, they count as 1." in (
        look(home).message
    )
