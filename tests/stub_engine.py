"""An OpenAI-compatible server on the loopback that answers at once and misbehaves on order.

    with stub_engine() as stub:
        stub.default = Answer(text="Hi.")
        stub.script += [Answer(status=503), Answer(fault="die", pieces=2)]
        ... POST to stub.url ...
        assert stub.chats[0].headers["x-session-id"] == "c1"

Paths, statuses and bodies are vLLM's: a model that is not loaded is a 404, a name loaded
twice a 400. It runs in a thread with a loop of its own; what it was asked is in `requests`.
"""

import asyncio
import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

from serving.child import HOST

Fault = Literal["", "die", "hang", "error_event", "no_finish", "no_done", "half_chunk", "refuse"]


@dataclass(frozen=True)
class Answer:
    """What to make of one chat request."""

    text: str = "Hi."
    """With choices in the request and none of them in `text`, the first choice is answered."""
    reasoning: str = ""
    tool_calls: tuple[dict[str, Any], ...] = ()
    """In OpenAI form: `{"id": ..., "function": {"name": ..., "arguments": "..."}}`."""
    finish_reason: str = ""
    """Empty: `tool_calls` or `stop`, whichever fits."""
    served_name: str = ""
    """Empty: the model asked for."""
    status: int = 200
    error: str = "The stub was told to fail."
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    """Before the status."""
    piece_delay_s: float = 0.0
    """Between two pieces of a stream."""
    cached_tokens: int = 0
    probability: float = 0.9
    """Of the choice, where the request has choices."""
    fault: Fault = ""
    """`refuse`: the connection is cut before any byte; `die` and `hang`: after `pieces` pieces
    (in a plain answer: in the middle of the body); `error_event`, `half_chunk`: the same, with
    vLLM's error event or half a JSON; `no_finish`, `no_done`: the end lacks that."""
    pieces: int = 1
    raw: bytes = b""
    """A recorded body to send as it is, with `status`; then only `hang` is heeded."""


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    raw: bytes
    port: int
    """The client's: requests of one port came over one connection."""

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.raw)

    @property
    def model(self) -> str:
        return str(self.body.get("model"))


class StubEngine:
    """The server; set its fields from the test's own thread at any time."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Asked] = []
        self.default = Answer()
        self.answered: list[list[dict[str, Any]]] = []
        """The body of each good chat answer, or the chunks of its stream, in order."""
        self.script: list[Answer] = []
        """Taken one after the other, the default afterwards."""
        self.reply: Callable[[Asked], Answer | None] | None = None
        """Asked first, if set; None goes on to the script."""
        self.base_names = ["base"]
        self.adapters: dict[str, str] = {}
        """Loaded names with their paths."""
        self.strict = True
        """Whether a model that is not loaded is a 404."""
        self.load_status: dict[str, int] = {}
        """Names whose loading fails, with the status."""
        self.forget_loads = False
        """Say that a load succeeded, but do not list it."""
        self.embedding: list[float] = [0.1, 0.2, 0.3]
        self.models_delay_s = 0.0
        self.healthy = True
        self.running = 0
        self.most_running = 0
        self.abandoned = 0
        """Requests whose client left before the answer was whole."""

    @property
    def chats(self) -> list[Asked]:
        return [asked for asked in self.requests if asked.path == "/v1/chat/completions"]

    @property
    def loads(self) -> list[str]:
        """Names in the order of their load calls."""
        return [a.body["lora_name"] for a in self.requests if a.path == "/v1/load_lora_adapter"]

    @property
    def unloads(self) -> list[str]:
        return [a.body["lora_name"] for a in self.requests if a.path == "/v1/unload_lora_adapter"]

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/embeddings", self._embeddings)
        app.router.add_post("/v1/load_lora_adapter", self._load)
        app.router.add_post("/v1/unload_lora_adapter", self._unload)
        app.router.add_get("/health", self._health)
        return app

    async def _note(self, request: web.Request) -> Asked:
        headers = {name.lower(): value for name, value in request.headers.items()}
        port = request.get_extra_info("peername", (HOST, 0))[1]
        asked = Asked(request.method, request.path, headers, await request.read(), port)
        self.requests.append(asked)
        return asked

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        asked = await self._note(request)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._answer(request, asked)
        except (asyncio.CancelledError, ConnectionResetError):
            self.abandoned += 1
            raise
        finally:
            self.running -= 1

    async def _answer(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        answer = self.reply(asked) if self.reply else None
        if answer is None:
            answer = self.script.pop(0) if self.script else self.default
        if answer.delay_s:
            await asyncio.sleep(answer.delay_s)
        if answer.fault == "refuse":
            return cut(request, web.StreamResponse())
        if answer.raw:
            return await replay(request, answer)
        if answer.status != 200:
            return refusal(answer.error, answer.status, answer.headers)
        body = asked.body
        if self.strict and body["model"] not in (*self.base_names, *self.adapters):
            return refusal(f"The model `{body['model']}` does not exist.", 404)
        if body.get("stream"):
            return await self._stream(request, answer, body)
        self.answered.append([completion(answer, body)])
        whole = json.dumps(self.answered[-1][0]).encode()
        if answer.fault not in ("die", "hang"):
            return web.Response(body=whole, content_type="application/json", headers=answer.headers)
        response = web.StreamResponse(headers={"Content-Length": str(len(whole))})
        await response.prepare(request)
        await response.write(whole[: len(whole) // 2])
        if answer.fault == "hang":
            await asyncio.Event().wait()
        return cut(request, response)

    async def _stream(
        self, request: web.Request, answer: Answer, body: dict[str, Any]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=answer.headers)
        response.content_type = "text/event-stream"
        await response.prepare(request)
        *pieces, finish, usage = chunks(answer, body)
        with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self.answered.append([*pieces, finish, *([usage] if with_usage else [])])
        if answer.fault not in ("", "no_finish", "no_done"):
            pieces = pieces[: answer.pieces]
        for piece in pieces:
            await response.write(event(piece))
            if answer.piece_delay_s:
                await asyncio.sleep(answer.piece_delay_s)
        if answer.fault == "hang":
            await asyncio.Event().wait()
        if answer.fault == "half_chunk":
            await response.write(event(finish)[:40])
        if answer.fault in ("die", "half_chunk"):
            return cut(request, response)
        if answer.fault == "error_event":
            error = {"message": answer.error, "type": "InternalServerError", "code": 500}
            await response.write(event({"error": error | {"param": None}}))
        elif answer.fault != "no_finish":
            await response.write(event(finish))
            if with_usage:
                await response.write(event(usage))
        if answer.fault != "no_done":
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _models(self, request: web.Request) -> web.Response:
        await self._note(request)
        await asyncio.sleep(self.models_delay_s)
        cards = [{"id": n, "object": "model", "root": n, "parent": None} for n in self.base_names]
        cards += [
            {"id": name, "object": "model", "root": path, "parent": self.base_names[0]}
            for name, path in self.adapters.items()
        ]
        return web.json_response({"object": "list", "data": cards})

    async def _embeddings(self, request: web.Request) -> web.Response:
        asked = await self._note(request)
        entry = {"object": "embedding", "index": 0, "embedding": self.embedding}
        return web.json_response({"object": "list", "model": asked.model, "data": [entry]})

    async def _load(self, request: web.Request) -> web.Response:
        body = (await self._note(request)).body
        name = body["lora_name"]
        if name in self.load_status:
            return refusal(f"Loading lora {name} failed", self.load_status[name])
        if name in self.adapters:
            return refusal(f"The lora adapter '{name}' has already been loaded.", 400)
        if not self.forget_loads:
            self.adapters[name] = body["lora_path"]
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await self._note(request)).body["lora_name"]
        if self.adapters.pop(name, None) is None:
            return refusal(f"The lora adapter '{name}' cannot be found.", 404)
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def _health(self, request: web.Request) -> web.Response:
        await self._note(request)
        return web.Response(status=200 if self.healthy else 503)


async def replay(request: web.Request, answer: Answer) -> web.StreamResponse:
    """Send a recorded body."""
    kind = "text/event-stream" if answer.raw.startswith(b"data:") else "application/json"
    response = web.StreamResponse(status=answer.status, headers={"Content-Type": kind})
    await response.prepare(request)
    await response.write(answer.raw)
    if answer.fault == "hang":
        await asyncio.Event().wait()
    await response.write_eof()
    return response


def completion(answer: Answer, body: dict[str, Any]) -> dict[str, Any]:
    """Return a plain `chat.completion`."""
    text, calls = said(answer, body), [call | {"type": "function"} for call in answer.tool_calls]
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": text, "reasoning": answer.reasoning or None},
        "logprobs": logprobs(answer, body, text),
        "finish_reason": answer.finish_reason or ("tool_calls" if calls else "stop"),
    }
    if calls:
        choice["message"]["tool_calls"] = calls
    raw = head(answer, body) | {"object": "chat.completion", "usage": usage(answer, body)}
    if body.get("return_token_ids"):
        raw["prompt_token_ids"], choice["token_ids"] = prompt_ids(body), token_ids(text)
    return raw | {"choices": [choice]}


def chunks(answer: Answer, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a stream's chunks: role, a word each, calls in two pieces, finish, usage."""
    text, base = said(answer, body), head(answer, body) | {"object": "chat.completion.chunk"}

    def chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        return base | {"choices": [{"index": 0, "delta": delta, "finish_reason": None} | more]}

    with_ids = bool(body.get("return_token_ids"))
    first = chunk({"role": "assistant", "content": ""})
    made = [first | {"prompt_token_ids": prompt_ids(body)} if with_ids else first]
    if answer.reasoning:
        made.append(chunk({"reasoning": answer.reasoning}))
    words = [text] if "structured_outputs" in body else words_of(text)
    for word in words:
        more: dict[str, Any] = {"token_ids": token_ids(word)} if with_ids else {}
        made.append(chunk({"content": word}, **more, logprobs=logprobs(answer, body, word)))
    for n, call in enumerate(answer.tool_calls):
        function = call["function"]
        opened = {"name": function["name"], "arguments": ""}
        made.append(
            chunk({"tool_calls": [call | {"index": n, "type": "function", "function": opened}]})
        )
        rest = {"index": n, "function": {"arguments": function["arguments"]}}
        made.append(chunk({"tool_calls": [rest]}))
    finish = answer.finish_reason or ("tool_calls" if answer.tool_calls else "stop")
    made.append(chunk({}, finish_reason=finish))
    return [*made, base | {"choices": [], "usage": usage(answer, body)}]


def head(answer: Answer, body: dict[str, Any]) -> dict[str, Any]:
    response_id = f"chatcmpl-{time.monotonic_ns():x}"
    model = answer.served_name or body["model"]
    return {"id": response_id, "created": int(time.time()), "model": model}


def said(answer: Answer, body: dict[str, Any]) -> str:
    choices = (body.get("structured_outputs") or {}).get("choice") or ()
    return choices[0] if choices and answer.text not in choices else answer.text


def words_of(text: str) -> list[str]:
    return [word + " " for word in text.split(" ")[:-1]] + [text.split(" ")[-1]]


def logprobs(answer: Answer, body: dict[str, Any], text: str) -> dict[str, Any] | None:
    if not body.get("logprobs"):
        return None
    entry = {"token": text, "logprob": math.log(answer.probability), "bytes": None}
    return {"content": [entry | {"top_logprobs": []}]}


def usage(answer: Answer, body: dict[str, Any]) -> dict[str, Any]:
    prompt, completed = len(prompt_ids(body)), len(token_ids(said(answer, body)))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completed,
        "total_tokens": prompt + completed,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


def prompt_ids(body: dict[str, Any]) -> list[int]:
    return list(range(1, 1 + len(json.dumps(body["messages"])) // 4))


def token_ids(text: str) -> list[int]:
    return list(text.encode())[:64]


def event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def refusal(message: str, status: int, headers: dict[str, str] | None = None) -> web.Response:
    kind = "NotFoundError" if status == 404 else "BadRequestError"
    error = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": error}, status=status, headers=headers)


def cut(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Drop the connection without a proper end."""
    if request.transport is not None:
        request.transport.abort()
    return response


@contextlib.contextmanager
def stub_engine(port: int = 0) -> Iterator[StubEngine]:
    """Run a stub in a thread; leaving the block cuts whatever is still open.

    With a `port` of an earlier one, the engine is back where it was.
    """
    stub, loop, ready = StubEngine(), asyncio.new_event_loop(), threading.Event()
    ended = asyncio.Event()

    async def serve() -> None:
        runner = web.AppRunner(
            stub.app(), handler_cancellation=True, access_log=None, shutdown_timeout=0.0
        )
        await runner.setup()
        site = web.TCPSite(runner, HOST, port, reuse_address=True, backlog=1024)
        await site.start()
        stub.url = f"http://{HOST}:{runner.addresses[0][1]}"
        ready.set()
        await ended.wait()
        await runner.cleanup()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, name="stub-engine")
    thread.start()
    try:
        assert ready.wait(10), "the stub engine does not start"
        yield stub
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
