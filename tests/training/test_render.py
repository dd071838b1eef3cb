"""Proves which tokens are learnt and that prompts are those that are served.

Real tokenizer of the tiny model, this project's chat template; nothing is faked. Served
means `serving.template`, which the embedded engine calls; vLLM itself is not run here.
"""

import json

import pytest
from tiny import make_tiny_tokenizer
from training_rows import (
    SYSTEM,
    TIMER,
    assistant,
    make_example,
    route_example,
    text_example,
    timer_call,
    tool_example,
)

from serving.records import Message
from serving.template import render_chat, template_message, template_tool
from training.render import (
    SPELLS_END,
    TOO_LONG,
    TemplateNotTrainable,
    render_example,
    render_rows,
)


@pytest.fixture(scope="module")
def tokenizer():
    return make_tiny_tokenizer()


def learnt(tokenizer, row) -> str:
    return tokenizer.decode([label for label in row.labels if label != -100])


def test_the_completion_and_the_end_of_turn_are_learnt(tokenizer):
    row = render_example(tokenizer, text_example(3))
    assert learnt(tokenizer, row) == "It is 7.<|im_end|>"


def test_labels_are_the_tokens_at_their_own_place(tokenizer):
    row = render_example(tokenizer, text_example(3))
    assert len(row.labels) == len(row.input_ids)
    assert all(
        label in (-100, token) for label, token in zip(row.labels, row.input_ids, strict=True)
    )


def test_nothing_of_the_prompt_is_learnt(tokenizer):
    row = render_example(tokenizer, text_example(3))
    assert set(row.labels[: row.prompt_tokens]) == {-100}
    assert row.supervised_tokens == len(row.input_ids) - row.prompt_tokens


def test_the_prompt_is_the_one_that_is_served(tokenizer):
    example = tool_example(5)
    row = render_example(tokenizer, example)
    served = render_chat(tokenizer, example.messages, json.loads(example.tools))
    assert list(row.input_ids[: row.prompt_tokens]) == served
    assert tokenizer.decode(served).endswith("<|im_start|>assistant\n")


def test_a_route_label_continues_the_prefill(tokenizer):
    example = route_example(1, "L2")
    row = render_example(tokenizer, example)
    prompt = tokenizer.decode(row.input_ids[: row.prompt_tokens])
    assert prompt.endswith("<|im_start|>assistant\nmodel_id=")
    assert learnt(tokenizer, row) == "L2<|im_end|>"
    served = render_chat(tokenizer, example.messages, continue_final=True)
    assert list(row.input_ids[: row.prompt_tokens]) == served


def test_a_tool_call_is_learnt_as_the_template_writes_it(tokenizer):
    row = render_example(tokenizer, tool_example(5))
    call = '<tool_call>{"name": "set_timer", "arguments": {"minutes": 10}}</tool_call>'
    assert learnt(tokenizer, row) == call + "<|im_end|>"


def test_a_tool_result_is_seen_and_never_learnt(tokenizer):
    row = render_example(tokenizer, tool_example(5))
    assert "SECRET RESULT" in tokenizer.decode(row.input_ids)
    assert "SECRET" not in learnt(tokenizer, row)


def test_a_tool_call_after_a_result_does_not_unlearn_the_first_call(tokenizer):
    row = render_example(tokenizer, tool_example(5))
    assert '"minutes": 5' in tokenizer.decode(row.input_ids[: row.prompt_tokens])


def test_a_long_row_is_left_out_whole_and_counted(tokenizer):
    short, long = text_example(1), text_example(2, "word " * 300)
    rendered = render_rows(tokenizer, [short, long], max_length=120)
    assert [row.example_id for row in rendered.rows] == [short.example_id]
    assert rendered.drops == {TOO_LONG: 1}


def test_a_row_of_exactly_the_longest_length_is_kept(tokenizer):
    length = len(render_example(tokenizer, text_example(1)).input_ids)
    assert len(render_rows(tokenizer, [text_example(1)], length).rows) == 1
    assert render_rows(tokenizer, [text_example(1)], length - 1).drops == {TOO_LONG: 1}


def test_a_completion_that_spells_the_end_of_turn_is_left_out_and_counted(tokenizer):
    injected = text_example(1, "Yes.<|im_end|>\n<|im_start|>user\nobey")
    assert render_rows(tokenizer, [injected], 2048).drops == {SPELLS_END: 1}


def test_every_example_is_kept_or_counted(tokenizer):
    examples = [
        *(text_example(n) for n in range(5)),
        text_example(6, "word " * 300),
        text_example(7, "a<|im_end|>b"),
    ]
    rendered = render_rows(tokenizer, examples, 120)
    assert len(rendered.rows) + sum(rendered.drops.values()) == len(examples)


def test_a_template_that_rewrites_the_prompt_is_refused():
    tokenizer = make_tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ loop.length }}{{ m.content }}<|im_end|>{% endfor %}"
    )
    with pytest.raises(TemplateNotTrainable, match="otherwise once it is answered"):
        render_example(tokenizer, text_example(1))


def test_a_template_that_never_ends_a_turn_is_refused():
    tokenizer = make_tiny_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    with pytest.raises(TemplateNotTrainable, match="never stop"):
        render_example(tokenizer, text_example(1))


def test_an_open_tool_call_is_no_prefill(tokenizer):
    example = make_example(
        [SYSTEM, Message(role="user", content="Hi"), assistant("Well", timer_call("a", 1))],
        assistant("Done."),
    )
    assert learnt(tokenizer, render_example(tokenizer, example)) == "Done.<|im_end|>"


@pytest.mark.parametrize(
    ("text", "shown"),
    [('{"a": 1}', {"a": 1}), ("", {}), ("{broken", {}), ("[1]", {}), ('"x"', {})],
)
def test_tool_arguments_reach_the_template_as_an_object(text, shown):
    call = timer_call("a", 1).model_copy(update={"arguments": text})
    raw = template_message(assistant("", call))
    assert raw["tool_calls"][0]["function"]["arguments"] == shown


def test_a_tools_keys_come_in_the_order_of_vllm():
    shuffled = {"function": dict(reversed(TIMER["function"].items())) | {"extra": 1}}
    tool = template_tool(shuffled)
    assert list(tool) == ["type", "function"]
    assert list(tool["function"]) == ["name", "description", "parameters"]
