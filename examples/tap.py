"""An HTTP server that passes everything on to another and notes what goes by.

    async with Tap("http://127.0.0.1:8000").running() as tap:
        ... ask tap.url ...
        tap.exchanges

Secrets stay out: of the headers only those that say what a call is for are kept.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from serving.child import HOST

HEADERS = ("content-type", "x-smg-routing-key", "x-mol-internal-hop", "user-agent")
ANSWER_HEADERS = ("content-type", "x-mol-adapter")


@dataclass
class Exchange:
    """One request and its answer."""

    method: str
    path: str
    headers: dict[str, str]
    request: Any
    """The JSON body."""
    status: int = 0
    answer_headers: dict[str, str] = field(default_factory=dict)
    answer: str = ""
    """The body as it came."""
    abandoned: bool = False
    """The client left before it had all."""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


class Tap:
    """The server; it runs in the loop that enters it."""

    def __init__(self, upstream: str) -> None:
        self.url = ""
        self.exchanges: list[Exchange] = []
        self._upstream = upstream
        self._session: aiohttp.ClientSession | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Tap"]:
        """Serve while the block runs."""
        application = web.Application(client_max_size=1 << 26)
        application.router.add_route("*", "/{path:.*}", self._pass_on)
        runner = web.AppRunner(application, handler_cancellation=True, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, HOST, 0).start()
        self.url = f"http://{HOST}:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession(auto_decompress=False) as self._session:
            try:
                yield self
            finally:
                await runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        exchange = Exchange(
            request.method,
            request.path,
            {n: request.headers[n] for n in HEADERS if n in request.headers},
            json.loads(body) if body else None,
        )
        self.exchanges.append(exchange)
        kept = {n: v for n, v in request.headers.items() if n.lower() not in ("host", "connection")}
        assert self._session is not None
        answered: list[bytes] = []
        try:
            async with self._session.request(
                request.method, self._upstream + request.path_qs, data=body, headers=kept
            ) as answer:
                exchange.status = answer.status
                exchange.answer_headers = {
                    n: answer.headers[n] for n in ANSWER_HEADERS if n in answer.headers
                }
                dropped = ("transfer-encoding", "connection", "date", "server")
                response = web.StreamResponse(
                    status=answer.status,
                    headers={n: v for n, v in answer.headers.items() if n.lower() not in dropped},
                )
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    answered.append(piece)
                    await response.write(piece)
                await response.write_eof()
                return response
        except (asyncio.CancelledError, ConnectionResetError):
            exchange.abandoned = True
            raise
        finally:
            exchange.answer = b"".join(answered).decode()
