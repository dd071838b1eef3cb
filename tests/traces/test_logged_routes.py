"""From the lake: which turns can be weighed, and which logs are refused.

The turns are made by the real turn code, whose router explores (`explored_traffic`); lake, join
and attribution are the real parts. A damaged log is the spool with records altered or left out.
"""

import pytest
from explored_traffic import PROFILE, explored_records
from trace_records import calls, hop, signal, traffic, turn_of, write_spool

from serving.records import Hop, Turn
from traces.attribute import attribute
from traces.attribution.logged_routes import KNOWN_BEFORE, read_logged
from traces.attribution.off_policy import EstimateRefused
from traces.errors import LakeNotFound, QueryRefused
from traces.ingest import ingest

LABELS = PROFILE.labels


def turns_of(records):
    return [record for record in records if isinstance(record, Turn)]


def altered(records, change):
    """Return the records with some hops changed, and the turns that have them."""
    hops = {r.hop_id: change(r) for r in records if isinstance(r, Hop)}
    return [
        hops[r.hop_id] if isinstance(r, Hop)
        else r.model_copy(update={"hop_ids": tuple(hops[h].hop_id for h in r.hop_ids)})
        if isinstance(r, Turn) else r
        for r in records
    ]  # fmt: skip


def with_propensity(records, decision, propensity):
    """Return the records with the propensity of one turn altered."""
    one = next(t for t in turns_of(records) if t.decision == decision).turn_id

    def spoil(h):
        changes = {"propensity": propensity}
        return h.model_copy(update=changes) if h.turn_id == one and h.propensity else h

    return altered(records, spoil)


def asked_again(records):
    """Return the records, each failure's turn superseded by the next of its conversation."""
    wrong = {t.turn_id for t in turns_of(records) if t.answer.content == "wrong"}
    before = {(t.conversation_id, t.position): t.turn_id for t in turns_of(records)}

    def repeat(turn):
        last = before.get((turn.conversation_id, turn.position - 1))
        return turn.model_copy(update={"supersedes": last}) if last in wrong else turn

    return [repeat(r) if isinstance(r, Turn) else r for r in records]


def without_draws(records):
    drawn = {t.turn_id for t in turns_of(records) if t.decision == "explored"}
    return [
        r for r in records if not {getattr(r, "turn_id", 0), getattr(r, "target_id", 0)} & drawn
    ]


def odd_turns(router):
    """Return turns that cannot be weighed, of the router that explored the others."""

    def made(name, propensity=0.775, *, judged=True, **fields):
        shared = {"conversation_id": f"odd-{name}", "turn_id": f"odd-{name}"}
        route = hop(
            "route", "L0", propensity=propensity, harness_digest=router, response_id=f"a{name}",
            **shared,
        )  # fmt: skip
        # Nobody would have said of a right call that it was right.
        shown = {"completion": calls("nothing"), "tools": '[{"name": "light"}]'}
        answer = hop(response_id=f"b{name}", **shared, **(shown if name == "shown" else {}))
        turn = turn_of((route, answer), **{**shared, "request": "Sort.", **fields})
        return [route, answer, turn, *([signal(target_id=turn.turn_id)] if judged else [])]

    return [
        *made("by-rule", 1.0, decision="rule"),
        *made("unsure", 1.0, decision="unsure", slot="base"),
        *made("sticky", None, decision="sticky"),
        *made("failed", status="failed", slot=None, answer=None),
        *made("fell", status="failed", answer=None),
        *made("left", status="abandoned", answer=None),
        *made("unheard", judged=False),
        *made("shown", judged=False),
        *made("gone", slot="L9"),
    ]


@pytest.fixture(scope="module")
def explored():
    """Records of 160 turns, of which 0.3 are drawn."""
    return explored_records(40, 0.3)


@pytest.fixture(scope="module")
def home(explored, tmp_path_factory):
    """One lake, for a lake takes seconds; conversations of the damaged logs begin with a word."""
    folder = tmp_path_factory.mktemp("routes")
    router = next(r.harness_digest for r in explored if isinstance(r, Hop))
    records = [
        *explored,
        *explored_records(5, 0.0, seed=9, prefix="quiet"),
        *explored_records(20, 0.1, seed=8, prefix="tenth"),
        *asked_again(explored_records(30, 0.3, seed=2, prefix="again")),
        *traffic(9),
        *odd_turns(router),
        *with_propensity(explored_records(10, 0.3, seed=7, prefix="lost"), "explored", None),
        *with_propensity(explored_records(10, 0.3, seed=6, prefix="half"), "routed", 0.5),
        *with_propensity(explored_records(10, 0.3, seed=5, prefix="zero"), "explored", 0.0),
        *with_propensity(explored_records(10, 0.3, seed=4, prefix="more"), "routed", 1.5),
        *without_draws(explored_records(40, 0.3, seed=3, prefix="less")),
    ]
    ingest(folder / "home", write_spool(folder / "spool.jsonl", records))
    attribute(folder / "home", PROFILE)
    return folder / "home"


EXPLORED = "conversation_id LIKE 'c0___'"


def begins(*words):
    return " OR ".join([f"conversation_id LIKE '{word}%'" for word in words])


def test_every_explored_turn_has_its_slot_propensity_outcome_and_conversation(home, explored):
    found = read_logged(home, LABELS, EXPLORED)
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
    assert len(set(arrays.conversation_N.tolist())) == 40


def test_a_condition_may_use_what_was_known_before_the_route(home, explored):
    wanted = [t for t in turns_of(explored) if "python" in t.request and t.position > 0]
    where = f"{EXPLORED} AND request LIKE '%python%' AND position > 0 -- only these"
    found = read_logged(home, LABELS, where)
    assert {turn.turn_id for turn in found.turns} == {turn.turn_id for turn in wanted}
    every = " AND ".join(f"({column} IS NULL) IS NOT NULL" for column in KNOWN_BEFORE)
    assert len(read_logged(home, LABELS, f"({EXPLORED}) AND {every}").turns) == 160


@pytest.mark.parametrize(
    "where",
    ["slot = 'L2'", "success", "answer = 'right'", "decision = 'explored'", "1 +",
     "true); DROP TABLE turns; SELECT (1", "position = $1", "true) LIMIT (5",
     "turn_id NOT IN (SELECT turn_id FROM outcomes WHERE NOT success)",
     "true) UNION SELECT turn_id FROM outcomes WHERE (success"],
)  # fmt: skip
def test_what_is_no_such_condition_is_refused_in_one_line(home, where):
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
    assert len(read_logged(home, LABELS, EXPLORED, tiers=("A",)).turns) == 160
    with pytest.raises(EstimateRefused, match=r"outcome of tier B \(160 other_tier\)"):
        read_logged(home, LABELS, EXPLORED, tiers=("B",))


def test_turns_without_propensities_are_counted_apart_where_no_router_logged_any(home):
    found = read_logged(home, LABELS, f"{EXPLORED} OR turn_id LIKE 't0000%'")
    assert len(found.turns) == 160
    assert found.left_out == {"no_propensity": 9}
    with pytest.raises(EstimateRefused, match=r"No routed turn has a logged propensity.*epsilon"):
        read_logged(home, LABELS, "turn_id LIKE 't0000%'")


def test_times_with_and_without_exploration_may_share_a_lake(home):
    found = read_logged(home, LABELS, begins("c0___", "quiet", "tenth"))
    assert found.left_out == {"not_explored": 20}
    assert found.epsilons == pytest.approx((0.1, 0.3))
    assert len(found.turns) == 160 + 80
    with pytest.raises(EstimateRefused, match=r"No router explored.*20 not_explored"):
        read_logged(home, LABELS, begins("quiet"))


def test_turns_that_rules_settle_or_nobody_answered_or_judged_are_left_out(home):
    found = read_logged(home, LABELS, begins("c0___", "odd"))
    assert len(found.turns) == 161
    assert found.left_out == {
        "not_explored": 2, "not_routed": 1, "not_answered": 2, "no_outcome": 2, "other_slots": 1,
    }  # fmt: skip


def test_a_slot_that_left_its_turn_without_an_answer_had_no_success(home):
    found = read_logged(home, LABELS, begins("c0___", "odd"), tiers=("A",))
    assert [t.success for t in found.turns if t.turn_id == "odd-fell"] == [False]


def test_a_turn_that_was_asked_again_counts_with_what_was_said_of_it(home):
    made = {t.turn_id: t for t in turns_of(explored_records(30, 0.3, seed=2, prefix="again"))}
    found = read_logged(home, LABELS, begins("again"))
    assert found.left_out == {}
    assert {t.turn_id: t.success for t in found.turns} == {
        turn_id: turn.answer.content == "right" for turn_id, turn in made.items()
    }


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            "lost",
            "1 routed turns have no logged propensity, such as 'sha256:.*router logged others",
        ),
        ("half", r"imply epsilon 0\.3, 0\.66"),
        ("zero", "imply epsilon 0, 0"),
        ("more", "imply epsilon -"),
        ("less", "0 of .* turns were explored where the logged propensities say about"),
    ],
)
def test_a_log_that_contradicts_itself_is_refused_in_one_line(home, log, words):
    with pytest.raises(EstimateRefused, match=words) as refused:
        read_logged(home, LABELS, begins(log))
    assert "\n" not in str(refused.value)


def test_routers_that_chose_among_other_slots_are_left_out(home):
    with pytest.raises(EstimateRefused, match="160 other_slots"):
        read_logged(home, (*LABELS, "L4"), EXPLORED)
