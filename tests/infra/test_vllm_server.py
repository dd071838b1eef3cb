"""Proves how the vLLM launcher fails and cleans up after itself.

A short program stands in vLLM's place: what is proved is the launching, not an
engine. `test_vllm_real.py` has the engine.
"""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import httpx
import pytest

from infra.vllm_server import VllmNotInstalled, VllmNotStarted, start

REPOSITORY = Path(__file__).parents[2]


def quiet(line: str) -> None:
    """Take a progress line and drop it."""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def stand_in(tmp_path: Path, program: str) -> Path:
    """Make an environment whose python runs `program` whatever it is asked, and return it."""
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    python = tmp_path / "venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path}/program.py" "$@"\n')
    python.chmod(0o755)
    return tmp_path / "venv"


ANSWERS = """
    import http.server, os, sys
    open(os.path.dirname(__file__) + "/pid", "w").write(str(os.getpid()))
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
    address = ("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1]))
    http.server.HTTPServer(address, Handler).serve_forever()
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_without_an_installation_the_error_names_the_command(tmp_path: Path, base: Path) -> None:
    with (
        pytest.raises(VllmNotInstalled, match="Run 'make vllm-install'"),
        start(base, venv=tmp_path / "none"),
    ):
        pass


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VllmNotStarted, match=r"no config\.json"), start(tmp_path):
        pass


def test_a_server_that_ends_is_reported_with_its_last_error(tmp_path: Path, base: Path) -> None:
    venv = stand_in(
        tmp_path,
        """
        print("INFO loading")
        print("(EngineCore pid=7) ERROR 11-29 18:00:00 [core.py:1] ValueError: rank 64 is too big")
        print("RuntimeError: Engine core initialization failed. See root cause above.")
        raise SystemExit(3)
        """,
    )

    with (
        pytest.raises(VllmNotStarted, match=r"status 3 .*: ValueError: rank 64 is too big"),
        start(base, venv=venv, log=tmp_path / "log", say=quiet),
    ):
        pass


def test_the_server_is_gone_after_the_block(tmp_path: Path, base: Path) -> None:
    venv = stand_in(tmp_path, ANSWERS)

    with start(base, venv=venv, log=tmp_path / "log", say=quiet) as url:
        pid = int((tmp_path / "pid").read_text())
        assert httpx.get(url, trust_env=False).is_success

    assert not is_running(pid)


def test_a_server_that_ignores_the_request_to_end_is_killed(tmp_path: Path, base: Path) -> None:
    ignores = "    import signal\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    venv = stand_in(tmp_path, ignores + ANSWERS)

    with start(base, venv=venv, log=tmp_path / "log", say=quiet, stop_limit_s=0.2):
        pid = int((tmp_path / "pid").read_text())

    assert not is_running(pid)


def test_development_endpoints_stay_off(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    venv = stand_in(tmp_path, "import os; print('Error: ', os.getenv('VLLM_SERVER_DEV_MODE'))")

    with (
        pytest.raises(VllmNotStarted, match="None"),
        start(base, venv=venv, log=tmp_path / "log", say=quiet),
    ):
        pass


SOCKETS = """
    import os, socket, tempfile, uuid
    path = os.path.join(tempfile.gettempdir(), str(uuid.uuid4()))
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    open(os.path.dirname(__file__) + "/socket", "w").write(path)
"""


@pytest.mark.parametrize("depth", [0, 60])
def test_what_it_leaves_in_the_temporary_folder_goes_with_it(
    tmp_path: Path, base: Path, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As deep as on some machines, where a path below it is too long for a socket.
    usual = Path(tempfile.gettempdir(), "x" * depth)
    usual.mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(usual))
    venv = stand_in(tmp_path, SOCKETS + ANSWERS)

    with start(base, venv=venv, log=tmp_path / "log", say=quiet):
        folder = Path((tmp_path / "socket").read_text()).parent
        assert [path.is_socket() for path in folder.iterdir()] == [True]

    assert folder.name.startswith("mol-vllm-")
    assert not folder.exists()


def test_nor_does_one_that_does_not_start_leave_anything(tmp_path: Path, base: Path) -> None:
    venv = stand_in(tmp_path, SOCKETS + "    raise SystemExit(3)\n")

    with (
        pytest.raises(VllmNotStarted, match="status 3"),
        start(base, venv=venv, log=tmp_path / "log", say=quiet),
    ):
        pass

    assert not Path((tmp_path / "socket").read_text()).parent.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal of a parent is Linux's")
def test_the_server_ends_when_its_parent_is_killed(tmp_path: Path, base: Path) -> None:
    # The stand-in's python must run the launcher's code, so it is a link to the real one.
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    program = tmp_path / "vllm" / "entrypoints" / "openai" / "api_server.py"
    program.parent.mkdir(parents=True)
    program.write_text(textwrap.dedent(ANSWERS))
    python = venv / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH="{tmp_path}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    parent = tmp_path / "parent.py"
    parent.write_text(
        f"import time, pathlib as p\nfrom infra.vllm_server import start\n"
        f"with start(p.Path({str(base)!r}), venv=p.Path({str(venv)!r}), "
        f"log=p.Path({str(tmp_path / 'log')!r})):\n"
        "    print('up', flush=True)\n    time.sleep(60)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        [sys.executable, str(parent)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        pid = int((program.parent / "pid").read_text())
        process.kill()

    for _ in range(50):
        if not is_running(pid):
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the server outlived its parent")
