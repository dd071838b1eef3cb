"""Proves that nothing is scored, promoted or given traffic on an engine that serves something else.

A real engine over HTTP with a tiny base; it has the challenger's name already, with the weights of
another version, as after a reload that somebody made by hand.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from engine_calls import make_adapter
from engine_server import tiny_engine_server
from tiny_loop import tiny_settings

from flows import gating, stages
from flows.config import Settings
from flows.registering import register_adapter
from flows.scoring import score_suite
from flows.suites import audit_stage
from promotion.gate import list_reports
from promotion.promote import bootstrap
from promotion.proof import NotProved
from serving.proof import proof_path
from training.artifact import AlteredAdapter, Version, adapter_folder, import_adapter
from training.proofs import ensure_proofs

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")
SIZES = {"primary": 4, "guard": 2, "bystander": 1, "safety": 0, "format": 0, "living": 0}


@pytest.fixture
def served(tiny_base: Path, tmp_path: Path) -> Iterator[tuple[Settings, Version, Version]]:
    """Settings with an engine, the champion of L1 and the challenger that it serves wrongly."""
    home = tmp_path / "home"
    adapters = [make_adapter(tmp_path / str(seed), tiny_base, seed) for seed in (1, 2)]
    champion, challenger = (import_adapter(home, path, "L1", tiny_base) for path in adapters)
    with tiny_engine_server(tmp_path, {challenger.name: adapters[0]}, tiny_base) as url:
        settings = tiny_settings(home, tiny_base, (), suites=SIZES, engine=url)
        stages.prepare_registry(settings)
        with stages.open_registry(settings) as registry:
            for version in (champion, challenger):
                register_adapter(settings, registry, version.digest, {})
            bootstrap(home, registry, "L1", champion.digest)
        yield settings, champion, challenger


def names(address: str) -> list[str]:
    listed = httpx.get(f"{address}/v1/models", trust_env=False).json()["data"]
    return [model["id"] for model in listed]


def test_the_gate_scores_nothing_and_takes_the_challenger_away(
    served: tuple[Settings, Version, Version],
) -> None:
    settings, champion, challenger = served
    with pytest.raises(NotProved) as refusal:
        gating.gate_stage(settings, "L1", challenger.digest)
    assert f"{challenger.name!r} is not what was trained" in str(refusal.value)
    assert f"the answers of {champion.name!r}" in str(refusal.value)
    assert not list_reports(settings.home, "L1")
    assert not (settings.home / "evals").exists()
    assert challenger.name not in names(settings.engine)
    with stages.open_registry(settings) as registry:
        assert registry.slot("L1").champion == champion.digest
    # Loaded afresh it is right, and is judged.
    assert gating.gate_stage(settings, "L1", challenger.digest).challenger_digest


def test_the_check_before_a_promotion_or_a_canary_refuses_it(
    served: tuple[Settings, Version, Version],
) -> None:
    settings, _, challenger = served
    folder = settings.home / "adapters" / challenger.digest.removeprefix("sha256:")
    check = stages.artifact_check(settings, "L1", challenger.digest)
    proof_path(settings.home, challenger.digest).unlink(missing_ok=True)
    with pytest.raises(NotProved, match=r"Nothing was scored and the champion stays"):
        check(folder)
    assert proof_path(settings.home, challenger.digest).exists()


def test_no_proof_is_written_of_what_was_altered(
    served: tuple[Settings, Version, Version],
) -> None:
    settings, champion, challenger = served
    weights = [
        adapter_folder(settings.home, one.digest) / "adapter_model.safetensors"
        for one in (champion, challenger)
    ]
    weights[0].write_bytes(weights[1].read_bytes())
    proof_path(settings.home, champion.digest).unlink(missing_ok=True)
    with pytest.raises(AlteredAdapter, match="was published as"):
        ensure_proofs(settings.home, settings.base, [champion.digest])
    assert not proof_path(settings.home, champion.digest).exists()


def test_scores_and_audits_of_a_champion_are_of_what_was_trained_or_none(
    served: tuple[Settings, Version, Version],
) -> None:
    settings, champion, challenger = served
    ensure_proofs(settings.home, settings.base, [champion.digest])
    other = settings.home / "adapters" / challenger.digest.removeprefix("sha256:")
    body = {"lora_name": champion.name, "lora_path": str(other.resolve())}
    ask = partial(httpx.post, json=body, trust_env=False)
    assert ask(f"{settings.engine}/v1/load_lora_adapter").is_success

    with pytest.raises(NotProved, match=f"{champion.name!r} is not what was trained"):
        score_suite(settings, "tools", "L1", "search", 2)
    with pytest.raises(NotProved, match=f"{champion.name!r} is not what was trained"):
        audit_stage(settings, "L1")

    assert ask(f"{settings.engine}/v1/unload_lora_adapter").is_success
    assert score_suite(settings, "tools", "L1", "search", 2).version == champion.name
    assert [one.score.n for one in audit_stage(settings, "L1").suites] == [4, 2]
    assert not (settings.home / "evals").exists()  # the server may be another the next time


def test_of_two_replicas_each_is_loaded_and_proved(
    served: tuple[Settings, Version, Version], tiny_base: Path, tmp_path: Path
) -> None:
    settings, champion, challenger = served
    wrong = settings.engine
    (tmp_path / "right").mkdir()
    with tiny_engine_server(tmp_path / "right", {}, tiny_base) as right:
        both = settings.model_copy(update={"engine": f"{right}, {wrong}"})
        with pytest.raises(NotProved, match=r"On replica 2 of 2: .* is not what was trained"):
            gating.gate_stage(both, "L1", challenger.digest)
        assert not [
            name for url in (right, wrong) for name in names(url) if name == challenger.name
        ]
        report = gating.gate_stage(both, "L1", challenger.digest)
        assert (report.primary.n, report.verdict) == (SIZES["primary"], "INCONCLUSIVE")
        # What did not pass is taken away from both.
        assert [set(names(url)) for url in (right, wrong)] == [{"base", champion.name}] * 2
