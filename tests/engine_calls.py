"""Adapters for the tiny base and short calls of an engine, embedded or behind an address."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from serving.embedded import EmbeddedEngine
from serving.engine import ChatRequest, ChatResult
from serving.openai_engine import OpenAIEngine
from serving.records import Message


def make_adapter(folder: Path, base: Path, seed: int) -> Path:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    lora = get_peft_model(model, config)
    for name, parameter in lora.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    lora.save_pretrained(folder)
    return folder


def ask(model: str = "base", text: str = "Hello", **fields) -> ChatRequest:
    messages = (Message(role="user", content=text),)
    return ChatRequest(model=model, **({"messages": messages, "max_tokens": 8} | fields))


async def load(engine: EmbeddedEngine, adapters: dict[str, Path]) -> None:
    for name, path in adapters.items():
        await engine.load_adapter(name, path)


def said(result: ChatResult) -> tuple[int, ...]:
    return result.completion_token_ids or ()


def digest(engine: EmbeddedEngine) -> str:
    """Hash the names and bytes of every parameter that is not an adapter's."""
    found = hashlib.sha256()
    for name, tensor in sorted(engine.model.plain.state_dict().items()):
        if "lora_" not in name:
            found.update(name.replace(".base_layer", "").encode() + tensor.numpy().tobytes())
    return found.hexdigest()


def use(url: str, call: Callable[[OpenAIEngine], Awaitable[Any]]) -> Any:
    """Return what a call of the engine at an address gives; its sockets are closed."""

    async def run() -> Any:
        engine = OpenAIEngine(url)
        try:
            return await call(engine)
        finally:
            await engine.close()

    return asyncio.run(run())
