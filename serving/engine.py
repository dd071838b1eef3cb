"""The engine interface: what the loop asks of an inference server.

`Engine` is implemented twice: `serving.openai_engine` speaks HTTP to any
OpenAI-compatible server with vLLM's LoRA calls, `serving.embedded` answers the
same calls in-process with transformers and PEFT. Both batch what is asked
concurrently, so callers simply `asyncio.gather` their requests.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from serving.records import Message


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One engine call."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    max_tokens: int = 96
    temperature: float = 0.0
    seed: int | None = None
    choices: tuple[str, ...] = ()
    """If given, the answer is exactly one of these (constrained decoding)."""
    continue_final: bool = False
    """Continue the last (assistant) message instead of opening a new one."""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChatResult:
    """An engine's answer to one call."""

    response_id: str
    served_name: str
    message: Message
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    completion_token_ids: tuple[int, ...] | None = None
    choice_probability: float | None = None
    """With `choices`: the probability the model gave the chosen one; among the choices from the
    embedded engine, among all texts from a server that tells token log-probabilities."""
    duration_s: float = 0.0


class Engine(Protocol):
    """What the loop needs of an inference server with LoRA adapters.

    All calls raise `EngineUnavailable` if the server cannot be reached and
    `EngineRefused` if it answers with an error status.
    """

    async def chat(self, request: ChatRequest) -> ChatResult:
        """Answer one request; concurrent calls are batched by the engine."""
        ...

    async def models(self) -> tuple[str, ...]:
        """Names that may be asked for: the base and the loaded adapters."""
        ...

    async def load_adapter(self, name: str, path: Path) -> None:
        """Load a PEFT folder under a new name; a name never gets new weights."""
        ...

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter."""
        ...

    async def close(self) -> None:
        """Release sockets, threads and memory."""
        ...
