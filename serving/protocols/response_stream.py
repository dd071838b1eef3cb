"""Writes an answer as the events of the responses protocol."""

from datetime import datetime
from typing import Any, Literal

from serving.engine import CallDelta, Delta
from serving.errors import BrokenAnswer
from serving.exchange import Ask, Reply
from serving.protocols.events import Progress, event
from serving.protocols.response_items import (
    call_item,
    finished,
    message_item,
    opened,
    reason_incomplete,
    reasoning_item,
    reasoning_part,
    text_part,
)

Kind = Literal["reasoning", "message", "call"]


class StreamWriter:
    """Writes `begin`, any number of `delta`, then `end` or `fail`.

    One output item is open at a time. The final response repeats the items as they were
    streamed: a client compares.
    """

    def __init__(self, ask: Ask, response_id: str, created_at: datetime) -> None:
        self._ask = ask
        self._response_id = response_id
        self._opened = opened(response_id, ask.model, created_at, ask)
        self._progress = Progress()
        self._sequence = 0
        self._done: list[dict[str, Any]] = []
        self._kind: Kind | None = None
        self._item: dict[str, Any] = {}
        self._text: list[str] = []
        self._call_index = -1

    def begin(self) -> bytes:
        """Open the response."""
        return self._event("response.created", response=self._opened) + self._event(
            "response.in_progress", response=self._opened
        )

    def delta(self, delta: Delta) -> bytes:
        """Write the next piece.

        Raises:
            BrokenAnswer: if the engine goes back to a tool call it had left.
        """
        self._progress.add(delta)
        written = b""
        if delta.reasoning:
            written += self._open_text("reasoning") + self._piece(
                "response.reasoning_text.delta", delta.reasoning, content_index=0
            )
        if delta.content:
            written += self._open_text("message") + self._piece(
                "response.output_text.delta", delta.content, content_index=0, logprobs=[]
            )
        for call in delta.calls:
            written += self._open_call(call)
            if call.arguments:
                written += self._piece("response.function_call_arguments.delta", call.arguments)
        return written

    def end(self, reply: Reply) -> bytes:
        """Write what is left of the answer and close it."""
        opening = b"" if self._sequence else self.begin()
        rest = self.delta(self._progress.rest(reply))
        if not self._done and self._kind is None:
            rest += self._open_text("message")
        incomplete = reason_incomplete(reply) is not None
        closed = self._close("incomplete" if incomplete else "completed")
        response = finished(reply, self._ask, self._done)
        name = "response.incomplete" if incomplete else "response.completed"
        return opening + rest + closed + self._event(name, response=response)

    def fail(self, message: str, code: str, request_id: str) -> bytes:
        """Write a failed response in place of the rest."""
        opening = b"" if self._sequence else self.begin()
        error = {
            "code": "rate_limit_exceeded" if code == "overloaded" else "server_error",
            "message": message,
            "type": code,
            "request_id": request_id,
        }
        closed = self._close("incomplete")
        response = self._opened | {"status": "failed", "error": error, "output": self._done}
        return opening + closed + self._event("response.failed", response=response)

    def _open_text(self, kind: Literal["reasoning", "message"]) -> bytes:
        if self._kind == kind:
            return b""
        closed = self._close()
        make = reasoning_item if kind == "reasoning" else message_item
        part = reasoning_part("") if kind == "reasoning" else text_part("")
        item = make(self._response_id, len(self._done), None, "in_progress")
        return (
            closed
            + self._added(kind, item)
            + self._inside("response.content_part.added", content_index=0, part=part)
        )

    def _open_call(self, call: CallDelta) -> bytes:
        if self._kind == "call" and call.index == self._call_index:
            return b""
        if call.index <= self._call_index:
            raise BrokenAnswer(
                f"The engine went back to tool call {call.index} after it had begun "
                "something else; a stream tells one call after the other."
            )
        closed = self._close()
        self._call_index = call.index
        at = len(self._done)
        item = call_item(self._response_id, at, call.id, call.name, "", "in_progress")
        return closed + self._added("call", item)

    def _added(self, kind: Kind, item: dict[str, Any]) -> bytes:
        self._kind, self._item, self._text = kind, item, []
        return self._event("response.output_item.added", output_index=len(self._done), item=item)

    def _piece(self, name: str, text: str, **more: Any) -> bytes:
        self._text.append(text)
        return self._inside(name, delta=text, **more)

    def _close(self, status: Literal["completed", "incomplete"] = "completed") -> bytes:
        if self._kind is None:
            return b""
        text = "".join(self._text)
        if self._kind == "call":
            written = self._inside(
                "response.function_call_arguments.done",
                name=self._item["name"],
                arguments=text,
            )
            done = self._item | {"status": status, "arguments": text}
        else:
            thought = self._kind == "reasoning"
            part = reasoning_part(text) if thought else text_part(text)
            name = "response.reasoning_text.done" if thought else "response.output_text.done"
            more: dict[str, Any] = {} if thought else {"logprobs": []}
            written = self._inside(name, content_index=0, text=text, **more)
            written += self._inside("response.content_part.done", content_index=0, part=part)
            done = self._item | {"status": status, "content": [part]}
        written += self._event("response.output_item.done", output_index=len(self._done), item=done)
        self._done.append(done)
        self._kind = None
        return written

    def _inside(self, event_name: str, /, **fields: Any) -> bytes:
        at = len(self._done)
        return self._event(event_name, item_id=self._item["id"], output_index=at, **fields)

    def _event(self, event_name: str, /, **fields: Any) -> bytes:
        data = {"type": event_name, "sequence_number": self._sequence} | fields
        self._sequence += 1
        return event(data, event_name)
