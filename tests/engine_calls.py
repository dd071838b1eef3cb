"""Adapters for the tiny base and short calls of the embedded engine, for its tests."""

import hashlib
from pathlib import Path

from serving.embedded import EmbeddedEngine
from serving.engine import ChatRequest, ChatResult
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
