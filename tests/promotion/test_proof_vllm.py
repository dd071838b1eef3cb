"""Proves, with the real vLLM and the bundled adapters, what the proof of what serves sees.

Nothing is faked. The first server has slots to spare; the second, which the test of two replicas
starts, has two, so that a third adapter evicts one. References are transformers' and PEFT's.
"""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_calls import use
from proved_home import ProvedHome
from safetensors.numpy import load_file, save_file

from infra.base_model import DEFAULT_FOLDER
from infra.vllm_server import VENV, start
from serving.loading import VersionRefused
from serving.openai_engine import OpenAIEngine
from serving.proof import Proof
from serving.proving import Proving, prove
from serving.replicas import Replicas
from serving.slot_table import SlotFile
from serving.versions import Versions
from training.artifact import Version, import_adapter
from training.proofs import ensure_proofs

# Starting takes about a minute, and the first test pays for it.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
BASE = ROOT / DEFAULT_FOLDER
SLOTS = ("L0", "L1", "L2", "L3")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ProvedHome:
    if not (VENV / "bin" / "python").exists() or not BASE.exists():
        pytest.fail("vLLM or the base model is missing; run these tests with 'make vllm-test'")
    return ProvedHome(tmp_path_factory.mktemp("home"), BASE)


@pytest.fixture(scope="module")
def versions(made: ProvedHome) -> dict[str, Version]:
    folder = ROOT / "examples" / "adapters"
    found = {slot: import_adapter(made.home, folder / slot, slot, BASE) for slot in SLOTS}
    ensure_proofs(made.home, BASE, [version.digest for version in found.values()])
    return found


@pytest.fixture(scope="module")
def proofs(made: ProvedHome, versions: dict[str, Version]) -> dict[str, Proof]:
    return {slot: made.proof(version) for slot, version in versions.items()}


@pytest.fixture(scope="module")
def url(made: ProvedHome) -> Iterator[str]:
    with start(BASE, log=made.home / "vllm.log") as url:
        yield url


@pytest.fixture(scope="module")
def narrow_url(made: ProvedHome) -> Iterator[str]:
    """A second replica, with slots for two adapters."""
    with start(BASE, max_loras=2, log=made.home / "narrow.log") as url:
        yield url


def asked(url: str, served: dict[str, Proof]) -> Proving:
    found: Proving = use(url, lambda engine: prove(engine, served))
    for verdict in found.verdicts:
        print(f"{found.seconds:.1f} s: {verdict.words}")
    return found


def load(url: str, name: str, folder: Path) -> None:
    use(url, lambda engine: engine.load_adapter(name, folder))


def unload(url: str, name: str) -> None:
    use(url, lambda engine: engine.unload_adapter(name))


def bytes_of(made: ProvedHome, version: Version, folder: Path) -> Path:
    """Put an adapter's bytes into a folder, whatever was in it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(made.folder(version), folder)
    return folder


def check_healthy(
    url: str, made: ProvedHome, versions: dict[str, Version], proofs: dict[str, Proof]
) -> Proving:
    for version in versions.values():
        load(url, version.name, made.folder(version))
    found = asked(url, {versions[slot].name: proofs[slot] for slot in SLOTS})
    assert [verdict.outcome for verdict in found.verdicts] == ["proved"] * 4
    assert all(verdict.share == pytest.approx(1, abs=0.25) for verdict in found.verdicts)
    return found


def test_every_bundled_adapter_is_proved(
    url: str, made: ProvedHome, versions: dict[str, Version], proofs: dict[str, Proof]
) -> None:
    found = check_healthy(url, made, versions, proofs)
    assert found.floor < 1e-4
    again = asked(url, {versions[slot].name: proofs[slot] for slot in SLOTS})
    assert again.failed == ()


def test_wrong_weights_under_the_right_name(
    url: str, made: ProvedHome, versions: dict[str, Version], proofs: dict[str, Proof]
) -> None:
    load(url, "L1@wrong", made.folder(versions["L3"]))
    served = {"L1@wrong": proofs["L1"], versions["L3"].name: proofs["L3"]}
    [verdict] = asked(url, served).failed
    assert verdict.name == "L1@wrong"
    assert f"the answers of {versions['L3'].name!r}" in verdict.words


def test_module_names_that_do_not_match(
    url: str, made: ProvedHome, versions: dict[str, Version], proofs: dict[str, Proof],
    tmp_path: Path,
) -> None:  # fmt: skip
    """It is taken without a word, and answers as the base."""
    folder = bytes_of(made, versions["L1"], tmp_path / "renamed")
    weights = load_file(folder / "adapter_model.safetensors")
    renamed = {name.replace(".layers.", ".blocks."): tensor for name, tensor in weights.items()}
    save_file(renamed, folder / "adapter_model.safetensors")
    load(url, "L1@renamed", folder)
    [verdict] = asked(url, {"L1@renamed": proofs["L1"]}).failed
    assert "the answers of the bare base" in verdict.words


def test_a_stale_prefix_cache_after_a_reload_under_the_same_name(
    url: str, made: ProvedHome, versions: dict[str, Version], proofs: dict[str, Proof],
    tmp_path: Path,
) -> None:  # fmt: skip
    folder = bytes_of(made, versions["L0"], tmp_path / "same")
    load(url, "L0@same", folder)
    assert asked(url, {"L0@same": proofs["L0"]}).failed == ()
    unload(url, "L0@same")
    load(url, "L0@same", bytes_of(made, versions["L1"], folder))
    [verdict] = asked(url, {"L0@same": proofs["L1"]}).failed
    assert "what a cache kept" in verdict.words
    load(url, "L1@fresh", folder)
    assert asked(url, {"L1@fresh": proofs["L1"]}).failed == ()


def test_an_adapter_that_was_unloaded(
    url: str, made: ProvedHome, versions: dict[str, Version], proofs: dict[str, Proof]
) -> None:
    unload(url, versions["L2"].name)
    served = {versions[slot].name: proofs[slot] for slot in SLOTS}
    [verdict] = asked(url, served).failed
    assert verdict.name == versions["L2"].name
    assert "404" in verdict.words


def test_one_replica_of_two_left_behind(
    url: str, narrow_url: str, made: ProvedHome, versions: dict[str, Version]
) -> None:
    """It has the new name already, with the weights of another version."""
    new, old = versions["L3"], versions["L1"]

    async def scenario() -> None:
        engine = Replicas([OpenAIEngine(url), OpenAIEngine(narrow_url)])
        serving = Versions(engine, made.home, step_s=600)
        try:
            await serving.apply(SlotFile(slots=(made.entry(old),)))
            await engine.engines[1].load_adapter(new.name, made.folder(old))
            table = SlotFile(slots=(made.entry(old), made.entry(new)))
            with pytest.raises(VersionRefused) as refusal:
                await serving.apply(table)
            assert f"On engine {narrow_url!r}: {new.name!r} is not what" in str(refusal.value)
            assert f"the answers of {old.name!r}" in str(refusal.value)
            assert serving.lease("c").names == {"L1": old.name}
        finally:
            await serving.close()
            await engine.close()

    asyncio.run(scenario())


def test_an_evicted_adapter_is_read_again_and_the_base_meets_the_last_slot(
    narrow_url: str, made: ProvedHome, versions: dict[str, Version], proofs: dict[str, Proof],
    tmp_path: Path,
) -> None:  # fmt: skip
    """What vLLM evicted it goes on listing, and reads from its folder when it is asked for.

    All slots of the CPU build are taken: among adapters, the base answers as one of them.
    """
    folder = bytes_of(made, versions["L0"], tmp_path / "evicted")
    load(narrow_url, "L0@evicted", folder)
    found = asked(narrow_url, {"L0@evicted": proofs["L0"]})
    assert found.verdicts[0].outcome == "proved"
    for slot in ("L2", "L1"):
        load(narrow_url, f"{slot}@later", made.folder(versions[slot]))
    bytes_of(made, versions["L3"], folder)
    assert "L0@evicted" in use(narrow_url, lambda engine: engine.models())
    served = {"L0@evicted": proofs["L0"], "L1@later": proofs["L1"], "L2@later": proofs["L2"]}
    failed = {verdict.name: verdict for verdict in asked(narrow_url, served).failed}
    assert "L0@evicted" in failed
    assert "among adapters" in failed["base"].words


@pytest.mark.slow
def test_every_bundled_adapter_is_proved_in_bfloat16(
    made: ProvedHome, versions: dict[str, Version], proofs: dict[str, Proof]
) -> None:
    log = made.home / "bfloat16.log"
    with start(BASE, log=log, extra=("--dtype", "bfloat16")) as url:
        found = check_healthy(url, made, versions, proofs)
        assert 0.01 < found.floor < 0.2
        load(url, "L2@wrong", made.folder(versions["L1"]))
        assert asked(url, {"L2@wrong": proofs["L2"]}).failed
