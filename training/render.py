"""Render examples to tokens: exactly what was served, and which tokens to learn.

In: examples and a tokenizer with the chat template in force. Out: rows of token ids with
the length of their prompt. The prompt is rendered by the function that the engine uses and
the completion is tokenized by itself, as an engine appends tokens to a prompt that it has
already tokenized. Only what the assistant says now is learnt: its text, its tool calls
and the end-of-turn token; never the prompt, so never a tool's result (DESIGN, invariant 7).
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from curation.examples import Example, view_end
from serving.errors import MolError
from serving.records import Message
from serving.template import encode, render_text

IGNORED = -100
"""Label of a token that is not learnt, by PyTorch's and TRL's convention."""

TOO_LONG = "too_long"
SPELLS_END = "spells_end_of_turn"


class TemplateNotTrainable(MolError, ValueError):
    """A chat template renders a prompt otherwise once it is answered, or never ends a turn."""


@dataclass(frozen=True, slots=True)
class Row:
    """One example as tokens."""

    example_id: str
    input_ids: tuple[int, ...]
    """Prompt, completion, end-of-turn token."""
    prompt_tokens: int
    weight: float

    @property
    def labels(self) -> list[int]:
        """The token to learn at each position, `IGNORED` over the prompt."""
        return [IGNORED] * self.prompt_tokens + list(self.input_ids[self.prompt_tokens :])

    @property
    def supervised_tokens(self) -> int:
        """How many tokens are learnt."""
        return len(self.input_ids) - self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Rendered:
    """Rows to train on, and why the others are left out."""

    rows: tuple[Row, ...]
    drops: dict[str, int]
    """Reason to count; every example is in `rows` or counted here."""


def render_rows(tokenizer: Any, examples: Iterable[Example], max_length: int) -> Rendered:
    """Render examples in order, leaving out those that cannot be learnt whole.

    `too_long`: more than `max_length` tokens; cutting would teach half an answer.
    `spells_end_of_turn`: the completion spells the end-of-turn token, as text or by injection.

    Raises:
        TemplateNotTrainable: if the template does not extend a prompt by its answer.
    """
    rows: list[Row] = []
    drops: Counter[str] = Counter()
    for example in examples:
        row = render_example(tokenizer, example)
        if len(row.input_ids) > max_length:
            drops[TOO_LONG] += 1
        elif row.input_ids[row.prompt_tokens :].count(tokenizer.eos_token_id) > 1:
            drops[SPELLS_END] += 1
        else:
            rows.append(row)
    return Rendered(tuple(rows), dict(sorted(drops.items())))


def render_example(tokenizer: Any, example: Example) -> Row:
    """Render one example.

    Where the view ends with assistant text (a prefill), the completion continues it;
    otherwise it is a new assistant message.

    Raises:
        TemplateNotTrainable: if the template does not extend the prompt by its answer.
    """
    tools = json.loads(example.tools)
    prefilled = view_end(example.messages) == "prefill"
    prompt = render_text(tokenizer, example.messages, tools, continue_final=prefilled)
    answered = render_text(
        tokenizer, _answered(example, prefilled), tools, add_generation_prompt=False
    )
    if not answered.startswith(prompt):
        shared = next(
            (i for i, (a, b) in enumerate(zip(prompt, answered, strict=False)) if a != b),
            min(len(prompt), len(answered)),
        )
        raise TemplateNotTrainable(
            f"The chat template renders example {example.example_id!r} otherwise once it is "
            f"answered: {prompt[shared : shared + 40]!r} becomes "
            f"{answered[shared : shared + 40]!r}. Use a template whose prompt is a prefix of the "
            "answered conversation, such as infra/chat_template.jinja."
        )
    prompt_ids = encode(tokenizer, prompt)
    completion_ids = _until_end_of_turn(tokenizer, example, answered[len(prompt) :])
    return Row(
        example_id=example.example_id,
        input_ids=(*prompt_ids, *completion_ids),
        prompt_tokens=len(prompt_ids),
        weight=example.weight,
    )


def _answered(example: Example, prefilled: bool) -> list[Message]:
    if not prefilled:
        return [*example.messages, example.completion]
    *earlier, opened = example.messages
    content = opened.content + example.completion.content
    return [*earlier, example.completion.model_copy(update={"content": content})]


def _until_end_of_turn(tokenizer: Any, example: Example, text: str) -> list[int]:
    """Cut what a template writes after the turn's end: an engine stops there, and never sees it."""
    ids = encode(tokenizer, text)
    while ids and ids[-1] != tokenizer.eos_token_id:
        ids.pop()
    if not ids:
        raise TemplateNotTrainable(
            f"The chat template does not end the answer of example {example.example_id!r} with "
            f"the end-of-turn token {tokenizer.eos_token!r}; it wrote {text[-40:]!r}. A model "
            "trained so would never stop. Set the tokenizer's eos_token to the template's."
        )
    return ids
