"""Proves that the embedded engine answers as the model with the named adapter would, alone.

A real tiny model with real PEFT adapters, random weights; nothing is faked.
"""

import asyncio
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import make_tiny_base

from serving.embedded import EmbeddedEngine
from serving.engine import ChatRequest, ChatResult
from serving.errors import AdapterNotServable, EngineRefused, EngineUnavailable
from serving.records import Message
from serving.template import render_chat

# PEFT 0.21 reads a property that transformers 5.24 renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory, base: Path) -> dict[str, Path]:
    """Two adapters that say something else than the base, by served name."""
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: make_adapter(folder / name.replace("@", "-"), base, seed)
        for seed, name in enumerate(("L1@aaaaaaaaaaaa", "L2@bbbbbbbbbbbb"))
    }


def make_adapter(folder: Path, base: Path, seed: int) -> Path:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    lora = get_peft_model(model, config)
    for name, parameter in lora.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    lora.save_pretrained(folder)
    return folder


@pytest.fixture
def engine(base: Path) -> Iterator[EmbeddedEngine]:
    engine = EmbeddedEngine(base)
    yield engine
    asyncio.run(engine.close())


def ask(model: str = "base", text: str = "Hello", **fields) -> ChatRequest:
    messages = (Message(role="user", content=text),)
    return ChatRequest(model=model, **({"messages": messages, "max_tokens": 8} | fields))


async def load(engine: EmbeddedEngine, adapters: dict[str, Path]) -> None:
    for name, path in adapters.items():
        await engine.load_adapter(name, path)


def said(result: ChatResult) -> tuple[int, ...]:
    return result.completion_token_ids or ()


def digest(engine: EmbeddedEngine) -> str:
    """Hash the names and bytes of every parameter that is not an adapter's."""
    found = hashlib.sha256()
    for name, tensor in sorted(engine._plain.state_dict().items()):
        if "lora_" not in name:
            found.update(name.replace(".base_layer", "").encode() + tensor.numpy().tobytes())
    return found.hexdigest()


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

    assert result.prompt_token_ids == tuple(render_chat(engine._tokenizer, request.messages))
    assert result.prompt_tokens == len(result.prompt_token_ids)
    assert result.completion_tokens == len(said(result))


def test_a_final_message_is_continued(engine) -> None:
    messages = (Message(role="user", content="Go"), Message(role="assistant", content="expert="))

    result = asyncio.run(engine.chat(ask(messages=messages, continue_final=True)))

    text = engine._tokenizer.decode(list(result.prompt_token_ids or ()))
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
    rows = {c: engine._tokenizer(c, add_special_tokens=False)["input_ids"] for c in choices}
    ends = len({len(row) for row in rows.values()}) > 1 and "L10" in rows
    engine._model.set_adapter(name)
    for choice, row in rows.items():
        ids, total = list(prompt), 0.0
        for token in [*row, 2] if ends else row:
            with torch.no_grad():
                logits = engine._model(input_ids=torch.tensor([ids])).logits[0, -1]
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
    return list(engine._plain.named_parameters())


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


def test_an_adapter_that_is_unloaded_is_gone_and_the_other_stays(engine, adapters) -> None:
    first, second = adapters

    async def run() -> None:
        await load(engine, adapters)
        before = await engine.chat(ask(second))
        await engine.unload_adapter(first)
        assert await engine.models() == ("base", second)
        with pytest.raises(EngineRefused, match=rf"'{first}' does not exist \(404\)"):
            await engine.chat(ask(first))
        with pytest.raises(EngineRefused, match="404"):
            await engine.unload_adapter(first)
        assert said(await engine.chat(ask(second))) == said(before)
        await engine.load_adapter("L1@cccccccccccc", adapters[first])
        await engine.chat(ask("L1@cccccccccccc"))

    asyncio.run(run())


def test_an_unknown_model_is_refused_with_those_there_are(engine) -> None:
    with pytest.raises(EngineRefused, match=r"'L9' does not exist \(404\). Loaded: base"):
        asyncio.run(engine.chat(ask("L9")))


def test_a_name_is_loaded_once(engine, adapters) -> None:
    name, path = next(iter(adapters.items()))

    async def run():
        twice = [engine.load_adapter(name, path) for _ in range(2)]
        return await asyncio.gather(*twice, return_exceptions=True)

    outcomes = asyncio.run(run())

    assert [type(outcome) for outcome in outcomes if outcome is not None] == [EngineRefused]
    assert "a name never changes" in str(next(o for o in outcomes if o is not None))


def test_nothing_is_called_base_but_the_base(engine, adapters) -> None:
    with pytest.raises(EngineRefused, match="'base' is loaded already"):
        asyncio.run(engine.load_adapter("base", next(iter(adapters.values()))))


def test_pickled_weights_are_refused(engine, adapters, tmp_path) -> None:
    folder = tmp_path / "pickle"
    shutil.copytree(next(iter(adapters.values())), folder)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")

    with pytest.raises(AdapterNotServable, match="only safetensors"):
        asyncio.run(engine.load_adapter("L1@aaaaaaaaaaaa", folder))
    with pytest.raises(AdapterNotServable, match="only safetensors"):
        asyncio.run(engine.load_adapter("L1@aaaaaaaaaaaa", tmp_path / "nowhere"))


@pytest.mark.parametrize("others_loaded", [False, True])
@pytest.mark.parametrize("damage", ["truncated", "no config", "wrong shape"])
def test_an_adapter_that_does_not_fit_leaves_the_engine_as_it_was(
    engine, adapters, tmp_path, damage, others_loaded
) -> None:
    name, path = next(iter(adapters.items()))
    bad = tmp_path / "bad"
    shutil.copytree(path, bad)
    config, weights = bad / "adapter_config.json", bad / "adapter_model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "no config":
        config.unlink()
    else:
        config.write_text(json.dumps(json.loads(config.read_text()) | {"r": 8}))

    async def run() -> None:
        if others_loaded:
            await load(engine, adapters)
        known, before = await engine.models(), digest(engine)
        answer = await engine.chat(ask())
        with pytest.raises(AdapterNotServable, match="does not fit this base") as refusal:
            await engine.load_adapter("L3@dddddddddddd", bad)
        assert len(str(refusal.value).splitlines()) == 1
        assert await engine.models() == known
        assert digest(engine) == before
        assert said(await engine.chat(ask())) == said(answer)
        if not others_loaded:
            await engine.load_adapter(name, path)
        await engine.load_adapter("L3@dddddddddddd", path)
        assert said(await engine.chat(ask("L3@dddddddddddd"))) == said(await engine.chat(ask(name)))

    asyncio.run(run())


def test_loading_while_others_are_answered_changes_no_answer(engine, adapters) -> None:
    async def run():
        expected = said(await engine.chat(ask(max_tokens=40)))
        answers = [engine.chat(ask(max_tokens=40)) for _ in range(3)]
        results = await asyncio.gather(load(engine, adapters), *answers)
        return expected, [said(result) for result in results[1:]]

    expected, answers = asyncio.run(run())

    assert answers == [expected] * 3


def test_closing_fails_what_waits_and_runs_and_does_not_hang(engine) -> None:
    async def run():
        asked = [asyncio.create_task(engine.chat(ask(max_tokens=64 + n))) for n in range(3)]
        await asyncio.sleep(0.05)
        await engine.close()
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 20)

    outcomes = asyncio.run(run())

    assert all(isinstance(outcome, ChatResult | EngineUnavailable) for outcome in outcomes)
    assert isinstance(outcomes[-1], EngineUnavailable)
    with pytest.raises(EngineUnavailable, match="was closed"):
        asyncio.run(engine.chat(ask()))


def test_a_caller_that_gives_up_does_not_disturb_the_others(engine) -> None:
    async def run():
        asked = [asyncio.create_task(engine.chat(ask(text=f"{n}"))) for n in range(3)]
        await asyncio.sleep(0)
        asked[1].cancel()
        return await asyncio.gather(*asked, return_exceptions=True)

    first, given_up, last = asyncio.run(run())

    assert isinstance(given_up, asyncio.CancelledError)
    assert isinstance(first, ChatResult)
    assert isinstance(last, ChatResult)


def test_another_event_loop_may_use_the_engine(engine) -> None:
    answers = [asyncio.run(engine.chat(ask())) for _ in range(2)]

    assert said(answers[0]) == said(answers[1])


@pytest.mark.parametrize("make", ["missing", "empty", "broken"])
def test_a_folder_without_a_model_is_refused_in_one_line(tmp_path, base, make) -> None:
    folder = tmp_path / "base"
    if make == "empty":
        folder.mkdir()
    elif make == "broken":
        shutil.copytree(base, folder)
        (folder / "model.safetensors").write_bytes(b"not weights")

    with pytest.raises(EngineUnavailable, match="No base model in") as refusal:
        EmbeddedEngine(folder)

    assert len(str(refusal.value).splitlines()) == 1
