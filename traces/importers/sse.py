"""Server-sent events of a chat completion, put back together.

The chunks are OpenAI's `chat.completion.chunk`: text, reasoning and tool calls
come as deltas, tool calls keyed by `index` with their arguments in pieces. In:
the raw stream. Out: a `Stream` that says whether it ended properly.
"""

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Stream:
    """A reassembled stream."""

    response_id: str | None = None
    model: str | None = None
    content: str = ""
    reasoning: str = ""
    tool_calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By index, in OpenAI form."""
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    response: dict[str, Any] | None = None
    """The whole response that the responses protocol sends with its last event."""
    error: str | None = None
    done: bool = False
    """Whether `[DONE]` was seen."""

    @property
    def broken(self) -> str | None:
        """Why the stream is not whole; None if it is."""
        if self.error is not None:
            return self.error
        if self.finish_reason is None:
            return "the stream ended without a finish_reason"
        return None if self.done else "the stream ended without [DONE]"

    def message(self) -> dict[str, Any] | None:
        """Return the assistant message in OpenAI form; None if nothing came."""
        if not self.content and not self.tool_calls and self.finish_reason is None:
            return None
        calls = [self.tool_calls[index] for index in sorted(self.tool_calls)]
        return {"role": "assistant", "content": self.content, "tool_calls": calls}


def reassemble(raw: str | list[Any]) -> Stream:
    """Put a stream back together from its text, or from a list of its lines.

    Comments and keep-alives are skipped; a line cut in the middle of its JSON
    ends the stream as broken.
    """
    stream = Stream()
    text = raw if isinstance(raw, str) else "\n".join(str(line) for line in raw)
    for line in text.splitlines():
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            stream.done = True
            break
        try:
            chunk = json.loads(data)
        except ValueError:
            stream.error = "the stream was cut in the middle of a chunk"
            break
        if isinstance(chunk, dict):
            _add(stream, chunk)
    return stream


def _add(stream: Stream, chunk: dict[str, Any]) -> None:
    if chunk.get("error"):
        error = chunk["error"]
        stream.error = str(error.get("message") if isinstance(error, dict) else error)
    kind = str(chunk.get("type") or "")
    if kind.startswith("response.") and isinstance(chunk.get("response"), dict):
        stream.response = chunk["response"]
        if kind in ("response.completed", "response.incomplete"):
            stream.finish_reason, stream.done = kind.removeprefix("response."), True
        return
    stream.response_id = stream.response_id or chunk.get("id")
    stream.model = stream.model or chunk.get("model")
    stream.usage = chunk.get("usage") or stream.usage
    stream.metadata.update(chunk.get("metadata") or {})
    for choice in chunk.get("choices") or ():
        if choice.get("index", 0) != 0:
            continue
        delta = choice.get("delta") or {}
        stream.content += delta.get("content") or ""
        stream.reasoning += delta.get("reasoning") or delta.get("reasoning_content") or ""
        for piece in delta.get("tool_calls") or ():
            _add_call(stream, piece)
        stream.finish_reason = choice.get("finish_reason") or stream.finish_reason


def _add_call(stream: Stream, piece: dict[str, Any]) -> None:
    empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
    call = stream.tool_calls.setdefault(int(piece.get("index") or 0), empty)
    call["id"] = piece.get("id") or call["id"]
    function = piece.get("function") or {}
    call["function"]["name"] += function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""
