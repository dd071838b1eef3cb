"""Proves how text becomes tool calls: all of them, or the text stays as it is.

Nothing is faked.
"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.records import content_id
from serving.toolcalls import parse_tool_calls

TIMER = '<tool_call>\n{"name": "set_timer", "arguments": {"minutes": 5}}\n</tool_call>'


def test_a_call_is_read_and_named_after_the_response() -> None:
    message = parse_tool_calls(TIMER, "call-abc")

    [call] = message.tool_calls
    assert (call.id, call.name) == ("call-abc-0", "set_timer")
    assert json.loads(call.arguments) == {"minutes": 5}
    assert message.content == ""


def test_several_calls_keep_their_order_and_the_words_before_them() -> None:
    other = TIMER.replace("set_timer", "set_light")

    message = parse_tool_calls(f"I do both.\n{TIMER}\n{other}", "c")

    assert [(c.id, c.name) for c in message.tool_calls] == [
        ("c-0", "set_timer"),
        ("c-1", "set_light"),
    ]
    assert message.content == "I do both."


def test_a_last_call_that_is_not_closed_counts() -> None:
    message = parse_tool_calls(TIMER.removesuffix("</tool_call>"), "c")

    assert [c.name for c in message.tool_calls] == ["set_timer"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Good morning.",
        '{"name": "set_timer", "arguments": {}}',
        "<tool_call>",
        TIMER.replace("5}", "5"),
        TIMER.replace('"arguments"', '"args"'),
        TIMER.replace('"set_timer"', "7"),
        '<tool_call>["set_timer"]</tool_call>',
        "<tool_call>7</tool_call>",
        TIMER + "<tool_call>{</tool_call>",
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    message = parse_tool_calls(text, "c")

    assert message.tool_calls == ()
    assert message.content == text


def test_words_in_other_scripts_stay_readable() -> None:
    text = '<tool_call>{"name": "say", "arguments": {"text": "Grüße, 世界"}}</tool_call>'

    assert parse_tool_calls(text, "c").tool_calls[0].arguments == '{"text": "Grüße, 世界"}'


def test_half_a_surrogate_pair_is_no_text_and_a_whole_one_stays() -> None:
    text = '<tool_call>{"name": "\\ud83d", "arguments": {"\\udc00": "\\ud83d\\ude00 \\ud83d"}}'
    (call,) = parse_tool_calls(text, "c").tool_calls

    assert (call.name, json.loads(call.arguments)) == ("?", {"?": "\U0001f600 ?"})
    assert content_id([call.name, call.arguments]).startswith("sha256:")


@settings(deadline=None)
@given(st.text(alphabet='<tool_call>/{}"name:arguments[],\n ', max_size=80))
def test_no_text_is_too_odd(text: str) -> None:
    message = parse_tool_calls(text, "c")

    assert message.tool_calls or message.content == text
