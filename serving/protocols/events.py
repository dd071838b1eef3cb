"""Server-sent events, and how far the stream of an answer has come."""

import json
from typing import Any

import orjson

from serving.engine import CallDelta, Delta
from serving.exchange import Reply

DONE = b"data: [DONE]\n\n"


def encode(value: Any) -> bytes:
    """Write JSON, also where a model's text holds half of a surrogate pair."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode()


def event(data: Any, name: str | None = None) -> bytes:
    """Write one event; `name` is its type where the protocol has one."""
    head = f"event: {name}\ndata: ".encode() if name else b"data: "
    return head + encode(data) + b"\n\n"


class Progress:
    """What a stream has told of an answer."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._arguments: dict[int, list[str]] = {}

    def add(self, delta: Delta) -> None:
        """Note a piece."""
        if delta.content:
            self._content.append(delta.content)
        if delta.reasoning:
            self._reasoning.append(delta.reasoning)
        for call in delta.calls:
            self._arguments.setdefault(call.index, []).append(call.arguments)

    def rest(self, reply: Reply) -> Delta:
        """Return what is still to tell: all of an answer that no engine streamed."""
        calls = []
        for index, call in enumerate(reply.message.tool_calls):
            sent = self._arguments.get(index)
            arguments = _after("".join(sent or ()), call.arguments)
            if sent is None:
                calls.append(CallDelta(index, call.id, call.name, arguments))
            elif arguments:
                calls.append(CallDelta(index, arguments=arguments))
        return Delta(
            content=_after("".join(self._content), reply.message.content),
            reasoning=_after("".join(self._reasoning), reply.reasoning),
            calls=tuple(calls),
        )


def _after(sent: str, whole: str) -> str:
    # An engine may trim an answer's ends; what the client has seen cannot be taken back.
    return whole[len(sent) :] if whole.startswith(sent) else ""
