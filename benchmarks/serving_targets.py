"""What the benchmark of the server measures, each in processes of its own.

The engine itself, our server over it, and two programs that do a part of what it does:
LiteLLM's proxy and Mind Lab's public harness. All are one process with one event loop.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.serving_mol import SLOTS, write_table
from infra.base_model import say_on_stderr
from serving.child import HOST, free_port, start_child, stop_child
from serving.errors import MolError

LITELLM = Path(".mol/bench/litellm")
"""Where LiteLLM's environment is made and kept."""
SLOT = "L2"
"""Name that hops are for."""
HARNESS_MODEL = "Macaron-V1-Tall"
STARTUP_LIMIT_S = 180.0
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class TargetNotStarted(MolError, RuntimeError):
    """A program to be measured did not come up."""


@dataclass(frozen=True, slots=True)
class Process:
    """A running program."""

    pid: int
    port: int

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{HOST}:{self.port}"

    def cpu_s(self) -> float:
        """Return the processor time it has used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S

    def settle(self, limit_s: float = 20.0) -> None:
        """Wait until it has nothing to do: summaries and records are behind their answers."""
        deadline, before = time.monotonic() + limit_s, self.cpu_s()
        while time.monotonic() < deadline:
            time.sleep(0.2)
            now = self.cpu_s()
            if now - before < 2 * TICK_S:
                return
            before = now


@dataclass(frozen=True, slots=True)
class Mol:
    """Our server with its home folder."""

    process: Process
    admin_port: int
    home: Path

    def recording(self) -> dict[str, Any]:
        """Return what became of the records, once the writer is through."""
        deadline = time.monotonic() + STARTUP_LIMIT_S
        while True:
            said: dict[str, Any] = httpx.get(self.process.url + "/health").json()["recording"]
            if not said["queued"] or time.monotonic() > deadline:
                return said
            time.sleep(0.05)

    def champions(self) -> dict[str, str]:
        """Return the served name of every slot, as the server has it in force."""
        key = (self.home / "admin.key").read_text().strip()
        headers = {"authorization": f"Bearer {key}"}
        table = httpx.get(f"http://{HOST}:{self.admin_port}/slots", headers=headers).json()
        return {entry["slot"]: entry["champion"] for entry in table["slots"]}


@contextlib.contextmanager
def engine(folder: Path) -> Iterator[Process]:
    """Run the instant engine."""
    arguments = ["--names", ",".join(SLOTS)]
    with _program(
        folder / "engine.log", "benchmarks.serving_stub", arguments, "/health"
    ) as running:
        yield running


@contextlib.contextmanager
def mol(folder: Path, engine_url: str, rules: bool = False) -> Iterator[Mol]:
    """Run our server with a home in `folder`, recording on."""
    home, admin_port = folder / "home", free_port()
    if not (home / "slots.json").exists():
        write_table(home, 0)
    arguments = ["--home", str(home), "--engine", engine_url, "--admin-port", str(admin_port)]
    arguments += ["--rules"] * rules
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MOL_")}
    with _program(
        folder / "mol.log", "benchmarks.serving_mol", arguments, "/readiness", environment
    ) as running:
        yield Mol(running, admin_port, home)


@contextlib.contextmanager
def litellm(folder: Path, engine_url: str, environment_bin: Path) -> Iterator[Process]:
    """Run LiteLLM's proxy as its documents say for production and for benchmarks.

    One worker, no database, errors logged only, no callbacks, no retries (docs.litellm.ai,
    "Production Best Practices" and "Benchmarks"); the list of prices is the one that comes
    with it, as fetching a newer one needs a network.
    """
    config = {
        "model_list": [
            {
                "model_name": SLOT,
                "litellm_params": {
                    "model": f"openai/{SLOT}",
                    "api_base": engine_url + "/v1",
                    "api_key": "none",
                    "input_cost_per_token": 0.0,
                    "output_cost_per_token": 0.0,
                },
            }
        ],
        "litellm_settings": {
            "callbacks": [],
            "num_retries": 0,
            "request_timeout": 600,
            "set_verbose": False,
        },
        "general_settings": {
            "disable_spend_logs": True,
            "disable_error_logs": True,
            # No keys, as on our server: neither has to compare any.
            "dangerously_permit_weak_or_unset_master_key": True,
        },
    }
    path = folder / "litellm.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML.
    environment = dict(os.environ) | {
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    arguments = ["--config", str(path), "--host", HOST, "--num_workers", "1"]
    with _program(
        folder / "litellm.log", "litellm.proxy.proxy_cli", arguments, "/health/liveliness",
        environment, environment_bin / "python",
    ) as running:  # fmt: skip
        yield running


@contextlib.contextmanager
def harness(folder: Path, engine_url: str, checkout: Path) -> Iterator[Process]:
    """Run Mind Lab's harness as its `start_mol_harness.sh` does, with our interpreter."""
    port = free_port()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MOL_")} | {
        "PYTHONPATH": str(checkout.resolve()),
        "PYTHONDONTWRITEBYTECODE": "1",
        "UPSTREAM": engine_url,
        "PROXY_PORT": str(port),
        "ENTRY_ROUTE": "L0",
        "MOL_USE_MODEL_ROUTER": "1",
        "MOL_PURE_MODEL_ROUTE": "1",
        "SERVED_MODEL_NAME": HARNESS_MODEL,
        "MOL_ALLOW_UNAUTHENTICATED": "1",
        "MOL_METRICS_PORT": str(free_port()),
        # Its default keeps 256 requests waiting for a second at most; ours waits too.
        "MOL_MAX_QUEUED_REQUESTS": "512",
        "MOL_QUEUE_TIMEOUT_S": "30",
    }
    with _program(
        folder / "harness.log", "mol_harness.proxy", [], "/health", environment, port=port
    ) as running:
        yield running


def install_litellm(folder: Path = LITELLM) -> Path | None:
    """Return the `bin` of LiteLLM's environment, made if it is not there; None if it cannot be."""
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        say_on_stderr(f"Installing LiteLLM's proxy in {str(folder)!r}, once ...")
        venv.create(folder, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "-qq", "--disable-pip-version-check", "install"]
        if subprocess.run([*command, "litellm[proxy]"], check=False).returncode:
            say_on_stderr("LiteLLM's proxy could not be installed; it is not measured.")
            return None
        (folder / "installed").touch()
    return folder / "bin"


@contextlib.contextmanager
def _program(
    log: Path,
    module: str,
    arguments: list[str],
    probe: str,
    environment: Mapping[str, str] = os.environ,
    python: Path = Path(sys.executable),
    port: int = 0,
) -> Iterator[Process]:
    if not port:
        port = free_port()
        arguments = [*arguments, "--port", str(port)]
    child = start_child(module, arguments, environment, log, python)
    try:
        _wait(lambda: child.poll() is None, f"http://{HOST}:{port}{probe}", module, log)
        yield Process(child.pid, port)
    finally:
        stop_child(child)


def _wait(lives: Callable[[], bool], url: str, module: str, log: Path) -> None:
    deadline = time.monotonic() + STARTUP_LIMIT_S
    with httpx.Client(trust_env=False, timeout=5) as client:
        while True:
            with contextlib.suppress(httpx.TransportError):
                if client.get(url).is_success:
                    return
            if not lives() or time.monotonic() > deadline:
                said = log.read_text(errors="replace").strip()[-500:]
                raise TargetNotStarted(f"{module!r} did not start; it said: {said!r}.")
            time.sleep(0.05)
