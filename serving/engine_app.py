"""An engine over HTTP, in the paths, bodies and statuses of vLLM.

    python -m serving.engine_app --base FOLDER [--port N] [--lora NAME=FOLDER ...]

It is how a machine without vLLM runs the MoL server, and how tests get a real engine
behind a socket. Sources: vLLM 0.32 `entrypoints/openai/{chat_completion,models}`,
`entrypoints/serve/{engine,lora}/protocol.py`. Fields it does not know are ignored, as there.
"""

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from serving.child import HOST
from serving.engine import ChatRequest, ChatResult, Delta, Engine
from serving.engine_bodies import (
    RequestRefused,
    chat_request,
    completion,
    delta_chunk,
    error_body,
    forced_completion,
    forced_token,
    last_chunks,
    object_of,
    role_chunk,
    text_of,
)
from serving.errors import AdapterNotServable, EngineRefused, EngineUnavailable
from serving.lora_model import BASE_NAME

Handler = Callable[[Request], Awaitable[Response]]


class _App:
    """The endpoints over one engine."""

    def __init__(self, engine: Engine, base_name: str, root: str) -> None:
        self._engine = engine
        self._base_name = base_name
        self._root = root
        self.paths: dict[str, str] = {}
        self._created = int(time.time())

    def routes(self) -> list[Route]:
        return [
            Route("/health", self._health),
            Route("/v1/models", self._answered(self._models)),
            Route("/v1/chat/completions", self._answered(self._chat), methods=["POST"]),
            Route("/v1/completions", self._answered(self._forced), methods=["POST"]),
            Route("/v1/embeddings", self._answered(self._embeddings), methods=["POST"]),
            Route("/v1/load_lora_adapter", self._answered(self._load), methods=["POST"]),
            Route("/v1/unload_lora_adapter", self._answered(self._unload), methods=["POST"]),
        ]

    def _answered(self, handler: Handler) -> Handler:
        """Turn known errors into vLLM's error bodies."""

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except (RequestRefused, EngineRefused, EngineUnavailable) as problem:
                return _refusal(problem)

        return answer

    async def _health(self, request: Request) -> Response:
        return Response()

    async def _models(self, request: Request) -> Response:
        cards: list[dict[str, Any]] = [
            {
                "id": self._base_name if name == BASE_NAME else name,
                "object": "model",
                "created": self._created,
                "owned_by": "vllm",
                "root": self._root if name == BASE_NAME else self.paths.get(name),
                "parent": None if name == BASE_NAME else self._base_name,
                "max_model_len": None,
                "permission": [],
            }
            for name in await self._engine.models()
        ]
        return JSONResponse({"object": "list", "data": cards})

    async def _chat(self, request: Request) -> Response:
        raw = await _body(request)
        asked = chat_request(raw, model=await self._known(raw))
        if raw.get("stream"):
            return await self._stream(request, raw, asked)
        call = asyncio.ensure_future(self._engine.chat(asked))
        if not await _finished(call, request):
            return Response(status_code=499)
        return _json(completion(raw, call.result()))

    async def _stream(self, request: Request, raw: dict[str, Any], asked: ChatRequest) -> Response:
        """Answer with a stream once the engine has begun, with an error status if it refuses."""
        told: asyncio.Queue[Delta | ChatResult | BaseException] = asyncio.Queue()

        async def call() -> None:
            try:
                await told.put(await self._engine.chat(asked, told.put))
            except Exception as error:
                await told.put(error)

        running = asyncio.create_task(call())
        begun = asyncio.ensure_future(told.get())
        if not await _finished(begun, request):
            running.cancel()
            return Response(status_code=499)
        first = begun.result()
        if isinstance(first, BaseException):
            raise first

        async def events() -> AsyncIterator[bytes]:
            item: Delta | ChatResult | BaseException = first
            head = {
                "id": f"chatcmpl-{id(running):x}-{time.monotonic_ns():x}",
                "model": raw["model"],
            }
            try:
                yield _event(role_chunk(head))
                while isinstance(item, Delta):
                    yield _event(delta_chunk(head, item))
                    item = await told.get()
                if isinstance(item, ChatResult):
                    for chunk in last_chunks(head, raw, item):
                        yield _event(chunk)
                else:
                    yield _event(error_body(str(item), "InternalServerError", 500))
                yield b"data: [DONE]\n\n"
            finally:
                running.cancel()

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _forced(self, request: Request) -> Response:
        """Tell the log-probability of one forced token: all that a proof asks for."""
        raw = await _body(request)
        model = await self._known(raw)
        prompt, token = forced_token(raw)
        call = asyncio.ensure_future(self._engine.logprobs(model, [*prompt, token], len(prompt)))
        if not await _finished(call, request):
            return Response(status_code=499)
        return _json(forced_completion(raw, prompt, token, call.result()[0]))

    async def _embeddings(self, request: Request) -> Response:
        raw = await _body(request)
        if await self._known(raw) != BASE_NAME:
            raise RequestRefused("Only the base model embeds.", param="model")
        texts = raw.get("input")
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise RequestRefused("`input` is a text or a list of texts.", param="input")
        vectors = [await self._engine.embed(text) for text in texts]
        entries = [
            {"index": n, "object": "embedding", "embedding": vector}
            for n, vector in enumerate(vectors)
        ]
        return _json({"object": "list", "model": raw["model"], "data": entries})

    async def _load(self, request: Request) -> Response:
        raw = await _body(request)
        name, path = text_of(raw, "lora_name"), text_of(raw, "lora_path")
        if not name or not path:
            raise RequestRefused(
                "Both 'lora_name' and 'lora_path' must be provided.", kind="InvalidUserInput"
            )
        if name in (self._base_name, BASE_NAME):
            raise RequestRefused(
                f"The lora adapter '{name}' conflicts with a served base model.",
                kind="InvalidUserInput",
            )
        if name in await self._engine.models():
            raise RequestRefused(
                f"The lora adapter '{name}' has already been loaded. If you want to load the "
                "adapter in place, set 'load_inplace' to True.",
                kind="InvalidUserInput",
            )
        if not (Path(path) / "adapter_config.json").is_file():
            raise RequestRefused(
                f"Loading lora {name} failed: No adapter found for {path}",
                kind="NotFoundError",
                status=404,
            )
        try:
            await self._engine.load_adapter(name, Path(path))
        except AdapterNotServable as error:
            raise RequestRefused(str(error), kind="InternalServerError", status=500) from error
        self.paths[name] = path
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload(self, request: Request) -> Response:
        name = text_of(await _body(request), "lora_name")
        if not name:
            raise RequestRefused(
                "'lora_name' needs to be provided to unload a LoRA adapter.",
                kind="InvalidUserInput",
            )
        if name == BASE_NAME or name not in await self._engine.models():
            raise RequestRefused(
                f"The lora adapter '{name}' cannot be found.", kind="NotFoundError", status=404
            )
        await self._engine.unload_adapter(name)
        self.paths.pop(name, None)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")

    async def _known(self, raw: dict[str, Any]) -> str:
        """Return the engine's own name of the model that a request names."""
        model = text_of(raw, "model")
        if model in ("", self._base_name):
            raw["model"] = self._base_name
            return BASE_NAME
        if model == BASE_NAME or model not in await self._engine.models():
            raise RequestRefused(
                f"The model `{model}` does not exist.",
                kind="NotFoundError",
                status=404,
                param="model",
            )
        return model


def create_app(
    engine: Engine,
    base_name: str = "base",
    root: str = "base",
    loras: Sequence[tuple[str, Path]] = (),
) -> Starlette:
    """Serve `engine`, and close it at the end.

    Args:
        engine: What answers; its own name for the base is `base`.
        base_name: The name under which clients ask for the base.
        root: What `/v1/models` tells as the base's folder.
        loras: Names and folders of adapters to load at the start.
    """
    endpoints = _App(engine, base_name, root)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        for name, path in loras:
            await engine.load_adapter(name, path)
            endpoints.paths[name] = str(path)
        yield
        await engine.close()

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _json(error_body(error.detail, error.detail, error.status_code), error.status_code)

    return Starlette(
        routes=endpoints.routes(), lifespan=lifespan, exception_handlers={HTTPException: refused}
    )


async def _body(request: Request) -> dict[str, Any]:
    return object_of(await request.body())


async def _finished(work: asyncio.Future[Any], request: Request) -> bool:
    """Wait for `work`, or cancel it when the client leaves; its body is read by now."""

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    gone = asyncio.ensure_future(leave())
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        return work.done()
    finally:
        gone.cancel()
        if not work.done():
            work.cancel()


def _refusal(problem: RequestRefused | EngineRefused | EngineUnavailable) -> Response:
    if isinstance(problem, RequestRefused):
        kind, status, param = problem.kind, problem.status, problem.param
    else:
        status = problem.status if isinstance(problem, EngineRefused) else 503
        kind, param = "BadRequestError" if status < 500 else "InternalServerError", None
    return _json(error_body(str(problem), kind, status, param), status)


def _json(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def _lora(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    if not name or not folder:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER")
    return name, Path(folder)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a base model folder until the process is ended."""
    import uvicorn

    from serving.embedded import EmbeddedEngine

    parser = argparse.ArgumentParser(description="Serve a base model with adapters, like vLLM.")
    parser.add_argument("--base", type=Path, required=True, help="Hugging Face folder")
    parser.add_argument("--port", type=int, default=8000, help="port on the loopback")
    parser.add_argument("--served-model-name", default="base", help="the base's name")
    parser.add_argument(
        "--lora", type=_lora, action="append", default=[], metavar="NAME=FOLDER",
        help="adapter to load; may be repeated",
    )  # fmt: skip
    args = parser.parse_args(arguments)
    app = create_app(EmbeddedEngine(args.base), args.served_model_name, str(args.base), args.lora)
    uvicorn.run(app, host=HOST, port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
