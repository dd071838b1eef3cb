"""Fixtures and the environment of all tests: no network, no telemetry, no state outside `tmp_path`.

The variables are set before any test module is imported, because the libraries
read them when they are imported.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

REPOSITORY = Path(__file__).parents[1]
LONGEST = ("test_readme.py", "test_cycle.py", "test_cli.py", "test_gating.py")

os.environ.update(
    {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "GX_ANALYTICS_ENABLED": "False",
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "VLLM_NO_USAGE_STATS": "1",
        "NO_COLOR": "1",  # help texts and tables are compared as plain text
    }
)

_connect_as_usual = duckdb.connect


def _connect_on_one_core(
    *arguments: Any, config: dict[str, Any] | None = None, **more: Any
) -> duckdb.DuckDBPyConnection:
    """Give a DuckDB of this process one thread, and have it not hash its extensions at each start.

    Both make for half of what a test of a small lake costs. The processes that tests start, and
    tests that run alone, are as everywhere.
    """
    quick = {"threads": 1, "allow_unsigned_extensions": True}
    return _connect_as_usual(*arguments, config=quick | (config or {}), **more)


if "PYTEST_XDIST_WORKER" in os.environ:
    # A core each: threads of several test processes would only wait for one another.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    duckdb.connect = _connect_on_one_core


def pytest_configure() -> None:
    """Let a run that is ended remove what it made, as one that is interrupted does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that no core waits for one of them at the end."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture(autouse=True, scope="session")
def private_temporary_folder() -> Iterator[None]:
    """Remove what tests, and libraries below them, leave in the temporary folder."""
    usual = os.environ.get("TMPDIR")
    folder = tempfile.mkdtemp(prefix="mol-tests-")
    os.chmod(folder, 0o711)  # servers and confined code run as other users in it
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    yield
    tempfile.tempdir = None
    if usual is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = usual
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True, scope="session")
def private_prefect_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep Prefect's database out of the user's home."""
    os.environ["PREFECT_HOME"] = str(tmp_path_factory.mktemp("prefect"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder for the loop's state, not yet made."""
    return tmp_path / ".mol"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of shared trace data; skips the test where there is none."""
    shared = Path(os.environ.get("MOL_SHARED") or REPOSITORY.parent / "shared")
    if not (shared / "data").is_dir():
        pytest.skip(f"no {shared / 'data'}; name another shared folder in MOL_SHARED")
    return shared / "data"


@pytest.fixture(params=["namespaces", "filter"])
def how(request: pytest.FixtureRequest) -> str:
    """How code under test is confined, each way that this machine has."""
    from sandboxed import refusal

    refused = refusal(request.param)
    if refused:
        pytest.skip(f"this machine gives no {request.param}: {refused}")
    return request.param
