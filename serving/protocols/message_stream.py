"""Writes an answer in the Anthropic form: a whole message, or the events of one."""

import json
from datetime import datetime
from typing import Any, Literal

from serving.engine import CallDelta, Delta
from serving.errors import BrokenAnswer
from serving.exchange import Ask, Reply
from serving.protocols.events import Progress, event

INVALID_JSON = "INVALID_JSON"
"""Holds arguments that are no JSON object, as Anthropic's documentation of fine-grained tool
streaming has it; a request that brings them back gives the model its own text."""

STOP_SEQUENCE = "mol_stop_sequence"
"""Key of a reply's metadata that names the stop sequence that ended it, where one is known."""

_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}

Kind = Literal["thinking", "text", "call"]


def whole(reply: Reply, ask: Ask | None = None) -> dict[str, Any]:
    """Return the body of a plain answer; `ask` is not needed here."""
    content: list[dict[str, Any]] = []
    if reply.reasoning:
        content.append({"type": "thinking", "thinking": reply.reasoning, "signature": ""})
    if reply.message.content:
        content.append({"type": "text", "text": reply.message.content})
    for call in reply.message.tool_calls:
        content.append(_tool_use(call.id, call.name, _input(call.arguments)))
    body = _message(reply.response_id, reply.model) | {"content": content} | _stop(reply)
    body["usage"] = _usage(reply)
    return body | ({"metadata": reply.metadata} if reply.metadata else {})


def anthropic_error(message: str, kind: str, request_id: str) -> dict[str, Any]:
    """Return an error in the form of the Anthropic protocol."""
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": request_id,
    }


class StreamWriter:
    """Writes `begin`, any number of `delta`, then `end` or `fail`; one block is open at a time."""

    def __init__(self, ask: Ask, response_id: str, created_at: datetime) -> None:
        """The protocol tells no time: `created_at` is not used."""
        self._message = _message(response_id, ask.model)
        self._progress = Progress()
        self._begun = False
        self._kind: Kind | None = None
        self._index = -1
        self._call_index = -1

    def begin(self) -> bytes:
        """Open the message."""
        self._begun = True
        return _event("message_start", message=self._message)

    def delta(self, delta: Delta) -> bytes:
        """Write the next piece.

        Raises:
            BrokenAnswer: if the engine goes back to a tool call it had left.
        """
        self._progress.add(delta)
        written = b""
        if delta.reasoning:
            blank = {"type": "thinking", "thinking": "", "signature": ""}
            written += self._open("thinking", blank)
            written += self._piece("thinking_delta", thinking=delta.reasoning)
        if delta.content:
            written += self._open("text", {"type": "text", "text": ""})
            written += self._piece("text_delta", text=delta.content)
        for call in delta.calls:
            written += self._open_call(call)
            if call.arguments:
                written += self._piece("input_json_delta", partial_json=call.arguments)
        return written

    def end(self, reply: Reply) -> bytes:
        """Write what is left of the answer and close it."""
        opening = b"" if self._begun else self.begin()
        rest = self.delta(self._progress.rest(reply)) + self._close()
        more = {"metadata": reply.metadata} if reply.metadata else {}
        last = _event("message_delta", delta=_stop(reply), usage=_usage(reply), **more)
        return opening + rest + last + _event("message_stop")

    def fail(self, message: str, code: str, request_id: str) -> bytes:
        """Write an error in place of the rest; the protocol knows few codes."""
        kind = "overloaded_error" if code == "overloaded" else "api_error"
        return event(anthropic_error(message, kind, request_id), "error")

    def _open(self, kind: Kind, block: dict[str, Any]) -> bytes:
        if self._kind == kind != "call":
            return b""
        closed = self._close()
        self._kind = kind
        self._index += 1
        return closed + _event("content_block_start", index=self._index, content_block=block)

    def _open_call(self, call: CallDelta) -> bytes:
        if self._kind == "call" and call.index == self._call_index:
            return b""
        if call.index <= self._call_index:
            raise BrokenAnswer(
                f"The engine went back to tool call {call.index} after it had begun "
                "something else; a stream tells one call after the other."
            )
        self._call_index = call.index
        return self._open("call", _tool_use(call.id, call.name, {}))

    def _piece(self, kind: str, **fields: str) -> bytes:
        return _event("content_block_delta", index=self._index, delta={"type": kind} | fields)

    def _close(self) -> bytes:
        if self._kind is None:
            return b""
        self._kind = None
        return _event("content_block_stop", index=self._index)


def _event(event_type: str, /, **fields: Any) -> bytes:
    return event({"type": event_type} | fields, event_type)


def _message(response_id: str, model: str) -> dict[str, Any]:
    return {
        "id": response_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def _tool_use(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def _input(arguments: str) -> dict[str, Any]:
    if not arguments:
        return {}
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {INVALID_JSON: arguments}


def _stop(reply: Reply) -> dict[str, Any]:
    if reply.finish_reason == "stop" and reply.message.tool_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    sequence = reply.metadata.get(STOP_SEQUENCE)
    if reply.finish_reason == "stop" and sequence is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": sequence}
    reason = _STOP_REASONS.get(reply.finish_reason, "end_turn")
    return {"stop_reason": reason, "stop_sequence": None}


def _usage(reply: Reply) -> dict[str, int]:
    cached = reply.cached_tokens or 0
    # Anthropic counts the tokens read from the cache apart.
    return {
        "input_tokens": reply.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": reply.completion_tokens,
    }
