"""A request on its way through the public app: keys before the work, errors after it.

Whatever goes wrong, the client gets the error shape of the protocol it asked in, with a
request id and nothing of addresses, paths or traces; those go to the log.
"""

import logging
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from serving.access import (
    Admission,
    ClientLeft,
    Keys,
    drain,
    read_body,
    request_id_of,
)
from serving.config import LimitsConfig, ServeConfig
from serving.errors import BrokenAnswer, EngineRefused, EngineUnavailable, MolError
from serving.exchange import RequestInvalid
from serving.full_turns import Caller, FullTurns
from serving.hop_role import KEY_HEADER
from serving.hops import TurnFailed
from serving.loading import VersionRefused
from serving.metrics import Metrics
from serving.passthrough import SESSION_HEADER, Passthrough
from serving.protocols.events import encode
from serving.protocols.refusals import check_depth
from serving.recorder import Recorder
from serving.versions import Versions

MAX_SESSION = 256
"""Characters of a session's name that count."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Services:
    """What the app is made of."""

    config: ServeConfig
    keys: Keys
    versions: Versions
    full_turns: FullTurns
    passthrough: Passthrough
    recorder: Recorder
    metrics: Metrics
    admission: Admission
    healthy: Callable[[], Awaitable[bool]]
    """Whether at least one replica of the engine answers."""

    def recording(self) -> dict[str, Any]:
        """Return what became of the records so far; of the disk's errors without the path."""
        stats = self.recorder.stats()
        error = stats.last_error
        return {
            "recorded": stats.recorded,
            "dropped": dict(stats.dropped),
            "queued": stats.queued,
            "last_error": error and error.partition(":")[0],
        }


@dataclass(slots=True)
class Request:
    """One request on its way through the app."""

    scope: Scope
    receive: Receive
    send: Send
    headers: Headers
    request_id: str
    caller: Caller = field(default_factory=Caller)
    status: int = 0
    """Of the answer; 0 until it has begun."""

    async def watched_send(self, message: Any) -> None:
        """Send, and note the status."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self.send(message)

    async def body(self, config: ServeConfig) -> Any:
        """Return the JSON value of the body.

        Raises:
            RequestInvalid: if it is too long, too slow, not JSON or not said to be.
            ClientLeft: if the client leaves meanwhile.
        """
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # Also what keeps a page in a browser from asking: for JSON it needs our consent.
            raise RequestInvalid(
                f"The content type is {kind[:80]!r}; send 'application/json'.",
                code="unsupported_media_type", status=415,
            )  # fmt: skip
        limits, timeouts = config.limits, config.timeouts
        raw = await read_body(self.receive, self.headers, limits.max_body_bytes, timeouts.body_s)
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise RequestInvalid(
                f"The body is not JSON: {error.msg} at character {error.pos}.", code="invalid_json"
            ) from None
        check_depth(raw, value)
        return value

    async def json(self, value: Any, status: int = 200, more: dict[str, str] | None = None) -> None:
        """Answer with a JSON value."""
        await self.bytes(encode(value), "application/json", status, more)

    async def start_stream(self, first: bytes) -> None:
        """Begin a stream of server-sent events."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-request-id", self.request_id.encode()),
        ]
        await self.watched_send({"type": "http.response.start", "status": 200, "headers": headers})
        await self.stream(first)

    async def stream(self, events: bytes) -> None:
        """Send what comes next."""
        if events:
            await self.send({"type": "http.response.body", "body": events, "more_body": True})

    async def close(self, body: bytes, status: int, limits: LimitsConfig, limit_s: float) -> None:
        """Refuse a body that has not been read to its end, then close the connection."""
        headers = self._head(len(body), "application/json") | {"connection": "close"}
        await self._start(status, headers)
        await self.stream(body)
        if "expect" not in self.headers:  # else the client asked before it sent the body
            await drain(self.receive, 16 * limits.max_body_bytes, limit_s)
        await self.end_stream(b"")

    async def end_stream(self, events: bytes) -> None:
        """Send the last events."""
        await self.send({"type": "http.response.body", "body": events})

    async def bytes(
        self, body: bytes, kind: str, status: int = 200, more: dict[str, str] | None = None
    ) -> None:
        """Answer with a whole body."""
        await self._start(status, self._head(len(body), kind) | (more or {}))
        await self.send({"type": "http.response.body", "body": body})

    def _head(self, length: int, kind: str) -> dict[str, str]:
        return {
            "content-type": kind,
            "content-length": str(length),
            "x-request-id": self.request_id,
        }

    async def _start(self, status: int, headers: dict[str, str]) -> None:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.watched_send({"type": "http.response.start", "status": status, "headers": raw})


Handle = Callable[[Services, Request], Awaitable[None]]


class Endpoint:
    """An ASGI app around a handler: keys before it, errors after it, in one protocol's shape."""

    def __init__(
        self, services: Services, path: str, handle: Handle, protocol: ModuleType,
        *, is_open: bool = False,
    ) -> None:  # fmt: skip
        self._services = services
        self._path = path
        self._handle = handle
        self._protocol = protocol
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = Headers(scope=scope)
        request = Request(scope, receive, send, headers, request_id_of(headers))
        started = time.monotonic()
        try:
            if not self._is_open:
                name = self._services.keys.caller(headers)
                session = (headers.get(KEY_HEADER) or headers.get(SESSION_HEADER) or "")[
                    :MAX_SESSION
                ]
                request.caller = Caller(name, session)
            await self._handle(self._services, request)
        except ClientLeft:
            request.status = request.status or 499
        except Exception as problem:
            await self._refuse(request, refusal_for(problem, request.request_id))
        finally:
            took_s = time.monotonic() - started
            self._services.metrics.request(self._path, request.status, took_s)

    async def _refuse(self, request: Request, problem: RequestInvalid) -> None:
        if request.status:
            return  # An answer has begun; whoever began it has said what went wrong.
        more = {}
        if problem.retry_after_s is not None:
            more["retry-after"] = str(problem.retry_after_s)
        if problem.status == 401:
            more["www-authenticate"] = "Bearer"
        body = self._protocol.error_body(problem, request.request_id)
        if problem.status in (408, 413):
            limits, timeouts = self._services.config.limits, self._services.config.timeouts
            limit_s = timeouts.body_s if problem.status == 413 else 0.0
            await request.close(orjson.dumps(body), problem.status, limits, limit_s)
        else:
            await request.json(body, problem.status, more)


def refusal_for(problem: Exception, request_id: str) -> RequestInvalid:
    """Return what a client is told about an error: nothing of addresses, paths or traces."""
    if isinstance(problem, RequestInvalid):
        return problem
    cause = problem.__cause__ if isinstance(problem, TurnFailed) else problem
    if isinstance(cause, EngineRefused) and cause.status in (400, 413, 422):
        detail = cause.detail or "no reason given"
        return RequestInvalid(f"The engine refused the request: {detail}", code="engine_refused")
    _log.warning("Request %s failed: %s", request_id, _told(problem))
    if isinstance(cause, EngineRefused) and cause.status == 429:
        return RequestInvalid(
            "The engine is overloaded; try again later.",
            code="overloaded", status=429, retry_after_s=1,
        )  # fmt: skip
    if isinstance(cause, EngineUnavailable) and cause.timed_out:
        return RequestInvalid(
            "The engine did not answer in time.", code="engine_timeout", status=504,
            retry_after_s=1,
        )  # fmt: skip
    if isinstance(cause, BrokenAnswer):
        return RequestInvalid(
            "The engine broke off its answer; ask again.", code="engine_broke_off", status=502
        )
    if isinstance(cause, EngineUnavailable):
        return RequestInvalid(
            "The engine does not answer.", code="engine_unavailable", status=503, retry_after_s=1
        )
    lost = isinstance(cause, EngineRefused) and cause.status == 404
    if lost or isinstance(cause, VersionRefused):
        return RequestInvalid(
            "The adapter that is to answer is not there, or not proved; try again later.",
            code="not_ready", status=503, retry_after_s=1,
        )  # fmt: skip
    if isinstance(problem, TurnFailed | MolError):
        return RequestInvalid(
            "The engine answered, but not so that the turn could go on.",
            code="engine_failed", status=502,
        )  # fmt: skip
    _log.error("Request %s: %s", request_id, "".join(traceback.format_exception(problem)))
    return RequestInvalid("An error of the server's own.", code="internal_error", status=500)


def _told(problem: Exception) -> str:
    return problem.turn.error or "" if isinstance(problem, TurnFailed) else str(problem)
