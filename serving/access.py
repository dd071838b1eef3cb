"""Who may ask, how much, and for how long: keys, bodies, queue, and clients that leave.

Small parts that every endpoint of the public app goes through, in this order.
"""

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import math
import os
import re
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from starlette.datastructures import Headers
from starlette.types import Receive

from serving.config import LimitsConfig
from serving.errors import MolError
from serving.exchange import RequestInvalid

KEYS, KEYS_FILE = "MOL_API_KEYS", "MOL_API_KEYS_FILE"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class KeysInvalid(MolError, ValueError):
    """The API keys cannot be read, or are too short to be secret."""


class ClientLeft(Exception):
    """The client closed the connection before it had its answer."""


class Keys:
    """The API keys in force; without any, everybody on the loopback may ask."""

    def __init__(self, keys: tuple[str, ...] = ()) -> None:
        """Take the keys.

        Raises:
            KeysInvalid: if one is shorter than 16 characters.
        """
        if any(len(key) < 16 for key in keys):
            raise KeysInvalid(
                "An API key or the admin key has fewer than 16 characters. Make one with "
                "'openssl rand -hex 24'."
            )
        self._keys = tuple(key.encode() for key in keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Keys":
        """Read the keys, separated by commas or line ends, from a variable or a file it names.

        Raises:
            KeysInvalid: if the file cannot be read or a key is too short.
        """
        text = environment.get(KEYS, "")
        if path := environment.get(KEYS_FILE):
            try:
                text += "\n" + Path(path).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise KeysInvalid(f"Cannot read {KEYS_FILE}={path!r}: {error}.") from error
        return cls(tuple(key for key in re.split(r"[,\s]+", text) if key))

    def caller(self, headers: Headers) -> str:
        """Return a name for the holder of the request's key that does not tell the key.

        Raises:
            RequestInvalid: (401) without a key that is in force; (403) where no key is needed
                and the request names another host than this machine.
        """
        if not self._keys:
            _check_host(headers.get("host", ""))
            return ""
        scheme, _, said = headers.get("authorization", "").partition(" ")
        given = said if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # All are compared, so that the time tells nothing about which one came close.
        # Latin-1 gives back the bytes that were sent.
        matches = [hmac.compare_digest(given.strip().encode("latin-1"), k) for k in self._keys]
        if not any(matches):
            raise RequestInvalid(
                "No valid API key; send one as 'Authorization: Bearer ...'.",
                code="invalid_api_key", status=401,
            )  # fmt: skip
        return hashlib.sha256(self._keys[matches.index(True)]).hexdigest()[:12]


def is_loopback(host: str) -> bool:
    """Say whether a name or an address is that of this machine to itself."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def request_id_of(headers: Headers) -> str:
    """Return the client's own request id where it is a plain word, else a new one."""
    said = headers.get("x-request-id", "")
    return said if _REQUEST_ID.fullmatch(said) else uuid4().hex


async def read_body(receive: Receive, headers: Headers, limit_bytes: int, limit_s: float) -> bytes:
    """Read a request's body.

    Raises:
        RequestInvalid: (413) if it is too long, (408) if it takes too long.
        ClientLeft: if the client leaves meanwhile.
    """
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit_bytes:
        raise _too_long(limit_bytes)
    parts, size = [], 0
    try:
        async with asyncio.timeout(limit_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeft
                part = message.get("body", b"")
                size += len(part)
                if size > limit_bytes:
                    raise _too_long(limit_bytes)
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError as error:
        raise RequestInvalid(
            f"The request's body was not here after {limit_s:g} s.",
            code="request_timeout", status=408,
        ) from error  # fmt: skip


async def drain(receive: Receive, limit_bytes: int, limit_s: float) -> None:
    """Take what a client still sends after it was refused.

    A connection that is closed with bytes unread is reset, and the client never gets to read
    why.
    """
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while size <= limit_bytes:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
                size += len(message.get("body", b""))


async def until_client_leaves(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, cancelled as soon as the client is gone.

    Raises:
        ClientLeft: if it left; `work` has ended by then.
    """
    task = asyncio.ensure_future(work)
    left = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft
        task.result()
    finally:
        left.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Admission:
    """So many requests at once, so many waiting, the rest sent away at once."""

    def __init__(self, limits: LimitsConfig) -> None:
        self._limits = limits
        self._waiters: dict[asyncio.Future[None], None] = {}
        self.running = 0
        self._usual_s = 0.1

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiters)

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place and hold it.

        Raises:
            RequestInvalid: (429) if the queue is full or the wait too long.
        """
        # Whoever leaves hands the place over, so as long as one is free nobody waits for it.
        if self.running >= self._limits.max_running:
            await self._wait()
        else:
            self.running += 1
        started = time.monotonic()
        try:
            yield
        finally:
            self._usual_s += 0.1 * (time.monotonic() - started - self._usual_s)
            self._leave()

    async def _wait(self) -> None:
        if self.waiting >= self._limits.max_waiting:
            raise self._full("The queue is full")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[turn] = None
        try:
            async with asyncio.timeout(self._limits.max_wait_s):
                await turn
        except TimeoutError as error:
            if not _is_given(turn):  # else it came free at the last moment
                raise self._full(f"No place came free in {self._limits.max_wait_s:g} s") from error
        except asyncio.CancelledError:
            if _is_given(turn):
                self._leave()
            raise
        finally:
            self._waiters.pop(turn, None)

    def _leave(self) -> None:
        """Hand the place to whoever waits longest, or free it."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
                return
        self.running -= 1

    def _full(self, why: str) -> RequestInvalid:
        behind = self._usual_s * (self.waiting + 1) / self._limits.max_running
        return RequestInvalid(
            f"{why}: {self.running} requests run and {self.waiting} wait; try again later.",
            code="overloaded", status=429, retry_after_s=min(60, max(1, math.ceil(behind))),
        )  # fmt: skip


def _is_given(turn: asyncio.Future[None]) -> bool:
    return turn.done() and not turn.cancelled()


def _check_host(host: str) -> None:
    """Refuse a request that a page in a browser made under a name that now leads here.

    Source: DNS rebinding (Jackson et al. 2007). To the browser such a page has our origin, so
    that only the name it asks for gives it away.
    """
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if host and not is_loopback(name.lower()):
        raise RequestInvalid(
            f"The host {host[:80]!r} is not the loopback; ask '127.0.0.1' or 'localhost', or let "
            f"the server need API keys ({KEYS}).",
            code="host_not_allowed", status=403,
        )  # fmt: skip


def _too_long(limit_bytes: int) -> RequestInvalid:
    return RequestInvalid(
        f"The request's body is longer than {limit_bytes} bytes.",
        code="request_too_large", status=413,
    )  # fmt: skip
