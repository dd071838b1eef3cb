"""Routing decisions: rules, the `change_model` tool, thresholds, exploration.

Proved: which words hit in which scripts, that nonsense rules are refused in one line, that
propensities are the frequencies with which slots are taken. Nothing is faked; these are
pure functions.
"""

import json
import random
from collections import Counter

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.config import RouterConfig
from serving.records import Message, ToolCall
from serving.routing import (
    BASE_SLOT,
    ChoiceInvalid,
    RuleHit,
    RuleInvalid,
    change_model_tool,
    chosen_by_tool,
    parse_rule,
    propensities,
    rule_for,
    settle,
)
from serving.slot_table import SlotTableInvalid, parse_slot_file
from serving.slots import load_profile

RULES = (
    ("L0", ""),
    ("L1", "lights, timer, turn off, 开灯, !smoke alarm"),
    ("L2", "python, c++, function"),
    ("L3", "button, card, function"),
)
LABELS = ("L0", "L1", "L2", "L3")


@pytest.mark.parametrize(
    ("text", "slot"),
    [
        ("Switch the LIGHTS on", "L1"),
        ("lights!", "L1"),
        ("Please turn   off\nthe heating", "L1"),
        ("moonlights and timers", None),
        ("my_timer_2", None),
        ("请帮我开灯好吗", "L1"),
        ("请用python写", "L2"),
        ("ＰＹＴＨＯＮ please", "L2"),
        ("c++ or c", "L2"),
        ("", None),
        ("a function", "L2"),
        ("a card with a function", "L3"),
        ("python card function button", "L3"),
        ("a python button card function for the smoke alarm", "L1"),
    ],
)
def test_words_choose_the_slot(text, slot):
    hit = rule_for(RULES, text)
    assert (hit.slot if hit else None) == slot


def test_only_the_marked_words_override():
    assert not rule_for(RULES, "lights and timer").override
    assert rule_for(RULES, "The smoke alarm rings").override
    assert not rule_for(RULES, "The smoke of an alarm, the lights").override


def test_words_at_the_end_of_a_huge_text_are_seen():
    assert rule_for(RULES, "x " * 4_000_000 + "the timer").slot == "L1"


@pytest.mark.parametrize(
    ("rule", "part"),
    [
        ("lights,", "is empty"),
        (",", "is empty"),
        ("!", "is empty"),
        ("lights, , timer", "is empty"),
        ("???", "no letter"),
        ("lights, LIGHTS", "twice"),
        ("lights, !lights", "twice"),
        ("light!s", "in front"),
        ("a\x00b", "no text shows"),
        ("x" * 81, "80"),
        ("word, " * 500, "2000"),
    ],
)
def test_a_nonsense_rule_is_refused_in_one_line(rule, part):
    with pytest.raises(RuleInvalid, match=part) as caught:
        parse_rule(rule)
    assert "\n" not in str(caught.value)


def test_an_empty_rule_is_hit_by_nothing():
    assert parse_rule(" ").terms == ()


@given(st.text(max_size=200))
def test_any_text_is_a_rule_or_refused_and_a_rule_hits_its_own_words(text):
    try:
        rule = parse_rule(text)
    except RuleInvalid:
        return
    for term in rule.terms:
        hit = rule_for([("L1", text)], f"so {term} then")
        assert hit is not None
        assert term in hit.terms


def call(arguments, name="change_model"):
    return Message(role="assistant", tool_calls=(ToolCall(id="1", name=name, arguments=arguments),))


def test_the_tool_names_every_slot_but_the_router():
    profile = load_profile()
    tool = change_model_tool(profile)
    jsonschema.Draft202012Validator.check_schema(tool["function"]["parameters"])
    for label in profile.labels:
        valid = jsonschema.Draft202012Validator(tool["function"]["parameters"]).is_valid(
            {"model_id": label}
        )
        assert valid == (label != profile.router)
    assert profile.slot("L2").description in tool["function"]["description"]


def test_a_tool_call_chooses_and_no_call_leaves_it_to_the_router():
    assert chosen_by_tool(call(json.dumps({"model_id": "L2"})), LABELS) == "L2"
    assert chosen_by_tool(call("{}", name="set_light"), LABELS) is None
    assert chosen_by_tool(Message(role="assistant", content="Hello."), LABELS) is None


@pytest.mark.parametrize(
    "arguments",
    ['{"model_id": "L9"}', '{"model_id": 2}', "{}", "[]", "L2", '{"model_id', "[" * 100_000],
)
def test_a_call_that_names_no_slot_is_refused(arguments):
    with pytest.raises(ChoiceInvalid, match="L0, L1, L2, L3"):
        chosen_by_tool(call(arguments), LABELS)


labels = st.lists(st.sampled_from("ABCDEFG"), min_size=1, unique=True)


@given(labels, st.floats(0, 0.999), st.data())
def test_propensities_of_all_possible_draws_sum_to_one(names, epsilon, data):
    greedy = data.draw(st.sampled_from(names))
    chances = propensities(RouterConfig(epsilon=epsilon), names, greedy)
    assert sum(chances.values()) == pytest.approx(1.0)
    assert chances[greedy] == max(chances.values())


@given(labels, st.floats(0, 0.999), st.integers(0, 2**32), st.data())
def test_the_logged_propensity_is_that_of_the_slot_taken(names, epsilon, seed, data):
    greedy = data.draw(st.sampled_from(names))
    config = RouterConfig(epsilon=epsilon)
    settled = settle(config, names, greedy, 0.7, None, random.Random(seed))
    assert settled.propensity == propensities(config, names, greedy)[settled.slot]
    assert (settled.decision == "explored") == (settled.slot != greedy)
    assert settled.confidence == 0.7


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 0.9])
def test_slots_are_taken_as_often_as_the_propensity_says(epsilon):
    config, rng, n = RouterConfig(epsilon=epsilon), random.Random(7), 40_000
    taken = Counter(settle(config, LABELS, "L2", None, None, rng).slot for _ in range(n))
    for label, chance in propensities(config, LABELS, "L2").items():
        deviation = (chance * (1 - chance) / n) ** 0.5
        assert abs(taken[label] / n - chance) < 4 * deviation


@given(
    st.sampled_from(LABELS), st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.999),
    st.sampled_from(["constrained", "tool", "head", "rules"]), st.integers(0, 2**32),
)  # fmt: skip
def test_an_overriding_rule_always_wins(greedy, confidence, threshold, epsilon, mode, seed):
    config = RouterConfig(mode=mode, min_confidence=threshold, epsilon=epsilon)
    hit = RuleHit("L1", True, ("smoke alarm",))
    settled = settle(config, LABELS, greedy, confidence, hit, random.Random(seed))
    assert (settled.slot, settled.decision, settled.propensity) == ("L1", "rule", 1.0)


@given(st.sampled_from(LABELS), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**32))
def test_without_exploration_nothing_is_drawn(greedy, confidence, threshold, seed):
    rng = random.Random(seed)
    before = rng.getstate()
    settled = settle(RouterConfig(min_confidence=threshold), LABELS, greedy, confidence, None, rng)
    assert rng.getstate() == before
    assert settled.propensity == 1.0
    assert settled.slot == (BASE_SLOT if confidence < threshold else greedy)
    assert settled.decision == ("unsure" if confidence < threshold else "routed")


def test_a_router_that_tells_no_confidence_counts_as_sure():
    settled = settle(RouterConfig(min_confidence=0.9), LABELS, "L3", None, None, random.Random(0))
    assert (settled.slot, settled.decision) == ("L3", "routed")


def test_an_ordinary_rule_decides_in_its_own_mode_only():
    hit = RuleHit("L1", False, ("timer",))
    rng = random.Random(0)
    by_rules = settle(RouterConfig(mode="rules"), LABELS, "L1", None, hit, rng)
    by_router = settle(RouterConfig(), LABELS, "L2", None, hit, rng)
    assert (by_rules.slot, by_rules.decision) == ("L1", "rule")
    assert (by_router.slot, by_router.decision) == ("L2", "routed")


def test_a_slot_table_with_a_nonsense_rule_is_refused():
    raw = {"slots": [{"slot": "L1", "routing_rule": "lights,, timer"}]}
    with pytest.raises(SlotTableInvalid, match="part 2") as caught:
        parse_slot_file(json.dumps(raw).encode())
    assert "\n" not in str(caught.value)
