"""Seconds from a verdict to serving, and back, through the real `flows serve`.

    python -m benchmarks.gate_serving [--quick]

A server with a champion in each of three slots answers without a pause; then the challenger of
one is promoted (registry, `slots.json`, the server loads, proves and flips) and `flows rollback`
is run, as a person would. What counts is the first answer under the other name. On the real vLLM
with the bundled adapters; with `--quick` on the embedded engine with a tiny random model.
"""

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from benchmarks.gate_attempts import as_attempted
from flows import stages
from flows.config import Settings
from flows.registering import register_adapter
from infra.base_model import DEFAULT_FOLDER
from serving.child import HOST, free_port, start_child, stop_child
from serving.errors import MolError
from traces.storage.connections import interrupt_on_signals

if TYPE_CHECKING:
    from promotion.gate import GateReport

ROOT = Path(__file__).parents[1]
SLOT = "L1"
OTHERS = ("L0", "L2")
LIMIT_S = 300.0
ASK: dict[str, Any] = {"max_tokens": 1, "messages": [{"role": "user", "content": "Light, please."}]}


class NotServed(MolError, RuntimeError):
    """The server did not answer under a name in time."""


def measure(quick: bool) -> dict[str, Any]:
    """Promote and roll back once and return the seconds of both.

    Returns:
        `promote_s` from the promotion's first step, and `rollback_s` from the start of the
        command, to the first answer; `promote_flip_s` and `rollback_flip_s` from the moment
        `slots.json` is written; `rollback_command_s`, how long the command runs in all.
    """
    with tempfile.TemporaryDirectory(prefix="mol-serving-") as name:
        folder = Path(name)
        base, adapters = _tiny(folder) if quick else (ROOT / DEFAULT_FOLDER, _bundled(folder))
        with _engine(quick, base, folder) as engine:
            settings = Settings(
                home=folder / "home", base=base, engine=engine, first_adapters=adapters
            )
            stages.prepare_registry(settings)
            report = _passed(settings, adapters / "challenger")
            with _gateway(settings, folder / "serve.log") as url:
                return _change(settings, report, url)


def _change(settings: Settings, report: "GateReport", url: str) -> dict[str, Any]:
    with httpx.Client(base_url=url, trust_env=False, timeout=LIMIT_S) as client:
        before = _answering(client)
        started = time.time()
        promoted = stages.promote_stage(settings, report)
        promoted_at = _first_answer(client, str(promoted.champion))
        written_at = _written_at(settings)
        # What was replaced has drained by the time anybody looks at the new one's answers.
        time.sleep(1.0)
        flows = str(Path(sys.executable).with_name("flows"))
        back_started = time.time()
        running = subprocess.Popen(
            [flows, "rollback", SLOT, "--home", str(settings.home)], stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        back_at = _first_answer(client, before)
        running.wait(LIMIT_S)
        return {
            "promote_s": round(promoted_at - started, 2),
            "promote_flip_s": round(promoted_at - written_at, 2),
            "rollback_s": round(back_at - back_started, 2),
            "rollback_flip_s": round(back_at - _written_at(settings), 2),
            "rollback_command_s": round(time.time() - back_started, 2),
            "engine": "embedded" if settings.engine == stages.EMBEDDED else "vLLM",
        }


def _answering(client: httpx.Client) -> str:
    """Return the served name of the version that answers."""
    answer = client.post("/v1/chat/completions", json={"model": SLOT, **ASK})
    answer.raise_for_status()
    return answer.headers["x-mol-adapter"]


def _first_answer(client: httpx.Client, name: str) -> float:
    """Ask until `name` answers and return when it did."""
    deadline = time.monotonic() + LIMIT_S
    while _answering(client) != name:
        if time.monotonic() > deadline:
            raise NotServed(f"{name!r} did not answer within {LIMIT_S:g} s.")
        time.sleep(0.01)
    return time.time()


def _written_at(settings: Settings) -> float:
    return (settings.home / "slots.json").stat().st_mtime


@contextlib.contextmanager
def _engine(quick: bool, base: Path, folder: Path) -> Iterator[str]:
    """Yield what `--engine` is given."""
    if quick:
        yield stages.EMBEDDED
        return
    from infra.vllm_server import start

    with start(base, log=folder / "vllm.log") as url:
        yield url


@contextlib.contextmanager
def _gateway(settings: Settings, log: Path) -> Iterator[str]:
    """Run `flows serve` and yield its address once it is ready."""
    port = free_port()
    options = {
        "--home": settings.home, "--base": settings.base, "--engine": settings.engine,
        "--port": port, "--serve.admin-port": 0, "--serve.router.mode": "rules",
    }  # fmt: skip
    words = [str(word) for pair in options.items() for word in pair]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MOL_")}
    server = start_child(
        "flows.cli", ["serve", *words], environment | {"OMP_NUM_THREADS": "1"}, log
    )
    url, deadline = f"http://{HOST}:{port}", time.monotonic() + LIMIT_S
    try:
        while not _ready(url):
            if server.poll() is not None or time.monotonic() > deadline:
                raise NotServed(f"'flows serve' did not start: {log.read_text()[-500:]!r}")
            time.sleep(0.1)
        yield url
    finally:
        stop_child(server)


def _ready(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/readiness", trust_env=False).is_success
    return False


def _passed(settings: Settings, challenger: Path) -> "GateReport":
    """Register the challenger, with its proof, and return a report that passed it."""
    from promotion.config import GateConfig
    from promotion.gate import GateIdentity, judge
    from promotion.slices import SuiteScores
    from promotion.tables import Database
    from training.artifact import base_digest, import_adapter
    from training.proofs import ensure_proofs

    version = import_adapter(settings.home, challenger, SLOT, settings.base)
    ensure_proofs(settings.home, settings.base, [version.digest])
    with stages.open_registry(settings) as registry:
        register_adapter(settings, registry, version.digest, {})
        champion = registry.slot(SLOT).champion
    items = tuple(map(str, range(60)))
    scores = SuiteScores(
        suite="serving", slot=SLOT, item_ids=items, clusters=items, champion=(0.0,) * 60,
        challenger=(1.0,) * 60, identical=False, unchanged=False,
    )  # fmt: skip
    identity = GateIdentity(
        slot=SLOT, champion_digest=champion, challenger_digest=version.digest,
        base_digest=base_digest(settings.base), suites_digest=f"sha256:{0:064x}",
        primary_suite=scores.suite, seed=0, code_version="0",
    )  # fmt: skip
    database = Database(settings.home)
    try:
        return as_attempted(database, judge(scores, (), GateConfig(), identity))
    finally:
        database.close()


def _bundled(folder: Path) -> Path:
    """Lay out the bundled adapters: three champions, and the fourth as a challenger of one."""
    bundled, laid = ROOT / "examples" / "adapters", folder / "adapters"
    laid.mkdir()
    for slot in (SLOT, *OTHERS):
        (laid / slot).symlink_to(bundled / slot)
    (laid / "challenger").symlink_to(bundled / "L3")
    return laid


def _tiny(folder: Path) -> tuple[Path, Path]:
    """Make the tests' tiny base and adapters of it, laid out like the bundled ones."""
    sys.path.append(str(ROOT / "tests"))
    base = importlib.import_module("tiny").make_tiny_base(folder / "base")
    make_adapter = importlib.import_module("engine_calls").make_adapter
    for seed, name in enumerate((SLOT, *OTHERS, "challenger")):
        make_adapter(folder / "adapters" / name, base, seed)
    return base, folder / "adapters"


def main() -> int:
    """Measure and print."""
    interrupt_on_signals()
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="the embedded engine, a tiny model")
    print(json.dumps(measure(parser.parse_args().quick)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
