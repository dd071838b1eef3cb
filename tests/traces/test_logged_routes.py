"""From the lake: which turns can be weighed, and which logs are refused.

The turns are made by the real turn code, whose router explores (`explored_traffic`); lake, join
and attribution are the real parts. A damaged log is the spool with records altered or left out.
"""

import pytest
from explored_traffic import PROFILE, explored_records
from trace_records import hop, signal, traffic, turn_of, write_spool

from serving.records import Hop, Turn
from traces.attribute import attribute
from traces.attribution.logged_routes import KNOWN_BEFORE, read_logged
from traces.attribution.off_policy import EstimateRefused
from traces.errors import LakeNotFound, QueryRefused
from traces.ingest import ingest

LABELS = PROFILE.labels


@pytest.fixture(scope="module")
def explored():
    """Records of 240 turns, of which 0.3 are drawn."""
    return explored_records(60, 0.3)


def lake_of(home, *groups):
    for number, records in enumerate(groups):
        spool = home.parent / f"{home.name}-{number}.jsonl"
        ingest(home, write_spool(spool, records))
    attribute(home, PROFILE)
    return home


@pytest.fixture(scope="module")
def home(explored, tmp_path_factory):
    return lake_of(tmp_path_factory.mktemp("routes") / "home", explored)


def turns_of(records):
    return [record for record in records if isinstance(record, Turn)]


def test_every_explored_turn_has_its_slot_propensity_outcome_and_conversation(home, explored):
    found = read_logged(home, LABELS)
    made = {turn.turn_id: turn for turn in turns_of(explored)}
    assert [turn.turn_id for turn in found.turns] == sorted(made)
    for turn in found.turns:
        record = made[turn.turn_id]
        assert (turn.text, turn.slot) == (record.request, record.slot)
        assert (turn.conversation_id, turn.digest) == (record.conversation_id, record.digest)
        assert turn.success == (record.answer.content == "right")
        assert turn.propensity == pytest.approx(0.075 if record.decision == "explored" else 0.775)
    assert found.left_out == {}
    assert found.epsilons == pytest.approx((0.3,))
    arrays = found.arrays
    assert [LABELS[a] for a in arrays.action_N] == [turn.slot for turn in found.turns]
    assert len(set(arrays.conversation_N.tolist())) == 60


def test_a_condition_may_use_what_was_known_before_the_route(home, explored):
    wanted = [t for t in turns_of(explored) if "python" in t.request and t.position > 0]
    found = read_logged(home, LABELS, "request LIKE '%python%' AND position > 0 -- only these")
    assert {turn.turn_id for turn in found.turns} == {turn.turn_id for turn in wanted}
    for column in KNOWN_BEFORE:
        condition = f"{column} IS NOT NULL OR {column} IS NULL"
        assert len(read_logged(home, LABELS, condition).turns) == 240


@pytest.mark.parametrize(
    "where",
    ["slot = 'L2'", "success", "answer = 'right'", "decision = 'explored'", "1 +", "",
     "true); DROP TABLE turns; SELECT (1", "position = $1"],
)  # fmt: skip
def test_what_is_no_such_condition_is_refused_in_one_line(home, where):
    if not where:
        assert len(read_logged(home, LABELS, where).turns) == 240
        return
    with pytest.raises(QueryRefused) as refused:
        read_logged(home, LABELS, where)
    assert "\n" not in str(refused.value)
    assert where[:20] in str(refused.value)


def test_a_home_without_a_lake_and_a_condition_that_nothing_fits(home, tmp_path):
    with pytest.raises(LakeNotFound):
        read_logged(tmp_path / "none", LABELS)
    with pytest.raises(EstimateRefused, match="No turn fits"):
        read_logged(home, LABELS, "position > 99")


def test_outcomes_of_the_tiers_that_count(home):
    assert len(read_logged(home, LABELS, tiers=("A",)).turns) == 240
    with pytest.raises(EstimateRefused, match=r"outcome of tier B \(240 other_tier\)"):
        read_logged(home, LABELS, tiers=("B",))


def test_turns_without_propensities_are_counted_apart(explored, tmp_path):
    home = lake_of(tmp_path / "home", explored, traffic(9))
    found = read_logged(home, LABELS)
    assert len(found.turns) == 240
    assert found.left_out == {"no_propensity": 9}


def test_a_lake_without_any_propensity_is_refused(tmp_path):
    home = lake_of(tmp_path / "home", traffic(9))
    with pytest.raises(EstimateRefused, match=r"No routed turn has a logged propensity.*epsilon"):
        read_logged(home, LABELS)


def test_a_router_that_does_not_explore_is_refused(tmp_path):
    home = lake_of(tmp_path / "home", explored_records(5, 0.0))
    with pytest.raises(EstimateRefused, match=r"No router explored.*20 not_explored"):
        read_logged(home, LABELS)


def test_times_with_and_without_exploration_may_share_a_lake(explored, tmp_path):
    quiet = explored_records(5, 0.0, seed=9, prefix="q")
    other = explored_records(40, 0.1, seed=8, prefix="o")
    found = read_logged(lake_of(tmp_path / "home", explored, quiet, other), LABELS)
    assert found.left_out == {"not_explored": 20}
    assert found.epsilons == pytest.approx((0.1, 0.3))
    assert len(found.turns) == 240 + 160


def test_turns_that_rules_settle_or_nobody_answered_or_judged_are_left_out(explored, tmp_path):
    def made(name, propensity=0.775, *, judged=True, **fields):
        shared = {"conversation_id": name, "turn_id": name}
        route = hop(
            "route", "L0", propensity=propensity, harness_digest=router, response_id=f"a{name}",
            **shared,
        )  # fmt: skip
        answer = hop(response_id=f"b{name}", **shared)
        turn = turn_of((route, answer), **{**shared, "request": "Sort.", **fields})
        return [route, answer, turn, *([signal(target_id=name)] if judged else [])]

    router = next(r.harness_digest for r in explored if isinstance(r, Hop))
    more = [
        *made("by-rule", 1.0, decision="rule"),
        *made("unsure", 1.0, decision="unsure", slot="base"),
        *made("sticky", None, decision="sticky"),
        *made("failed", status="failed", slot=None, answer=None),
        *made("unheard", judged=False),
        *made("gone", slot="L9"),
    ]
    found = read_logged(lake_of(tmp_path / "home", explored, more), LABELS)
    assert len(found.turns) == 240
    assert found.left_out == {
        "not_explored": 2, "not_routed": 1, "not_answered": 1, "no_outcome": 1, "other_slots": 1,
    }  # fmt: skip


def altered(records, change):
    """Return the records with some hops changed, and the turns that have them."""
    hops = {r.hop_id: change(r) for r in records if isinstance(r, Hop)}
    return [
        hops[r.hop_id] if isinstance(r, Hop)
        else r.model_copy(update={"hop_ids": tuple(hops[h].hop_id for h in r.hop_ids)})
        if isinstance(r, Turn) else r
        for r in records
    ]  # fmt: skip


def test_a_routed_turn_whose_propensity_is_lost_is_refused(explored, tmp_path):
    lost = next(t for t in turns_of(explored) if t.decision == "explored").turn_id

    def forget(h):
        return h.model_copy(update={"propensity": None}) if h.turn_id == lost else h

    home = lake_of(tmp_path / "home", altered(explored, forget))
    with pytest.raises(EstimateRefused, match=f"1 routed turns have no logged.*{lost}"):
        read_logged(home, LABELS)


@pytest.mark.parametrize("propensity", [0.5, 0.0, 1.5])
def test_propensities_that_contradict_each_other_are_refused(explored, tmp_path, propensity):
    wrong = next(t for t in turns_of(explored) if t.decision == "routed").turn_id

    def spoil(h):
        changes = {"propensity": propensity}
        return h.model_copy(update=changes) if h.turn_id == wrong and h.propensity else h

    home = lake_of(tmp_path / "home", altered(explored, spoil))
    with pytest.raises(EstimateRefused, match="imply epsilon"):
        read_logged(home, LABELS)


def test_a_log_that_lacks_what_was_drawn_is_refused(explored, tmp_path):
    drawn = {t.turn_id for t in turns_of(explored) if t.decision == "explored"}
    kept = [r for r in explored if getattr(r, "turn_id", None) not in drawn]
    home = lake_of(tmp_path / "home", [r for r in kept if getattr(r, "target_id", 0) not in drawn])
    with pytest.raises(EstimateRefused, match="0 of .* turns were explored where"):
        read_logged(home, LABELS)


def test_routers_that_chose_among_other_slots_are_left_out(home):
    with pytest.raises(EstimateRefused, match="240 other_slots"):
        read_logged(home, (*LABELS, "L4"))
