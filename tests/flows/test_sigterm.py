"""Proves that a command, a benchmark and a run of tests that are ended leave no folder behind.

And that a task in a query of the lake ends at once, and is not tried again. Real processes,
signals and a real Prefect server; the web server that a command waits for sends nothing.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLOWS = Path(sys.executable).with_name("flows")


def ended(
    command: list[object],
    temporary: Path,
    at_work: Callable[[], object],
    *,
    by_us: bool = True,
    **environment: str,
) -> int:
    """Run a command until it is at work in its folder, end it and return its status.

    A folder that was just made is too early: Python may not have handed it out yet.
    """
    temporary.mkdir()
    process = subprocess.Popen(
        [str(word) for word in command], cwd=ROOT, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(temporary), **environment},
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 90
        while not at_work():
            assert process.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if by_us:
            process.send_signal(signal.SIGTERM)
        return process.wait(60)
    finally:
        process.kill()
        process.wait()


def test_a_command(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/traces.jsonl"
        command = [FLOWS, "run", "ingest", url, "--home", tmp_path / "home"]

        status = ended(command, tmp_path / "tmp", lambda: select.select([server], [], [], 0)[0])

    assert status == 130
    assert not list((tmp_path / "tmp").glob("mol-*"))


def test_a_benchmark(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.loop", "--quick"]

    ended(command, tmp_path / "tmp", lambda: list(tmp_path.glob("tmp/mol-loop-*/*")))

    assert not list((tmp_path / "tmp").glob("mol-*"))


@pytest.mark.parametrize("by_us", [True, False])
def test_a_run_of_tests(tmp_path: Path, by_us: bool) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(
        "import tempfile, time\n\n"
        "def test_it():\n"
        "    tempfile.mkdtemp(prefix='left-')\n"
        f"    time.sleep({600 if by_us else 1})\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "conftest",
               "-c", os.devnull, "--rootdir", tmp_path, file]  # fmt: skip
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])

    ended(
        command, tmp_path / "tmp", lambda: list(tmp_path.glob("tmp/mol-tests-*/left-*")),
        by_us=by_us, PYTHONPATH=path,
    )  # fmt: skip

    assert not list((tmp_path / "tmp").glob("mol-*"))


_LONG_QUERY = """
import os, signal, sys, threading
from pathlib import Path
from prefect import flow, task
from prefect.utilities.engine import is_prefect_sigterm_handler_installed
from flows import cli, tasks
from traces.storage.lake import Lake

@task(**tasks._OPTIONS)
def ask():
    assert is_prefect_sigterm_handler_installed()  # else Prefect confirms no cancelling
    print("asked", flush=True)
    with Lake.open(Path(sys.argv[1])) as lake:
        lake.connection.execute("CREATE TEMP TABLE long AS FROM range(1000000) r(n)")
        threading.Timer(1, os.kill, [os.getpid(), signal.Signals[sys.argv[2]]]).start()
        try:
            lake.connection.execute("SELECT sum(sqrt(a.n + b.n)) FROM long a, long b")
        finally:
            lake.connection.execute("SELECT 1")

@flow(on_crashed=[lambda flow, run, state: print("crashed", flush=True)])
def run():
    ask()

cli.app = run
cli.main() if sys.argv[3] == "command" else run()
"""


@pytest.mark.parametrize(
    ("number", "how", "status"),
    [
        (signal.SIGINT, "command", 130),
        (signal.SIGTERM, "command", 130),
        (signal.SIGTERM, "scheduled", -signal.SIGTERM),
    ],
)
def test_a_task_in_a_query(
    prefect: None, tmp_path: Path, number: signal.Signals, how: str, status: int
) -> None:
    """DuckDB's other threads would go on for hours, and its error would be tried again."""
    done = subprocess.run(
        [sys.executable, "-c", _LONG_QUERY, tmp_path, number.name, how],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip

    assert done.returncode == status, done.stderr
    assert done.stdout == "asked\ncrashed\n"
