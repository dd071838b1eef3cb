"""A real engine behind a socket: `serving.engine_app` over the tiny random model, in a thread.

with tiny_engine_server(tmp_path, loras={"L1@aaaaaaaaaaaa": 1}) as url:
    ...
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import uvicorn
from engine_calls import make_adapter
from starlette.applications import Starlette
from tiny import make_tiny_base

from serving.child import HOST
from serving.embedded import EmbeddedEngine
from serving.engine_app import create_app


@contextlib.contextmanager
def tiny_engine_server(
    folder: Path, loras: Mapping[str, Path | int] | None = None, base: Path | None = None
) -> Iterator[str]:
    """Yield the address of an engine that serves a tiny base as `base`.

    Args:
        folder: Where the base and the adapters are made.
        loras: Names to load at the start, each with its folder or the seed of a new adapter.
        base: A tiny base that is there already.
    """
    base = base or make_tiny_base(folder / "base")
    found = [
        (name, make_adapter(folder / f"lora-{lora}", base, lora) if isinstance(lora, int) else lora)
        for name, lora in (loras or {}).items()
    ]
    with serve_app(create_app(EmbeddedEngine(base), root=str(base), loras=found)) as url:
        yield url


@contextlib.contextmanager
def serve_app(app: Starlette) -> Iterator[str]:
    """Run an ASGI application in a thread on a free port and yield its address."""
    listener = socket.create_server((HOST, 0), backlog=1024)
    config = uvicorn.Config(
        app, log_level="error", lifespan="on", ws="none", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="serve-app")
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.005)
        yield f"http://{HOST}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
