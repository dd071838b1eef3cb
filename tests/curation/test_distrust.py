"""Conversations teach nothing from the first turn on that an untrusted version had a part in.

Proved for the rows of adapters and of the router head, in whichever order turns come, with what
the funnel says. Turns are made by `curation_turns`.
"""

from datetime import timedelta

import pytest
from curation_turns import PROFILE, START, bundle, hop, says, user

from curation import reasons
from curation.build import select
from curation.config import CurationConfig
from curation.harvest import Distrust
from curation.routes import harvest_routes
from traces.read import TurnBundle

CONFIG = CurationConfig()
GONE = "bbbbbbbbbbbb"


def talk(first: str, **untrusted) -> list[TurnBundle]:
    """A conversation of three turns, the second of which an untrusted version answered."""

    def turn(number: int, **fields) -> TurnBundle:
        turn_id, shared = f"{first}{number}", {"conversation": first, "minute": number}
        return bundle(turn_id, request=f"request {turn_id}", **shared | fields)

    return [turn(0), turn(1, **untrusted), turn(2)]


def turns() -> list[TurnBundle]:
    served = [hop("L2", [user("request r1")], says("an answer"), served_name=f"L2@{GONE}")]
    return [*talk("c", canary=True), *talk("r", hops=served), *talk("n"), bundle("other")]


@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("slot", ["L2", "L0"])
def test_what_follows_on_an_untrusted_turn_becomes_no_row(slot: str, step: int) -> None:
    chosen = select(turns()[::step], slot, PROFILE, CONFIG, withdrawn=frozenset({GONE}))
    taught = {row.turn_id for row in chosen.examples}
    assert taught == {"c0", "r0", "n0", "n1", "n2", "other"}
    funnel = chosen.stages[0]
    assert (funnel.entered, funnel.kept) == (10, 6)
    assert funnel.dropped == {
        reasons.CANARY: 1,
        reasons.ROLLED_BACK: 1,
        reasons.AFTER_CANARY: 1,
        reasons.AFTER_ROLLED_BACK: 1,
    }


@pytest.mark.parametrize("step", [1, -1])
def test_nor_does_it_teach_the_router_head(step: int) -> None:
    routes = harvest_routes(turns()[::step], PROFILE, CONFIG, frozenset({GONE}))
    assert {row.turn_id for row in routes.rows} == {"c0", "r0", "n0", "n1", "n2", "other"}
    assert routes.dropped[reasons.AFTER_CANARY] == routes.dropped[reasons.AFTER_ROLLED_BACK] == 1


def test_the_first_untrusted_turn_is_the_reason() -> None:
    distrust = Distrust(frozenset({"3fa9c1d2e4b5"}))
    distrust.add(bundle("t2", conversation="c", minute=2))
    distrust.add(bundle("t1", conversation="c", minute=1, canary=True))
    reason = [distrust.reason("c", START + timedelta(minutes=n)) for n in (0, 1, 3)]
    assert reason == [None, reasons.AFTER_CANARY, reasons.AFTER_CANARY]
    assert distrust.reason("d", START) is None
