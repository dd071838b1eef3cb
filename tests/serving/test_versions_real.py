"""Proves a change of versions on a real model: real LoRA folders, loaded and unloaded over HTTP.

The engine is the embedded one behind `serving.engine_app`, its base a tiny random model; that
each version answers in its own words is what tells them apart.
"""

import asyncio
from pathlib import Path

import pytest
from engine_calls import make_adapter
from engine_server import tiny_engine_server
from slot_tables import until
from tiny import make_tiny_base

from serving.engine import ChatRequest
from serving.errors import EngineRefused
from serving.loading import VersionRefused
from serving.openai_engine import OpenAIEngine
from serving.records import Message
from serving.slot_table import SlotEntry, SlotFile
from serving.versions import Versions

HELLO = (Message(role="user", content="Hello"),)


def version(home: Path, base: Path, seed: int) -> dict[str, str]:
    digest = f"{seed:012x}" + "0" * 52
    make_adapter(home / "adapters" / digest, base, seed)
    return {
        "champion": f"L2@{digest[:12]}",
        "digest": f"sha256:{digest}",
        "path": f"adapters/{digest}",
    }


def table(**served: str) -> SlotFile:
    return SlotFile(slots=(SlotEntry(slot="L0"), SlotEntry(slot="L2", **served)))  # type: ignore[arg-type]


def test_real_adapters_change_places_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    base = make_tiny_base(tmp_path / "base")
    one, two, bad = (version(tmp_path, base, seed) for seed in (1, 2, 3))
    (tmp_path / bad["path"] / "adapter_model.safetensors").write_bytes(b"no weights")

    async def scenario(url: str) -> None:
        engine = OpenAIEngine(url)
        versions = Versions(engine, tmp_path)

        async def said(name: str) -> tuple[int, ...]:
            result = await engine.chat(ChatRequest(model=name, messages=HELLO, max_tokens=8))
            assert result.served_name == name
            assert result.completion_token_ids
            return result.completion_token_ids

        await versions.apply(table(**one))
        with versions.lease("c") as old:
            before = await said(old.names["L2"])
            await versions.apply(table(**two))
            with versions.lease("c") as new:
                assert await said(new.names["L2"]) != before
            assert await said(old.names["L2"]) == before
            with pytest.raises(VersionRefused, match=bad["champion"]):
                await versions.apply(table(**bad))
            assert versions.lease("c").names["L2"] == two["champion"]
        while one["champion"] in await engine.models():
            await asyncio.sleep(0.01)
        assert set(await engine.models()) == {"base", two["champion"]}
        with pytest.raises(EngineRefused) as refusal:
            await said(one["champion"])
        assert refusal.value.status == 404
        await versions.apply(table(**one))
        assert await said(one["champion"]) == before
        await until(lambda: not versions.describe()[2:])
        await versions.close()
        await engine.close()

    with tiny_engine_server(tmp_path, base=base) as url:
        asyncio.run(scenario(url))
