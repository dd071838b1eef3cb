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

import aiohttp
from yarl import URL

from serving.addresses import shown_address, without_secrets
from serving.errors import BrokenAnswer, EngineUnavailable

KEEP_ALIVE_S = 4.0
"""Below uvicorn's 5 s (vLLM's too), so that a connection is not used while its server closes it."""
_LOST = (aiohttp.ClientError, TimeoutError, OSError)


@dataclass(frozen=True, slots=True)
class _Link:
    """What belongs to one event loop."""

    session: aiohttp.ClientSession
    turns: asyncio.Semaphore
    life: AsyncGenerator[aiohttp.ClientSession, None]


class Upstream:
    """One server. May be made before an event loop runs, and used from several of them."""

    def __init__(
        self, base_url: str, *, concurrency: int, connect_s: float, idle_s: float,
        timeout_s: float, key: str | None = None, option: str = "--engine",
    ) -> None:  # fmt: skip
        """Address a server; arguments as in `serving.openai_engine.OpenAIEngine`."""
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self.label = shown_address(self.base_url)
        """The address as messages may show it."""
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._option = option
        try:
            url = URL(self.base_url)
            valid, why = url.scheme in ("http", "https") and bool(url.host), "no http:// address"
        except ValueError as error:
            valid, why = False, str(error)
        if not valid:
            raise EngineUnavailable(
                f"{self.label!r} is no address of an engine: {without_secrets(why)}. "
                f"Name one such as 'http://127.0.0.1:8000' with {option!r}."
            )
        self._concurrency = concurrency
        self._connect_s = connect_s
        self._idle_s = idle_s
        self._timeout = self._limits(timeout_s)
        self._links: dict[asyncio.AbstractEventLoop, _Link] = {}

    def get(self, path: str) -> "Forwarded":
        """Return a GET request that is sent when it is entered."""
        return Forwarded(self, "GET", path, None, {}, self._timeout, self._idle_s)

    def post(
        self, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float | None = None
    ) -> "Forwarded":
        """Return a POST request that is sent when it is entered."""
        timeout = self._timeout if timeout_s is None else self._limits(timeout_s)
        return Forwarded(self, "POST", path, body, headers, timeout, self._idle_s)

    async def link(self) -> _Link:
        """Return the running loop's session, opened at its first use."""
        loop = asyncio.get_running_loop()
        link = self._links.get(loop)
        if link is None:
            # A loop that ends closes its asynchronous generators, and with this one its sockets.
            life = self._open(loop)
            session = await anext(life)
            link = self._links[loop] = _Link(session, asyncio.Semaphore(self._concurrency), life)
        return link

    async def close(self) -> None:
        """Close the running loop's connections; those of a loop that ended are closed already."""
        link = self._links.get(asyncio.get_running_loop())
        if link is not None:
            await link.life.aclose()

    def unavailable(self, error: BaseException) -> EngineUnavailable:
        """Return the error for a call that got no answer at all."""
        problem = EngineUnavailable(
            f"No answer from the engine at {self.label!r}: {_told(error)}. "
            f"Start one with 'make vllm' or name another with {self._option!r}."
        )
        problem.timed_out = _is_late(error)
        return problem

    def broken(self, error: BaseException) -> BrokenAnswer:
        """Return the error for a call whose answer stopped in the middle."""
        problem = BrokenAnswer(
            f"No answer from the engine at {self.label!r} to its end: {_told(error)}."
        )
        problem.timed_out = _is_late(error)
        return problem

    async def _open(
        self, loop: asyncio.AbstractEventLoop
    ) -> AsyncGenerator[aiohttp.ClientSession, None]:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
            trust_env=False,
        )
        try:
            yield session
        finally:
            self._links.pop(loop, None)
            await session.close()

    def _limits(self, timeout_s: float) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(total=timeout_s, sock_connect=self._connect_s)


class Forwarded:
    """A request on its way, then its answer; enter it to send."""

    __slots__ = (
        "_body", "_headers", "_link", "_method", "_path", "_response", "_timeout", "_upstream",
        "headers", "idle_s", "started", "status",
    )  # fmt: skip

    def __init__(
        self, upstream: Upstream, method: str, path: str, body: bytes | None,
        headers: Mapping[str, str], timeout: aiohttp.ClientTimeout, idle_s: float,
    ) -> None:  # fmt: skip
        self._upstream = upstream
        self._method = method
        self._path = path
        self._body = body
        self._headers = headers
        self._timeout = timeout
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
        try:
            response = await link.session.request(
                self._method,
                upstream.base_url + self._path,
                data=self._body,
                headers=self._headers,
                timeout=self._timeout,
                allow_redirects=False,
            )
        except BaseException as error:
            link.turns.release()
            if isinstance(error, _LOST):
                raise upstream.unavailable(error) from error
            raise
        self._response = response
        self.status = response.status
        self.headers = response.headers
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Keep the connection if the answer was read to its end, else close it."""
        self._response.release()
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
        content = self._response.content
        while True:
            try:
                async with asyncio.timeout(self.idle_s):
                    piece = await content.readany()
            except _LOST as error:
                raise self._upstream.broken(error) from error
            if not piece:
                return
            yield piece


def _is_late(error: BaseException) -> bool:
    """Say whether it was reached before the time was up."""
    return isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError)


def _told(error: BaseException) -> str:
    return without_secrets(" ".join(f"{type(error).__name__} {error}".split()))[:300]
