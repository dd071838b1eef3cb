"""Proves that the server's benchmark measures what it says: requests answered, hops accounted for.

Everything is real but the engine, which is the benchmark's own that answers at once. No figure
is compared with another: a test machine is never quiet.
"""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from benchmarks import serving, serving_load, serving_targets
from benchmarks.serving_load import Load
from benchmarks.serving_rounds import order
from serving.engine import ChatRequest, Delta
from serving.errors import EngineRefused
from serving.openai_engine import OpenAIEngine
from serving.records import Message

KEYS = {
    "overhead_p50_ms", "overhead_p99_ms", "rps", "vs_litellm", "prefix_hit_rate",
    "swap_failed_requests", "recorded", "dropped",
}  # fmt: skip


@pytest.mark.slow
def test_the_smallest_run_accounts_for_every_hop_and_no_request_fails() -> None:
    given = serving.parse(["--quick", "--rounds", "1", "--seconds", "0.1", "--swaps", "2"])

    report = serving.measure(given)

    assert report.keys() >= KEYS
    assert serving.is_sound(report)
    assert report["hops_made"] == report["hops_on_disk"] > 0
    assert report["recorded"] > report["hops_made"]
    assert report["swap_versions_used"] == report["swaps"] + 1
    assert report["swap_under_load_to_the_end"]
    assert report["vs_litellm"] is report["vs_harness"] is report["prefix_hit_rate"] is None
    assert {"engine", "hop", "turn"} == report["by_clients"]["256"].keys()


NEVER = (
    "failed_requests", "unaccounted", "swap_failed_requests", "swap_failed_hops",
    "swap_turns_of_two_versions",
)  # fmt: skip
FINE = dict.fromkeys(NEVER, 0) | {
    "swap_under_load_to_the_end": True, "hops_made": 5, "hops_on_disk": 4, "dropped": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [{name: 1} for name in NEVER] + [{"swap_under_load_to_the_end": False}, {"hops_on_disk": 3}],
)
def test_what_must_not_happen_is_no_success(wrong: dict[str, int]) -> None:
    assert serving.is_sound(FINE)
    assert not serving.is_sound(FINE | wrong)


def test_every_target_comes_first_and_last() -> None:
    orders = [order("abc", number) for number in range(6)]  # type: ignore[arg-type]

    assert {o[0] for o in orders} == {o[-1] for o in orders} == set("abc")


def test_the_load_counts_what_is_not_as_expected_as_failed(tmp_path: Path) -> None:
    with serving_targets.engine(tmp_path) as engine:
        right = serving_load.run(Load(engine.port, serving.hops(), 2, 0.05, 0.0, expected="The"))
        wrong = serving_load.run(Load(engine.port, serving.hops(), 2, 0.05, 0.0, expected="Xyz"))
        other = json.dumps(json.loads(serving.hops()[0]) | {"model": "nobody"})
        refused = serving_load.run(Load(engine.port, (other,), 2, 0.05, 0.0))

    assert right.failed == 0 < right.answered
    assert wrong.answered == 0 < wrong.failed
    assert refused.answered == 0 < refused.failed
    assert any(problem.startswith("404") for problem in refused.problems)


async def _use(url: str, folder: Path) -> None:
    engine, deltas = OpenAIEngine(url), []

    async def take(delta: Delta) -> None:
        deltas.append(delta)

    try:
        request = ChatRequest("L2@a", (Message(role="user", content="Hi."),), max_tokens=8)
        with pytest.raises(EngineRefused):
            await engine.chat(request)
        await engine.load_adapter("L2@a", folder)
        assert "L2@a" in await engine.models()
        plain, streamed = await engine.chat(request), await engine.chat(request, take)
        assert plain.message == streamed.message
        assert "".join(delta.content for delta in deltas) == plain.message.content
        assert plain.served_name == streamed.served_name == "L2@a"
        assert plain.prompt_token_ids == streamed.prompt_token_ids
        await engine.unload_adapter("L2@a")
        with pytest.raises(EngineRefused):
            await engine.chat(request)
    finally:
        await engine.close()


def test_the_instant_engine_is_an_engine(tmp_path: Path) -> None:
    with serving_targets.engine(tmp_path) as engine:
        asyncio.run(_use(engine.url, tmp_path))
        counts = httpx.get(engine.url + "/counts").json()

    assert counts == {"chats": {"L2@a": 2}, "refused": 2}
