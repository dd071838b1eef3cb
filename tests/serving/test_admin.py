"""Proves that only the admin key changes the table, and that every refusal has its own shape.

The app is called in this process; behind it are a real HTTP client and a stub engine.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from slot_tables import name_of, simple, versions_on
from stub_engine import StubEngine, stub_engine

from serving.access import Keys, KeysInvalid
from serving.admin import MAX_BODY_BYTES, create_admin
from serving.slot_table import SlotFile, read_slot_file
from serving.versions import Versions

KEY = "a-key-of-the-admin-of-this-test"
A, B = name_of(1), name_of(2)


@contextlib.asynccontextmanager
async def admin_of(
    home: Path, stub: StubEngine, key: str | None = KEY
) -> AsyncIterator[tuple[httpx.AsyncClient, Versions]]:
    headers = {"authorization": f"Bearer {key}"} if key is not None else {}
    async with versions_on(home, stub) as versions:
        await versions.apply(simple(home, 1))
        app = create_admin(versions, home / "slots.json", Keys((KEY,)))
        # What the app raises is logged by its server; here only the answer counts.
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://admin", headers=headers
        ) as client:
            yield client, versions


def body_of(table: SlotFile) -> dict[str, Any]:
    return table.model_dump(mode="json")


def assert_error(response: httpx.Response, status: int, code: str, *words: str) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code
    assert error["request_id"] == response.headers["x-request-id"]
    assert "Traceback" not in response.text
    for word in words:
        assert word in error["message"]


def test_the_table_is_read_and_put(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with admin_of(tmp_path, stub) as (client, versions):
            got = await client.get("/slots")
            assert got.json() == body_of(versions.table)
            wanted = simple(tmp_path, 2, generation=1)
            put = await client.put("/slots", json=body_of(wanted))
            assert (put.status_code, put.json()) == (200, body_of(wanted))
            assert versions.table == read_slot_file(tmp_path / "slots.json") == wanted
            assert versions.lease("c").names["L2"] == B

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


@pytest.mark.parametrize("key", [None, "", "wrong", KEY + "x", KEY[:-1], "ü" * 20])
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/slots"), ("PUT", "/slots"), ("GET", "/versions"), ("GET", "/health")],
)
def test_nothing_is_told_or_done_without_the_key(
    tmp_path: Path, method: str, path: str, key: str | None
) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with admin_of(tmp_path, stub, None) as (client, versions):
            sent = {} if key is None else {"authorization": f"Bearer {key}".encode()}
            wanted = body_of(simple(tmp_path, 2, generation=1))
            response = await client.request(method, path, json=wanted, headers=sent)
            assert_error(response, 401, "invalid_api_key")
            assert response.headers["www-authenticate"] == "Bearer"
            assert "L2" not in response.text
            assert versions.table == simple(tmp_path, 1)

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_there_is_no_admin_without_a_key() -> None:
    with pytest.raises(KeysInvalid, match="admin"):
        create_admin(Versions(None, Path()), Path(), Keys())  # type: ignore[arg-type]


def test_a_table_made_from_an_older_one_is_a_conflict(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with admin_of(tmp_path, stub) as (client, versions):
            stale = body_of(simple(tmp_path, 2, generation=0))
            response = await client.put("/slots", json=stale)
            assert_error(response, 409, "stale_generation", "'L2'", "generation 0")
            assert versions.table == simple(tmp_path, 1)
            assert not (tmp_path / "slots.json").exists()
            first, second = await asyncio.gather(
                *(
                    client.put("/slots", json=body_of(simple(tmp_path, n, generation=1)))
                    for n in (2, 3)
                )
            )
            assert sorted((first.status_code, second.status_code)) == [200, 409]

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_a_version_that_cannot_serve_is_refused_with_the_reason(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        stub.load_status = {B: 500}
        async with admin_of(tmp_path, stub) as (client, versions):
            wanted = body_of(simple(tmp_path, 2, generation=1))
            response = await client.put("/slots", json=wanted)
            assert_error(response, 422, "version_refused", B, "failed")
            assert versions.table == simple(tmp_path, 1)
            assert not (tmp_path / "slots.json").exists()

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"\xff\xfe",
        b"[" * 50_000,
        b'{"slots": [{"slot": "../../etc"}]}',
        b'{"slots": [{"slot": "L2", "champion": "L2@' + b"a" * 12 + b'", "digest": "sha256:'
        + b"a" * 64 + b'", "path": "/etc"}]}',
        b'{"slots": [], "extra": 1}',
    ],
    ids=range(8),
)  # fmt: skip
def test_what_is_no_table_is_a_clear_400(tmp_path: Path, content: bytes) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with admin_of(tmp_path, stub) as (client, versions):
            response = await client.put("/slots", content=content)
            assert_error(response, 400, "invalid_table", "The body")
            assert versions.table == simple(tmp_path, 1)

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_too_long_is_refused(tmp_path: Path, declared: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 65536 + 1):
            yield b" " * 65536

    async def scenario(stub: StubEngine) -> None:
        async with admin_of(tmp_path, stub) as (client, _):
            content = b" " * (MAX_BODY_BYTES + 1) if declared else pieces()
            response = await client.put("/slots", content=content)
            assert_error(response, 413, "request_too_large")

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_a_table_that_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with admin_of(tmp_path, stub) as (client, versions):
            (tmp_path / "slots.json").mkdir()
            wanted = body_of(simple(tmp_path, 2, generation=1))
            response = await client.put("/slots", json=wanted)
            assert_error(response, 507, "disk_full")
            assert versions.table == simple(tmp_path, 1)

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_a_defect_shows_no_trace(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with admin_of(tmp_path, stub) as (client, versions):
            versions.missing = {"L4": object()}  # type: ignore[dict-item]
            response = await client.get("/health", headers={"x-request-id": "asked-7"})
            assert_error(response, 500, "internal_error")
            assert response.headers["x-request-id"] == "asked-7"
            assert "object" not in response.text

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/slots", 405), ("DELETE", "/slots", 405), ("GET", "/nothing", 404)],
)
def test_other_endpoints_are_refused_in_the_same_shape(
    tmp_path: Path, method: str, path: str, status: int
) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with admin_of(tmp_path, stub) as (client, _):
            assert_error(await client.request(method, path), status, "invalid_request")

    with stub_engine() as stub:
        asyncio.run(scenario(stub))


def test_versions_and_health_say_what_drains_and_what_is_wrong(tmp_path: Path) -> None:
    async def scenario(stub: StubEngine) -> None:
        async with admin_of(tmp_path, stub) as (client, versions):
            with versions.lease("c") as lease:
                lease.hold("turn")
                await versions.apply(simple(tmp_path, 2))
                said = (await client.get("/versions")).json()
            rows = {(row["state"], row["name"]): row["leases"] for row in said["versions"]}
            assert rows == {("serves", "base"): 0, ("serves", B): 0, ("drains", A): 2}
            assert said["held_turns"] == 1
            versions.file_error = "the file is broken"
            health = await client.get("/health")
            assert health.status_code == 200
            assert health.json() == {
                "ready": True, "missing": {}, "last_error": "the file is broken",
                "verified": False,
            }  # fmt: skip
            versions.ready = False
            assert (await client.get("/health")).status_code == 503
            assert json.loads((await client.get("/slots")).text)["slots"]

    with stub_engine() as stub:
        asyncio.run(scenario(stub))
