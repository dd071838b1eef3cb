"""Run the MoL server: the public app and the admin app in one process, over one engine.

    async with running(home, load_profile(), config) as server:
        print(server.url, server.admin_url)
        await server.ended()

In: the home folder with `slots.json`, settings, keys from the environment. It writes
`<home>/spool/*.jsonl` (what happened), `<home>/conversations.sqlite` (what it remembers) and,
if the environment has no admin key, `<home>/admin.key`. `flows serve` runs it.
"""

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import uvicorn

from serving.access import Admission, Keys, KeysInvalid, is_loopback
from serving.addresses import engine_key
from serving.admin import create_admin
from serving.child import HOST
from serving.config import ServeConfig
from serving.connection import connections
from serving.conversations import Conversations
from serving.documents import Documents
from serving.errors import MolError
from serving.full_turns import FullTurns
from serving.gateway import create_app
from serving.harness import Harnesses
from serving.inbound import Services
from serving.loading import Verify
from serving.metrics import Metrics
from serving.openai_engine import OpenAIEngine
from serving.otlp import Journal, create_otlp
from serving.passthrough import Passthrough
from serving.recorder import Recorder
from serving.replicas import Replicas
from serving.slots import Profile
from serving.versions import Versions

ADMIN_KEY = "MOL_ADMIN_KEY"
KEEP_ALIVE_S = 75
STOP_LIMIT_S = 20
HEALTH_LIMIT_S = 2.0
"""A replica that does not say how it is by then is not well."""
_FORGET_EVERY_S = 3600.0
_log = logging.getLogger(__name__)


class CannotListen(MolError, OSError):
    """A port is taken, or an address is not this machine's."""


@dataclass(frozen=True, slots=True)
class Running:
    """Apps that are served."""

    _servers: tuple["_Server", ...]
    _tasks: tuple["asyncio.Task[None]", ...]

    async def ended(self) -> None:
        """Wait until it is told to stop."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def stop(self) -> None:
        """Tell it to stop: requests under way are finished first."""
        for server in self._servers:
            server.should_exit = True


@dataclass(frozen=True, slots=True)
class OtlpServer(Running):
    """An endpoint for OpenTelemetry data, alone."""

    url: str


@dataclass(frozen=True, slots=True)
class MolServer(Running):
    """The MoL server."""

    url: str
    admin_url: str
    otlp_url: str | None
    services: Services


@contextlib.asynccontextmanager
async def running(
    home: Path,
    profile: Profile,
    config: ServeConfig,
    environment: Mapping[str, str] = os.environ,
    verify: Verify | None = None,
) -> AsyncIterator[MolServer]:
    """Serve while the block runs.

    `verify` raises a `MolError` for a version that must not be loaded; without it the slot table
    alone says what serves, and the log says so.

    Raises:
        KeysInvalid: if keys are missing where they are needed, or unusable.
        CannotListen: if a port cannot be had.
        MolError: if the conversations of before cannot be opened.
    """
    keys = _keys_for(config.host, environment)
    if verify is None:
        _log.warning("No registry is asked for what is loaded: 'slots.json' alone says what serves")
    home.mkdir(parents=True, exist_ok=True)
    admin_keys = _admin_keys(home, environment)
    async with contextlib.AsyncExitStack() as stack:
        public = stack.enter_context(_listening(config.host, config.port))
        admin = stack.enter_context(_listening(HOST, config.admin_port))
        for sock in (public, admin):
            _give_up_on_deaf_clients(sock, config.timeouts.body_s)
        services, background = await _start(stack, home, profile, config, keys, environment, verify)
        table, head_s = home / "slots.json", config.timeouts.body_s
        served = [
            (_Server(create_app(services), head_s), public),
            (_Server(create_admin(services.versions, table, admin_keys), head_s), admin),
        ]
        if config.otlp.enabled:
            served.append(_otlp(stack, home, config, environment))
        servers = tuple(server for server, _ in served)
        tasks = tuple(asyncio.create_task(server.serve([sock])) for server, sock in served)
        for work in background:
            task = asyncio.create_task(work)
            stack.push_async_callback(_cancelled, task)
        otlp_url = _url(served[2][1]) if config.otlp.enabled else None
        server = MolServer(servers, tasks, _url(public), _url(admin), otlp_url, services)
        try:
            await _first_table(services.versions)
            yield server
        finally:
            server.stop()
            await asyncio.gather(*tasks)


@contextlib.asynccontextmanager
async def collecting(
    home: Path, config: ServeConfig, environment: Mapping[str, str] = os.environ
) -> AsyncIterator[OtlpServer]:
    """Take OpenTelemetry data while the block runs, without a model server.

    Raises:
        KeysInvalid: if keys are missing where they are needed, or unusable.
        CannotListen: if the port cannot be had.
    """
    async with contextlib.AsyncExitStack() as stack:
        server, sock = _otlp(stack, home, config, environment)
        task = asyncio.create_task(server.serve([sock]))
        running = OtlpServer((server,), (task,), _url(sock))
        try:
            yield running
        finally:
            running.stop()
            await task


def _otlp(
    stack: contextlib.AsyncExitStack,
    home: Path,
    config: ServeConfig,
    environment: Mapping[str, str],
) -> tuple["_Server", socket.socket]:
    """Open the endpoint for OpenTelemetry data and what it writes to."""
    otlp, body_s = config.otlp, config.timeouts.body_s
    keys = _keys_for(otlp.host, environment)
    sock = stack.enter_context(_listening(otlp.host, otlp.port, "'--otlp-port'"))
    _give_up_on_deaf_clients(sock, body_s)
    journal = Journal(otlp.folder or home / "otlp", otlp)
    journal.start()
    stack.push_async_callback(asyncio.to_thread, journal.close)
    return _Server(create_otlp(journal, keys, otlp, body_s), body_s), sock


def _keys_for(host: str, environment: Mapping[str, str]) -> Keys:
    """Return the API keys in force.

    Raises:
        KeysInvalid: without any where others than this machine can reach us.
    """
    keys = Keys.from_environment(environment)
    if not keys and not is_loopback(host):
        raise KeysInvalid(
            f"Host {host!r} is not the loopback, so API keys are needed. Set MOL_API_KEYS "
            "or MOL_API_KEYS_FILE, or listen on '127.0.0.1'."
        )
    return keys


async def _start(
    stack: contextlib.AsyncExitStack,
    home: Path,
    profile: Profile,
    config: ServeConfig,
    keys: Keys,
    environment: Mapping[str, str],
    verify: Verify | None,
) -> tuple[Services, list[Any]]:
    """Open what the apps work with; the stack closes it in the right order."""
    timeouts = config.timeouts
    key = engine_key(environment)
    engine = Replicas([_engine(address, config, key) for address in config.engines])
    stack.push_async_callback(engine.close)
    documents = await asyncio.to_thread(Documents, home / "conversations.sqlite")
    stack.push_async_callback(asyncio.to_thread, documents.close)
    recorder = Recorder(config.record.folder or home / "spool", config.record)
    recorder.start()
    stack.push_async_callback(asyncio.to_thread, recorder.close)
    harnesses = Harnesses(profile, home, config.router, verify)
    versions = Versions(
        engine, home, config.base_name, timeouts.drain_s, check=harnesses.check, verify=verify
    )
    stack.push_async_callback(versions.close)
    admission = Admission(config.limits)
    metrics = Metrics(recorder.stats, documents.stats, lambda: versions.table)
    metrics.in_flight.set_function(lambda: admission.running)
    metrics.waiting.set_function(lambda: admission.waiting)
    conversations = Conversations(documents)
    embed = None
    if config.router.embeddings:
        embedder = _engine(config.router.embeddings, config, key)
        stack.push_async_callback(embedder.close)
        embed = embedder.embed
    turns = FullTurns(
        engine, config, versions, harnesses, conversations, recorder, metrics, embed,
    )  # fmt: skip
    stack.push_async_callback(turns.close)
    passthrough = Passthrough(engine, config, versions, recorder, metrics)

    async def healthy() -> bool:
        asked = [asyncio.ensure_future(replica.healthy()) for replica in engine.engines]
        try:
            async with asyncio.timeout(HEALTH_LIMIT_S):
                for first in asyncio.as_completed(asked):
                    if await first:
                        return True
        except TimeoutError:
            pass
        finally:
            for question in asked:
                question.cancel()
        return False

    services = Services(
        config, keys, versions, turns, passthrough, recorder, metrics, admission, healthy
    )
    background = [
        versions.watch(home / "slots.json", config.poll_s),
        turns.sweep(),
        _forget(documents, timedelta(days=config.keep_days)),
    ]
    return services, background


def _engine(address: str, config: ServeConfig, key: str | None) -> OpenAIEngine:
    timeouts = config.timeouts
    return OpenAIEngine(
        address,
        connect_s=timeouts.connect_s,
        idle_s=timeouts.idle_s,
        timeout_s=timeouts.hop_s,
        token_ids=config.record.token_ids,
        base_name=config.base_name,
        key=key,
    )


async def _first_table(versions: Versions, limit_s: float = 60.0) -> None:
    """Give the slot table of the file a moment to take effect before anybody is told to come."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while not versions.ready and versions.last_error is None:
                await asyncio.sleep(0.02)


async def _forget(documents: Documents, age: timedelta) -> None:
    while True:
        documents.forget(datetime.now(UTC) - age)
        await asyncio.sleep(_FORGET_EVERY_S)


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


class _Server(uvicorn.Server):
    """uvicorn without signal handlers of its own: two of them share a process."""

    def __init__(self, app: Any, head_s: float) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=connections(head_s),
                ws="none",
                proxy_headers=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=STOP_LIMIT_S,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def spare_garbage_collection() -> None:
    """Let the collector look at young objects less often, and at the program itself never.

    A request leaves a few thousand objects that live as long as it does; at the usual
    threshold they are looked through again and again, a sixth of a full turn's time. For a
    process that does nothing but serve, once it is set up.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def stop_on_signals(server: Running) -> None:
    """Let SIGINT and SIGTERM stop the server; a second one ends the process at once."""
    loop = asyncio.get_running_loop()

    def told(number: int) -> None:
        loop.remove_signal_handler(number)
        server.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told, number)


@contextlib.contextmanager
def _listening(
    host: str, port: int, flags: str = "'--serve.port' or '--serve.admin-port'"
) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise CannotListen(
            f"Cannot listen on {host}:{port}: {error.strerror or error}. "
            f"Choose another with {flags}; 0 takes a free one."
        ) from error
    with sock:
        # Inherited by what it accepts. asyncio sets it only where a socket's protocol is named;
        # without it the head of an answer waits 40 ms for the client's acknowledgement.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sock


def _give_up_on_deaf_clients(sock: socket.socket, limit_s: float) -> None:
    """Let the system end a connection whose client takes nothing of its answer for so long.

    It is inherited by the connections; only Linux has it.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        limit_ms = max(1, int(limit_s * 1000))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _admin_keys(home: Path, environment: Mapping[str, str]) -> Keys:
    """Return the admin key: the environment's, or one of our own in a file only we can read."""
    if key := environment.get(ADMIN_KEY):
        return Keys((key,))
    path = home / "admin.key"
    if not path.exists():
        # Under its name only when it is whole: a process may end at any moment.
        half = home / f"admin.key.{secrets.token_hex(4)}"
        try:
            with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(24))
            half.rename(path)
        except OSError as error:
            half.unlink(missing_ok=True)
            raise KeysInvalid(
                f"Cannot write the admin key {str(path)!r}: {error.strerror or error}. "
                f"Free some space, or set {ADMIN_KEY}."
            ) from error
    return Keys((path.read_text(encoding="utf-8").strip(),))
