"""Record a conversation of three: Mind Lab's harness, this MoL server below it, the real vLLM.

    client -> harness -> tap -> MoL server -> tap -> vLLM

Run it: `python -m examples.record_harness HARNESS --out FILE`, with `HARNESS` a checkout of
github.com/MindLab-Research/Mixture-of-LoRA-Harness, which runs as it is. Out: one
compressed JSON file with what the client sent and got, every exchange at both taps, and
the hops that the server recorded. `tests/serving/test_harness_replay.py` plays it again.
"""

import asyncio
import contextlib
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from examples.harness_talk import MODEL, talk
from examples.tap import Tap
from infra.base_model import DEFAULT_FOLDER
from infra.vllm_server import start
from serving.child import HOST, free_port
from serving.config import ServeConfig
from serving.records import short_digest
from serving.serve import running
from serving.slot_table import SlotEntry, SlotFile, write_slot_file
from serving.slots import Profile, load_profile

ADAPTERS = Path(__file__).with_name("adapters")
START_LIMIT_S = 60.0
CHAT = "/v1/chat/completions"

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def main(
    harness: Annotated[Path, typer.Argument(help="Checkout of the harness.")],
    out: Annotated[Path, typer.Option(help="File to write, `.json.gz`.")],
    base: Annotated[Path, typer.Option(help="Folder of the base model.")] = DEFAULT_FOLDER,
) -> None:
    """Start all three, talk, and write what went by."""
    with tempfile.TemporaryDirectory() as work, start(base) as vllm:
        recording = asyncio.run(record(harness, vllm, Path(work)))
    write(out, recording)
    typer.echo(f"{len(recording['hops'])} hops of {len(recording['client'])} requests: {out}")


def write(out: Path, recording: dict[str, Any]) -> None:
    """Write a recording; equal ones give equal bytes."""
    text = json.dumps(recording, ensure_ascii=False, separators=(",", ":"))
    out.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


async def record(harness: Path, vllm: str, work: Path) -> dict[str, Any]:
    """Put harness and server before a running vLLM, talk, and return what went by."""
    profile = load_profile()
    home = work / "home"
    table = make_home(home, profile)
    async with contextlib.AsyncExitStack() as stack:
        back = await stack.enter_async_context(Tap(vllm).running())
        config = ServeConfig(engines=(back.url,), port=0, admin_port=0)
        server = await stack.enter_async_context(running(home, profile, config, {}))
        front = await stack.enter_async_context(Tap(server.url).running())
        url = await stack.enter_async_context(started(harness, profile, front.url, work))
        spoken = await talk(url)
        await _released(front)
    return {
        "about": "Mind Lab's MoL harness before this MoL server before vLLM, recorded by "
        "examples/record_harness.py. Licence: Apache-2.0, like the base model.",
        "slots": table.model_dump(mode="json"),
        "client": spoken.as_json(),
        "hops": [e.as_json() for e in front.exchanges if e.path == CHAT],
        "other": [e.as_json() for e in front.exchanges if e.path != CHAT],
        "engine": [e.as_json() for e in back.exchanges if e.path == CHAT and not _probe(e.request)],
        "records": spool(home),
    }


def make_home(home: Path, profile: Profile) -> SlotFile:
    """Make a home folder whose slots serve the example adapters."""
    from training.artifact import adapter_digest

    entries = []
    for slot in profile.labels:
        digest = adapter_digest(ADAPTERS / slot)
        name = short_digest(digest)
        shutil.copytree(ADAPTERS / slot, home / "adapters" / name)
        entries.append(
            SlotEntry(slot=slot, champion=f"{slot}@{name}", digest=digest, path=f"adapters/{name}")
        )
    table = SlotFile(slots=tuple(entries))
    write_slot_file(home / "slots.json", table)
    return table


@contextlib.asynccontextmanager
async def started(harness: Path, profile: Profile, upstream: str, work: Path) -> AsyncIterator[str]:
    """Run the harness, unchanged, while the block runs and yield its address."""
    write_profile(work / "profiles" / MODEL, profile)
    port = free_port()
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
        "UPSTREAM": upstream,
        "PROXY_PORT": str(port),
        "SERVED_MODEL_NAME": MODEL,
        "MOL_MODEL_CONFIG_ROOT": str(work / "profiles"),
        "MOL_ALLOW_UNAUTHENTICATED": "1",
        "MOL_METRICS_PORT": "0",
        "MOL_DRAIN_TIMEOUT_S": "2",
    }
    log = work / "harness.log"
    with log.open("wb") as file:
        child = subprocess.Popen(
            [sys.executable, "-m", "mol_harness.proxy"],
            cwd=harness, env=environment, stdout=file, stderr=file,
        )  # fmt: skip
        try:
            url = f"http://{HOST}:{port}"
            await _ready(child, url, log)
            yield url
        finally:
            child.terminate()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def write_profile(folder: Path, profile: Profile) -> None:
    """Write a profile of ours in the harness's files."""
    folder.mkdir(parents=True)
    slots = "".join(
        f"## {s.name}\n\nadapter_name: {s.name}\n\n### Description\n\n{s.description}\n\n"
        for s in profile.slots
    )
    texts = {
        "intro.md": "Answer in a few words.",
        "lora.md": f"# Adapters\n\n{slots}",
        "route.md": "Which expert takes the request above? Answer {{ROUTE_LABELS}}.\n"
        "{{LORA_DESCRIPTIONS}}\nmodel_id=",
        "summary.md": profile.summary_prompt,
    }
    for name, text in texts.items():
        (folder / name).write_text(text + "\n", encoding="utf-8")


def spool(home: Path) -> list[dict[str, Any]]:
    """Return the hops that a server recorded, in order."""
    lines = [
        json.loads(line)
        for file in sorted((home / "spool").glob("*.jsonl"))
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    return [line["record"] for line in lines if line["kind"] == "hop"]


async def _ready(child: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    """Wait until the harness says that it and what is below it are there."""
    deadline = time.monotonic() + START_LIMIT_S
    async with httpx.AsyncClient(trust_env=False) as client:
        while True:
            if child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"The harness does not start: {log.read_text()[-2000:]}")
            with contextlib.suppress(httpx.TransportError):
                answer = await client.get(f"{url}/health")
                if answer.json() == {"status": "ok"}:
                    return
            await asyncio.sleep(0.1)


async def _released(front: Tap, limit_s: float = 10.0) -> None:
    """Wait until the harness, which does so behind, has given back the keys of its chats."""
    keys = {e.headers["x-smg-routing-key"] for e in front.exchanges if e.path == CHAT}
    waiting = {key for key in keys if key.startswith("molchat_")}
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        told = [e.request for e in front.exchanges if e.path == "/_internal/routing-keys"]
        if waiting <= {key for request in told for key in request["routing_keys"]}:
            return
        await asyncio.sleep(0.05)
    raise RuntimeError("The harness has not given back all routing keys.")


def _probe(request: Any) -> bool:
    """Whether this is the server's own test of a version it has loaded."""
    return bool(request["messages"][-1]["content"] == "Hello" and request["max_tokens"] == 1)


if __name__ == "__main__":
    app()
