"""What a client asks and gets, whatever protocol it speaks.

`serving.protocols` turns the bodies of chat completions, responses and Anthropic
messages into an `Ask` and a `Reply` back into each one's own form; the gateway
between them knows only these.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from serving.errors import MolError
from serving.records import Message

ProtocolName = Literal["chat", "responses", "messages"]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a client."""

    protocol: ProtocolName
    model: str
    messages: tuple[Message, ...]
    """User, assistant and tool messages in order, without system messages; never empty."""
    instructions: str = ""
    """The client's system texts, joined by blank lines."""
    tools: tuple[dict[str, Any], ...] = ()
    """In the form of chat completions."""
    options: dict[str, Any] = field(default_factory=dict)
    """Sampling and output fields in the names of chat completions: `temperature`, `top_p`,
    `stop`, `seed`, `tool_choice`, `response_format`, ...; only those the client set."""
    max_tokens: int | None = None
    stream: bool = False
    include_usage: bool = False
    """Whether a chat stream ends with a chunk of token counts."""
    previous_response_id: str | None = None
    """Responses protocol: the answer that this request follows."""
    store: bool = True
    """Responses protocol: whether a later request may follow this one."""
    user: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """What the client gets."""

    response_id: str
    model: str
    """The name the client asked for."""
    message: Message
    finish_reason: str
    """In the words of chat completions: `stop`, `length`, `tool_calls`, ..."""
    created_at: datetime
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    reasoning: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    """`mol_*` facts of the turn: slot, version, decision, conversation."""


class RequestInvalid(MolError, ValueError):
    """A client's request is wrong; the protocol's own error shape says how."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str = "invalid_request",
        status: int = 400, retry_after_s: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.param = param
        """Field that is wrong, dotted; None for the request as a whole."""
        self.code = code
        self.status = status
        self.retry_after_s = retry_after_s
