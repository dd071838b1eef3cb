"""Proves what a proof sees on real engines: healthy ones pass, each fault is caught before a flip.

Tiny random models with real adapters behind real sockets; references by transformers and PEFT.
The same with the real vLLM: `tests/promotion/test_proof_vllm.py`.
"""

import asyncio
from pathlib import Path

import pytest
from engine_server import tiny_engine_server
from proved_home import ProvedHome, serving
from safetensors.numpy import load_file, save_file
from slot_tables import until
from tiny import make_tiny_base

from serving.embedded import EmbeddedEngine
from serving.loading import VersionRefused
from serving.openai_engine import OpenAIEngine
from serving.proof import proof_path
from serving.proving import Proving, prove
from serving.slot_table import SlotEntry, SlotFile
from training.artifact import Version

pytestmark = [
    # PEFT 0.21 reads a property that transformers 5.24 renamed.
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing"),
    pytest.mark.filterwarnings("ignore:.*missing adapter keys"),
]


@pytest.fixture(scope="module")
def made(base: Path, tmp_path_factory: pytest.TempPathFactory) -> ProvedHome:
    return ProvedHome(tmp_path_factory.mktemp("home"), base)


@pytest.fixture(scope="module")
def one(made: ProvedHome) -> Version:
    return made.adapter("L1", 1)


@pytest.fixture(scope="module")
def two(made: ProvedHome) -> Version:
    return made.adapter("L2", 2)


@pytest.fixture(scope="module")
def three(made: ProvedHome) -> Version:
    return made.adapter("L2", 3)


def asked(made: ProvedHome, url: str, *versions: Version) -> Proving:
    async def ask() -> Proving:
        engine = OpenAIEngine(url)
        try:
            return await prove(engine, {v.name: made.proof(v) for v in versions})
        finally:
            await engine.close()

    return asyncio.run(ask())


def test_what_was_trained_is_proved_in_process(
    made: ProvedHome, one: Version, two: Version, engine: EmbeddedEngine
) -> None:
    async def ask() -> Proving:
        for version in (one, two):
            await engine.load_adapter(version.name, made.folder(version))
        return await prove(engine, {v.name: made.proof(v) for v in (one, two)})

    found = asyncio.run(ask())
    assert [v.outcome for v in found.verdicts] == ["proved", "proved"]
    assert [v.share for v in found.verdicts] == pytest.approx([1, 1], abs=1e-3)
    assert found.floor < 1e-4 < min(v.separation for v in found.verdicts)


def test_what_was_trained_is_proved_over_http(
    made: ProvedHome, one: Version, two: Version, tmp_path: Path
) -> None:
    loras = {v.name: made.folder(v) for v in (one, two)}
    with tiny_engine_server(tmp_path, loras, made.base) as url:
        assert asked(made, url, one, two).failed == ()


def test_wrong_weights_under_the_right_name_are_named(
    made: ProvedHome, one: Version, two: Version, tmp_path: Path
) -> None:
    loras = {one.name: made.folder(one), two.name: made.folder(one)}
    with tiny_engine_server(tmp_path, loras, made.base) as url:
        [verdict] = asked(made, url, one, two).failed
    assert (verdict.name, verdict.outcome) == (two.name, "failed")
    assert f"the answers of {one.name!r}" in verdict.words


def test_modules_of_other_names_are_the_bare_base(
    made: ProvedHome, one: Version, tmp_path: Path
) -> None:
    folder = tmp_path / "renamed"
    folder.mkdir()
    weights = load_file(made.folder(one) / "adapter_model.safetensors")
    renamed = {name.replace("model.layers", "model.blocks"): t for name, t in weights.items()}
    save_file(renamed, folder / "adapter_model.safetensors")
    config = made.folder(one) / "adapter_config.json"
    (folder / "adapter_config.json").write_bytes(config.read_bytes())
    with tiny_engine_server(tmp_path, {one.name: folder}, made.base) as url:
        [verdict] = asked(made, url, one).failed
    assert "the answers of the bare base" in verdict.words


def test_a_half_matching_adapter_is_no_match(
    made: ProvedHome, one: Version, tmp_path: Path
) -> None:
    folder = tmp_path / "half"
    folder.mkdir()
    weights = load_file(made.folder(one) / "adapter_model.safetensors")
    renamed = {name.replace("layers.1.mlp", "layers.1.ffn"): t for name, t in weights.items()}
    assert renamed.keys() != weights.keys()
    save_file(renamed, folder / "adapter_model.safetensors")
    config = made.folder(one) / "adapter_config.json"
    (folder / "adapter_config.json").write_bytes(config.read_bytes())
    with tiny_engine_server(tmp_path, {one.name: folder}, made.base) as url:
        [verdict] = asked(made, url, one).failed
    assert verdict.outcome == "failed"


def test_a_version_that_is_gone_refuses_the_next_table(
    made: ProvedHome, one: Version, two: Version, three: Version, tmp_path: Path
) -> None:
    """Evicted or unloaded behind our back: it is noticed when another slot changes."""

    async def scenario(url: str) -> None:
        async with serving(made, url) as (versions, engine):
            await versions.apply(SlotFile(slots=(made.entry(one), made.entry(two))))
            await engine.unload_adapter(one.name)
            changed = made.entry(three, generation=1)
            with pytest.raises(VersionRefused, match=f"{one.name}' does not answer"):
                await versions.apply(SlotFile(slots=(made.entry(one), changed)))
            assert versions.lease("c").names == {"L1": one.name, "L2": two.name}
            assert three.name not in await engine.models()
            await versions.ensure(one.name)
            assert await versions.apply(SlotFile(slots=(made.entry(one), changed)))

    with tiny_engine_server(tmp_path, base=made.base) as url:
        asyncio.run(scenario(url))


def test_one_replica_of_two_left_behind_refuses_the_table(
    made: ProvedHome, one: Version, two: Version, three: Version, tmp_path: Path
) -> None:
    """The second has the new name already, with the weights of the old version."""

    async def scenario(urls: list[str]) -> None:
        async with serving(made, *urls) as (versions, engine):
            await versions.apply(SlotFile(slots=(made.entry(two),)))
            await engine.engines[1].load_adapter(three.name, made.folder(two))
            changed = SlotFile(slots=(made.entry(three, generation=1),))
            with pytest.raises(VersionRefused) as refusal:
                await versions.apply(changed)
            assert f"On engine {urls[1]!r}: {three.name!r} is not what was" in str(refusal.value)
            assert versions.lease("c").names == {"L2": two.name}
            await engine.engines[1].unload_adapter(three.name)
            assert await versions.apply(changed)

    with (
        tiny_engine_server(tmp_path / "a", base=made.base) as first,
        tiny_engine_server(tmp_path / "b", base=made.base) as second,
    ):
        asyncio.run(scenario([first, second]))


def test_a_replica_that_returns_gets_no_calls_before_it_is_proved(
    made: ProvedHome, two: Version, three: Version, tmp_path: Path
) -> None:
    """It was left behind, and has the new name with the weights of the old version."""

    async def scenario(urls: list[str]) -> None:
        async with serving(made, *urls) as (versions, engine):
            await versions.apply(SlotFile(slots=(made.entry(two),)))
            engine.behind.add(1)
            await engine.engines[1].load_adapter(three.name, made.folder(two))
            await versions.apply(SlotFile(slots=(made.entry(three, generation=1),)))
            watch = asyncio.create_task(versions.watch(tmp_path / "none.json", 0.01))
            await asyncio.sleep(1)
            assert engine.behind == {1}
            await engine.engines[1].unload_adapter(three.name)
            await until(lambda: not engine.behind)
            watch.cancel()
            assert three.name in await engine.engines[1].models()

    with (
        tiny_engine_server(tmp_path / "a", base=made.base) as first,
        tiny_engine_server(tmp_path / "b", base=made.base) as second,
    ):
        asyncio.run(scenario([first, second]))


def test_what_is_proved_changes_whatever_another_slot_breaks(
    made: ProvedHome, one: Version, two: Version, three: Version, tmp_path: Path
) -> None:
    """L1 gets a canary whose proof is damaged; a rollback in L2 goes through."""
    other = made.adapter("L1", 9)
    proof_path(made.home, other.digest).write_text("{")

    async def scenario(url: str) -> None:
        async with serving(made, url) as (versions, _):
            for slot in (made.entry(two), made.entry(three, previous=two.name, generation=1)):
                await versions.apply(SlotFile(slots=(made.entry(one), slot)))
            canary = made.entry(other)
            fields = {"canary": canary.champion, "canary_digest": canary.digest}
            fields |= {"canary_path": canary.path, "canary_percent": 5.0, "generation": 1}
            back = made.entry(two, previous=three.name, generation=2)
            with pytest.raises(VersionRefused, match=r"cannot be read.*Unchanged: 'L1'"):
                await versions.apply(SlotFile(slots=(made.entry(one, **fields), back)))
            assert versions.lease("c").names == {"L1": one.name, "L2": two.name}
            assert versions.lease("c").canaries == frozenset()

    with tiny_engine_server(tmp_path, base=made.base) as url:
        asyncio.run(scenario(url))


def test_an_extra_slot_that_is_not_proved_is_left_out(
    made: ProvedHome, one: Version, two: Version, tmp_path: Path
) -> None:
    async def scenario(url: str) -> None:
        async with serving(made, url) as (versions, _):
            table = SlotFile(slots=(made.entry(one), made.entry(two, tier="extra")))
            await versions.apply(table)
            assert list(versions.missing) == ["L2"]
            assert versions.lease("c").names == {"L1": one.name}

    with tiny_engine_server(tmp_path, {two.name: made.folder(one)}, made.base) as url:
        asyncio.run(scenario(url))


def test_without_a_proof_a_version_serves_and_the_log_says_so(
    made: ProvedHome, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = made.adapter("L3", 7, proof=False)

    async def scenario(url: str) -> None:
        async with serving(made, url) as (versions, _):
            assert await versions.apply(SlotFile(slots=(made.entry(old),)))
            assert await versions.apply(SlotFile(slots=(made.entry(old), SlotEntry(slot="L0"))))

    with tiny_engine_server(tmp_path, base=made.base) as url:
        asyncio.run(scenario(url))
    said = [r.message for r in caplog.records if "without proof" in r.message]
    assert said == [f"{old.name!r} serves without proof: training wrote none down for it"]


def test_a_damaged_proof_refuses_the_table(made: ProvedHome, tmp_path: Path) -> None:
    broken = made.adapter("L3", 8)
    proof_path(made.home, broken.digest).write_text("{")

    async def scenario(url: str) -> None:
        async with serving(made, url) as (versions, _):
            with pytest.raises(VersionRefused, match="cannot be read"):
                await versions.apply(SlotFile(slots=(made.entry(broken),)))

    with tiny_engine_server(tmp_path, base=made.base) as url:
        asyncio.run(scenario(url))


def test_the_version_of_before_stays_on_the_engine_for_a_rollback(
    made: ProvedHome, two: Version, three: Version, tmp_path: Path
) -> None:
    async def scenario(url: str) -> None:
        async with serving(made, url) as (versions, engine):
            await versions.apply(SlotFile(slots=(made.entry(two),)))
            new = made.entry(three, previous=two.name, generation=1)
            await versions.apply(SlotFile(slots=(new,)))
            await until(lambda: len(versions.describe()) == 1)
            assert set(await engine.models()) == {"base", two.name, three.name}
            back = made.entry(two, previous=three.name, generation=2)
            await versions.apply(SlotFile(slots=(back,)))
            await until(lambda: len(versions.describe()) == 1)
            assert set(await engine.models()) == {"base", two.name, three.name}
            await versions.apply(SlotFile(slots=(SlotEntry(slot="L2", generation=3),)))
            await until(lambda: len(versions.describe()) == 1)
            while set(await engine.models()) != {"base"}:
                await asyncio.sleep(0.01)

    with tiny_engine_server(tmp_path, base=made.base) as url:
        asyncio.run(scenario(url))


def test_another_base_is_told_from_noise(made: ProvedHome, one: Version, tmp_path: Path) -> None:
    """Its adapters answer something between; no floor that it makes may pass for noise."""
    other = make_tiny_base(tmp_path / "other", seed=1)
    with tiny_engine_server(tmp_path, {one.name: made.folder(one)}, other) as url:
        failed = {verdict.name: verdict.words for verdict in asked(made, url, one).failed}
    assert "is not the base that was trained on" in failed["base"]
