"""The embedded engine: the calls of `serving.engine` answered in-process by transformers + PEFT.

For trying and for tests: one command runs the whole loop on a laptop. It is not a
production server; for that there is vLLM behind `serving.openai_engine`.

Concurrent calls are collected and run as batches of one adapter, shortest prompts
together. An answer that is greedy or has a seed does not depend on what else is asked, up to
rounding. Of a request's `options`, `top_p` and `stop` count here. A streamed answer comes as one
piece.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from serving.engine import CallDelta, ChatRequest, ChatResult, Delta, OnDelta
from serving.errors import AdapterNotServable, EngineRefused, EngineUnavailable
from serving.lora_model import BASE_NAME, LoraModel, Prompt
from serving.records import canonical_json

__all__ = ["BASE_NAME", "EmbeddedEngine"]


@dataclass(frozen=True, slots=True)
class _Call:
    prompt: Prompt
    future: asyncio.Future[ChatResult]


@dataclass(frozen=True, slots=True)
class _Scored:
    model: str
    token_ids: tuple[int, ...]
    first: int
    future: asyncio.Future[tuple[float, ...]]


class EmbeddedEngine:
    """An `Engine` in this process.

    Raises:
        EngineUnavailable: if the base folder holds no model that transformers can load.
    """

    def __init__(self, base: Path, max_batch: int = 64) -> None:
        """Load the base model from a Hugging Face folder, float32 on the CPU, bfloat16 on a GPU."""
        self.model = LoraModel(base)
        self._max_batch = max_batch
        self._waiting: list[_Call] = []
        self._running: list[_Call] = []
        self._scored: list[_Scored] = []
        self._pump: asyncio.Task[None] | None = None
        self._scorer: asyncio.Task[None] | None = None
        self._closed = False

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        """Queue one request and wait for its answer; `on_delta` gets it whole, at its end."""
        self._check_open()
        self.model.check_known(request.model)
        future: asyncio.Future[ChatResult] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Call(self.model.prompt(request), future))
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(request.timeout_s):
                result = await future
        except TimeoutError as error:
            raise EngineUnavailable(
                f"The embedded engine did not answer within {request.timeout_s} s."
            ) from error
        if on_delta is None:
            return result
        await on_delta(_whole(result))
        return replace(result, ttft_s=result.duration_s)

    async def embed(self, text: str) -> tuple[float, ...]:
        """Return the base's last hidden state after `text`, as it leaves the final norm."""
        self._check_open()
        return await asyncio.to_thread(self.model.embed, text)

    async def logprobs(
        self, model: str, token_ids: Sequence[int], first: int = 1
    ) -> tuple[float, ...]:
        """Score tokens; calls that wait together and begin alike share a pass."""
        self._check_open()
        self.model.check_known(model)
        future: asyncio.Future[tuple[float, ...]] = asyncio.get_running_loop().create_future()
        self._scored.append(_Scored(model, tuple(token_ids), first, future))
        if self._scorer is None or self._scorer.done():
            self._scorer = asyncio.create_task(self._score())
        return await future

    async def models(self) -> tuple[str, ...]:
        """Return the base's name and the adapters' names."""
        return self.model.names

    async def load_adapter(self, name: str, path: Path) -> None:
        """Load a PEFT folder under a new name."""
        self._check_open()
        if not (path / "adapter_model.safetensors").is_file():
            raise AdapterNotServable(
                f"No adapter_model.safetensors in {str(path)!r}; only safetensors are loaded."
            )
        await asyncio.to_thread(self.model.load, name, path)

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter."""
        self._check_open()
        await asyncio.to_thread(self.model.unload, name)

    async def close(self) -> None:
        """Fail what waits or runs, and release the model."""
        self._closed = True
        for task in (self._pump, self._scorer):
            if task is not None:
                task.cancel()
        calls: list[_Call | _Scored] = [*self._running, *self._waiting, *self._scored]
        for call in calls:
            if not call.future.done():
                call.future.set_exception(EngineUnavailable("The embedded engine was closed."))
        self._waiting.clear()
        await asyncio.to_thread(self.model.release)

    def _check_open(self) -> None:
        if self._closed:
            raise EngineUnavailable("The embedded engine was closed. Start a new one.")

    async def _run(self) -> None:
        await asyncio.sleep(0)
        while batch := self._next_batch():
            self._running = batch
            prompts = [call.prompt for call in batch]
            try:
                results = await asyncio.to_thread(self.model.answer, prompts)
            except EngineRefused as refusal:
                self._fail(batch, refusal)
            except Exception as error:
                self._fail(batch, EngineRefused(f"The embedded engine failed (500): {error!r}"))
            else:
                for call, result in zip(batch, results, strict=True):
                    if not call.future.done():
                        call.future.set_result(result)
            await asyncio.sleep(0)

    async def _score(self) -> None:
        await asyncio.sleep(0)
        while self._scored:
            model = self._scored[0].model
            batch = [call for call in self._scored if call.model == model]
            rows, firsts = [c.token_ids for c in batch], [c.first for c in batch]
            try:
                told = await asyncio.to_thread(self.model.logprobs, model, rows, firsts)
            except EngineRefused as refusal:
                self._fail(batch, refusal)
            except Exception as error:
                self._fail(batch, EngineRefused(f"The embedded engine failed (500): {error!r}"))
            else:
                for call, logprobs in zip(batch, told, strict=True):
                    if not call.future.done():
                        call.future.set_result(logprobs)
            self._scored = [call for call in self._scored if not call.future.done()]

    def _fail(self, batch: Sequence[_Call | _Scored], error: EngineRefused) -> None:
        for call in batch:
            if not call.future.done():
                call.future.set_exception(error)

    def _next_batch(self) -> list[_Call]:
        """Take the next calls out of the queue; empty if nobody waits any more."""
        self._waiting = [call for call in self._waiting if not call.future.done()]
        groups: dict[tuple[Any, ...], list[_Call]] = defaultdict(list)
        for call in self._waiting:
            groups[_kind(call.prompt.request)].append(call)
        largest = max(groups.values(), key=len, default=[])
        batch = sorted(largest, key=lambda call: len(call.prompt.ids))[: self._max_batch]
        taken = {id(call) for call in batch}
        self._waiting = [call for call in self._waiting if id(call) not in taken]
        return batch


def _kind(r: ChatRequest) -> tuple[Any, ...]:
    """Return what requests of one batch agree in."""
    return r.model, r.choices, r.temperature, bool(r.tools), canonical_json(r.options)


def _whole(result: ChatResult) -> Delta:
    calls = tuple(
        CallDelta(n, call.id, call.name, call.arguments)
        for n, call in enumerate(result.message.tool_calls)
    )
    return Delta(result.message.content, result.reasoning, calls)
