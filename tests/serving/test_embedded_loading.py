"""Proves that the embedded engine survives loading, unloading, closing and what does not fit.

A real tiny model with real PEFT adapters, random weights; nothing is faked.
"""

import asyncio
import json
import shutil

import pytest
from engine_calls import ask, digest, load, said

from serving.embedded import EmbeddedEngine
from serving.engine import ChatResult
from serving.errors import AdapterNotServable, EngineRefused, EngineUnavailable

# PEFT 0.21 reads a property that transformers 5.24 renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")


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
