"""The mirror in a real MLflow registry: its database store, and (slow) a real `mlflow server`.

The store is the one that the server writes to; it comes with mlflow-skinny. All of mlflow does
not go with this project's pyarrow, so the server runs in an environment of its own, made here.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version as installed
from pathlib import Path

import pytest
from registry_records import digest_of, gated
from server_process import server_process

from promotion.mirror import MirrorUnavailable, mirror
from promotion.registry import Registry
from serving.child import HOST, free_port

MODEL = "mol-loop-L2"

# MLflow's own modules warn of libraries that are to come.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with MLflow's tables, which take it seconds to make."""
    from mlflow import MlflowClient

    file = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{file}", f"sqlite:///{file}").search_registered_models()
    return file


@pytest.fixture
def uri(empty: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(empty, tmp_path / 'mlflow.db')}"


def _versions(uri: str) -> dict[str, list[str]]:
    """MLflow's own view: the aliases of each digest."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    numbers = [v.version for v in client.search_model_versions(f"name = '{MODEL}'")]
    versions = [client.get_model_version(MODEL, number) for number in numbers]
    return {v.tags["mol.digest"]: sorted(v.aliases) for v in versions}


def _follows(registry: Registry, uri: str) -> None:
    """The aliases follow through a slot's life; nothing is deleted, nothing doubled."""
    assert mirror(registry, uri) == []  # no slot ever served a version
    registry.bootstrap("L2", digest_of(1))
    (first,) = mirror(registry, uri)
    assert (first.model, first.added, first.generation) == (MODEL, 1, 1)
    assert _versions(uri) == {digest_of(1): ["champion"]}

    registry.begin_canary("L2", digest_of(2), 5, gated(registry, 1, 2))
    mirror(registry, uri)
    assert _versions(uri) == {digest_of(1): ["champion"], digest_of(2): ["canary"]}

    registry.promote("L2", digest_of(2), 2, gated(registry, 1, 2))
    mirror(registry, uri)
    assert _versions(uri) == {digest_of(1): ["previous"], digest_of(2): ["champion"]}

    registry.rollback("L2")
    registry.promote("L2", digest_of(3), 4, gated(registry, 1, 3))
    after = {digest_of(1): ["previous"], digest_of(2): [], digest_of(3): ["champion"]}
    for added in (1, 0):
        (again,) = mirror(registry, uri)
        assert again.added == added
        assert _versions(uri) == after


def test_aliases_follow_the_registry_in_mlflows_database(registry: Registry, uri: str) -> None:
    _follows(registry, uri)


def test_a_slot_that_went_back_to_the_base_has_no_champion(registry: Registry, uri: str) -> None:
    registry.promote("L2", digest_of(2), 0, gated(registry, None, 2))
    mirror(registry, uri)
    registry.rollback("L2")
    mirror(registry, uri)
    assert _versions(uri) == {digest_of(2): ["previous"]}


@pytest.mark.parametrize("kind", ["http", "sqlite"])
def test_a_registry_that_is_not_there_is_said_and_changes_nothing_here(
    registry: Registry, tmp_path: Path, kind: str
) -> None:
    registry.bootstrap("L2", digest_of(1))
    before = registry.slots(), registry.events()
    place = f"http://user:secret@{HOST}:{free_port()}"
    with pytest.raises(MirrorUnavailable, match="The registry here is as it was") as refusal:
        mirror(
            registry, place if kind == "http" else f"sqlite:///{tmp_path}/registry.sqlite/mlflow.db"
        )
    assert "\n" not in str(refusal.value)
    assert "secret" not in str(refusal.value)
    assert (registry.slots(), registry.events()) == before


@contextlib.contextmanager
def _mlflow_server(folder: Path) -> Iterator[str]:
    """Run `mlflow server` from an environment of its own; some 30 packages, a minute or two."""
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    wanted = f"mlflow=={installed('mlflow-skinny')}"
    subprocess.run([folder / "env/bin/pip", "install", "--quiet", wanted], check=True)
    port = free_port()
    command = [
        str(folder / "env/bin/python"), "-m", "mlflow", "server", "--host", HOST,
        "--port", str(port), "--backend-store-uri", f"sqlite:///{folder}/server.db",
        "--artifacts-destination", str(folder / "artifacts"), "--workers", "1",
    ]  # fmt: skip
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    with server_process(command, port, folder / "log", environment=environment):
        yield f"http://{HOST}:{port}"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_aliases_follow_the_registry_on_a_real_server(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    with _mlflow_server(tmp_path / "server") as uri:
        _follows(registry, uri)
    with pytest.raises(MirrorUnavailable, match="as it was"):
        mirror(registry, uri)
