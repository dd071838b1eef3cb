"""Proves what becomes of connections: kept, stale, cut, cancelled, over several event loops.

Servers on the loopback: the stub engine, and bare sockets where it is about single bytes.
"""

import asyncio
import gc
import socket
import threading
from collections.abc import Iterator

import pytest
from stub_engine import Answer, StubEngine, stub_engine

from serving.child import HOST, free_port
from serving.engine import ChatRequest
from serving.errors import BrokenAnswer, EngineRefused, EngineUnavailable
from serving.openai_engine import OpenAIEngine
from serving.records import Message

CHAT = "/v1/chat/completions"
ASK = ChatRequest("base", (Message(role="user", content="Hello"),))
BODY = b'{"model": "base", "messages": [], "stream": true}'
ANSWERED = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture
def stub() -> Iterator[StubEngine]:
    with stub_engine() as stub:
        yield stub


def test_forwarded_bytes_and_headers_are_the_engines_own(stub: StubEngine) -> None:
    stub.default = Answer("One two.", headers={"X-From": "engine"})
    headers = {"Content-Type": "application/json", "X-Session-ID": "c1"}

    async def run() -> tuple[int, str | None, bytes]:
        engine = OpenAIEngine(stub.url)
        async with engine.forward(CHAT, BODY, headers) as answer:
            pieces = [piece async for piece in answer.chunks()]
        await engine.close()
        return answer.status, answer.headers.get("x-from"), b"".join(pieces)

    status, header, raw = asyncio.run(run())

    assert (status, header) == (200, "engine")
    assert raw.startswith(b"data: {")
    assert raw.endswith(b"data: [DONE]\n\n")
    assert stub.chats[0].raw == BODY
    sent = stub.chats[0].headers
    assert (sent["content-type"], sent["x-session-id"]) == ("application/json", "c1")
    assert not {"user-agent", "accept-encoding", "cookie", "authorization"} & sent.keys()


def test_an_error_status_is_forwarded_as_it_is(stub: StubEngine) -> None:
    stub.default = Answer(status=429, headers={"Retry-After": "7"})

    async def run() -> tuple[int, str, bytes]:
        engine = OpenAIEngine(stub.url)
        async with engine.forward(CHAT, BODY, {}) as answer:
            content = await answer.read()
        await engine.close()
        return answer.status, answer.headers["Retry-After"], content

    status, retry_after, content = asyncio.run(run())

    assert (status, retry_after) == (429, "7")
    assert b"told to fail" in content


def test_a_forwarded_answer_that_dies_is_broken_and_one_that_never_began_is_not(
    stub: StubEngine,
) -> None:
    async def forward() -> None:
        engine = OpenAIEngine(stub.url)
        try:
            async with engine.forward(CHAT, BODY, {}) as answer:
                assert answer.status == 200
                await answer.read()
        finally:
            await engine.close()

    stub.script = [Answer(fault="die", pieces=1), Answer(fault="refuse")]
    with pytest.raises(BrokenAnswer, match="to its end"):
        asyncio.run(forward())
    with pytest.raises(EngineUnavailable) as refused:
        asyncio.run(forward())

    assert not isinstance(refused.value, BrokenAnswer)


def test_one_engine_serves_several_event_loops_and_leaves_no_socket(stub: StubEngine) -> None:
    def use() -> None:
        engine = OpenAIEngine(stub.url, concurrency=2)

        async def several() -> list[str]:
            results = await asyncio.gather(*(engine.chat(ASK) for _ in range(5)))
            return [result.message.content for result in results]

        assert [asyncio.run(several()) for _ in range(3)] == [["Hi."] * 5] * 3
        asyncio.run(engine.close())
        asyncio.run(engine.close())

    use()
    gc.collect()  # an open socket would warn, and warnings are errors


def test_a_connection_is_used_again_after_whole_answers(stub: StubEngine) -> None:
    async def run() -> None:
        engine = OpenAIEngine(stub.url)

        async def ignore(delta: object) -> None: ...

        for _ in range(3):
            await engine.chat(ASK)
            await engine.chat(ASK, ignore)
            async with engine.forward(CHAT, BODY, {}) as answer:
                await answer.read()
        await engine.close()

    asyncio.run(run())

    assert len(stub.chats) == 9
    assert len({asked.port for asked in stub.chats}) == 1


def test_a_kept_connection_that_the_server_closes_in_the_meantime_is_no_answer() -> None:
    listener = socket.create_server((HOST, 0))
    asked = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        connection.recv(65536)
        connection.sendall(ANSWERED)
        connection.recv(65536)
        asked.set()
        connection.close()

    thread = threading.Thread(target=serve)
    thread.start()

    async def run() -> None:
        engine = OpenAIEngine(f"http://{HOST}:{listener.getsockname()[1]}")
        try:
            async with engine.forward(CHAT, b"{}", {}) as answer:
                assert await answer.read() == b"{}"
            with pytest.raises(EngineUnavailable, match="No answer") as stale:
                await engine.chat(ASK)
            assert not isinstance(stale.value, BrokenAnswer)
        finally:
            await engine.close()

    asyncio.run(run())
    thread.join()
    listener.close()
    assert asked.is_set()


def test_what_does_not_speak_http_is_no_answer() -> None:
    listener = socket.create_server((HOST, 0))

    def serve() -> None:
        connection, _ = listener.accept()
        connection.recv(65536)
        connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")
        connection.close()

    thread = threading.Thread(target=serve)
    thread.start()

    async def run() -> None:
        engine = OpenAIEngine(f"http://{HOST}:{listener.getsockname()[1]}")
        try:
            await engine.models()
        finally:
            await engine.close()

    with pytest.raises(EngineUnavailable, match="No answer from the engine"):
        asyncio.run(run())
    thread.join()
    listener.close()


def test_closing_ends_what_still_runs(stub: StubEngine) -> None:
    stub.default = Answer(delay_s=60)

    async def run() -> None:
        engine = OpenAIEngine(stub.url)
        call = asyncio.create_task(engine.chat(ASK))
        async with asyncio.timeout(20):
            while not stub.running:
                await asyncio.sleep(0.01)
            await engine.close()
            with pytest.raises(EngineUnavailable):
                await call

    asyncio.run(run())


def test_a_caller_that_waits_for_its_turn_can_leave(stub: StubEngine) -> None:
    stub.default = Answer(fault="hang", pieces=1)

    async def run() -> None:
        engine = OpenAIEngine(stub.url, concurrency=1)
        async with engine.forward(CHAT, BODY, {}):
            waiting = asyncio.create_task(engine.chat(ASK))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        stub.default = Answer()
        assert (await engine.chat(ASK)).message.content == "Hi."
        await engine.close()

    asyncio.run(run())
    assert len(stub.chats) == 2


def test_an_embedding_is_asked_of_the_base(stub: StubEngine) -> None:
    async def run() -> tuple[float, ...]:
        engine = OpenAIEngine(stub.url, base_name="tiny")
        try:
            return await engine.embed("Hello")
        finally:
            await engine.close()

    assert asyncio.run(run()) == (0.1, 0.2, 0.3)
    assert stub.requests[0].body == {"model": "tiny", "input": "Hello"}


def test_an_engine_is_healthy_while_it_says_so(stub: StubEngine) -> None:
    async def run(url: str) -> bool:
        engine = OpenAIEngine(url)
        try:
            return await engine.healthy()
        finally:
            await engine.close()

    assert asyncio.run(run(stub.url)) is True
    stub.healthy = False
    assert asyncio.run(run(stub.url)) is False
    assert asyncio.run(run(f"http://{HOST}:{free_port()}")) is False


@pytest.mark.parametrize("scheme", ["http", "ftp"])
def test_no_message_shows_what_an_address_hides(scheme: str) -> None:
    url = f"{scheme}://bob:SECRET@{HOST}:{free_port()}/v1"

    async def ask() -> None:
        engine = OpenAIEngine(url)
        try:
            await engine.models()
        finally:
            await engine.close()

    with pytest.raises(EngineUnavailable, match=r"'\w+://\*\*\*@127") as problem:
        asyncio.run(ask())
    assert "SECRET" not in str(problem.value)


def test_an_answer_that_is_an_error_does_not_show_it_either(stub: StubEngine) -> None:
    stub.default = Answer(status=500)

    async def ask() -> None:
        engine = OpenAIEngine(stub.url.replace("://", "://bob:SECRET@"))
        try:
            await engine.chat(ASK)
        finally:
            await engine.close()

    with pytest.raises(EngineRefused, match=r"\*\*\*@") as refusal:
        asyncio.run(ask())
    assert "SECRET" not in str(refusal.value)
