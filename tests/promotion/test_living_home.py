"""Proves what the household's tools do, what they refuse, and how they fail. No model."""

import json
import random
from typing import Any

import pytest

from promotion.suites.living.home import (
    DOMAINS,
    READERS,
    Fault,
    Home,
    furnished,
    plain_facts,
    tools_of,
)
from promotion.suites.living.scenario import Line, Scenario
from serving.records import ToolCall

ALL = tools_of(tuple(DOMAINS))


def home(*faults: Fault) -> Home:
    start = furnished(random.Random(1)) | {("music",): "jazz", ("heating", "attic"): 18}
    return Home(start, faults, ALL)


def call(target: Home, name: str, **arguments: Any) -> dict[str, Any]:
    made = ToolCall(id="1", name=name, arguments=json.dumps(arguments))
    return json.loads(target.call(made))


@pytest.mark.parametrize(
    ("name", "arguments", "fact", "value"),
    [
        ("set_light", {"room": "Attic", "state": "ON"}, ("light", "attic"), "on"),
        ("set_heating", {"degrees": 23, "room": "attic"}, ("heating", "attic"), 23),
        ("set_timer", {"minutes": 5}, ("timer", 5), 1),
        ("add_to_list", {"item": " Milk "}, ("list", "milk"), 1),
        ("add_event", {"title": "Yoga", "day": "Monday"}, ("event", "yoga", "monday"), 1),
        ("send_message", {"person": "Anna", "text": "Hi!"}, ("message", "anna", "hi"), 1),
        ("play_music", {"genre": "Folk"}, ("music",), "folk"),
        ("stop_music", {}, ("music",), "none"),
    ],
)
def test_a_tool_changes_one_fact(name: str, arguments: dict, fact: tuple, value: object) -> None:
    changed = home()
    before = dict(changed.facts)

    assert call(changed, name, **arguments) == {"ok": True}
    assert changed.facts == before | {fact: value}


def test_what_is_counted_is_counted_and_taken_away_again() -> None:
    changed = home()
    before = dict(changed.facts)
    for _ in range(2):
        call(changed, "add_to_list", item="milk")
    assert call(changed, "read_list") == {"items": ["milk", "milk"]}
    for _ in range(2):
        assert call(changed, "remove_from_list", item="Milk") == {"ok": True}

    assert changed.facts == before
    assert call(changed, "remove_from_list", item="milk") == {"error": "there is no list milk"}
    assert changed.facts == before


def test_heating_may_be_set_to_nothing_and_is_still_there() -> None:
    changed = home()
    before = dict(changed.facts)
    assert call(changed, "set_heating", room="attic", degrees=0) == {"ok": True}

    assert call(changed, "get_heating", room="attic") == {"degrees": 0}
    assert changed.facts == before | {("heating", "attic"): 0}


def test_readers_tell_what_is_so_and_change_nothing() -> None:
    changed = home()
    changed.set({("event", "Yoga", "Monday"): 1, ("message", "Ben", "Hi"): 1, ("timer", 9): 1})
    before = dict(changed.facts)

    assert call(changed, "get_heating", room="Attic") == {"degrees": 18}
    assert call(changed, "get_light", room="attic") == {"state": before["light", "attic"]}
    assert call(changed, "get_music") == {"genre": "jazz"}
    assert call(changed, "get_timers") == {"minutes": [9]}
    assert call(changed, "read_calendar") == {"events": [{"title": "yoga", "day": "monday"}]}
    assert call(changed, "read_sent") == {"sent": [{"person": "ben", "text": "hi"}]}
    assert changed.facts == before
    assert {"get_light", "read_list"} <= READERS
    assert len(READERS) == 7


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("fly", {}, "no tool is called 'fly'"),
        ("set_light", {"room": "attic"}, "schema of set_light"),
        ("set_heating", {"room": "attic", "degrees": "warm"}, "schema of set_heating"),
        ("set_light", {"room": "moon", "state": "on"}, "there is no room 'moon'"),
        ("set_light", {"room": "attic", "state": "blue"}, "on or off, not 'blue'"),
        ("cancel_timer", {"minutes": 3}, "there is no timer 3"),
    ],
)
def test_a_wrong_call_says_so_and_changes_nothing(name: str, arguments: dict, words: str) -> None:
    changed = home()
    before = dict(changed.facts)

    assert words in call(changed, name, **arguments)["error"]
    assert changed.facts == before


def test_arguments_that_are_no_json_are_an_error() -> None:
    assert json.loads(home().call(ToolCall(id="1", name="get_music", arguments="{"))) == {
        "error": "arguments are not JSON"
    }


def test_only_the_tools_of_a_conversation_can_be_called() -> None:
    small = Home(furnished(random.Random(1)), (), tools_of(("light",)))

    assert call(small, "get_light", room="attic").keys() == {"state"}
    assert "no tool" in call(small, "get_music")["error"]


def test_a_failing_tool_says_so_for_as_many_calls_as_it_fails() -> None:
    changed = home(Fault("set_timer", "try again", times=2))

    results = [call(changed, "set_timer", minutes=5) for _ in range(3)]
    assert results == [{"error": "try again"}] * 2 + [{"ok": True}]
    assert changed.facts["timer", 5] == 1


def test_a_lost_confirmation_is_a_deed() -> None:
    changed = home(Fault("set_timer", "no confirmation", effect="done"))

    assert call(changed, "set_timer", minutes=5) == {"error": "no confirmation"}
    assert changed.facts["timer", 5] == 1


def test_a_tool_that_is_busy_has_done_nothing() -> None:
    changed = home(Fault("set_timer", "busy, call again", effect="wait"))
    before = dict(changed.facts)

    assert call(changed, "set_timer", minutes=5) == {"status": "busy, call again"}
    assert changed.facts == before


def test_a_tool_may_claim_what_it_has_not_done() -> None:
    changed = home(Fault("set_timer", "", effect="claimed"))

    assert call(changed, "set_timer", minutes=5) == {"ok": True}
    assert call(changed, "get_timers") == {"minutes": []}


def test_a_warning_comes_with_a_deed() -> None:
    changed = home(Fault("set_timer", "battery low", effect="warned"))

    assert call(changed, "set_timer", minutes=5) == {"ok": True, "warning": "battery low"}
    assert call(changed, "get_timers") == {"minutes": [5]}


def test_a_fault_may_come_late_and_be_about_a_number() -> None:
    changed = home(Fault("set_timer", "no", spares=1, about=5))

    results = [call(changed, "set_timer", minutes=minutes) for minutes in (5, 7, 5, 5)]
    assert results == [{"ok": True}, {"ok": True}, {"error": "no"}, {"ok": True}]


def test_noise_warns_and_tells_something_wrong() -> None:
    changed = home(Fault("get_heating", "noise", effect="noise"))
    noisy = call(changed, "get_heating", room="attic")

    assert noisy["warning"] == "noise"
    assert noisy["degrees"] != 18
    assert call(changed, "get_heating", room="attic") == {"degrees": 18}


def test_a_fault_may_be_about_one_thing() -> None:
    changed = home(Fault("set_light", "broken", times=9, about="Attic"))

    assert call(changed, "set_light", room="attic", state="on") == {"error": "broken"}
    assert call(changed, "set_light", room="hall", state="on") == {"ok": True}


def scenario(**fields: Any) -> Scenario:
    made = {
        "template": "t",
        "changes": frozenset({"state"}),
        "domains": ("light", "list"),
        "start": {("light", "hall"): "off", ("light", "attic"): "off"},
        "lines": (Line("a"), Line("b", moves={("list", "tea"): 1})),
        "goal": {("light", "hall"): "on", ("list", "milk"): 1},
        "solution": lambda: iter(()),
    }
    return Scenario(**(made | fields))


@pytest.mark.parametrize(
    ("left", "passed", "score"),
    [
        ({}, False, 0.0),
        ({("light", "hall"): "on"}, False, 0.5),
        ({("light", "hall"): "on", ("list", "milk"): 1}, True, 1.0),
        ({("light", "hall"): "on", ("list", "milk"): 2}, False, 0.5),
        ({("light", "hall"): "on", ("list", "milk"): 1, ("light", "attic"): "on"}, False, 0.5),
        ({("list", "tea"): 0}, False, 0.0),
        ({("light", "hall"): "on", ("list", "tea"): 2}, False, 0.0),
    ],
)
def test_a_side_effect_costs_as_much_as_a_goal_brings(
    left: dict, passed: bool, score: float
) -> None:
    made = scenario()
    home = made.home()
    home.set({("list", "tea"): 1})  # somebody else
    home.set(left)
    check = made.judge(home)

    assert (check.passed, check.score) == (passed, score)


def test_side_effects_are_named() -> None:
    made = scenario()
    home = made.home()
    home.set({("list", "tea"): 1, ("light", "attic"): "on"})

    assert made.judge(home).detail == "0 of 2 brought about; besides: light attic"


def test_text_is_compared_without_case() -> None:
    assert plain_facts({("list", "Milk"): 1, ("music",): "Jazz."}) == {
        ("list", "milk"): 1,
        ("music",): "jazz",
    }


def test_another_goal_start_or_fault_makes_another_scenario() -> None:
    made = scenario()
    others = (
        scenario(goal={("light", "hall"): "on"}),
        scenario(start={("light", "hall"): "off", ("light", "attic"): "on"}),
        scenario(faults=(Fault("set_light", "no"),)),
        scenario(lines=(Line("a"),)),
    )

    assert len({made.scenario_id, *(other.scenario_id for other in others)}) == 5
    assert scenario().scenario_id == made.scenario_id
