"""A running MoL server for tests, over any engine, with a home folder of its own.

    with stub_engine() as stub, mol_server(tmp_path, stub.url) as mol:
        openai.OpenAI(base_url=mol.url + "/v1", api_key="none")
        mol.records("hop")        # what was recorded so far

It runs in a thread with a loop of its own; the slot table has the four slots of the
default profile unless another one is written first.
"""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.config import ServeConfig
from serving.serve import MolServer, running
from serving.slot_table import SlotEntry, SlotFile
from serving.slots import load_profile

LIMIT_S = 30.0


@dataclass
class Running:
    """A server and its home."""

    home: Path
    server: MolServer
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        """Address of the public API, without `/v1`."""
        return self.server.url

    def records(self, kind: str, at_least: int = 0) -> list[dict[str, Any]]:
        """Return what the spool holds of a kind, once it is `at_least` so many."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            lines = spool_lines(self.home)
            found = [line["record"] for line in lines if line["kind"] == kind]
            if len(found) >= at_least:
                return found
            assert time.monotonic() < deadline, f"{len(found)} of {at_least} {kind}s: {found}"
            time.sleep(0.02)

    def settle(self) -> None:
        """Wait until the summaries under way are written and all is recorded."""
        services = self.server.services
        future = asyncio.run_coroutine_threadsafe(services.full_turns.close(), self.loop)
        future.result(LIMIT_S)
        deadline = time.monotonic() + LIMIT_S
        while services.recorder.stats().queued:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.05)


def spool_lines(home: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a home's spool, in order."""
    files = sorted((home / "spool").glob("*.jsonl"))
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def version(slot: str, mark: str = "a") -> dict[str, str]:
    """Return name, digest and folder of a made-up version of a slot."""
    digest = (f"{slot.encode().hex()}{mark.encode().hex()}" + "0" * 64)[:64]
    return {
        "champion": f"{slot}@{digest[:12]}",
        "digest": f"sha256:{digest}",
        "path": f"adapters/{digest}",
    }


def write_slots(home: Path, *entries: SlotEntry) -> SlotFile:
    """Write a slot table and the folders it names; the profile's slots if none are given."""
    made = entries or tuple(SlotEntry(slot=s, **version(s)) for s in load_profile().labels)  # type: ignore[arg-type]
    for entry in made:
        for path in (entry.path, entry.canary_path):
            if path:
                (home / path).mkdir(parents=True, exist_ok=True)
    table = SlotFile(slots=made)
    temporary = home / "slots.tmp"
    temporary.write_text(table.model_dump_json(), encoding="utf-8")
    temporary.replace(home / "slots.json")
    return table


@contextlib.contextmanager
def mol_server(
    home: Path, *engines: str, environment: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[Running]:
    """Run a server while the block runs; `settings` are fields of `ServeConfig`."""
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "slots.json").exists():
        write_slots(home)
    config = ServeConfig(engines=engines, port=0, admin_port=0, **{"poll_s": 0.05, **settings})
    started = threading.Event()
    made: list[Running] = []
    failed: list[BaseException] = []

    async def main() -> None:
        try:
            async with running(home, load_profile(), config, environment or {}) as server:
                made.append(Running(home, server, asyncio.get_running_loop()))
                started.set()
                await server.ended()
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            started.set()

    thread = threading.Thread(target=lambda: _quietly(main()), name="mol-server")
    thread.start()
    assert started.wait(LIMIT_S)
    if failed:
        thread.join(LIMIT_S)
        raise failed[0]
    mol = made[0]
    try:
        yield mol
    finally:
        mol.loop.call_soon_threadsafe(mol.server.stop)
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    if failed:
        raise failed[0]


def _quietly(main: Any) -> None:
    with contextlib.suppress(Exception):
        asyncio.run(main)
