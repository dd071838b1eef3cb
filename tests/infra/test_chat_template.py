"""Proves what the chat template renders, and that a conversation only ever grows at its end.

The tokenizer is the tiny one of the tests with the real template; text and tokens are real.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import make_tiny_tokenizer

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "set_timer",
            "parameters": {
                "type": "object",
                "properties": {
                    "minutes": {"type": "integer"},
                    "label": {"type": "string"},
                    "room": {"type": "string", "enum": ["kitchen", "bath"]},
                    "days": {"type": "array", "items": {"type": "string"}},
                    "note": {"type": ["string", "null"]},
                    "other": {},
                },
                "required": ["minutes", "room"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": None}},
]
CALL = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": {}}}


@pytest.fixture(scope="module")
def tokenizer():
    return make_tiny_tokenizer()


def render(tokenizer, messages, **options):
    return tokenizer.apply_chat_template(messages, tokenize=False, **options)


def calling(arguments):
    return {"function": {"name": "set_timer", "arguments": arguments}}


def test_no_system_prompt_is_invented(tokenizer) -> None:
    text = render(tokenizer, [{"role": "user", "content": "Hi"}], add_generation_prompt=True)

    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_tools_are_listed_as_signatures_after_the_system_text(tokenizer) -> None:
    text = render(tokenizer, [{"role": "system", "content": "Help."}], tools=TOOLS)

    assert text == (
        "<|im_start|>system\nHelp.\n\nTools:\n"
        "set_timer(minutes: integer, label?: string, room: kitchen|bath, days?: string[], "
        "note?: string|null, other?: any)\n"
        "now()\n"
        'To use one, answer <tool_call>{"name": ..., "arguments": {...}}</tool_call><|im_end|>\n'
    )


def test_tools_without_a_system_message_get_one_of_their_own(tokenizer) -> None:
    text = render(tokenizer, [{"role": "user", "content": "Hi"}], tools=TOOLS[1:])

    assert text.startswith("<|im_start|>system\nTools:\nnow()\nTo use one")


@pytest.mark.parametrize(
    "arguments", [{"minutes": 5, "label": "<é>"}, '{"minutes": 5, "label": "<é>"}']
)
def test_a_call_renders_alike_from_an_object_and_from_its_json_text(tokenizer, arguments) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [calling(arguments)]}

    assert render(tokenizer, [message]) == (
        '<|im_start|>assistant\n<tool_call>{"name": "set_timer", '
        '"arguments": {"minutes": 5, "label": "<é>"}}</tool_call><|im_end|>\n'
    )


def test_text_and_several_calls_stand_on_lines_of_their_own(tokenizer) -> None:
    message = {"role": "assistant", "content": "So:", "tool_calls": [CALL, CALL]}
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'

    assert f"\nSo:\n{call}\n{call}<|im_end|>" in render(tokenizer, [message])


def test_a_tool_result_has_the_role_tool(tokenizer) -> None:
    message = {"role": "tool", "content": "12:30", "tool_call_id": "c1"}

    assert render(tokenizer, [message]) == "<|im_start|>tool\n12:30<|im_end|>\n"


@pytest.mark.parametrize("opening", ["model_id=", " model_id= "])
def test_the_last_message_can_be_continued(tokenizer, opening) -> None:
    messages = [
        {"role": "user", "content": "model_id="},
        {"role": "assistant", "content": opening},
    ]

    text = render(tokenizer, messages, continue_final_message=True)

    assert text == (f"<|im_start|>user\nmodel_id=<|im_end|>\n<|im_start|>assistant\n{opening}")


texts = st.text(alphabet=st.characters(blacklist_categories=["Cs"]), max_size=12)
turns = st.one_of(
    st.builds(lambda t: {"role": "user", "content": t}, texts),
    st.builds(lambda t: {"role": "tool", "content": t, "tool_call_id": "c1"}, texts),
    st.builds(lambda t: {"role": "assistant", "content": t}, texts),
    st.builds(lambda t: {"role": "assistant", "content": t, "tool_calls": [CALL, CALL]}, texts),
)


@given(
    system=st.one_of(st.none(), texts),
    turns=st.lists(turns, min_size=1, max_size=6),
    tools=st.sampled_from([None, TOOLS]),
)
def test_a_prompt_is_a_prefix_of_every_continuation(tokenizer, system, turns, tools) -> None:
    head = [] if system is None else [{"role": "system", "content": system}]
    messages = [*head, *turns, {"role": "assistant", "content": "end"}]
    whole = render(tokenizer, messages, tools=tools)

    for k in range(max(1, len(head)), len(messages)):
        if messages[k]["role"] == "assistant":
            prompt = render(tokenizer, messages[:k], tools=tools, add_generation_prompt=True)
            answered = render(tokenizer, messages[: k + 1], tools=tools)
            assert answered.startswith(prompt)
            assert whole.startswith(answered)
