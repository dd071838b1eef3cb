"""HTTP to one server: connections that are kept, time-outs, and errors that say what happened.

    upstream = Upstream("http://127.0.0.1:8000")
    async with upstream.post("/v1/chat/completions", body, headers) as answer:
        answer.status, answer.headers
        async for piece in answer.chunks(): ...

Bytes go through as they are. Leaving the block early, or being cancelled in it, closes the
connection, so that the server stops working for nobody.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from serving.errors import BrokenAnswer, EngineUnavailable
from serving.wire import Address, Connection, Pool


@dataclass(frozen=True, slots=True)
class _Link:
    """What belongs to one event loop."""

    pool: Pool
    turns: asyncio.Semaphore
    life: AsyncGenerator[Pool, None]


class Upstream:
    """One server. May be made before an event loop runs, and used from several of them."""

    def __init__(
        self, base_url: str, *, concurrency: int, connect_s: float, idle_s: float, timeout_s: float
    ) -> None:
        """Address a server; limits as in `serving.openai_engine.OpenAIEngine`."""
        self.base_url = base_url.rstrip("/")
        try:
            self._address = Address.of(self.base_url)
        except ValueError as error:
            raise EngineUnavailable(
                f"{base_url!r} is no address of an engine: {error}. "
                "Name one such as 'http://127.0.0.1:8000' with '--engine'."
            ) from error
        self._concurrency = concurrency
        self._connect_s = connect_s
        self._idle_s = idle_s
        self._timeout_s = timeout_s
        self._links: dict[asyncio.AbstractEventLoop, _Link] = {}

    def get(self, path: str) -> "Forwarded":
        """Return a GET request that is sent when it is entered."""
        return Forwarded(self, "GET", path, None, {}, self._timeout_s, self._idle_s)

    def post(
        self, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float | None = None
    ) -> "Forwarded":
        """Return a POST request that is sent when it is entered."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        return Forwarded(self, "POST", path, body, headers, limit_s, self._idle_s)

    async def link(self) -> _Link:
        """Return the running loop's session, opened at its first use."""
        loop = asyncio.get_running_loop()
        link = self._links.get(loop)
        if link is None:
            # A loop that ends closes its asynchronous generators, and with this one its sockets.
            life = self._open(loop)
            pool = await anext(life)
            link = self._links[loop] = _Link(pool, asyncio.Semaphore(self._concurrency), life)
        return link

    async def close(self) -> None:
        """Close the running loop's connections; those of a loop that ended are closed already."""
        link = self._links.get(asyncio.get_running_loop())
        if link is not None:
            await link.life.aclose()

    def unavailable(self, error: BaseException) -> EngineUnavailable:
        """Return the error for a call that got no answer at all."""
        problem = EngineUnavailable(
            f"No answer from the engine at {self.base_url!r}: {_told(error)}. "
            "Start one with 'make vllm' or name another with '--engine'."
        )
        problem.timed_out = isinstance(error, TimeoutError)
        return problem

    def broken(self, error: BaseException) -> BrokenAnswer:
        """Return the error for a call whose answer stopped in the middle."""
        problem = BrokenAnswer(
            f"No answer from the engine at {self.base_url!r} to its end: {_told(error)}."
        )
        problem.timed_out = isinstance(error, TimeoutError)
        return problem

    async def _open(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[Pool, None]:
        pool = Pool(self._address, self._connect_s)
        try:
            yield pool
        finally:
            self._links.pop(loop, None)
            await pool.close()


class Forwarded:
    """A request on its way, then its answer; enter it to send."""

    __slots__ = (
        "_body", "_connection", "_headers", "_limit_s", "_link", "_method", "_path", "_upstream",
        "headers", "idle_s", "started", "status",
    )  # fmt: skip

    def __init__(
        self, upstream: Upstream, method: str, path: str, body: bytes | None,
        headers: Mapping[str, str], limit_s: float, idle_s: float,
    ) -> None:  # fmt: skip
        self._upstream = upstream
        self._method = method
        self._path = path
        self._body = body
        self._headers = headers
        self._limit_s = limit_s
        self.idle_s = idle_s
        """Limit between two pieces; the first, after the status, included."""
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.started = 0.0
        """When the request was sent, after its wait for a turn, on the monotonic clock."""

    async def __aenter__(self) -> Self:
        """Send the request and wait for the answer's status.

        Raises:
            EngineUnavailable: if there is none.
        """
        upstream = self._upstream
        self._link = link = await upstream.link()
        await link.turns.acquire()
        self.started = time.monotonic()
        connection: Connection | None = None
        try:
            connection = await link.pool.take()
            connection.ask(self._method, self._path, self._headers, self._body, self._limit_s)
            self.status = await connection.head()
        except BaseException as error:
            if connection is not None:
                link.pool.drop(connection)
            link.turns.release()
            if isinstance(error, OSError):
                raise upstream.unavailable(error) from error
            raise
        self._connection = connection
        self.headers = connection.headers
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Keep the connection if the answer was read to its end, else close it."""
        self._link.pool.give_back(self._connection)
        self._link.turns.release()

    async def read(self) -> bytes:
        """Return the whole body.

        Raises:
            BrokenAnswer: if it stops in the middle, or nothing comes for too long.
        """
        return b"".join([piece async for piece in self.chunks()])

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes.

        Raises:
            BrokenAnswer: if it stops in the middle, or nothing comes for too long.
        """
        while True:
            try:
                piece = await self._connection.piece(self.idle_s)
            except OSError as error:
                raise self._upstream.broken(error) from error
            if not piece:
                return
            yield piece


def _told(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__} {error}".split())[:300]
