"""Server-sent events of a chat completion, put back together.

The chunks are OpenAI's `chat.completion.chunk`: text, reasoning and tool calls
come as deltas, tool calls keyed by `index` with their arguments in pieces. Of
older protocols the `function_call` and legacy completions' `text` are read too. In:
the raw stream, whole (`reassemble`) or as the network cuts it (`Stream.feed`). Out:
a `Stream` that says whether it ended properly.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from serving.engine import CallDelta, Delta

# A carriage return at the very end may be half of a CRLF: it waits for the next piece.
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
_CUT = "the stream was cut in the middle of a chunk"


class EventReader:
    """Cuts bytes into events and parses their data as JSON.

    Source: WHATWG HTML, 9.2.6 "Interpreting an event stream". Unlike there, an event whose
    first data line is whole JSON counts at once, without its blank line: recorders drop those.
    """

    def __init__(self) -> None:
        self.done = False
        """Whether `[DONE]` was seen; nothing after it is read."""
        self.error: str | None = None
        """Why reading stopped."""
        self._partial: list[bytes] = []
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """Take the next bytes and return the chunks that are whole now."""
        if b"\n" not in piece and b"\r" not in piece:
            self._partial.append(piece)
            return []
        *lines, rest = _LINE_END.split(b"".join((*self._partial, piece)))
        self._partial = [rest] if rest else []
        return self._read(lines)

    def end(self) -> list[dict[str, Any]]:
        """Take the end of the stream: what was begun is whole or broken."""
        lines, self._partial = [b"".join(self._partial).removesuffix(b"\r"), b""], []
        return self._read(lines)

    def _read(self, lines: Sequence[bytes]) -> list[dict[str, Any]]:
        chunks = []
        for line in lines:
            if self.done or self.error is not None:
                break
            if not line:
                chunk = self._parse(last=True) if self._data else None
            elif line.startswith(b"data:"):
                self._data.append(line[5:].strip())
                chunk = self._parse(last=False) if len(self._data) == 1 else None
            else:
                continue
            if chunk is not None:
                chunks.append(chunk)
        return chunks

    def _parse(self, last: bool) -> dict[str, Any] | None:
        data = b"\n".join(self._data)
        if last and not data.strip():
            self._data = []
            return None
        if data == b"[DONE]":
            self.done, self._data = True, []
            return None
        try:
            chunk = orjson.loads(data)
        except ValueError:
            if last:
                self.error = _CUT
            return None
        self._data = []
        return chunk if isinstance(chunk, dict) else None


@dataclass(slots=True)
class Stream:
    """A stream as far as it has come."""

    response_id: str | None = None
    model: str | None = None
    tool_calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By index, in OpenAI form."""
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    response: dict[str, Any] | None = None
    """The whole response that the responses protocol sends with its last event."""
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    """One entry a token, where they were asked for."""
    error: str | None = None
    done: bool = False
    """Whether `[DONE]` was seen."""
    _content: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _reader: EventReader = field(default_factory=EventReader)

    @property
    def content(self) -> str:
        """The text so far."""
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        """What the model thought aloud so far."""
        return "".join(self._reasoning)

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
        content = self.content
        if not content and not self.tool_calls and self.finish_reason is None:
            return None
        calls = [self.tool_calls[index] for index in sorted(self.tool_calls)]
        return {"role": "assistant", "content": content, "tool_calls": calls}

    def feed(self, piece: bytes) -> list[Delta]:
        """Take the next bytes from the network and return what they add to the answer."""
        return self._take(self._reader.feed(piece))

    def end(self) -> list[Delta]:
        """Take the end of the connection."""
        return self._take(self._reader.end())

    def _take(self, chunks: list[dict[str, Any]]) -> list[Delta]:
        deltas: list[Delta] = []
        for chunk in chunks:
            if self.error is not None:
                break
            try:
                delta = self._add(chunk)
            except (AttributeError, TypeError, ValueError):
                self.error = (
                    self.error or "the stream has a chunk that is none of a chat completion"
                )
                break
            if delta is not None:
                deltas.append(delta)
        self.done = self.done or self._reader.done
        self.error = self.error or self._reader.error
        return deltas

    def _add(self, chunk: dict[str, Any]) -> Delta | None:
        if chunk.get("error"):
            error = chunk["error"]
            self.error = str(error.get("message") if isinstance(error, dict) else error)
        kind = str(chunk.get("type") or "")
        if kind.startswith("response.") and isinstance(chunk.get("response"), dict):
            self.response = chunk["response"]
            if kind in ("response.completed", "response.incomplete"):
                self.finish_reason, self.done = kind.removeprefix("response."), True
            return None
        self.response_id = self.response_id or chunk.get("id")
        self.model = self.model or chunk.get("model")
        self.usage = chunk.get("usage") or self.usage
        self.metadata.update(chunk.get("metadata") or {})
        self.prompt_token_ids = chunk.get("prompt_token_ids") or self.prompt_token_ids
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) == 0:
                return self._add_choice(choice)
        return None

    def _add_choice(self, choice: dict[str, Any]) -> Delta | None:
        delta = choice.get("delta") or {}
        content = str(delta.get("content") or choice.get("text") or "")
        reasoning = str(delta.get("reasoning") or delta.get("reasoning_content") or "")
        legacy = delta.get("function_call")
        pieces = delta.get("tool_calls") or (
            [{"id": legacy.get("name"), "function": legacy}] if legacy else ()
        )
        calls = tuple(self._add_call(piece) for piece in pieces)
        self._content.append(content)
        self._reasoning.append(reasoning)
        self.token_ids += choice.get("token_ids") or ()
        self.logprobs += (choice.get("logprobs") or {}).get("content") or ()
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        return Delta(content, reasoning, calls) if content or reasoning or calls else None

    def _add_call(self, piece: dict[str, Any]) -> CallDelta:
        index = int(piece.get("index") or 0)
        empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = self.tool_calls.setdefault(index, empty)
        call["id"] = piece.get("id") or call["id"]
        function = piece.get("function") or {}
        name, arguments = function.get("name") or "", function.get("arguments") or ""
        call["function"]["name"] += name
        call["function"]["arguments"] += arguments
        return CallDelta(index, piece.get("id") or "", name, arguments)


def reassemble(raw: str | list[Any]) -> Stream:
    """Put a stream back together from its text, or from a list of its lines.

    Comments and keep-alives are skipped; an event cut in the middle of its JSON
    ends the stream as broken.
    """
    text = raw if isinstance(raw, str) else "\n".join(str(line) for line in raw)
    stream = Stream()
    stream.feed(text.encode("utf-8", "replace") + b"\n")
    stream.end()
    return stream
