"""Proves how the HTTP client reads what servers send, byte by byte if need be.

The servers are bare sockets on the loopback that send prepared bytes.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from serving.child import HOST, free_port
from serving.wire import Address, AnswerCut, Pool

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n"
)
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"
INTERIM = b"HTTP/1.1 100 Continue\r\nX-Not: this\r\n\r\n" + LENGTH

Use = Callable[[Pool, list[bytes]], Awaitable[None]]


def serve(answer: bytes, use: Use, *, step: int = 1 << 20, cut: bool = False) -> list[bytes]:
    """Answer each request with the same bytes, `step` at a time; return the requests."""
    asked: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                asked.append(head)
                for n in range(0, len(answer), step):
                    writer.write(answer[n : n + step])
                    await writer.drain()
                    await asyncio.sleep(0)
                if cut:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(handle, HOST, 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            pool = Pool(Address.of(f"http://{HOST}:{port}/under"), 5.0)
            async with asyncio.timeout(20):
                await use(pool, asked)
            await pool.close()

    asyncio.run(run())
    return asked


async def fetch(pool: Pool, limit_s: float = 10.0, idle_s: float = 10.0) -> tuple[int, bytes]:
    connection = await pool.take()
    try:
        connection.ask("GET", "/x", {"A": "b"}, None, limit_s)
        status, body = await connection.head(), b""
        while piece := await connection.piece(idle_s):
            body += piece
    finally:
        pool.give_back(connection)
    return status, body


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize("answer", [LENGTH, CHUNKED, UNTIL_CLOSED, INTERIM])
def test_an_answer_is_read_to_its_end_however_it_comes(answer: bytes, step: int) -> None:
    async def use(pool: Pool, asked: list[bytes]) -> None:
        assert await fetch(pool) == (200, b"hello")
        assert await fetch(pool) == (200, b"hello")

    asked = serve(answer, use, step=step, cut=answer is UNTIL_CLOSED)

    assert [one.split(b"\r\n")[0] for one in asked] == [b"GET /under/x HTTP/1.1"] * 2


@pytest.mark.parametrize(
    "answer",
    [
        LENGTH[:-1],
        CHUNKED[:-5],
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"SSH-2.0-OpenSSH_9.9\r\n",
    ],
)
def test_an_answer_that_is_cut_or_is_none_is_an_error(answer: bytes) -> None:
    async def use(pool: Pool, asked: list[bytes]) -> None:
        with pytest.raises(AnswerCut):
            await fetch(pool)

    serve(answer, use, cut=True)


def test_what_comes_after_the_answer_is_never_taken_for_the_next_one() -> None:
    async def use(pool: Pool, asked: list[bytes]) -> None:
        for _ in range(3):
            assert await fetch(pool) == (200, b"hello")
            await asyncio.sleep(0.01)

    assert len(serve(LENGTH + b"HTTP/1.1 500 No\r\n\r\n", use)) == 3


def test_a_header_cannot_be_smuggled_in() -> None:
    async def use(pool: Pool, asked: list[bytes]) -> None:
        connection = await pool.take()
        connection.ask("GET", "/x", {"A": "b\r\nC: d"}, None, 10.0)
        assert await connection.head() == 200
        pool.drop(connection)

    [asked] = serve(LENGTH, use)

    assert b"\r\nC:" not in asked


def test_time_outs_are_told_from_what_was_cut() -> None:
    async def use(pool: Pool, asked: list[bytes]) -> None:
        with pytest.raises(TimeoutError):
            await fetch(pool, idle_s=0.05)
        with pytest.raises(TimeoutError):
            await fetch(pool, limit_s=0.05)

    serve(LENGTH[:-1], use)


def test_a_server_waits_for_a_reader_that_is_slow() -> None:
    size = 64 << 20

    async def run() -> None:
        sent = 0

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
            while sent < size:
                writer.write(bytes(1 << 16))
                await writer.drain()
                sent += 1 << 16
            writer.close()

        async with await asyncio.start_server(handle, HOST, 0) as server, asyncio.timeout(60):
            port = server.sockets[0].getsockname()[1]
            pool = Pool(Address.of(f"http://{HOST}:{port}"), 5.0)
            connection = await pool.take()
            connection.ask("GET", "/", {}, None, 60.0)
            await connection.head()
            before = -1
            while before != sent:
                before = sent
                await asyncio.sleep(0.1)
            assert sent < size // 2
            got = 0
            while piece := await connection.piece(10.0):
                got += len(piece)
            assert got == size
            await pool.close()

    asyncio.run(run())


def test_a_server_that_is_not_there_is_an_os_error() -> None:
    async def run() -> None:
        with pytest.raises(OSError):  # noqa: PT011
            await Pool(Address.of(f"http://{HOST}:{free_port()}"), 5.0).take()

    asyncio.run(run())


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://h", "http://", "http://u:p@h", "http://h:x"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Address.of(url)
