"""Which turns tell a request's right slot, and on which side of the split they stand.

Proved: each kind of turn that tells it, each reason for leaving one out, that sides never
share a user, a conversation or a request, and that rows do not depend on the turns' order.
Real records; the texts stand in for what a model and a user wrote.
"""

import json
from datetime import timedelta

import pytest
from curation_turns import START, blamed, bundle
from hypothesis import given
from hypothesis import strategies as st

from curation import reasons
from curation.config import CurationConfig
from curation.routes import RouteRow, harvest_routes, route_row
from curation.split import votes_holdout
from serving.records import Feedback
from serving.slots import load_profile

PROFILE = load_profile()
CONFIG = CurationConfig()


def turned(made, **changes):
    """The bundle with other fields of its turn."""
    from dataclasses import replace

    return replace(made, turn=made.turn.model_copy(update=changes))


def failed_by(verifier, slot="L2", confidence=0.9):
    """A turn whose answer a verifier failed, blamed on the adapter that answered."""
    from dataclasses import replace

    signal = Feedback(
        source="mol", target_kind="turn", target_id="t1", kind="verifier", name=verifier,
        value=0.0, created_at=START,
    )  # fmt: skip
    made = bundle(slot=slot, success=False, blame=blamed("adapter", slot, confidence))
    signals = json.dumps([signal.model_dump(mode="json")])
    return replace(made, outcome=made.outcome.model_copy(update={"signals": signals}))


@pytest.mark.parametrize(
    ("made", "slot"),
    [
        (bundle(), "L2"),
        (bundle(tier="B"), "L2"),
        (bundle(success=False, blame=blamed("router", "L0", 0.9, "L1")), "L1"),
        (failed_by("python_tests"), "L2"),
        (failed_by("tool_call", slot="L1"), "L1"),
        (turned(bundle(), decision="explored"), "L2"),
        (turned(bundle(), decision="direct"), "L2"),
        (turned(bundle(), decision="rule"), "L2"),
    ],
)
def test_turns_that_tell_the_right_slot(made, slot):
    row = route_row(made, PROFILE, CONFIG)
    assert isinstance(row, RouteRow)
    assert (row.slot, row.served, row.text) == (slot, made.turn.slot, made.turn.request)
    assert row.routed == (made.turn.decision == "routed")


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (bundle(status="failed"), reasons.TURN_FAILED),
        (bundle(request=" "), reasons.TURN_FAILED),
        (bundle(canary=True), reasons.CANARY),
        (turned(bundle(), slot="base", decision="unsure"), reasons.OTHER_SLOT),
        (turned(bundle(), slot="L9"), reasons.OTHER_SLOT),
        (bundle(success=None, tier=None), reasons.NO_OUTCOME),
        (bundle(success=None, tier="C"), reasons.IMPLICIT_ONLY),
        (turned(bundle(), decision="fallback"), reasons.NOT_CHOSEN),
        (
            turned(
                bundle(success=False, blame=blamed("router", "L0", 0.9, "L1")),
                decision="explored",
            ),
            reasons.EXPLORED,
        ),
        (bundle(success=False), reasons.BLAME_UNKNOWN),
        (bundle(success=False, blame=blamed("unknown")), reasons.BLAME_UNKNOWN),
        (
            bundle(success=False, blame=blamed("router", "L0", 0.5, "L1")),
            reasons.LOW_CONFIDENCE,
        ),
        (bundle(success=False, blame=blamed("router", "L0")), reasons.RIGHT_SLOT_UNKNOWN),
        (
            bundle(success=False, blame=blamed("router", "L0", 0.9, "L9")),
            reasons.RIGHT_SLOT_UNKNOWN,
        ),
        (bundle(success=False, blame=blamed("tool")), "blamed on the tool"),
        (
            bundle(success=False, tier="B", blame=blamed("adapter", "L2")),
            "blamed on the adapter",
        ),
        (failed_by("tool_call"), "blamed on the adapter"),
    ],
)
def test_turns_that_do_not_tell_it_are_left_out_with_a_reason(made, reason):
    assert route_row(made, PROFILE, CONFIG) == reason


def test_a_turn_that_was_asked_again_counts_once():
    first = bundle("t1", request="write code", conversation="c")
    again = turned(bundle("t2", request="Write the code", conversation="c"), supersedes="t1")
    for order in ([first, again], [again, first]):
        routes = harvest_routes(order, PROFILE, CONFIG)
        assert [row.turn_id for row in routes.rows] == ["t2"]
        assert routes.dropped == {reasons.SUPERSEDED: 1}


def users_of(split):
    held, judging = CONFIG.holdout_percent, CONFIG.holdout_percent + 15
    wanted = {
        "holdout": lambda u: votes_holdout(u, held),
        "validation": lambda u: votes_holdout(u, judging) and not votes_holdout(u, held),
        "train": lambda u: not votes_holdout(u, judging),
    }[split]
    return [u for u in (f"user-{n}" for n in range(200)) if wanted(u)]


def test_sides_go_by_user_and_the_holdout_is_that_of_adapter_training():
    made = [
        bundle(f"{split}-{user}", who=user)
        for split in ("train", "validation", "holdout")
        for user in users_of(split)[:5]
    ]
    routes = harvest_routes(made, PROFILE, CONFIG)
    assert {(row.turn_id.split("-")[0], row.split) for row in routes.rows} == {
        (split, split) for split in ("train", "validation", "holdout")
    }
    assert len(routes.rows) == 15


def test_a_request_that_train_asks_is_not_judged_on():
    trainer, judge = users_of("train")[0], users_of("holdout")[0]
    made = [
        bundle("a", who=trainer, request="Turn on the light."),
        bundle("b", who=judge, request="turn on the LIGHT"),
        bundle("c", who=judge, request="Turn on the lamp."),
        bundle("d", who=trainer, request="Turn on the light."),
    ]
    routes = harvest_routes(made, PROFILE, CONFIG)
    assert [row.turn_id for row in routes.rows] == ["a", "c", "d"]
    assert routes.dropped == {reasons.ALSO_IN_TRAIN: 1}


people = st.one_of(st.none(), st.sampled_from([f"user-{n}" for n in range(12)]))
turns = st.lists(st.tuples(people, st.integers(0, 12), st.integers(0, 30)), max_size=40)


@given(turns, st.randoms(use_true_random=False))
def test_sides_share_nobody_and_no_request_and_order_is_no_matter(drawn, random):
    made = [
        bundle(f"t{n}", who=who, conversation=f"c{talk}", request=f"ask {ask}", minute=n)
        for n, (who, talk, ask) in enumerate(drawn)
    ]
    routes = harvest_routes(made, PROFILE, CurationConfig(holdout_percent=40))
    for key in ("conversation_id", "user"):
        sides = {}
        for row in routes.rows:
            value = getattr(row, key)
            assert value is None or sides.setdefault(value, row.split) == row.split
    learnt = {row.text for row in routes.of("train")}
    validated = {row.text for row in routes.of("validation")}
    assert not learnt & validated
    assert not (learnt | validated) & {row.text for row in routes.of("holdout")}
    assert len(routes.rows) + sum(routes.dropped.values()) == routes.turns == len(made)
    random.shuffle(made)
    assert harvest_routes(made, PROFILE, CurationConfig(holdout_percent=40)) == routes


def test_the_digest_follows_the_rows():
    one = harvest_routes([bundle("t1"), bundle("t2")], PROFILE, CONFIG)
    later = [bundle("t1"), bundle("t2", minute=3)]
    assert later[1].turn.started_at - later[0].turn.started_at == timedelta(minutes=3)
    assert harvest_routes(later, PROFILE, CONFIG).digest == one.digest
    assert harvest_routes([bundle("t1")], PROFILE, CONFIG).digest != one.digest
    assert harvest_routes([bundle("t1"), bundle("t2", slot="L1")], PROFILE, CONFIG).digest != (
        one.digest
    )


def test_a_version_that_was_rolled_back_routes_for_nobody() -> None:
    made = bundle()
    assert isinstance(route_row(made, PROFILE, CONFIG), RouteRow)
    gone = frozenset({"3fa9c1d2e4b5"})
    assert route_row(made, PROFILE, CONFIG, gone) == reasons.ROLLED_BACK
    assert harvest_routes([made], PROFILE, CONFIG, gone).dropped == {reasons.ROLLED_BACK: 1}
