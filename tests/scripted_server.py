"""A server whose engine is a script, so that official clients read what the writers write."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from types import ModuleType

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from serving.child import HOST, free_port
from serving.engine import CallDelta, Delta
from serving.exchange import Ask, Reply, RequestInvalid
from serving.protocols import anthropic_messages, chat, responses
from serving.protocols.events import encode
from serving.records import Message, ToolCall

CREATED_AT = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
REQUEST_ID = "req_1"
PATHS = {
    "/v1/chat/completions": chat,
    "/v1/responses": responses,
    "/v1/messages": anthropic_messages,
}


@dataclass(frozen=True)
class Script:
    """One answer, and the pieces in which an engine told it."""

    message: Message
    deltas: tuple[Delta, ...] = ()
    reasoning: str = ""
    finish_reason: str = "stop"
    failure: str | None = None
    """With it the stream breaks off after the pieces."""

    def reply(self, response_id: str, ask: Ask) -> Reply:
        return Reply(
            response_id=response_id,
            model=ask.model,
            message=self.message,
            finish_reason=self.finish_reason,
            created_at=CREATED_AT,
            prompt_tokens=30,
            completion_tokens=7,
            cached_tokens=20,
            reasoning=self.reasoning,
            metadata={"mol_slot": "L2"},
        )


WORDS = Script(
    message=Message(role="assistant", content="Grüße, 你好!"),
    deltas=(Delta(content="Grüße"), Delta(content=", 你"), Delta(content="好!")),
)
THOUGHT = Script(
    message=Message(role="assistant", content="Four."),
    deltas=(Delta(reasoning="two and "), Delta(reasoning="two"), Delta(content="Four.")),
    reasoning="two and two",
)
CALLS = Script(
    message=Message(
        role="assistant",
        content="Let me see.",
        tool_calls=(
            ToolCall(id="call_a", name="weather", arguments='{"city": "Köln"}'),
            ToolCall(id="call_b", name="clock", arguments="{}"),
        ),
    ),
    deltas=(
        Delta(content="Let me see."),
        Delta(calls=(CallDelta(0, "call_a", "weather"),)),
        Delta(calls=(CallDelta(0, arguments='{"city": '),)),
        Delta(calls=(CallDelta(0, arguments='"Köln"}'),)),
        Delta(calls=(CallDelta(1, "call_b", "clock", "{}"),)),
    ),
    finish_reason="tool_calls",
)


class ScriptedServer:
    """Answers every protocol by the current script."""

    def __init__(self) -> None:
        self.script = WORDS
        self.asks: list[Ask] = []
        self.port = free_port()
        routes = [Route(path, self._answer, methods=["POST"]) for path in PATHS]
        config = uvicorn.Config(
            Starlette(routes=routes), host=HOST, port=self.port, log_level="error", ws="none"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)

    async def _answer(self, request: Request) -> Response:
        protocol = PATHS[request.url.path]
        try:
            ask = protocol.parse(orjson.loads(await request.body()))
            if ask.model == "missing":
                raise RequestInvalid("No model 'missing'.", code="model_not_found", status=404)
            if ask.model == "busy":
                raise RequestInvalid("Too busy.", code="overloaded", status=429)
        except RequestInvalid as problem:
            body = encode(protocol.error_body(problem, REQUEST_ID))
            return Response(body, problem.status, media_type="application/json")
        self.asks.append(ask)
        if ask.stream:
            return StreamingResponse(self._stream(protocol, ask), media_type="text/event-stream")
        reply = self.script.reply(protocol.new_response_id(), ask)
        return Response(encode(protocol.whole(reply, ask)), media_type="application/json")

    def _stream(self, protocol: ModuleType, ask: Ask) -> Iterator[bytes]:
        response_id = protocol.new_response_id()
        writer = protocol.StreamWriter(ask, response_id, CREATED_AT)
        yield writer.begin()
        for delta in self.script.deltas:
            yield writer.delta(delta)
        if self.script.failure:
            yield writer.fail(self.script.failure, "engine_died", REQUEST_ID)
        else:
            yield writer.end(self.script.reply(response_id, ask))
