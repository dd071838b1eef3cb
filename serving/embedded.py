"""The embedded engine: the calls of `serving.engine` answered in-process by transformers + PEFT.

For trying and for tests: one command runs the whole loop on a laptop. It is not a
production server; for that there is vLLM behind `serving.openai_engine`.

Concurrent calls are collected and run as batches of one adapter, shortest prompts
together. Greedy answers do not depend on what else is asked, up to rounding.
"""

import asyncio
import logging
import threading
import time
import uuid
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.engine import ChatRequest, ChatResult
from serving.errors import AdapterNotServable, EngineRefused, EngineUnavailable
from serving.records import Message
from serving.template import encode, render_text
from serving.toolcalls import parse_tool_calls

BASE_NAME = "base"
"""Name under which the base model without any adapter answers."""
MIN_SHARED_TOKENS = 16
"""A common beginning shorter than this is not worth a pass of its own."""

logging.getLogger("transformers").setLevel(logging.ERROR)


@dataclass(slots=True)
class _Call:
    request: ChatRequest
    ids: list[int]
    future: asyncio.Future[ChatResult]
    started: float


class EmbeddedEngine:
    """An `Engine` in this process.

    Raises:
        EngineUnavailable: if the base folder holds no model that transformers can load.
    """

    def __init__(self, base: Path, max_batch: int = 64) -> None:
        """Load the base model from a Hugging Face folder, float32 on the CPU, bfloat16 on a GPU."""
        import torch
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

        on_gpu = torch.cuda.is_available()
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True)
            model = AutoModelForCausalLM.from_pretrained(
                base,
                dtype=torch.bfloat16 if on_gpu else torch.float32,
                local_files_only=True,
                use_safetensors=True,
            )
        except (OSError, ValueError, SafetensorError) as error:
            raise EngineUnavailable(
                f"No base model in {str(base)!r}: {str(error).splitlines()[0]} "
                "Fetch the default one with 'python -m infra.base_model'."
            ) from error
        self._model: Any = model.to("cuda" if on_gpu else "cpu").eval()
        self._model.requires_grad_(False)
        # A base may ship sampling defaults; vLLM is started without them too.
        self._model.generation_config = GenerationConfig()
        self._plain = self._model
        self._max_batch = max_batch
        self._adapters: dict[str, Path] = {}
        self._waiting: list[_Call] = []
        self._running: list[_Call] = []
        self._pump: asyncio.Task[None] | None = None
        self._busy = threading.Lock()
        self._closed = False

    async def chat(self, request: ChatRequest) -> ChatResult:
        """Queue one request and wait for its answer."""
        self._check_open()
        self._check_known(request.model)
        future: asyncio.Future[ChatResult] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Call(request, self._encode(request), future, time.monotonic()))
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())
        return await future

    async def models(self) -> tuple[str, ...]:
        """Return the base's name and the adapters' names."""
        return (BASE_NAME, *self._adapters)

    async def load_adapter(self, name: str, path: Path) -> None:
        """Load a PEFT folder under a new name."""
        self._check_open()
        if not (path / "adapter_model.safetensors").is_file():
            raise AdapterNotServable(
                f"No adapter_model.safetensors in {str(path)!r}; only safetensors are loaded."
            )
        await asyncio.to_thread(self._load, name, path)

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter."""
        self._check_open()
        await asyncio.to_thread(self._unload, name)

    async def close(self) -> None:
        """Fail what waits or runs, and release the model."""
        self._closed = True
        if self._pump is not None:
            self._pump.cancel()
        for call in (*self._running, *self._waiting):
            if not call.future.done():
                call.future.set_exception(EngineUnavailable("The embedded engine was closed."))
        self._waiting.clear()
        await asyncio.to_thread(self._release)

    def _check_open(self) -> None:
        if self._closed:
            raise EngineUnavailable("The embedded engine was closed. Start a new one.")

    def _check_known(self, name: str) -> None:
        if name != BASE_NAME and name not in self._adapters:
            raise EngineRefused(
                f"The model {name!r} does not exist (404). "
                f"Loaded: {', '.join((BASE_NAME, *self._adapters))}."
            )

    def _load(self, name: str, path: Path) -> None:
        from peft import PeftModel
        from safetensors import SafetensorError

        with self._busy:
            if name in self._adapters or name == BASE_NAME:
                raise EngineRefused(
                    f"The adapter {name!r} is loaded already; a name never changes (400)."
                )
            try:
                warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
                if self._adapters:
                    self._model.load_adapter(path, adapter_name=name, torch_device="cpu")
                else:
                    self._model = PeftModel.from_pretrained(self._plain, path, adapter_name=name)
            except (OSError, ValueError, RuntimeError, LookupError, SafetensorError) as error:
                self._forget(name)
                raise AdapterNotServable(
                    f"The adapter in {str(path)!r} does not fit this base: "
                    f"{str(error).strip().splitlines()[0]}"
                ) from error
            self._model.eval()
            self._adapters[name] = path

    def _unload(self, name: str) -> None:
        with self._busy:
            if name not in self._adapters:
                raise EngineRefused(f"The adapter {name!r} is not loaded (404).")
            del self._adapters[name]
            self._forget(name)

    def _forget(self, name: str) -> None:
        """Take an adapter out of the model, also a half loaded one; the last leaves it bare."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        if self._adapters:
            self._model.set_adapter(next(iter(self._adapters)), inference_mode=True)
            if name in self._model.peft_config:
                self._model.delete_adapter(name)
            return
        self._model = self._plain
        for path, module in list(self._plain.named_modules()):
            if isinstance(module, BaseTunerLayer):
                self._plain.set_submodule(path, module.get_base_layer())
        if hasattr(self._plain, "peft_config"):
            del self._plain.peft_config

    def _release(self) -> None:
        with self._busy:
            self._model = self._plain = None

    def _encode(self, request: ChatRequest) -> list[int]:
        text = render_text(
            self._tokenizer,
            request.messages,
            request.tools,
            continue_final=request.continue_final,
        )
        return encode(self._tokenizer, text)

    async def _run(self) -> None:
        await asyncio.sleep(0)
        while self._waiting:
            batch = self._running = self._next_batch()
            try:
                results = await asyncio.to_thread(self._answer, batch)
            except EngineRefused as refusal:
                self._fail(batch, refusal)
            except Exception as error:
                self._fail(batch, EngineRefused(f"The embedded engine failed (500): {error!r}"))
            else:
                for call, result in zip(batch, results, strict=True):
                    if not call.future.done():
                        call.future.set_result(result)
            await asyncio.sleep(0)

    def _fail(self, batch: Sequence[_Call], error: EngineRefused) -> None:
        for call in batch:
            if not call.future.done():
                call.future.set_exception(error)

    def _next_batch(self) -> list[_Call]:
        self._waiting = [call for call in self._waiting if not call.future.done()]
        groups: dict[tuple[Any, ...], list[_Call]] = defaultdict(list)
        for call in self._waiting:
            r = call.request
            groups[r.model, r.choices, r.temperature, r.seed, bool(r.tools)].append(call)
        largest = max(groups.values(), key=len)
        batch = sorted(largest, key=lambda call: len(call.ids))[: self._max_batch]
        taken = {id(call) for call in batch}
        self._waiting = [call for call in self._waiting if id(call) not in taken]
        return batch

    def _answer(self, batch: Sequence[_Call]) -> list[ChatResult]:
        import torch

        request = batch[0].request
        with self._busy, torch.inference_mode():
            self._check_known(request.model)
            return self._answer_alone(batch)

    def _answer_alone(self, batch: Sequence[_Call]) -> list[ChatResult]:
        request = batch[0].request
        with self._using(request.model):
            if request.choices:
                return self._choose(batch)
            return self._generate(batch)

    def _using(self, name: str) -> Any:
        import contextlib

        if name == BASE_NAME:
            return self._model.disable_adapter() if self._adapters else contextlib.nullcontext()
        self._model.set_adapter(name, inference_mode=True)
        return contextlib.nullcontext()

    def _generate(self, batch: Sequence[_Call]) -> list[ChatResult]:
        import torch

        request = batch[0].request
        ids_B_T, mask_B_T, cache = self._prefill([call.ids for call in batch])
        sampling: dict[str, Any] = {"do_sample": False}
        if request.temperature > 0:
            torch.manual_seed(request.seed or 0)
            sampling = {"do_sample": True, "temperature": request.temperature, "top_k": 0}
        out_B_T = self._model.generate(
            input_ids=ids_B_T,
            attention_mask=mask_B_T,
            cache=cache,
            max_new_tokens=max(call.request.max_tokens for call in batch),
            eos_token_id=self._tokenizer.eos_token_id,
            pad_token_id=self._pad_id,
            **sampling,
        )
        return [
            self._result(call, row[ids_B_T.shape[1] :].tolist())
            for call, row in zip(batch, out_B_T, strict=True)
        ]

    def _result(self, call: _Call, new_ids: list[int]) -> ChatResult:
        eos = self._tokenizer.eos_token_id
        new_ids = new_ids[: call.request.max_tokens]
        stopped = eos in new_ids
        if stopped:
            new_ids = new_ids[: new_ids.index(eos) + 1]
        text = self._tokenizer.decode(new_ids[:-1] if stopped else new_ids)
        response_id = _new_response_id()
        message = Message(role="assistant", content=text)
        if call.request.tools:
            message = parse_tool_calls(text, f"call-{response_id[-12:]}")
        finish = "tool_calls" if message.tool_calls else "stop" if stopped else "length"
        return ChatResult(
            response_id=response_id,
            served_name=call.request.model,
            message=message,
            finish_reason=finish,
            prompt_tokens=len(call.ids),
            completion_tokens=len(new_ids),
            prompt_token_ids=tuple(call.ids),
            completion_token_ids=tuple(new_ids),
            duration_s=time.monotonic() - call.started,
        )

    def _choose(self, batch: Sequence[_Call]) -> list[ChatResult]:
        """Score every choice under the model: exact constrained decoding of a closed set."""
        import torch

        choices = batch[0].request.choices
        choice_ids = [self._tokenizer(c, add_special_tokens=False)["input_ids"] for c in choices]
        if any(a != b and b[: len(a)] == a for a in choice_ids for b in choice_ids):
            # "L1" would always beat "L10": what tells them apart is the end of the answer.
            choice_ids = [[*ids, self._tokenizer.eos_token_id] for ids in choice_ids]
        shared = 0
        while shared + 1 < min(map(len, choice_ids)) and (
            len({tuple(ids[: shared + 1]) for ids in choice_ids}) == 1
        ):
            shared += 1
        tails = [ids[shared:] for ids in choice_ids]
        prompts = [call.ids + choice_ids[0][:shared] for call in batch]
        if all(len(tail) == 1 for tail in tails):
            ids_B_T, mask_B_T = self._pad(prompts)
            logits_B_V = self._model(
                input_ids=ids_B_T, attention_mask=mask_B_T, logits_to_keep=1
            ).logits[:, -1]
            scores_B_C = logits_B_V[:, [tail[0] for tail in tails]].float()
        else:
            scores_B_C = torch.tensor([[self._score(p, t) for t in tails] for p in prompts])
        results = []
        for call, p_C in zip(batch, torch.softmax(scores_B_C, -1), strict=True):
            best = int(p_C.argmax())
            results.append(
                ChatResult(
                    response_id=_new_response_id(),
                    served_name=call.request.model,
                    message=Message(role="assistant", content=choices[best]),
                    finish_reason="stop",
                    prompt_tokens=len(call.ids),
                    completion_tokens=len(choice_ids[best]),
                    prompt_token_ids=tuple(call.ids),
                    completion_token_ids=tuple(choice_ids[best]),
                    choice_probability=float(p_C[best]),
                    duration_s=time.monotonic() - call.started,
                )
            )
        return results

    def _score(self, prompt: list[int], tail: list[int]) -> float:
        import torch

        ids = torch.tensor([prompt + tail], device=self._model.device)
        logits_T_V = self._model(input_ids=ids, logits_to_keep=len(tail) + 1).logits[0, :-1]
        logprobs_T_V = torch.log_softmax(logits_T_V.float(), -1)
        return sum(float(logprobs_T_V[t, token]) for t, token in enumerate(tail))

    @property
    def _pad_id(self) -> int:
        pad = self._tokenizer.pad_token_id
        return int(self._tokenizer.eos_token_id if pad is None else pad)

    def _prefill(self, rows: Sequence[list[int]]) -> tuple[Any, Any, Any]:
        """Compute what all rows begin with once; return (ids, mask, cache), the first two (B, T).

        Requests of a slot share their system prompt and tools. The cache is None where there
        is too little in common.
        """
        import torch

        shared = _shared_length(rows)
        if len(rows) == 1 or shared < MIN_SHARED_TOKENS:
            return *self._pad(rows), None
        ids_B_T, mask_B_T = self._pad([row[shared:] for row in rows])
        prefix_1_T = torch.tensor([rows[0][:shared]], device=self._model.device)
        out = self._model(input_ids=prefix_1_T, use_cache=True, logits_to_keep=1)
        out.cache.batch_repeat_interleave(len(rows))
        prefix_B_T = prefix_1_T.expand(len(rows), -1)
        return (
            torch.cat([prefix_B_T, ids_B_T], 1),
            torch.cat([torch.ones_like(prefix_B_T), mask_B_T], 1),
            out.cache,
        )

    def _pad(self, rows: Sequence[list[int]]) -> tuple[Any, Any]:
        """Pad on the left to equal length; return (ids, mask), each (B, T)."""
        import torch

        width = max(map(len, rows))
        ids = [[self._pad_id] * (width - len(row)) + row for row in rows]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        device = self._model.device
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def _shared_length(rows: Sequence[list[int]]) -> int:
    """Count the tokens that all rows begin with, short of any row's last one."""
    first, last = min(rows), max(rows)
    most = min(map(len, rows)) - 1
    return next((i for i in range(most) if first[i] != last[i]), most)


def _new_response_id() -> str:
    return f"chatcmpl-{uuid.uuid4().hex[:24]}"
