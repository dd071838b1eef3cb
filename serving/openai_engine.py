"""Engine client for OpenAI-compatible servers with vLLM's LoRA calls.

`structured_outputs` carries constrained decoding (vLLM ignores the old `guided_*`
fields silently), `return_token_ids` brings the exact tokens back.
"""

import asyncio
import math
import time
from pathlib import Path
from typing import Any

import httpx

from serving.engine import ChatRequest, ChatResult
from serving.errors import EngineRefused, EngineUnavailable
from serving.records import Message

TIMEOUT_S = 600.0


class OpenAIEngine:
    """An `Engine` over HTTP."""

    def __init__(self, base_url: str, concurrency: int = 32) -> None:
        """Address a server such as `http://127.0.0.1:8000`; at most `concurrency` calls at once."""
        self.base_url = base_url.rstrip("/")
        try:
            self._client = httpx.AsyncClient(
                base_url=self.base_url, timeout=TIMEOUT_S, trust_env=False
            )
        except httpx.InvalidURL as error:
            raise EngineUnavailable(
                f"{base_url!r} is no address of an engine: {error}. "
                "Name one such as 'http://127.0.0.1:8000' with '--engine'."
            ) from error
        self._slots = asyncio.Semaphore(concurrency)

    async def chat(self, request: ChatRequest) -> ChatResult:
        """Send one `/v1/chat/completions` call."""
        async with self._slots:
            started = time.monotonic()
            raw = await self._call(
                "POST", "/v1/chat/completions", json=_body(request), headers=request.headers
            )
            duration_s = time.monotonic() - started
        try:
            return _result(raw, request, duration_s)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise self._nonsense("/v1/chat/completions", raw) from error

    async def models(self) -> tuple[str, ...]:
        """Return the ids of `/v1/models`."""
        raw = await self._call("GET", "/v1/models")
        try:
            return tuple(str(model["id"]) for model in raw["data"])
        except (KeyError, TypeError) as error:
            raise self._nonsense("/v1/models", raw) from error

    async def load_adapter(self, name: str, path: Path) -> None:
        """Load a PEFT folder that the server can read, never in place."""
        body = {"lora_name": name, "lora_path": str(path.resolve())}
        await self._call("POST", "/v1/load_lora_adapter", json=body)

    async def unload_adapter(self, name: str) -> None:
        """Make the server forget a name."""
        await self._call("POST", "/v1/unload_lora_adapter", json={"lora_name": name})

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _call(self, method: str, path: str, **options: Any) -> Any:
        try:
            response = await self._client.request(method, path, **options)
        except httpx.HTTPError as error:
            raise EngineUnavailable(
                f"No answer from the engine at {self.base_url!r}: {type(error).__name__} {error}. "
                "Start one with 'make vllm' or name another with '--engine'."
            ) from error
        if response.is_error:
            raise EngineRefused(
                f"The engine at {self.base_url!r} answered {path} with {response.status_code}: "
                f"{response.text[:300]!r}."
            )
        try:
            return response.json()
        except ValueError:
            return response.text

    def _nonsense(self, path: str, raw: Any) -> EngineUnavailable:
        return EngineUnavailable(
            f"The engine at {self.base_url!r} answered {path} with {str(raw)[:120]!r}, not as an "
            "OpenAI-compatible server would. Name one that is with '--engine'."
        )


def _result(raw: Any, request: ChatRequest, duration_s: float) -> ChatResult:
    choice, usage = raw["choices"][0], raw.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return ChatResult(
        response_id=raw["id"],
        served_name=raw["model"],
        message=Message.from_openai(choice["message"]),
        finish_reason=choice.get("finish_reason") or "stop",
        prompt_tokens=usage.get("prompt_tokens", 0),
        completion_tokens=usage.get("completion_tokens", 0),
        cached_tokens=details.get("cached_tokens"),
        prompt_token_ids=_ids(raw.get("prompt_token_ids")),
        completion_token_ids=_ids(choice.get("token_ids")),
        choice_probability=_probability(choice) if request.choices else None,
        duration_s=duration_s,
    )


def _body(request: ChatRequest) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": request.model,
        "messages": [message.to_openai() for message in request.messages],
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "return_token_ids": True,
    }
    if request.tools:
        body["tools"] = list(request.tools)
    if request.seed is not None:
        body["seed"] = request.seed
    if request.choices:
        body |= {"structured_outputs": {"choice": list(request.choices)}, "logprobs": True}
    if request.continue_final:
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    return body


def _ids(raw: list[int] | None) -> tuple[int, ...] | None:
    return tuple(raw) if raw else None


def _probability(choice: dict[str, Any]) -> float | None:
    tokens = (choice.get("logprobs") or {}).get("content") or []
    return math.exp(sum(token["logprob"] for token in tokens)) if tokens else None
