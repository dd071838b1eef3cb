"""Proves that the embedded engine answers as the model with the named adapter would, alone.

A real tiny model with real PEFT adapters, random weights; nothing is faked.
"""

import asyncio
import json
import shutil

import pytest
from engine_calls import ask, digest, load, said

from serving.embedded import EmbeddedEngine
from serving.records import Message
from serving.template import render_chat

# PEFT 0.21 reads a property that transformers 5.24 renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")


def test_each_adapter_and_the_base_answer_as_in_plain_peft(engine, adapters, base) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    async def run():
        await load(engine, adapters)
        return await asyncio.gather(*[engine.chat(ask(name)) for name in ("base", *adapters)])

    results = asyncio.run(run())

    prompt = torch.tensor([results[0].prompt_token_ids])
    for result in results:
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        if result.served_name != "base":
            model = PeftModel.from_pretrained(model, adapters[result.served_name])
        out = model.eval().generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8,
            do_sample=False, eos_token_id=2, pad_token_id=2,
        )  # fmt: skip
        assert said(result) == tuple(out[0, prompt.shape[1] :].tolist())
    assert len({said(result) for result in results}) == 3


def test_a_batch_answers_as_one_by_one(engine, adapters) -> None:
    requests = [ask(name, "word " * n) for n in (1, 30, 7) for name in ("base", *adapters)] + [
        ask(text="Which?", choices=("L0", "L1", "L2")) for _ in range(2)
    ]

    async def run():
        await load(engine, adapters)
        together = await asyncio.gather(*[engine.chat(request) for request in requests])
        return together, [await engine.chat(request) for request in requests]

    together, alone = asyncio.run(run())

    assert [said(a) for a in together] == [said(a) for a in alone]
    assert [a.served_name for a in together] == [r.model for r in requests]


@pytest.mark.parametrize("rows", [2, 5])
def test_a_long_common_beginning_and_other_limits_change_no_answer(engine, adapters, rows) -> None:
    system = Message(role="system", content="You run the home. Answer with one label. " * 4)
    users = [Message(role="user", content="word " * (1 + 7 * n)) for n in range(rows)]
    requests = [
        ask(name, messages=(system, user), max_tokens=3 + 4 * n)
        for name in ("base", *adapters)
        for n, user in enumerate(users)
    ]

    async def run():
        await load(engine, adapters)
        together = await asyncio.gather(*[engine.chat(request) for request in requests])
        return together, [await engine.chat(request) for request in requests]

    together, alone = asyncio.run(run())

    assert [said(a) for a in together] == [said(a) for a in alone]
    assert [a.completion_tokens for a in together] == [a.completion_tokens for a in alone]
    assert len({said(a) for a in alone}) > rows


def test_a_prompt_is_the_chat_template_token_by_token(engine) -> None:
    request = ask(text="Hello")

    result = asyncio.run(engine.chat(request))

    assert result.prompt_token_ids == tuple(render_chat(engine.model.tokenizer, request.messages))
    assert result.prompt_tokens == len(result.prompt_token_ids)
    assert result.completion_tokens == len(said(result))


def test_a_final_message_is_continued(engine) -> None:
    messages = (Message(role="user", content="Go"), Message(role="assistant", content="expert="))

    result = asyncio.run(engine.chat(ask(messages=messages, continue_final=True)))

    text = engine.model.tokenizer.decode(list(result.prompt_token_ids or ()))
    assert text.endswith("<|im_start|>assistant\nexpert=")


def test_an_answer_that_reaches_the_limit_says_so(engine) -> None:
    result = asyncio.run(engine.chat(ask(max_tokens=3)))

    assert result.finish_reason == "length"
    assert result.completion_tokens == 3


@pytest.mark.parametrize(
    "choices",
    [
        ("L0", "L1", "L2", "L3"),
        ("yes", "no", "perhaps not today"),
        ("expert=L0", "expert=L1"),
        ("only",),
        ("L1", "L10", "L100"),
    ],
)
def test_a_choice_is_the_likeliest_by_the_model(engine, adapters, choices) -> None:
    name = next(iter(adapters))

    async def run():
        await load(engine, adapters)
        return await engine.chat(ask(name, choices=choices))

    result = asyncio.run(run())

    scores = brute_force(engine, name, list(result.prompt_token_ids or ()), choices)
    assert result.message.content == max(scores, key=lambda choice: scores[choice])
    assert 0 < (result.choice_probability or 0) <= 1
    assert result.choice_probability == pytest.approx(scores[result.message.content], rel=1e-3)


def brute_force(engine, name: str, prompt: list[int], choices) -> dict[str, float]:
    """Return the probability of each choice with its end, token by token, among the choices."""
    import torch

    logs = {}
    rows = {c: engine.model.tokenizer(c, add_special_tokens=False)["input_ids"] for c in choices}
    ends = len({len(row) for row in rows.values()}) > 1 and "L10" in rows
    engine.model.model.set_adapter(name)
    for choice, row in rows.items():
        ids, total = list(prompt), 0.0
        for token in [*row, 2] if ends else row:
            with torch.no_grad():
                logits = engine.model.model(input_ids=torch.tensor([ids])).logits[0, -1]
            total += float(torch.log_softmax(logits.double(), -1)[token])
            ids.append(token)
        logs[choice] = total
    weights = torch.softmax(torch.tensor(list(logs.values())), 0)
    return dict(zip(logs, weights.tolist(), strict=True))


def test_the_base_does_not_move(engine, adapters, base) -> None:
    before = digest(engine)
    files = {path.name: path.read_bytes() for path in base.iterdir()}

    async def run() -> None:
        await load(engine, adapters)
        for name in ("base", *adapters):
            await engine.chat(ask(name))
            await engine.chat(ask(name, choices=("a", "b")))
        assert digest(engine) == before
        for name in adapters:
            await engine.unload_adapter(name)

    asyncio.run(run())

    assert digest(engine) == before
    assert not any("lora" in name or "base_layer" in name for name, _ in named(engine))
    assert {path.name: path.read_bytes() for path in base.iterdir()} == files


def named(engine: EmbeddedEngine):
    return list(engine.model.plain.named_parameters())


def test_the_base_answers_the_same_with_and_without_adapters(engine, adapters) -> None:
    async def run():
        answers = [await engine.chat(ask())]
        await load(engine, adapters)
        answers.append(await engine.chat(ask()))
        for name in adapters:
            await engine.unload_adapter(name)
        return [*answers, await engine.chat(ask())]

    assert len({said(answer) for answer in asyncio.run(run())}) == 1


def test_a_base_with_sampling_defaults_of_its_own_still_answers_greedily(base, tmp_path) -> None:
    other = tmp_path / "base"
    shutil.copytree(base, other)
    defaults = {"do_sample": True, "temperature": 5.0, "repetition_penalty": 9.0}
    (other / "generation_config.json").write_text(json.dumps(defaults))

    answers = [asyncio.run(EmbeddedEngine(folder).chat(ask())) for folder in (base, other)]

    assert said(answers[0]) == said(answers[1])
