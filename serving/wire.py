"""HTTP/1.1 on the client's side: kept connections, one request on each at a time.

    pool = Pool(Address.of("http://127.0.0.1:8000"), connect_s=5.0)
    connection = await pool.take()
    connection.ask("POST", "/v1/chat/completions", headers, body, limit_s=600.0)
    status = await connection.head()
    while piece := await connection.piece(idle_s=120.0): ...
    pool.give_back(connection)

For the few calls that a proxy makes of an engine, where a general client costs more than all
the rest of a hop. The parser is llhttp, by httptools. No redirects, cookies, proxies,
compression or pipelining. What goes wrong is a TimeoutError or an OSError.
"""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast
from urllib.parse import urlsplit

import httptools
from starlette.datastructures import Headers

KEEP_ALIVE_S = 4.0
"""Below uvicorn's 5 s (vLLM's too), so that a connection is not used while its server closes it."""
_MAX_BUFFERED_BYTES = 1 << 20
"""With so much unread the server has to wait."""


class AnswerCut(ConnectionError):
    """The connection ended, or brought nonsense, before the answer was whole."""


class NotReached(ConnectionError):
    """The server did not take the connection in time."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is."""

    host: str
    port: int
    is_tls: bool
    authority: str
    """Host and port as requests name them."""
    prefix: str
    """Path before every target."""

    @classmethod
    def of(cls, url: str) -> Self:
        """Read an address.

        Raises:
            ValueError: if it is none of HTTP.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("no http:// address")
        if parts.username is not None:
            raise ValueError("a user name in the address is not used")
        is_tls = parts.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
        return cls(parts.hostname, port, is_tls, parts.netloc, parts.path.rstrip("/"))


class Connection(asyncio.Protocol):
    """One connection; `ask`, `head` and `piece` in this order, then the same again."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._raw_headers: list[tuple[bytes, bytes]] = []
        self._pieces: deque[bytes] = deque()
        self._buffered = 0
        self._has_head = self._is_whole = self._keeps = self._is_framed = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._limit: asyncio.TimerHandle | None = None

    @property
    def is_reusable(self) -> bool:
        """Whether the answer was read to its end and the server keeps the connection."""
        return self._is_whole and self._keeps and not self._pieces and self._error is None

    def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None,
        limit_s: float,
    ) -> None:  # fmt: skip
        """Send a request; all of its answer must be here within `limit_s`.

        Raises:
            AnswerCut: if the server has closed the connection by now.
        """
        if self._transport is None:
            raise AnswerCut("the server closed the connection")
        address = self._address
        lines = [f"{method} {address.prefix}{target} HTTP/1.1\r\nHost: {address.authority}\r\n"]
        lines += [f"{_one_line(name)}: {_one_line(value)}\r\n" for name, value in headers.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}\r\n")
        lines.append("\r\n")
        self._parser = httptools.HttpResponseParser(self)
        self._raw_headers = []
        self._has_head = self._is_whole = self._keeps = self._is_framed = False
        self._limit = self._loop.call_later(limit_s, self._is_late, limit_s)
        self._transport.write("".join(lines).encode("latin-1", "replace") + (body or b""))

    async def head(self) -> int:
        """Wait for status and headers."""
        while not self._has_head:
            await self._wait(None)
        return self.status

    async def piece(self, idle_s: float) -> bytes:
        """Return what has come of the body; nothing at its end."""
        while not self._pieces:
            if self._is_whole:
                return b""
            await self._wait(idle_s)
        taken = b"".join(self._pieces) if len(self._pieces) > 1 else self._pieces[0]
        self._pieces.clear()
        if self._buffered > _MAX_BUFFERED_BYTES and self._transport is not None:
            self._transport.resume_reading()
        self._buffered = 0
        return taken

    def done(self) -> None:
        """Have no more time limit: nobody waits for this answer."""
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def abort(self) -> None:
        """Cut the connection."""
        self.done()
        self._fail(AnswerCut("the connection was closed on our side"))
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self, limit_s: float | None) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = waiter = self._loop.create_future()
        timer = None if limit_s is None else self._loop.call_later(limit_s, self._is_late, limit_s)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._is_whole:
            self._keeps = False
            self._wake()
            return
        if self._error is None:
            self._error = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(self._error)

    def _is_late(self, limit_s: float) -> None:
        self._fail(TimeoutError(f"nothing for {limit_s:g} s"))

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport; uvloop's are none of asyncio's class."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if self._parser is None or self._is_whole:
            self.abort()  # Nothing was asked: whatever this is, it is no answer.
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(AnswerCut(f"{type(error).__name__} {error}"))
            self.abort()
            return
        if self._buffered > _MAX_BUFFERED_BYTES and self._transport is not None:
            self._transport.pause_reading()
        if self._has_head:
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """End the answer, well if the end of the connection is its end."""
        self._transport = None
        self._keeps = False
        if self._has_head and not self._is_framed and error is None and self._error is None:
            self._is_whole = True
            self._wake()
        else:
            why = f"{type(error).__name__} {error}" if error else "the server closed the connection"
            self._fail(AnswerCut(why))

    # What the parser calls.

    def on_message_begin(self) -> None:
        """Forget an interim answer, such as 100; refuse what nobody asked for."""
        if self._is_whole:
            raise AnswerCut("a second answer to one request")
        self._raw_headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        name = name.lower()
        self._raw_headers.append((name, value))
        if name == b"content-length" or name == b"transfer-encoding":
            self._is_framed = True

    def on_headers_complete(self) -> None:
        """Take the status."""
        status = self._parser.get_status_code()
        if status >= 200:
            self.status, self.headers = status, Headers(raw=self._raw_headers)
            self._has_head = True

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._pieces.append(body)
        self._buffered += len(body)

    def on_message_complete(self) -> None:
        """Note the end."""
        if self._has_head:
            self._is_whole = True
            self._keeps = self._parser.should_keep_alive()
            self.done()


class Pool:
    """The connections of one event loop to one server."""

    def __init__(self, address: Address, connect_s: float) -> None:
        self._address = address
        self._connect_s = connect_s
        self._tls = ssl.create_default_context() if address.is_tls else None
        self._idle: deque[Connection] = deque()
        self._all: set[Connection] = set()

    async def take(self) -> Connection:
        """Return a connection that was kept, or a new one.

        Raises:
            OSError: if the server cannot be reached.
        """
        oldest = time.monotonic() - KEEP_ALIVE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable and connection.idle_since > oldest:
                return connection
            self.drop(connection)
        loop, address = asyncio.get_running_loop(), self._address
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(address), address.host, address.port, ssl=self._tls
                )
        except TimeoutError as error:
            raise NotReached(f"no connection within {self._connect_s:g} s") from error
        self._all.add(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection whose answer was read to its end, cut any other."""
        connection.done()
        if not connection.is_reusable:
            self.drop(connection)
            return
        now = connection.idle_since = time.monotonic()
        self._idle.append(connection)
        while self._idle[0].idle_since < now - KEEP_ALIVE_S:
            self.drop(self._idle.popleft())

    def drop(self, connection: Connection) -> None:
        """Cut a connection."""
        self._all.discard(connection)
        connection.abort()

    async def close(self) -> None:
        """Cut all connections; whoever waits for an answer has none."""
        for connection in [*self._all]:
            self.drop(connection)
        self._idle.clear()
        # A transport closes its socket in the loop's next rounds.
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def _one_line(text: str) -> str:
    """Return text that cannot end a header."""
    return text.replace("\r", " ").replace("\n", " ") if "\r" in text or "\n" in text else text
