"""A tiny base, two adapters and an embedded engine over them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_calls import make_adapter
from tiny import make_tiny_base

from serving.embedded import EmbeddedEngine


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


@pytest.fixture
def engine(base: Path) -> Iterator[EmbeddedEngine]:
    engine = EmbeddedEngine(base)
    yield engine
    asyncio.run(engine.close())
