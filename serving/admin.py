"""The admin API: look at the slot table in force, and put another one in its place.

A Starlette app for a port of its own on the loopback. Every request needs the admin key.

    GET /slots       the table in force
    PUT /slots       a table made from it, each changed slot at a higher generation
    GET /versions    what serves and what still drains, with its leases
    GET /health      whether a table is in force, and what is wrong with the file
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.access import ClientLeft, Keys, KeysInvalid, read_body, request_id_of
from serving.disk import DiskFull
from serving.errors import MolError
from serving.exchange import RequestInvalid
from serving.head import HeadInvalid
from serving.loading import VersionRefused
from serving.slot_table import SlotTableInvalid, StaleTable, parse_slot_file
from serving.versions import Versions

MAX_BODY_BYTES = 1 << 20
BODY_S = 30.0

_STATUS: tuple[tuple[type[MolError], int, str], ...] = (
    (SlotTableInvalid, 400, "invalid_table"),
    (StaleTable, 409, "stale_generation"),
    (VersionRefused, 422, "version_refused"),
    (HeadInvalid, 422, "version_refused"),
    (DiskFull, 507, "disk_full"),
)
"""What each refusal is in HTTP."""

Endpoint = Callable[[Request], Awaitable[Response]]


def create_admin(versions: Versions, table_path: Path, keys: Keys) -> Starlette:
    """Return the app; a table that is put goes to `table_path` too.

    Raises:
        KeysInvalid: without a key, as whoever may change the table decides what answers.
    """
    if not keys:
        raise KeysInvalid("The admin API needs a key. Make one with 'openssl rand -hex 24'.")

    def guarded(endpoint: Endpoint) -> Endpoint:
        async def checked(request: Request) -> Response:
            keys.caller(request.headers)
            return await endpoint(request)

        return checked

    async def get_slots(_: Request) -> Response:
        return JSONResponse(versions.table.model_dump(mode="json"))

    async def put_slots(request: Request) -> Response:
        body = await read_body(request.receive, request.headers, MAX_BODY_BYTES, BODY_S)
        table = await versions.put(parse_slot_file(body, "The body"), table_path)
        return JSONResponse(table.model_dump(mode="json"))

    async def get_versions(_: Request) -> Response:
        return JSONResponse({"versions": versions.describe(), "held_turns": versions.held})

    async def health(_: Request) -> Response:
        said = {
            "ready": versions.ready,
            "missing": versions.missing,
            "last_error": versions.last_error,
            "verified": versions.verified,
        }
        return JSONResponse(said, status_code=200 if versions.ready else 503)

    return Starlette(
        routes=[
            Route("/slots", guarded(get_slots), methods=["GET"]),
            Route("/slots", guarded(put_slots), methods=["PUT"]),
            Route("/versions", guarded(get_versions), methods=["GET"]),
            Route("/health", guarded(health), methods=["GET"]),
        ],
        exception_handlers={
            MolError: _refused,
            ClientLeft: _left,
            HTTPException: _no_endpoint,
            Exception: _failed,
        },
    )


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestInvalid):
        return _error(request, error.status, error.code, str(error))
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            return _error(request, status, code, str(error))
    return _error(request, 500, "internal_error", str(error))


async def _left(_: Request, __: Exception) -> Response:
    return Response(status_code=499)


async def _no_endpoint(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(request, error.status_code, "invalid_request", error.detail)


async def _failed(request: Request, _: Exception) -> Response:
    return _error(request, 500, "internal_error", "The server failed; its log says more.")


def _error(request: Request, status: int, code: str, message: str) -> Response:
    request_id = request_id_of(request.headers)
    said: dict[str, Any] = {"message": message, "code": code, "request_id": request_id}
    headers = {"x-request-id": request_id}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse({"error": said}, status_code=status, headers=headers)
