"""Engine client for OpenAI-compatible servers with vLLM's LoRA calls.

`structured_outputs` carries constrained decoding (vLLM ignores the old `guided_*`
fields silently), `return_token_ids` brings the exact tokens back.
"""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from serving.engine import ChatRequest, ChatResult, OnDelta
from serving.errors import BrokenAnswer, EngineRefused, EngineUnavailable
from serving.records import Message
from serving.sse import Stream
from serving.upstream import Forwarded, Upstream

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
_JSON = {"Content-Type": "application/json"}
_AFTER_DONE_S = 1.0
"""How long the connection may take to end after `[DONE]`; the answer is whole by then."""
_ODD = (KeyError, IndexError, TypeError, AttributeError, ValueError)


class OpenAIEngine:
    """An `Engine` over HTTP."""

    def __init__(
        self,
        base_url: str,
        concurrency: int = 1024,
        *,
        connect_s: float = 5.0,
        idle_s: float = 120.0,
        timeout_s: float = 600.0,
        token_ids: bool = True,
        base_name: str = "base",
        key: str | None = None,
        option: str = "--engine",
    ) -> None:
        """Address a server such as `http://127.0.0.1:8000`.

        Args:
            base_url: Its address, with or without `/v1` at the end.
            concurrency: Most calls at once; further ones wait for their turn.
            connect_s: Limit for reaching it.
            idle_s: Limit between two pieces of an answer.
            timeout_s: Limit for a whole call, the wait for its turn left out.
            token_ids: Whether to ask for token ids; some servers refuse the field.
            base_name: Name under which it serves the base model.
            key: Its API key, sent as `Authorization: Bearer`; a secret.
            option: Option of the command line that named it, for messages.
        """
        self._upstream = Upstream(
            base_url,
            concurrency=concurrency,
            connect_s=connect_s,
            idle_s=idle_s,
            timeout_s=timeout_s,
            key=key,
            option=option,
        )
        self.base_url = self._upstream.base_url
        self.label = self._upstream.label
        """The address as messages may show it."""
        self._token_ids = token_ids
        self._base_name = base_name

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        """Send one `/v1/chat/completions` call, a streaming one with `on_delta`."""
        body = orjson.dumps(_body(request, self._token_ids, stream=on_delta is not None))
        call = self._upstream.post(CHAT, body, request.headers | _JSON, request.timeout_s)
        async with call as answer:
            if on_delta is not None:
                return await self._stream(answer, request, on_delta)
            raw = await self._read(CHAT, answer)
            duration_s = time.monotonic() - answer.started
        try:
            return _result(raw, request, duration_s)
        except _ODD as error:
            raise self._nonsense(CHAT, raw) from error

    def forward(
        self,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        affinity: str = "",
        attempt: int = 0,
        timeout_s: float | None = None,
    ) -> Forwarded:
        """Return a POST whose answer is passed on as it comes; `async with` sends it.

        Headers go as they are: the caller leaves out the host, the length and those of the
        connection. With one server, affinity and attempt change nothing.
        """
        return self._upstream.post(path, body, headers, timeout_s)

    async def embed(self, text: str) -> tuple[float, ...]:
        """Ask `/v1/embeddings`; what is between hidden state and vector is the server's setting."""
        raw = await self._call(EMBEDDINGS, {"model": self._base_name, "input": text})
        try:
            return tuple(float(number) for number in raw["data"][0]["embedding"])
        except _ODD as error:
            raise self._nonsense(EMBEDDINGS, raw) from error

    async def logprobs(
        self, model: str, token_ids: Sequence[int], first: int = 1
    ) -> tuple[float, ...]:
        """Ask for answers of one token, each forced to be the next one of `token_ids`.

        vLLM's `prompt_logprobs` would tell all at once, but past the prefix cache; and its CPU
        build (0.32, with LoRA) ends if such a request shares a batch with another one.
        """
        asked = (self._next_logprob(model, token_ids, n) for n in range(first, len(token_ids)))
        return tuple(await asyncio.gather(*asked))

    async def _next_logprob(self, model: str, token_ids: Sequence[int], n: int) -> float:
        body = {
            "model": model,
            "prompt": list(token_ids[:n]),
            "max_tokens": 1,
            "temperature": 0.0,
            "allowed_token_ids": [token_ids[n]],
            "logprobs": 0,
            "return_token_ids": True,
        }
        raw = await self._call(COMPLETIONS, body)
        try:
            [choice] = raw["choices"]
            [told], [chosen] = choice["logprobs"]["token_logprobs"], choice["token_ids"]
            if chosen != token_ids[n]:
                raise ValueError(chosen)
            return float(told)
        except _ODD as error:
            raise self._nonsense(COMPLETIONS, raw) from error

    async def models(self) -> tuple[str, ...]:
        """Return the ids of `/v1/models`."""
        path = "/v1/models"
        async with self._upstream.get(path) as answer:
            raw = await self._read(path, answer)
        try:
            return tuple(str(model["id"]) for model in raw["data"])
        except _ODD as error:
            raise self._nonsense(path, raw) from error

    async def load_adapter(self, name: str, path: Path) -> None:
        """Load a PEFT folder that the server can read, never in place."""
        body = {"lora_name": name, "lora_path": str(path.resolve())}
        await self._call("/v1/load_lora_adapter", body)

    async def unload_adapter(self, name: str) -> None:
        """Make the server forget a name."""
        await self._call("/v1/unload_lora_adapter", {"lora_name": name})

    async def healthy(self) -> bool:
        """Whether the server answers, and not with an error of its own."""
        try:
            async with self._upstream.get("/health") as answer:
                await answer.read()
        except EngineUnavailable:
            return False
        return answer.status < 500

    async def close(self) -> None:
        """Close the connections."""
        await self._upstream.close()

    async def _call(self, path: str, body: dict[str, Any]) -> Any:
        async with self._upstream.post(path, orjson.dumps(body), _JSON) as answer:
            return await self._read(path, answer)

    async def _read(self, path: str, answer: Forwarded) -> Any:
        content = await answer.read()
        self._check_status(path, answer.status, content)
        try:
            return orjson.loads(content)
        except ValueError:
            return content.decode("utf-8", "replace")

    def _check_status(self, path: str, status: int, content: bytes) -> None:
        if status >= 400:
            text = content.decode("utf-8", "replace")[:300]
            raise EngineRefused(
                f"The engine at {self.label!r} answered {path} with {status}: {text!r}.",
                status,
                _reason(content),
            )

    async def _stream(
        self, answer: Forwarded, request: ChatRequest, on_delta: OnDelta
    ) -> ChatResult:
        if answer.status >= 400:
            self._check_status(CHAT, answer.status, await answer.read())
        stream, ttft_s, lost = Stream(), None, None
        try:
            async for piece in answer.chunks():
                for delta in stream.feed(piece):
                    if ttft_s is None:
                        ttft_s = time.monotonic() - answer.started
                    await on_delta(delta)
                if stream.done:
                    answer.idle_s = _AFTER_DONE_S
                elif stream.error is not None:
                    break
            for delta in stream.end():
                await on_delta(delta)
        except BrokenAnswer as error:
            lost = None if stream.done else error
        duration_s = time.monotonic() - answer.started
        result, why = None, stream.broken
        try:
            result = _streamed(stream, request, duration_s, ttft_s)
        except _ODD as error:
            why = f"the stream is none of a chat completion: {type(error).__name__} {error}"
        if lost is not None:
            lost.partial = result
            raise lost
        if result is None or why is not None:
            raise BrokenAnswer(f"The engine at {self.label!r} broke off its answer: {why}.", result)
        return result

    def _nonsense(self, path: str, raw: Any) -> EngineUnavailable:
        return EngineUnavailable(
            f"The engine at {self.label!r} answered {path} with {str(raw)[:120]!r}, not as an "
            "OpenAI-compatible server would. Name one that is with '--engine'."
        )


def _reason(content: bytes) -> str:
    """Return the message of an error body, "" where it has none."""
    try:
        said = orjson.loads(content)["error"]["message"]
    except _ODD:
        return ""
    return str(said)[:500]


def _body(request: ChatRequest, token_ids: bool, stream: bool) -> dict[str, Any]:
    body: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
    }
    if request.seed is not None:
        body["seed"] = request.seed
    body |= request.options
    body |= {
        "model": request.model,
        "messages": [message.to_openai() for message in request.messages],
    }
    if token_ids:
        body["return_token_ids"] = True
    if request.tools:
        body["tools"] = list(request.tools)
    if request.choices:
        body |= {"structured_outputs": {"choice": list(request.choices)}, "logprobs": True}
    if request.continue_final:
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    else:
        body.pop("stream", None)
        body.pop("stream_options", None)
    return body


def _result(raw: Any, request: ChatRequest, duration_s: float) -> ChatResult:
    choice, usage = raw["choices"][0], raw.get("usage") or {}
    message, details = choice["message"], usage.get("prompt_tokens_details") or {}
    return ChatResult(
        response_id=raw["id"],
        served_name=raw["model"],
        message=Message.from_openai(message),
        finish_reason=choice.get("finish_reason") or "stop",
        prompt_tokens=usage.get("prompt_tokens", 0),
        completion_tokens=usage.get("completion_tokens", 0),
        cached_tokens=details.get("cached_tokens"),
        prompt_token_ids=_ids(raw.get("prompt_token_ids")),
        completion_token_ids=_ids(choice.get("token_ids")),
        choice_probability=_probability(choice.get("logprobs")) if request.choices else None,
        duration_s=duration_s,
        reasoning=message.get("reasoning") or message.get("reasoning_content") or "",
    )


def _streamed(
    stream: Stream, request: ChatRequest, duration_s: float, ttft_s: float | None
) -> ChatResult:
    details = stream.usage.get("prompt_tokens_details") or {}
    return ChatResult(
        response_id=stream.response_id or "",
        served_name=stream.model or "",
        message=Message.from_openai(stream.message() or {}),
        finish_reason=stream.finish_reason or "",
        prompt_tokens=stream.usage.get("prompt_tokens", len(stream.prompt_token_ids or ())),
        completion_tokens=stream.usage.get("completion_tokens", len(stream.token_ids)),
        cached_tokens=details.get("cached_tokens"),
        prompt_token_ids=_ids(stream.prompt_token_ids),
        completion_token_ids=_ids(stream.token_ids),
        choice_probability=(
            _probability({"content": stream.logprobs}) if request.choices else None
        ),
        duration_s=duration_s,
        reasoning=stream.reasoning,
        ttft_s=ttft_s,
    )


def _ids(raw: list[int] | None) -> tuple[int, ...] | None:
    return tuple(raw) if raw else None


def _probability(logprobs: dict[str, Any] | None) -> float | None:
    tokens = (logprobs or {}).get("content") or []
    return math.exp(sum(token["logprob"] for token in tokens)) if tokens else None
