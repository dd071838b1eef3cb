"""What a replay makes of a blame: rows in, the verdict and whose doing it was out.

Nothing is faked; rows are typed here as a replay would have written them.
"""

import pytest
from trace_records import PROFILE, at, hop, says, turn_of

from serving.records import canonical_json
from traces.attribution.blame import Blame
from traces.attribution.outcomes import Outcome
from traces.attribution.replay_rows import Replays
from traces.attribution.replayed import ArmConfig, Replay, Similar, current, from_replay

HOPS = (hop("route", "L0", completion=says("L1")), hop(slot="L1"), hop("summary", "L1"))


def rows(own: int, *others: int, reference: str = "now", **fields) -> list[Replay]:
    """Return the arms of a turn that L1 answered: successes of 8, L0, L2 and L3 after it."""
    how = {
        "reference": reference, "version": "champion", "view": "recorded", "tools": "none",
        "temperature": 0.7, "asked": 8,
    } | fields  # fmt: skip
    config = canonical_json(ArmConfig.model_validate(how).model_dump(mode="json"))
    counts = {"L1": own} | dict(zip(("L0", "L2", "L3"), others, strict=False))
    return [
        Replay(
            turn_id="t1", slot=slot, digest="77aa77aa77aa", samples=8, successes=successes,
            config=config, created_at=at(100),
        )
        for slot, successes in counts.items()
    ]  # fmt: skip


def blamed(
    replays: list[Replay], klass: str = "adapter", slot: str | None = "L1", *,
    confidence: float = 0.9, corrected: bool = False, decision: str = "routed",
    rule: str = "own_verifier", digest: str | None = "3fa9c1d2e4b5", **options,
) -> Blame:  # fmt: skip
    before = Blame(
        turn_id="t1", klass=klass, slot=slot, confidence=confidence, evidence="as it was",
        right_slot="L3" if klass == "router" else None, rule=rule,
    )  # fmt: skip
    outcome = Outcome(
        turn_id="t1", success=False, tier="A", rule="verified",
        correction=says("Paris") if corrected else None,
    )  # fmt: skip
    turn = turn_of(HOPS, decision=decision, digest=digest)
    return from_replay(before, replays, turn, HOPS, outcome, PROFILE, 0.05, **options)


def test_a_better_slot_makes_it_the_routers_and_names_the_right_slot() -> None:
    found = blamed(rows(0, 8, 1, 0))
    assert (found.label, found.right_slot, found.verdict) == ("router:L0", "L0", "router")
    assert (found.method, found.hop_id) == ("replay", HOPS[0].hop_id)
    assert found.evidence.startswith("as it was; asked again, L1 succeeded in 0 of 8")


def test_an_adapter_that_succeeds_elsewhere_in_its_samples_failed_by_chance() -> None:
    found = blamed(rows(7, 8, 8, 8), "router", "L0")
    assert (found.label, found.verdict, found.right_slot) == ("adapter:L1", "stochastic", None)
    assert found.confidence <= 0.5
    assert found.hop_id == HOPS[1].hop_id


def test_an_adapter_that_usually_fails_where_nobody_is_better_is_to_blame() -> None:
    found = blamed(rows(2, 2, 1, 0), "unknown", None, confidence=0.0)
    assert (found.label, found.verdict) == ("adapter:L1", "adapter")
    assert found.confidence > 0.6


def test_what_no_slot_solves_is_nobodys() -> None:
    found = blamed(rows(0, 0, 0, 0), confidence=0.7)
    assert (found.label, found.verdict, found.confidence) == ("unknown", "unsolvable", 0.0)
    surer = blamed(rows(0, 0, 0, 0), confidence=0.95)
    assert (surer.label, surer.verdict, surer.confidence) == ("adapter:L1", "unsolvable", 0.5)


@pytest.mark.parametrize(
    ("own", "right", "label", "verdict"),
    [
        (5, 8, "router:L0", "stochastic"),
        (7, 8, "adapter:L1", "stochastic"),
        (2, 4, "router:L0", "adapter"),
        (3, 2, "adapter:L1", "adapter"),
    ],
)
def test_a_route_that_the_log_shows_to_be_wrong_stays_so_unless_the_counts_weigh_more(
    own, right, label, verdict
) -> None:
    found = blamed(rows(own, 1, 1, right), "router", "L0", rule="foreign_verifier")
    assert (found.label, found.verdict) == (label, verdict)
    assert ("what the log shows weighs more" in found.evidence) == (label == "router:L0")
    if label == "router:L0":
        assert (found.right_slot, found.method) == ("L3", "structure")


def test_a_slot_that_nobody_asked_again_clears_no_router() -> None:
    found = blamed(rows(0, 0, 0), "router", "L0", rule="foreign_verifier")
    assert (found.label, found.right_slot) == ("router:L0", "L3")
    assert blamed(rows(0, 0, 0, 0), "router", "L0", rule="foreign_verifier").label == "unknown"


@pytest.mark.parametrize("rule", ["broken_call", "malformed", "altered"])
def test_a_fault_that_shows_in_the_answer_stands_though_no_slot_does_better(rule) -> None:
    found = blamed(rows(0, 0, 0, 0), confidence=0.7, rule=rule)
    assert (found.label, found.verdict, found.confidence) == ("adapter:L1", "adapter", 0.7)
    assert blamed(rows(0, 0, 0, 0), "router", "L0", rule=rule).verdict == "unsolvable"


def test_with_a_right_answer_at_hand_nothing_but_failures_leaves_the_adapter_to_blame() -> None:
    found = blamed(rows(0, 0, 0, 0), confidence=0.7, corrected=True)
    assert (found.label, found.verdict, found.confidence) == ("adapter:L1", "adapter", 0.7)
    doubted = blamed(rows(0, 0, 0, 0), "router", "L0", confidence=0.9, corrected=True)
    assert doubted.label == "adapter:L1"
    assert doubted.confidence <= 0.5


@pytest.mark.parametrize(
    ("decision", "label"),
    [("rule", "router"), ("direct", "router"), ("explored", "fallback"), ("fallback", "fallback")],
)
def test_a_wrong_slot_that_no_router_chose_is_not_the_routers(decision, label) -> None:
    found = blamed(rows(0, 8, 0, 0), decision=decision)
    assert (found.label, found.right_slot) == (label, "L0")


@pytest.mark.parametrize("klass", ["tool", "fallback", "user"])
def test_classes_that_a_replay_cannot_speak_to_stay(klass) -> None:
    found = blamed(rows(0, 8, 0, 0), klass, None)
    assert (found.label, found.method, found.verdict) == (klass, "structure", None)


def test_a_lost_summary_stays_unless_its_reader_usually_succeeds() -> None:
    kept = blamed(rows(0, 8, 0, 0), "summary", "L0", confidence=0.7)
    assert (kept.label, kept.confidence, kept.verdict) == ("summary:L0", 0.7, "router")
    assert blamed(rows(8, 0, 0, 0), "summary", "L0").label == "adapter:L1"


def test_rows_of_another_reference_do_not_count() -> None:
    assert current(rows(0, 8, 0, 0, reference="before"), "now") == {}
    newer = [r.model_copy(update={"created_at": at(200)}) for r in rows(8, 0, 0, 0)]
    found = current([*newer, *rows(0, 8, 0, 0), *rows(1, 1, 1, 1, reference="before")], "now")
    assert list(found.values()) == newer


def test_of_turns_alike_those_count_that_the_same_versions_answered() -> None:
    told = {
        name: [row.model_copy(update={"turn_id": name} | changed(row)) for row in rows(1, 4, 1, 0)]
        for name, changed in {
            "own": lambda row: {},
            "alike": lambda row: {},
            "version": lambda row: {"digest": "bbbbbbbbbbbb"} if row.slot == "L1" else {},
            "other": lambda row: {"digest": "bbbbbbbbbbbb"} if row.slot == "L2" else {},
            "elsewhere": lambda row: {},
        }.items()
    } | {"fewer": rows(1, 4, 1)}
    answered = dict.fromkeys(told, "L1") | {"elsewhere": "L2"}
    replays = Replays(told, answered, dict.fromkeys(told, 7), {7: sorted(told)})
    assert replays.similar("own") == [Similar("L1", told["alike"])]
    assert replays.similar("unknown") == []


def test_without_the_arm_that_answered_nothing_changes() -> None:
    assert blamed(rows(0, 8, 0, 0)[1:]).verdict is None
    assert blamed([]).verdict is None


def test_small_gaps_show_over_similar_turns() -> None:
    alone = blamed(rows(1, 4, 1, 0))
    assert alone.verdict == "adapter"
    alike = [Similar("L1", rows(1, 4, 0, 1)), Similar("L1", rows(0, 3, 1, 1))]
    pooled = blamed(rows(1, 4, 1, 0), similar=alike)
    assert (pooled.label, pooled.right_slot) == ("router:L0", "L0")
    assert "over 3 similar turns" in pooled.evidence
    others = [Similar("L2", s.rows) for s in alike]
    assert blamed(rows(1, 4, 1, 0), similar=others).verdict == "adapter"


def judged_of(replays: list[Replay], samples: int) -> list[Replay]:
    """Return the rows with so few judged samples of every slot but L1."""
    return [
        row if row.slot == "L1"
        else row.model_copy(
            update={"samples": samples, "successes": min(row.successes, samples)}
        )
        for row in replays
    ]  # fmt: skip


def test_slots_that_are_equally_good_turn_by_turn_are_none_the_worse_for_what_was_judged() -> None:
    """Hard turns were judged more often for the slot that answered: a sum would blame the route."""
    hard, easy = judged_of(rows(1, 1, 1, 1), 4), rows(7, 7, 7, 7)
    found = blamed(hard, similar=[Similar("L1", each) for each in [hard, easy] * 10])
    assert found.verdict == "adapter"


def test_similar_turns_make_no_surer_of_the_router_than_the_turn_itself() -> None:
    """They were chosen because the same slot failed."""
    alike = [Similar("L1", rows(1, 5, 1, 1))] * 9
    found = blamed(rows(1, 4, 1, 0), similar=alike)
    assert (found.verdict, found.right_slot) == ("router", "L0")
    assert found.confidence < 0.6
    log = blamed(rows(1, 4, 1, 0), "router", "L0", confidence=0.9, similar=alike)
    assert (log.verdict, log.confidence) == ("router", 0.9)


def test_an_arm_of_which_most_was_not_judged_says_nothing() -> None:
    """Long right answers may be cut where hasty wrong ones are not."""
    cut = [
        row.model_copy(update={"samples": 3, "successes": 0}) if row.slot == "L1" else row
        for row in rows(0, 8, 8, 8)
    ]
    assert blamed(cut).verdict is None
    assert blamed(judged_of(rows(2, 8, 0, 0), 3)).verdict is None
    assert blamed(judged_of(rows(7, 8, 0, 0), 3)).verdict == "stochastic"
    assert blamed(judged_of(rows(0, 8, 8, 8), 4)).verdict == "router"


def test_where_nobody_knows_which_version_answered_none_is_said_to_be_gone() -> None:
    told = blamed(rows(2, 2, 1, 0), digest=None).evidence
    assert "which version had answered is not known" in told
    assert "is gone" not in told


def test_what_was_asked_otherwise_than_it_was_answered_is_said() -> None:
    assert "its successor was asked" in blamed(rows(2, 2, 1, 0)).evidence
    assert "its successor" not in blamed(rows(2, 2, 1, 0, version="served")).evidence
    assert "the view of the one" in blamed(rows(2, 2, 1, 0, view="borrowed")).evidence
