"""The MoL server's public app: full turns under one name, single hops under the slots' names.

    app = create_app(services)      # an ASGI app; `serving.serve` runs it

Every request goes the same way: who asks, a body of bounded size, a place in the queue, the
work (given up when the client leaves), and an answer or an error in the shape of the
protocol that was asked in.
"""

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from serving import feedback
from serving.access import request_id_of, until_client_leaves
from serving.engine import Delta
from serving.exchange import Ask, RequestInvalid
from serving.hop_role import KEY_HEADER
from serving.inbound import Endpoint, Handle, Request, Services, refusal_for
from serving.metrics import CONTENT_TYPE
from serving.protocols import anthropic_messages, chat, responses
from serving.protocols.schema import openapi


def create_app(services: Services) -> Starlette:
    """Return the public app over running services."""

    def route(
        path: str, methods: list[str], handle: Handle, protocol: ModuleType = chat,
        *, is_open: bool = False,
    ) -> BaseRoute:  # fmt: skip
        endpoint = Endpoint(services, path, handle, protocol, is_open=is_open)
        return Route(path, endpoint, methods=methods, include_in_schema=False)

    app = Starlette(
        routes=[
            route("/v1/chat/completions", ["POST"], _chat),
            route("/v1/responses", ["POST"], _turn_in(responses), responses),
            route("/v1/messages", ["POST"], _turn_in(anthropic_messages), anthropic_messages),
            route("/v1/models", ["GET"], _models),
            route("/v1/feedback", ["POST"], _feedback),
            route("/health", ["GET"], _health, is_open=True),
            route("/readiness", ["GET"], _readiness, is_open=True),
            route("/metrics", ["GET"], _metrics),
            route("/openapi.json", ["GET"], _openapi, is_open=True),
            route("/_internal/routing-key", ["DELETE"], _forget_keys),
            route("/_internal/routing-keys", ["DELETE"], _forget_keys),
        ],
        exception_handlers={404: _no_endpoint, 405: _no_endpoint},
    )
    app.router.redirect_slashes = False  # it would redirect to whatever Host was said
    return app


async def _chat(services: Services, request: Request) -> None:
    raw = await request.body(services.config)
    model = raw.get("model") if isinstance(raw, dict) else None
    public = model == services.config.model
    if isinstance(model, str) and not public and services.versions.known(model):
        await _work(services, request, lambda: _pass_on(services, request, model, raw))
    else:
        await _take_turn(services, request, chat, raw)


def _turn_in(protocol: ModuleType) -> Handle:
    async def handle(services: Services, request: Request) -> None:
        await _take_turn(services, request, protocol, await request.body(services.config))

    return handle


async def _work(
    services: Services, request: Request, work: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Do the work when there is a place for it; a client that leaves leaves the queue too."""

    async def placed() -> None:
        async with services.admission.place():
            await work()

    await until_client_leaves(request.receive, placed())


async def _pass_on(services: Services, request: Request, slot: str, raw: dict[str, Any]) -> None:
    send, headers = request.watched_send, request.headers
    try:
        await services.passthrough.pass_on(slot, raw, headers, send, request.request_id)
    except Exception as problem:
        if not request.status:
            raise
        refusal = refusal_for(problem, request.request_id)
        error = chat.error_body(refusal, request.request_id)
        await request.end_stream(b"data: " + orjson.dumps(error) + b"\n\n")


async def _take_turn(services: Services, request: Request, protocol: ModuleType, raw: Any) -> None:
    ask: Ask = protocol.parse(raw)
    if ask.model != services.config.model:
        raise RequestInvalid(
            f"No model {ask.model[:80]!r}; this server has {services.config.model!r}"
            + _and_slots(services, protocol),
            param="model", code="model_not_found", status=404,
        )  # fmt: skip
    await _work(services, request, lambda: _turn(services, request, protocol, ask))


async def _turn(services: Services, request: Request, protocol: ModuleType, ask: Ask) -> None:
    response_id, created_at = protocol.new_response_id(), datetime.now(UTC)
    if not ask.stream:
        reply = await services.full_turns.take(ask, request.caller, response_id, created_at)
        await request.json(protocol.whole(reply, ask))
        return
    writer = protocol.StreamWriter(ask, response_id, created_at)

    async def tell(delta: Delta) -> None:
        if not request.status:
            await request.start_stream(writer.begin())
        await request.stream(writer.delta(delta))

    try:
        reply = await services.full_turns.take(ask, request.caller, response_id, created_at, tell)
    except Exception as problem:
        if not request.status:
            raise
        refusal = refusal_for(problem, request.request_id)
        await request.end_stream(writer.fail(str(refusal), refusal.code, request.request_id))
        return
    if not request.status:
        await request.start_stream(writer.begin())
    await request.end_stream(writer.end(reply))


def _and_slots(services: Services, protocol: ModuleType) -> str:
    slots = ", ".join(entry.slot for entry in services.versions.profile_slots)
    return f", and for single hops {slots}." if protocol is chat and slots else "."


async def _models(services: Services, request: Request) -> None:
    names = [services.config.model, *(e.slot for e in services.versions.profile_slots)]
    data = [{"id": n, "object": "model", "created": 0, "owned_by": "mol"} for n in names]
    await request.json({"object": "list", "data": data})


async def _feedback(services: Services, request: Request) -> None:
    if not services.config.record.enabled:
        raise RequestInvalid(
            "This server records nothing, so it takes no feedback.",
            code="recording_off", status=409,
        )  # fmt: skip
    asked = feedback.parse(await request.body(services.config))
    made = asked.records(datetime.now(UTC))
    if not services.recorder.put(lambda: made):
        raise RequestInvalid(
            "The feedback could not be kept, the recorder's queue is full; send it again.",
            code="overloaded", status=503, retry_after_s=1,
        )  # fmt: skip
    ids = [record.feedback_id for record in made]
    await request.json({"object": "feedback", "ids": ids}, status=202)


async def _health(services: Services, request: Request) -> None:
    await request.json({"status": "ok", "recording": services.recording()})


async def _readiness(services: Services, request: Request) -> None:
    """Say whether a full turn can be had: a slot table is in force and an engine answers."""
    reasons = []
    if not services.versions.ready:
        reasons.append("no slot table is in force yet; the admin API's /health says why")
    if not await services.healthy():
        reasons.append("no replica of the engine answers")
    status = "ready" if not reasons else "not_ready"
    await request.json({"status": status, "reasons": reasons}, 503 if reasons else 200)


async def _metrics(services: Services, request: Request) -> None:
    await request.bytes(services.metrics.render(), CONTENT_TYPE)


async def _openapi(services: Services, request: Request) -> None:
    await request.json(openapi())


async def _forget_keys(services: Services, request: Request) -> None:
    """Take note that turns of the proxy are over, by their conversation keys."""
    keys: Any = [request.headers.get(KEY_HEADER)]
    if keys == [None]:
        raw = await request.body(services.config)
        keys = raw.get("routing_keys") if isinstance(raw, dict) else None
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise RequestInvalid(
                f"Name the keys in {KEY_HEADER!r}, or as a list in 'routing_keys'.",
                param="routing_keys",
            )
    services.passthrough.leases.forget(keys)
    await request.json({"status": "ok"})


async def _no_endpoint(request: StarletteRequest, problem: Exception) -> JSONResponse:
    status = getattr(problem, "status_code", 404)
    # Not `request.url`: that is made with the Host header, which may be anything.
    path = request.scope["path"]
    shown = path[:80]
    why = f"{request.method} is not for {shown!r}" if status == 405 else f"There is no {shown!r}"
    refusal = RequestInvalid(f"{why}; see /openapi.json.", code="no_endpoint", status=status)
    request_id = request_id_of(request.headers)
    protocol: ModuleType = anthropic_messages if path.startswith("/v1/messages") else chat
    headers = {"x-request-id": request_id, **(getattr(problem, "headers", None) or {})}
    return JSONResponse(protocol.error_body(refusal, request_id), status, headers)
