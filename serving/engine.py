"""The engine interface: what the loop asks of an inference server.

`Engine` is implemented by `serving.openai_engine`, which speaks HTTP to any
OpenAI-compatible server with vLLM's LoRA calls, by `serving.replicas`, several of
those as one, and by `serving.embedded`, which answers in-process with transformers
and PEFT. All batch what is asked concurrently, so callers simply `asyncio.gather`
their requests.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from serving.records import Message


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of a tool call in a stream; pieces of one call share `index`."""

    index: int
    id: str = ""
    """Only with the first piece of a call, like `name`."""
    name: str = ""
    arguments: str = ""
    """The next characters of the arguments' JSON text."""


@dataclass(frozen=True, slots=True)
class Delta:
    """The next piece of an answer in the making."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()


OnDelta = Callable[[Delta], Awaitable[None]]
"""Takes the pieces of a streamed answer, in order."""


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
    options: dict[str, Any] = field(default_factory=dict)
    """Further fields of the OpenAI request (`top_p`, `stop`, `tool_choice`, ...), passed on."""
    headers: dict[str, str] = field(default_factory=dict)
    affinity: str = ""
    """Calls of equal affinity go to the same replica, for its prefix cache."""
    attempt: int = 0
    """Counts from 0; a later attempt goes to another replica, if there is one."""
    timeout_s: float | None = None
    """Limit for the whole call; None is the engine's own."""


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
    reasoning: str = ""
    """What the model thought aloud, where the engine tells it apart."""
    ttft_s: float | None = None
    """Seconds to the first piece, where the answer was streamed."""


class Engine(Protocol):
    """What the loop needs of an inference server with LoRA adapters.

    All calls raise `EngineUnavailable` if the server cannot be reached, `BrokenAnswer`
    (a kind of it) if it stopped in the middle of an answer, and `EngineRefused` if it
    answers with an error status.
    """

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        """Answer one request; with `on_delta`, tell the answer piece by piece as it comes."""
        ...

    async def embed(self, text: str) -> tuple[float, ...]:
        """Return the base model's last hidden state after `text`, one number a dimension."""
        ...

    async def logprobs(
        self, model: str, token_ids: Sequence[int], first: int = 1
    ) -> tuple[float, ...]:
        """Return the log-probability of each token from `first` on, given all those before it.

        It is the one with which an answer to the tokens before would begin, so what a prefix
        cache holds takes part. A server is asked once a token: keep those that are asked few.
        """
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
