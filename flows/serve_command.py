"""`flows serve`: run the MoL server over the configured engine until Ctrl-C.

With the engine `embedded` it starts one beside itself, over the base model in the settings,
for trying it on a laptop; anything else is an address of an OpenAI-compatible server.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.config import Settings, load_settings
from flows.console import say
from flows.options import Base
from serving.errors import MolError

if TYPE_CHECKING:
    from serving.config import ServeConfig

EMBEDDED = "embedded"
STARTUP_LIMIT_S = 180.0


class EngineNotStarted(MolError, RuntimeError):
    """The embedded engine did not come up."""


def serve(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file with settings.")
    ] = None,
    home: Annotated[
        Path | None, typer.Option("--home", help="Folder of the loop's state [.mol].")
    ] = None,
    base: Base = None,
    engine: Annotated[
        str | None,
        typer.Option(help="'embedded', or addresses of vLLM replicas separated by commas."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the API; 0 takes a free one.")
    ] = None,
    otlp: Annotated[
        bool, typer.Option("--otlp", help="Also take OpenTelemetry data over HTTP.")
    ] = False,
    otlp_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port for OpenTelemetry data [4318]."),
    ] = None,
    otlp_only: Annotated[
        bool, typer.Option("--otlp-only", help="Take OpenTelemetry data; serve no model.")
    ] = False,
) -> None:
    """Run the MoL server; any setting is a dotted flag, as in --serve.router.mode rules."""
    settings = load_settings(config, context.args, {"home": home, "base": base, "engine": engine})
    serving = settings.serve
    if port is not None:
        serving = serving.model_copy(update={"port": port})
    if otlp or otlp_only or otlp_port is not None:
        more = {"enabled": True} | ({} if otlp_port is None else {"port": otlp_port})
        serving = serving.model_copy(update={"otlp": serving.otlp.model_copy(update=more)})
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if otlp_only:
        _collect(settings, serving)
        return
    with _engines(settings) as engines:
        serving = serving.model_copy(update={"engines": engines})
        _run(settings, serving)


def _run(settings: Settings, config: "ServeConfig") -> None:
    import uvloop

    from flows import slots as slot_rows
    from flows import stages
    from flows.loading_check import LoadingCheck
    from serving.serve import running, spare_garbage_collection, stop_on_signals
    from serving.slots import load_profile

    # Either writes the slot table; first adapters are registered where none serves yet.
    stages.prepare_registry(settings) if settings.first_adapters else slot_rows.export(settings)
    profile = load_profile(settings.profile)

    async def main() -> None:
        check = LoadingCheck(settings)
        async with running(settings.home, profile, config, verify=check) as server:
            stop_on_signals(server)
            spare_garbage_collection()
            versions = server.services.versions
            slots = ", ".join(
                f"{entry.slot} {entry.champion or config.base_name}"
                for entry in versions.profile_slots
            )
            say(f"Serving {config.model!r} at {server.url}/v1 ({slots or 'no slot yet'}).")
            if server.otlp_url:
                say(f"Taking OpenTelemetry data at {server.otlp_url}.")
            say(f"Admin API at {server.admin_url}. Ctrl-C stops.")
            if versions.last_error:
                say(f"Not ready: {versions.last_error}")
            await server.ended()

    uvloop.run(main())


def _collect(settings: Settings, config: "ServeConfig") -> None:
    from serving.serve import collecting, stop_on_signals

    async def main() -> None:
        async with collecting(settings.home, config) as server:
            stop_on_signals(server)
            say(f"Taking OpenTelemetry data at {server.url}. Ctrl-C stops.")
            await server.ended()

    asyncio.run(main())


@contextlib.contextmanager
def _engines(settings: Settings) -> Iterator[tuple[str, ...]]:
    """Yield the addresses of the engine: those named, or that of an embedded one made here."""
    named = settings.replicas
    if settings.engine == EMBEDDED and "engines" in settings.serve.model_fields_set:
        named = settings.serve.engines
    if named != (EMBEDDED,):
        yield named or settings.serve.engines
        return
    from serving.child import HOST, free_port, start_child, stop_child

    port = free_port()
    log = settings.home / f"engine-{port}.log"
    arguments = ["--base", str(settings.base), "--port", str(port)]
    say(f"Starting the embedded engine over {str(settings.base)!r}, for trying only ...")
    child = None
    log_stays = False
    try:
        child = start_child("serving.engine_app", arguments, dict(os.environ), log)
        address = f"http://{HOST}:{port}"
        deadline = time.monotonic() + STARTUP_LIMIT_S
        while not _answers(address):
            if child.poll() is not None or time.monotonic() > deadline:
                log_stays = True
                said = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise EngineNotStarted(
                    f"The embedded engine did not start: {' '.join(said)[:300]!r}. "
                    "Name a base model with '--base' or a server with '--engine'. "
                    f"The whole log is in {str(log)!r}."
                )
            time.sleep(0.1)
        yield (address,)
    finally:
        if child is not None and child.poll() is not None and not log_stays:
            log_stays = True
            say(f"The embedded engine ended by itself; its log is in {str(log)!r}.")
        try:
            if child is not None:
                stop_child(child)
        finally:
            if not log_stays:
                log.unlink(missing_ok=True)


def _answers(address: str) -> bool:
    from serving.addresses import engine_key
    from serving.openai_engine import OpenAIEngine

    async def ask() -> bool:
        engine = OpenAIEngine(address, key=engine_key())
        try:
            return await engine.healthy()
        finally:
            await engine.close()

    return asyncio.run(ask())
