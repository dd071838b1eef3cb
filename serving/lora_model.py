"""A base model with LoRA adapters in this process: load, unload, generate, choose, embed.

transformers and PEFT under the calls of `serving.embedded`. Everything here blocks; one
call at a time touches the model.
"""

import contextlib
import logging
import threading
import time
import uuid
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

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


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request with its tokens."""

    request: ChatRequest
    ids: list[int]
    arrived: float
    """When it came, on the monotonic clock."""


class LoraModel:
    """The model and its adapters.

    Raises:
        EngineUnavailable: if the base folder holds no model that transformers can load.
    """

    def __init__(self, base: Path) -> None:
        """Load the base model from a Hugging Face folder, float32 on the CPU, bfloat16 on a GPU."""
        import torch
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

        on_gpu = torch.cuda.is_available()
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True)
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
        self.model: Any = model.to("cuda" if on_gpu else "cpu").eval()
        self.model.requires_grad_(False)
        # A base may ship sampling defaults; vLLM is started without them too.
        self.model.generation_config = GenerationConfig()
        self.plain = self.model
        self._adapters: dict[str, Path] = {}
        self._busy = threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """The base's name and the adapters' names."""
        return (BASE_NAME, *self._adapters)

    def check_known(self, name: str) -> None:
        """Refuse a name that is not served."""
        if name not in self.names:
            raise EngineRefused(
                f"The model {name!r} does not exist (404). Loaded: {', '.join(self.names)}.", 404
            )

    def load(self, name: str, path: Path) -> None:
        """Load a PEFT folder under a new name."""
        from peft import PeftModel
        from safetensors import SafetensorError

        with self._busy:
            if name in self._adapters or name == BASE_NAME:
                raise EngineRefused(
                    f"The adapter {name!r} is loaded already; a name never changes (400).",
                    400,
                )
            try:
                warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
                if self._adapters:
                    self.model.load_adapter(path, adapter_name=name, torch_device="cpu")
                else:
                    self.model = PeftModel.from_pretrained(self.plain, path, adapter_name=name)
            except (OSError, ValueError, RuntimeError, LookupError, SafetensorError) as error:
                self._forget(name)
                raise AdapterNotServable(
                    f"The adapter in {str(path)!r} does not fit this base: "
                    f"{str(error).strip().splitlines()[0]}"
                ) from error
            self.model.eval()
            self._adapters[name] = path

    def unload(self, name: str) -> None:
        """Forget an adapter."""
        with self._busy:
            if name not in self._adapters:
                raise EngineRefused(f"The adapter {name!r} is not loaded (404).", 404)
            del self._adapters[name]
            self._forget(name)

    def _forget(self, name: str) -> None:
        """Take an adapter out of the model, also a half loaded one; the last leaves it bare."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        if self._adapters:
            self.model.set_adapter(next(iter(self._adapters)), inference_mode=True)
            if name in self.model.peft_config:
                self.model.delete_adapter(name)
            return
        self.model = self.plain
        for path, module in list(self.plain.named_modules()):
            if isinstance(module, BaseTunerLayer):
                self.plain.set_submodule(path, module.get_base_layer())
        if hasattr(self.plain, "peft_config"):
            del self.plain.peft_config

    def release(self) -> None:
        """Let go of the weights."""
        with self._busy:
            self.model = self.plain = None

    def prompt(self, request: ChatRequest) -> Prompt:
        """Render and tokenize a request."""
        try:
            text = render_text(
                self.tokenizer,
                request.messages,
                request.tools,
                continue_final=request.continue_final,
            )
        except (ValueError, TypeError, LookupError, TemplateError) as error:
            why = " ".join(str(error).split())[:200]
            raise EngineRefused(f"These messages cannot be rendered (400): {why}", 400) from error
        return Prompt(request, encode(self.tokenizer, text), time.monotonic())

    def embed(self, text: str) -> tuple[float, ...]:
        """Return the base's hidden state at the last token of `text`, after the final norm."""
        import torch

        ids = self.tokenizer(text)["input_ids"]
        if not ids:
            raise EngineRefused("An empty text has no hidden state (400).", 400)
        with self._busy, torch.inference_mode(), self._using(BASE_NAME):
            ids_1_T = torch.tensor([ids], device=self.model.device)
            out = self.model(input_ids=ids_1_T, output_hidden_states=True, logits_to_keep=1)
            return tuple(out.hidden_states[-1][0, -1].float().tolist())

    def logprobs(
        self, name: str, rows: Sequence[tuple[int, ...]], firsts: Sequence[int]
    ) -> list[tuple[float, ...]]:
        """Return for each row the log-probabilities of its tokens from its first on.

        A row with which another one begins is read off that one's pass.
        """
        import torch

        with self._busy, torch.inference_mode():
            self.check_known(name)
            with self._using(name):
                told: dict[tuple[int, ...], tuple[float, ...]] = {}
                for row in sorted(set(rows), key=len, reverse=True):
                    if not any(longer[: len(row)] == row for longer in told):
                        told[row] = self._told(row, min(firsts))
        found = (next(t for longer, t in told.items() if longer[: len(r)] == r) for r in rows)
        return [
            whole[first - min(firsts) : len(row) - min(firsts)]
            for whole, row, first in zip(found, rows, firsts, strict=True)
        ]

    def _told(self, row: tuple[int, ...], first: int) -> tuple[float, ...]:
        import torch

        ids_1_T = torch.tensor([row], device=self.model.device)
        kept = len(row) - first + 1
        logits_K_V = self.model(input_ids=ids_1_T, logits_to_keep=kept).logits[0, :-1].float()
        logprobs_K_V = torch.log_softmax(logits_K_V, -1)
        return tuple(logprobs_K_V.gather(-1, ids_1_T[0, first:, None])[:, 0].tolist())

    def answer(self, batch: Sequence[Prompt]) -> list[ChatResult]:
        """Answer requests that agree in model, choices, sampling and whether they have tools."""
        import torch

        request = batch[0].request
        with self._busy, torch.inference_mode():
            self.check_known(request.model)
            with self._using(request.model):
                return self._choose(batch) if request.choices else self._generate(batch)

    def _using(self, name: str) -> Any:
        if name == BASE_NAME:
            return self.model.disable_adapter() if self._adapters else contextlib.nullcontext()
        self.model.set_adapter(name, inference_mode=True)
        return contextlib.nullcontext()

    def _generate(self, batch: Sequence[Prompt]) -> list[ChatResult]:
        request = batch[0].request
        ids_B_T, mask_B_T, cache = self._prefill([prompt.ids for prompt in batch])
        sampling: dict[str, Any] = {}
        if request.temperature > 0:
            from serving.seeded_sampling import seeded_sampling

            # Rows without a seed differ by their place in the batch.
            seeds = [n if p.request.seed is None else p.request.seed for n, p in enumerate(batch)]
            top_p = request.options.get("top_p")
            sampling["logits_processor"] = seeded_sampling(seeds, request.temperature, top_p)
        out_B_T = self.model.generate(
            input_ids=ids_B_T,
            attention_mask=mask_B_T,
            cache=cache,
            max_new_tokens=max(prompt.request.max_tokens for prompt in batch),
            eos_token_id=self.tokenizer.eos_token_id,
            pad_token_id=self._pad_id,
            do_sample=False,
            **sampling,
        )
        return [
            self._result(prompt, row[ids_B_T.shape[1] :].tolist())
            for prompt, row in zip(batch, out_B_T, strict=True)
        ]

    def _result(self, prompt: Prompt, new_ids: list[int]) -> ChatResult:
        eos = self.tokenizer.eos_token_id
        new_ids = new_ids[: prompt.request.max_tokens]
        stopped = eos in new_ids
        if stopped:
            new_ids = new_ids[: new_ids.index(eos) + 1]
        text = self.tokenizer.decode(new_ids[:-1] if stopped else new_ids)
        text, cut = _before_stop(text, prompt.request.options.get("stop"))
        response_id = _new_response_id()
        message = Message(role="assistant", content=text)
        if prompt.request.tools:
            message = parse_tool_calls(text, f"call-{response_id[-12:]}")
        finish = "tool_calls" if message.tool_calls else "stop" if stopped or cut else "length"
        return ChatResult(
            response_id=response_id,
            served_name=prompt.request.model,
            message=message,
            finish_reason=finish,
            prompt_tokens=len(prompt.ids),
            completion_tokens=len(new_ids),
            prompt_token_ids=tuple(prompt.ids),
            completion_token_ids=tuple(new_ids),
            duration_s=time.monotonic() - prompt.arrived,
        )

    def _choose(self, batch: Sequence[Prompt]) -> list[ChatResult]:
        """Score every choice under the model: exact constrained decoding of a closed set."""
        import torch

        choices = batch[0].request.choices
        choice_ids = [self.tokenizer(c, add_special_tokens=False)["input_ids"] for c in choices]
        if any(a != b and b[: len(a)] == a for a in choice_ids for b in choice_ids):
            # "L1" would always beat "L10": what tells them apart is the end of the answer.
            choice_ids = [[*ids, self.tokenizer.eos_token_id] for ids in choice_ids]
        shared = 0
        while shared + 1 < min(map(len, choice_ids)) and (
            len({tuple(ids[: shared + 1]) for ids in choice_ids}) == 1
        ):
            shared += 1
        tails = [ids[shared:] for ids in choice_ids]
        rows = [prompt.ids + choice_ids[0][:shared] for prompt in batch]
        if all(len(tail) == 1 for tail in tails):
            ids_B_T, mask_B_T, cache = self._prefill(rows)
            places_B_T = (mask_B_T.cumsum(-1) - 1).clamp(min=0)
            computed = 0 if cache is None else cache.get_seq_length()
            logits_B_V = self.model(
                input_ids=ids_B_T[:, computed:],
                attention_mask=mask_B_T,
                position_ids=places_B_T[:, computed:],
                cache=cache,
                logits_to_keep=1,
            ).logits[:, -1]
            scores_B_C = logits_B_V[:, [tail[0] for tail in tails]].float()
        else:
            scores_B_C = torch.tensor([[self._score(row, t) for t in tails] for row in rows])
        results = []
        for prompt, p_C in zip(batch, torch.softmax(scores_B_C, -1), strict=True):
            best = int(p_C.argmax())
            results.append(
                ChatResult(
                    response_id=_new_response_id(),
                    served_name=prompt.request.model,
                    message=Message(role="assistant", content=choices[best]),
                    finish_reason="stop",
                    prompt_tokens=len(prompt.ids),
                    completion_tokens=len(choice_ids[best]),
                    prompt_token_ids=tuple(prompt.ids),
                    completion_token_ids=tuple(choice_ids[best]),
                    choice_probability=float(p_C[best]),
                    duration_s=time.monotonic() - prompt.arrived,
                )
            )
        return results

    def _score(self, prompt: list[int], tail: list[int]) -> float:
        import torch

        ids = torch.tensor([prompt + tail], device=self.model.device)
        logits_T_V = self.model(input_ids=ids, logits_to_keep=len(tail) + 1).logits[0, :-1]
        logprobs_T_V = torch.log_softmax(logits_T_V.float(), -1)
        return sum(float(logprobs_T_V[t, token]) for t, token in enumerate(tail))

    @property
    def _pad_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return int(self.tokenizer.eos_token_id if pad is None else pad)

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
        prefix_1_T = torch.tensor([rows[0][:shared]], device=self.model.device)
        out = self.model(input_ids=prefix_1_T, use_cache=True, logits_to_keep=1)
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
        device = self.model.device
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def _shared_length(rows: Sequence[list[int]]) -> int:
    """Count the tokens that all rows begin with, short of any row's last one."""
    first, last = min(rows), max(rows)
    most = min(map(len, rows)) - 1
    return next((i for i in range(most) if first[i] != last[i]), most)


def _before_stop(text: str, stop: str | Sequence[str] | None) -> tuple[str, bool]:
    """Return the text before the first stop string, and whether there was one."""
    strings = [stop] if isinstance(stop, str) else stop or ()
    found = [at for at in map(text.find, filter(None, strings)) if at >= 0]
    return (text[: min(found)], True) if found else (text, False)


def _new_response_id() -> str:
    return f"chatcmpl-{uuid.uuid4().hex[:24]}"
