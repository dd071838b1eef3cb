"""What the tests of the loop share: one Prefect server, one tiny base, one spool of traffic."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_loop import make_spool, make_tiny_base

from flows.console import Mode
from flows.prefect_server import prefect_api


@pytest.fixture(autouse=True)
def talks_to_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin as a new process does; a command with `--json` in an earlier test said otherwise."""
    monkeypatch.setattr(Mode, "json", False)


@pytest.fixture(scope="session")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A real Prefect server for all flows of this session; child processes use it too."""
    with prefect_api(tmp_path_factory.mktemp("server")):
        yield


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_base(tmp_path_factory.mktemp("tiny") / "base")


@pytest.fixture(scope="session")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_spool(tmp_path_factory.mktemp("spool"))
