"""The OTLP/HTTP endpoint: existing exporters send their traces and logs here.

    POST /v1/traces, /v1/logs    protobuf or JSON, plain or gzip

Each request becomes one line of OTLP JSON in a segment under `<home>/otlp`, on the disk before
the answer says 200: what an exporter was told is taken outlives the machine, and what it was not
told it sends again. `flows run ingest` reads the segments, also while they grow; records sent
twice are one there. Requests that come together share one fsync. Source: OTLP 1.10, "OTLP/HTTP".
"""

import asyncio
import contextlib
import logging
import threading
from collections import deque
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from serving.access import ClientLeft, Keys, drain, read_body
from serving.config import OtlpConfig
from serving.exchange import RequestInvalid
from serving.otlp_bodies import (
    JSON,
    PROTOBUF,
    Signal,
    accept,
    failure,
    media_type,
    success,
    unpacked,
)
from serving.segments import Segments

MAX_LINE_BYTES = 32 << 20
"""Ingest cuts lines of twice that."""
_BATCH_BYTES = 32 << 20
_RETRY_S = 2
_log = logging.getLogger(__name__)


class Journal:
    """Lines that are on the disk once `append` has returned; a thread writes and syncs them."""

    def __init__(self, folder: Path, config: OtlpConfig) -> None:
        self._segments = Segments(folder, config.segment_bytes, config.segment_s)
        self._waiting: deque[tuple[bytes, asyncio.AbstractEventLoop, asyncio.Future[None]]] = (
            deque()
        )
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp-journal", daemon=True)

    def start(self) -> None:
        """Start the writer."""
        self._thread.start()

    async def append(self, line: bytes) -> None:
        """Store a line.

        Raises:
            OSError: if the disk does not take it, or the journal is closed.
        """
        if self._stop.is_set():
            raise OSError("the journal is closed")
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[None] = loop.create_future()
        self._waiting.append((line, loop, stored))
        self._wake.set()
        await stored

    def close(self, timeout_s: float = 10.0) -> None:
        """Store what waits, and stop."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            self._wake.wait(self._segments.expires_in_s())
            self._wake.clear()
            while self._waiting:
                self._store()
            self._segments.close_expired()
            if self._stop.is_set() and not self._waiting:
                self._segments.close()
                return

    def _store(self) -> None:
        """Write what waits together, sync it once, and tell everyone."""
        batch, size = [], 0
        while self._waiting and size < _BATCH_BYTES:
            batch.append(self._waiting.popleft())
            size += len(batch[-1][0])
        _, error = self._segments.write([line for line, _, _ in batch])
        error = error or self._segments.sync()
        # After an error nobody knows what is on the disk: all of them send again.
        for _, loop, stored in batch:
            with contextlib.suppress(RuntimeError):  # its loop is gone: nobody waits any more
                loop.call_soon_threadsafe(_settle, stored, error)
        if error is not None:
            _log.error("OTLP data cannot be kept: %s: %s", error.strerror or error, error.filename)


def create_otlp(journal: Journal, keys: Keys, config: OtlpConfig, body_s: float) -> Starlette:
    """Return the app."""
    running = 0
    limit = config.max_body_bytes

    async def export(request: Request, signal: Signal) -> Response:
        nonlocal running
        running += 1
        packed = None
        kind = PROTOBUF if PROTOBUF in request.headers.get("content-type", "") else JSON
        try:
            if running > config.max_waiting:
                raise _busy(running - 1)
            keys.caller(request.headers)
            kind = media_type(request.headers.get("content-type", ""))
            packed = await read_body(request.receive, request.headers, limit, body_s)
            return Response(await store(request, signal, kind, packed), media_type=kind)
        except RequestInvalid as refusal:
            left = 0 if packed is not None else 16 * limit
            return _Refusal(refusal, kind, left, body_s)
        except ClientLeft:
            return Response(status_code=400)
        finally:
            running -= 1

    async def store(request: Request, signal: Signal, kind: str, packed: bytes) -> bytes:
        encoding = request.headers.get("content-encoding", "")

        def work() -> tuple[bytes, bytes]:
            accepted = accept(signal, unpacked(packed, encoding, limit), kind, MAX_LINE_BYTES)
            return accepted.line, success(signal, kind, accepted)

        line, answer = await asyncio.to_thread(work)
        if line:
            try:
                await journal.append(line)
            except OSError as error:
                raise RequestInvalid(
                    f"The data cannot be kept: {error.strerror or error}; send it again later.",
                    code="disk", status=503, retry_after_s=_RETRY_S,
                ) from error  # fmt: skip
        return answer

    async def traces(request: Request) -> Response:
        return await export(request, "traces")

    async def logs(request: Request) -> Response:
        return await export(request, "logs")

    return Starlette(
        routes=[
            Route("/v1/traces", traces, methods=["POST"]),
            Route("/v1/logs", logs, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _no_endpoint},
    )


def _busy(running: int) -> RequestInvalid:
    return RequestInvalid(
        f"{running} requests are being stored; send it again later.",
        code="overloaded", status=429, retry_after_s=_RETRY_S,
    )  # fmt: skip


class _Refusal(Response):
    """Says no; of a body not read yet it takes the rest, so that the client gets to hear it."""

    def __init__(self, refusal: RequestInvalid, kind: str, left_bytes: int, limit_s: float) -> None:
        headers = {"connection": "close"} if left_bytes else {}
        if refusal.retry_after_s is not None:
            headers["retry-after"] = str(refusal.retry_after_s)
        if refusal.status == 401:
            headers["www-authenticate"] = "Bearer"
        super().__init__(failure(kind, str(refusal)), refusal.status, headers, media_type=kind)
        self._left_bytes, self._limit_s = left_bytes, limit_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._left_bytes or "expect" in Headers(scope=scope):
            await super().__call__(scope, receive, send)
            return
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        await drain(receive, self._left_bytes, self._limit_s)
        await send({"type": "http.response.body", "body": b""})


async def _no_endpoint(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}. Only traces and logs are kept."
    return Response(failure(JSON, message), error.status_code, error.headers, media_type=JSON)


def _settle(stored: asyncio.Future[None], error: OSError | None) -> None:
    if stored.cancelled():
        return
    if error is None:
        stored.set_result(None)
    else:
        stored.set_exception(error)
