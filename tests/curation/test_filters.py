"""Filters over a dataset's candidates: duplicates, disagreement, gate suites, size, balance.

Proved through `select`, the pure part of the build; turns are real records.
"""

import itertools
import random

from curation_turns import PROFILE, bundle, calls, edited, hop, misrouted, route_hop, says, user

from curation import reasons
from curation.build import Chosen, select
from curation.config import CurationConfig
from curation.examples import prompt_id
from serving.records import Message

ALL_TRAIN = CurationConfig(holdout_percent=0)


def chosen(turns, slot="L2", config=ALL_TRAIN, sealed=frozenset()) -> Chosen:
    return select(turns, slot, PROFILE, config, sealed)


def dropped(result: Chosen) -> dict[str, int]:
    return {reason: n for stage in result.stages for reason, n in stage.dropped.items()}


def test_of_equal_rows_the_first_is_kept():
    turns = [bundle(t, request="same", minute=m) for t, m in (("a", 2), ("b", 1), ("c", 3))]
    result = chosen(turns)
    assert [row.turn_id for row in result.examples] == ["b"]
    assert dropped(result) == {reasons.DUPLICATE: 2}


def test_rows_that_differ_in_tools_are_not_equal():
    hops = [hop("L2", [user("q")], says("a"), tools=t) for t in ("[]", '[{"name": "f"}]')]
    turns = [bundle(str(n), request="q", hops=[h]) for n, h in enumerate(hops)]
    assert len(chosen(turns).examples) == 2


def test_random_call_ids_do_not_hide_a_duplicate():
    hops = [hop("L2", [user("q")], calls("f", call_id=i, x=1)) for i in ("call-7", "call-8")]
    turns = [bundle(str(n), request="q", hops=[h]) for n, h in enumerate(hops)]
    assert dropped(chosen(turns)) == {reasons.DUPLICATE: 1}


def test_the_latest_edit_supersedes_other_completions_of_the_same_prompt():
    turns = [
        edited("a", "first edit", request="same", minute=1),
        edited("b", "second edit", request="same", minute=2),
        bundle("c", request="same", answer="verified later", minute=3),
    ]
    result = chosen(turns)
    assert [row.completion.content for row in result.examples] == ["second edit"]
    assert dropped(result) == {reasons.SUPERSEDED: 2}


def test_a_verified_answer_supersedes_one_that_only_a_thumb_vouches_for():
    turns = [
        bundle("a", request="same", answer="verified", minute=1),
        bundle("b", request="same", answer="liked", tier="B", minute=2),
    ]
    assert [row.source for row in chosen(turns).examples] == ["verified"]


def test_the_order_of_arrival_changes_nothing():
    turns = [bundle(f"t{n}", request=f"r{n % 7}", minute=n % 3) for n in range(30)]
    turns += [edited(f"e{n}", f"text {n}", request=f"r{n % 7}", minute=n) for n in range(9)]
    shuffled = random.Random(0).sample(turns, len(turns))
    assert chosen(turns) == chosen(shuffled)


def test_a_request_of_the_gate_suite_is_dropped_however_it_is_written():
    sealed = frozenset({prompt_id("What is the weather in Oslo?")})
    result = chosen([bundle(request="  what is THE weather,\nin Oslo")], sealed=sealed)
    assert dropped(result) == {reasons.SEALED: 1}
    assert not result.examples


def test_a_route_row_is_dropped_for_its_bare_request():
    sealed = frozenset({prompt_id("Sort a list.")})
    turns = [misrouted(request="Sort a list."), bundle("t2", slot="L0")]
    assert dropped(chosen(turns, "L0", sealed=sealed))[reasons.SEALED] == 1


def test_only_the_last_user_text_seals_a_row():
    sealed = frozenset({prompt_id("earlier")})
    view = [user("earlier"), says("ok"), user("now")]
    assert chosen(
        [bundle(request="now", hops=[hop("L2", view, says("x"))])], sealed=sealed
    ).examples


def test_operators_are_not_punctuation():
    assert prompt_id("1 + 2") != prompt_id("1 < 2")


def test_rows_beyond_the_limits_are_dropped_whole():
    config = CurationConfig(holdout_percent=0, max_prompt_chars=100, max_completion_chars=20)
    turns = [
        bundle("fits", answer="x" * 20),
        bundle("long-answer", answer="x" * 21),
        bundle("long-prompt", request="x" * 101),
        bundle(
            "long-tools", hops=[hop("L2", [user("a")], says("b"), tools='["' + "x" * 100 + '"]')]
        ),
        bundle("long-call", hops=[hop("L2", [user("a")], calls("f", text="x" * 20))]),
    ]
    result = chosen(turns, config=config)
    assert [row.turn_id for row in result.examples] == ["fits"]
    assert dropped(result) == {reasons.TOO_LONG: 4}


def router_turns(routes: int, answers: int):
    turns = [misrouted(f"r{n}") if n < 2 else bundle(f"r{n}") for n in range(routes)]
    view = Message(role="system", content="You are L0.")
    for n in range(answers):
        hops = [hop("L0", [view, user(f"q{n}")], says(f"a{n}"))]
        turns.append(bundle(f"a{n}", slot="L0", request=f"q{n}", hops=hops))
    return turns


def duties(result: Chosen) -> dict[str, int]:
    rows = result.examples
    return {d: sum(row.duty == d for row in rows) for d in ("route", "answer")}


def test_the_router_keeps_both_duties_in_proportion_and_its_corrections():
    result = chosen(router_turns(routes=30, answers=3), "L0")
    assert duties(result) == {"route": 12, "answer": 3}
    assert dropped(result)[reasons.UNBALANCED] == 18
    assert {"r0", "r1"} <= {row.turn_id for row in result.examples}


def test_balance_leaves_holdout_rows_alone():
    config = CurationConfig(holdout_percent=50)
    turns = [bundle(f"r{n}", who=f"u{n}") for n in range(40)] + router_turns(0, 1)
    result = chosen(turns, "L0", config)
    in_holdout = [row for row in result.examples if row.split == "holdout"]
    assert len(in_holdout) > 10


def test_every_stage_adds_up():
    turns = [*router_turns(20, 2), edited(), bundle("x", request="same"), bundle("y", slot=None)]
    for slot in PROFILE.labels:
        stages = chosen(turns, slot).stages
        assert stages[0].entered == len(turns)
        for stage in stages:
            assert stage.entered == stage.kept + sum(stage.dropped.values())
        for before, after in itertools.pairwise(stages[1:]):
            assert before.kept == after.entered


def test_a_prompt_on_both_sides_stays_in_train_alone():
    config = CurationConfig(holdout_percent=50)
    turns = [bundle(f"t{n}", request="same", who=f"u{n}", minute=n) for n in range(20)]
    result = chosen(turns, config=config)
    assert [row.split for row in result.examples] == ["train"]
    assert dropped(result)[reasons.ALSO_IN_TRAIN] > 0


def test_replay_is_kept_to_its_share_of_the_training_rows():
    result = chosen([summarised(f"t{n}") for n in range(9)])
    sources = [row.source for row in result.examples]
    assert (sources.count("verified"), sources.count("replay")) == (9, 3)
    assert dropped(result) == {reasons.REPLAY: 6}


def summarised(turn_id: str):
    view = [user(f"Write {turn_id}.")]
    answer = hop("L2", view, says(turn_id), seq=1)
    asked = [*view, says(turn_id), user("Summarise.")]
    summary = hop("L2", asked, says(f"Wrote {turn_id}."), role="summary", seq=2)
    return bundle(turn_id, hops=[route_hop(turn_id, "L2", seq=0), answer, summary])
