"""A tiny base, adapters and an embedded engine; a stub engine and a server over it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_calls import make_adapter
from mol_server import Running, mol_server
from stub_engine import StubEngine, stub_engine
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


@pytest.fixture
def stub() -> Iterator[StubEngine]:
    with stub_engine() as stub:
        yield stub


@pytest.fixture
def mol(tmp_path: Path, stub: StubEngine) -> Iterator[Running]:
    with mol_server(tmp_path, stub.url) as mol:
        stub.requests.clear()  # the probes of the versions
        stub.answered.clear()
        yield mol
