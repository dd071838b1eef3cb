"""The cycle's end against the real vLLM and the real base model, on the bundled traces.

Nothing is faked; only the suites are smaller than in `make run`. What is
proved: gated on vLLM itself, the promoted adapter is loaded there under its digest name
while the server runs, which asks for an API key, its answers are no longer the champion's,
and the other slots and the base answer as before.
"""

import asyncio
from pathlib import Path

import pytest

from flows import manual
from flows.config import Settings, load_settings
from infra.vllm_server import start
from promotion.registry import Registry
from promotion.suites.household import TOOLS
from promotion.suites.world import make_tasks
from serving.addresses import ENGINE_KEY
from serving.engine import ChatRequest
from serving.openai_engine import OpenAIEngine
from serving.own_view import Conversation, own_view
from serving.slots import load_profile

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(2400),
    pytest.mark.usefixtures("prefect"),
]

ROOT = Path(__file__).parents[2]
KEY = "the-key-of-this-engine"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    base = ROOT / ".mol" / "base" / "SmolLM2-135M-Instruct"
    with start(base, log=log, extra=("--api-key", KEY)) as url:
        yield url


def answers(url: str, names: dict[str, str]) -> dict[str, list[str]]:
    """Ask every name in `names` (slot to served name) six requests of its slot."""

    async def ask() -> dict[str, list[str]]:
        engine, profile = OpenAIEngine(url, key=KEY), load_profile()
        given = {}
        for slot, name in names.items():
            tools = TOOLS if profile.slot(slot).offers_tools else ()
            requests = [
                ChatRequest(name, own_view(profile, Conversation("c"), slot, task.text), tools, 48)
                for task in make_tasks(slot, 6, 9, "gate")
            ]
            results = await asyncio.gather(*map(engine.chat, requests))
            given[name] = [
                r.message.content + "".join(c.name + c.arguments for c in r.message.tool_calls)
                for r in results
            ]
        await engine.close()
        return given

    return asyncio.run(ask())


def models(url: str) -> tuple[str, ...]:
    async def ask() -> tuple[str, ...]:
        engine = OpenAIEngine(url, key=KEY)
        try:
            return await engine.models()
        finally:
            await engine.close()

    return asyncio.run(ask())


def settings_for(url: str, home: Path) -> Settings:
    bundled = load_settings(ROOT / "infra" / "configs" / "bundled.toml")
    return Settings.model_validate(
        bundled.model_dump()
        | {
            "home": home,
            "base": ROOT / bundled.base,
            "sources": tuple(ROOT / source for source in bundled.sources),
            "first_adapters": ROOT / "examples" / "adapters",
            "engine": url,
            "slot": "L1",
            "suites": {
                "primary": 32,
                "guard": 30,
                "bystander": 2,
                "safety": 0,
                "format": 0,
                "living": 0,
            },
            "gate": {
                "margins": {"skill": 0.3, "handover": 0.3},
                "latency_items": 0,
                "drift_items": 2,  # a request for each token of each answer and version
            },
        }
    )


def test_the_promoted_adapter_is_loaded_under_its_digest_and_answers_change(
    server, tmp_path, monkeypatch
):
    monkeypatch.setenv(ENGINE_KEY, KEY)
    settings = settings_for(server, tmp_path / "home")
    for stage in ("ingest", "attribute", "curate", "train"):
        manual.run(settings, stage)
    with Registry.open(settings.home) as registry:
        old = {state.slot: str(state.champion_name) for state in registry.slots()}
    gated = manual.run(settings, "gate").value
    assert gated["verdict"] == "PASS", gated["reasons"]
    before = answers(server, old)
    promoted = manual.run(settings, "promote").value
    new = promoted["champion"]
    assert new != old["L1"]
    assert new in models(server)
    after = answers(server, old | {"L1": new})
    assert after[new] != before[old["L1"]]
    assert {n: after[n] for n in after if n != new} == {
        n: before[n] for n in before if n != old["L1"]
    }
