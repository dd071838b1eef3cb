"""Proves what the verifiers of tool calls and interfaces let pass and what not.

Nothing is faked. Whatever a model writes, a verifier answers with a `Check`.
"""

import json
import socket
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.records import Message, ToolCall
from traces.verifiers.check import Check
from traces.verifiers.interface import check_interface, parse_json
from traces.verifiers.tool_call import call_problem, check_tool_call

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "set_heating",
            "parameters": {
                "type": "object",
                "properties": {"room": {"type": "string"}, "degrees": {"type": "integer"}},
                "required": ["room", "degrees"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "anything", "parameters": {"type": "object"}}},
]
WANTED = {"room": "hall", "degrees": 21}


def called(arguments: Any, name: str = "set_heating") -> Message:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Message(role="assistant", tool_calls=(ToolCall(id="1", name=name, arguments=text),))


def check(answer: Message):
    return check_tool_call(answer, "set_heating", WANTED, TOOLS)


@pytest.mark.parametrize(
    "arguments",
    [WANTED, {"degrees": 21, "room": " Hall "}, {"room": "hall", "degrees": 21.0}],
)
def test_the_right_call_passes(arguments) -> None:
    assert check(called(arguments)).passed


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (Message(role="assistant", content="Done."), "expected one tool call, got 0"),
        (
            Message(role="assistant", tool_calls=called(WANTED).tool_calls * 2),
            "expected one tool call, got 2",
        ),
        (called("{degrees: 21}"), "arguments are not JSON"),
        (called(""), "arguments break the schema of set_heating at $ (required)"),
        (called("[" * 100_000), "arguments are not JSON"),
        (called("[21]"), "arguments are not a JSON object"),
        (called("null"), "arguments are not a JSON object"),
        (called(WANTED, name="open_door"), "no tool is called 'open_door'"),
        (called({}, name="anything"), "called anything, expected set_heating"),
        (called(WANTED | {"degrees": 22}), "wrong value of degrees"),
        (called({"room": "attic", "degrees": 22}), "wrong value of degrees, room"),
        (called(WANTED | {"degrees": "21"}), "arguments break the schema of set_heating"),
        (called(WANTED | {"degrees": 21.5}), "arguments break the schema of set_heating"),
        (called(WANTED | {"degrees": True}), "arguments break the schema of set_heating"),
        (called('{"room": "hall", "degrees": NaN}'), "arguments are not JSON"),
        (
            called('{"room": "hall", "degrees": 2, "degrees": 21}'),
            "arguments are not JSON: key 'degrees' stands twice in an object",
        ),
        (called('{"room": "hall", "degrees": 1' + "0" * 400 + "}"), "wrong value of degrees"),
        (called({"room": "hall"}), "arguments break the schema of set_heating"),
        (called(WANTED | {"colour": "red"}), "arguments break the schema of set_heating"),
    ],
)
def test_another_call_fails_and_says_why(answer: Message, detail: str) -> None:
    finding = check(answer)

    assert not finding.passed
    assert finding.detail.startswith(detail)
    assert len(finding.detail) <= 160
    assert len(finding.detail.splitlines()) == 1


@pytest.mark.parametrize(
    ("given_value", "wanted", "same"),
    [
        (1, True, False),
        (True, 1, False),
        ("1", 1, False),
        (1, 1.0, True),
        ([1, True], [1, 1], False),
        (["A", 1], ["a", 1.0], True),
        ({"k": [1]}, {"k": [1]}, True),
        (None, "", False),
        (2**60, 2**60 + 1, False),
    ],
)
def test_values_are_compared_by_kind(given_value, wanted, same) -> None:
    finding = check_tool_call(
        called({"x": given_value}, "anything"), "anything", {"x": wanted}, TOOLS
    )

    assert finding.passed == same


def test_a_null_that_was_not_asked_for_is_wrong() -> None:
    assert not check_tool_call(called({"x": None}, "anything"), "anything", {}, TOOLS).passed


@pytest.mark.parametrize("arguments", ["", " \n", "{}"])
def test_a_call_without_arguments_may_leave_them_empty(arguments: str) -> None:
    call = called(arguments, "anything")

    assert call_problem(call.tool_calls[0], TOOLS) is None
    assert check_tool_call(call, "anything", {}, TOOLS).passed
    assert not check_tool_call(call, "anything", {"x": 1}, TOOLS).passed


@pytest.mark.parametrize(
    "arguments", ['{"x": NaN}', '{"x": -Infinity}', '{"x": 1, "x": 2}', '{"x": [{"y": 1, "y": 1}]}']
)
def test_what_the_standard_does_not_call_json_is_none(arguments: str) -> None:
    call = called(arguments, "anything").tool_calls[0]

    assert (call_problem(call, TOOLS) or "").startswith("arguments are not JSON")


def problem(schema: Any, arguments: str = '{"x": "a"}') -> str | None:
    call = ToolCall(id="1", name="f", arguments=arguments)
    return call_problem(
        call, [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    )


def test_a_pattern_counts_and_one_that_would_take_for_ever_does_not() -> None:
    assert problem({"properties": {"x": {"pattern": "^b"}}}) is not None
    assert problem({"properties": {"x": {"pattern": "^a"}}}) is None
    bomb = json.dumps({"x": "a" * 5000 + "!"})
    assert problem({"properties": {"x": {"pattern": "^(a|aa)+$"}}}, bomb) is None


def test_no_schema_is_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)

        assert problem({"$ref": f"http://127.0.0.1:{server.getsockname()[1]}/x"}) is None

        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize(
    "schema",
    [{"type": 7}, [1], "s", {"properties": 3}, {"properties": {"x": {"pattern": "("}}},
     {"$ref": "#/nowhere"}, {"required": "x"}],
)  # fmt: skip
def test_what_is_no_schema_says_nothing_against_a_call(schema: Any) -> None:
    assert problem(schema) is None


def test_an_older_schema_is_read_by_its_own_rules() -> None:
    old = {"$schema": "http://json-schema.org/draft-04/schema#"}

    assert problem(old | {"properties": {"x": {"maximum": 3, "exclusiveMaximum": True}}},
                   '{"x": 3}') is not None  # fmt: skip
    assert problem(old, '{"x": 3}') is None


@pytest.mark.parametrize("tools", [[None], [3, "x"], [{"function": [1]}], [{}], [{"name": 4}]])
def test_tools_that_are_none_offer_nothing(tools: list[Any]) -> None:
    call = ToolCall(id="1", name="f", arguments="{}")

    assert call_problem(call, tools) == "no tool is called 'f'"


@settings(deadline=None)
@given(st.text(max_size=60), st.text(max_size=20))
def test_no_arguments_are_too_odd(arguments: str, name: str) -> None:
    check(called(arguments))
    check(called(WANTED, name))


BUTTON = {"type": "button", "label": "Save"}
LIST = {"type": "list", "items": ["milk", "tea"]}
CARD = {"type": "card", "title": "Login", "children": [BUTTON, LIST]}
ASKED = ({"type": "card", "title": "Login"}, BUTTON, LIST)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(CARD),
        json.dumps(CARD, indent=2),
        f"```json\n{json.dumps(CARD)}\n```",
        f"Here it is:\n```\n{json.dumps(CARD)}\n```\nEnjoy.",
        json.dumps(CARD).replace("Save", "SAVE"),
        json.dumps(CARD | {"children": [LIST, BUTTON | {"id": "b", "action": "save"}], "id": "c"}),
    ],
)
def test_a_valid_and_complete_interface_passes(text: str) -> None:
    assert check_interface(text, ASKED).passed


@pytest.mark.parametrize(
    ("tree", "detail"),
    [
        (CARD | {"children": [BUTTON]}, "no list as asked for"),
        (CARD | {"title": "Logout"}, "no card as asked for"),
        (
            CARD | {"children": [BUTTON, LIST, {"type": "text", "value": "more"}]},
            "nobody asked for the text",
        ),
        (CARD | {"children": [BUTTON, BUTTON, LIST]}, "nobody asked for the button"),
        (CARD | {"children": [BUTTON, LIST | {"items": ["tea", "milk"]}]}, "no list as asked"),
        (CARD | {"colour": "red"}, "breaks the component schema at $"),
        (CARD | {"children": [BUTTON | {"x": 1}, LIST]}, "breaks the component schema at $.ch"),
        (CARD | {"children": []}, "breaks the component schema at $.children"),
        (CARD | {"children": [CARD]}, "breaks the component schema"),
        (CARD | {"title": 7}, "breaks the component schema at $.title"),
        ([CARD], "breaks the component schema at $"),
        ("card", "breaks the component schema at $"),
    ],
)
def test_another_interface_fails_and_says_why(tree: Any, detail: str) -> None:
    finding = check_interface(json.dumps(tree), ASKED)

    assert not finding.passed
    assert finding.detail.startswith(detail)


@pytest.mark.parametrize(
    "text", ["", "null", "A card.", "{", '{"type": "card",}', "```json\n```", "[" * 100_000]
)
def test_what_is_not_json_fails(text: str) -> None:
    assert check_interface(text, ASKED).detail == "not JSON"


@pytest.mark.parametrize("depth", [100, 900, 960, 5000])
def test_deep_nesting_fails_without_a_crash(depth: int) -> None:
    deep = json.dumps(CARD).replace('"Login"', "[" * depth + "]" * depth)

    assert not check_interface(deep, ASKED).passed


@settings(deadline=None)
@given(st.text(alphabet='{}[]":,`jsontype 1\n', max_size=60))
def test_no_text_is_too_odd_to_be_read(text: str) -> None:
    parse_json(text)
    check_interface(text, ASKED)


BUTTON_ID = BUTTON | {"id": "save", "action": "submit", "target": "list-1"}
WIRED = CARD | {"id": "root", "children": [BUTTON_ID, LIST | {"id": "list-1"}]}


def wired(**button: Any) -> str:
    return json.dumps(WIRED | {"children": [BUTTON_ID | button, WIRED["children"][1]]})


def test_references_to_what_is_there_pass() -> None:
    assert check_interface(wired(), ASKED) == Check(True, "valid and complete")
    assert check_interface(wired(target="root"), ASKED).passed


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (wired(target="list-2"), "a button's target 'list-2' is no component's id"),
        (wired(id="list-1"), "2 components have the id 'list-1'"),
        (wired(id="root"), "2 components have the id 'root'"),
        (wired(action="two words"), "breaks the component schema at $.children[0]"),
        (wired(target=3), "breaks the component schema at $.children[0]"),
        (wired().replace("{", '{"title": "x", ', 1), "key 'title' stands twice in an object"),
        ('{"type": "card", "title": NaN}', "not JSON"),
        ("9" * 5000, "not JSON"),
    ],
)
def test_references_to_nothing_and_duplicates_fail(text: str, detail: str) -> None:
    finding = check_interface(text, ASKED)

    assert finding.passed is False
    assert finding.detail.startswith(detail)


def test_each_wish_needs_a_component_of_its_own() -> None:
    two = json.dumps(CARD | {"children": [BUTTON, BUTTON, LIST]})

    assert check_interface(two, [BUTTON, BUTTON, LIST]).passed
    assert not check_interface(two, [BUTTON, BUTTON, BUTTON]).passed
    assert check_interface(two, [{"type": "list"}, LIST]).detail == "no list as asked for"
    lists = json.dumps(CARD | {"children": [LIST, LIST | {"items": ["x"]}]})
    assert check_interface(lists, [{"type": "list"}, LIST]).passed


def test_any_interface_will_do_where_nothing_is_asked_for() -> None:
    assert check_interface(json.dumps(CARD), ()).passed


def test_a_fence_within_a_text_is_no_fence() -> None:
    shown = {"type": "text", "value": "```json\n{}\n```"}

    assert check_interface(json.dumps(CARD | {"children": [shown]}), [shown]).passed
