"""Client requests of a harness capture, as the hop join needs them.

In: the body of a `requests` row (a line of `turns.jsonl`). Out: `Request`.
Chat completions and responses, plain and streamed, refused and abandoned ones.
"""

import json
from typing import Any, NamedTuple

from serving.records import Message
from serving.sse import Stream, reassemble
from traces.ending import MAX_DURATION_S
from traces.importers.cells import number as number_in
from traces.importers.mindlab import error_text
from traces.joins.histories import Histories, history_labels, message_label, text_hash
from traces.joins.join import RequestFacts


class Request(NamedTuple):
    """A client request: what the join needs, and what is only passed on."""

    facts: RequestFacts
    text: str
    """The last user message."""
    answer: Message | None
    response_id: str | None


def read_request(number: int, body: str, histories: Histories) -> Request:
    """Read a client request; fields of an odd shape count as absent."""
    record = json.loads(body)
    request = _dict(record.get("request"))
    started_us = round(float(record["ts"]) * 1e6)
    messages = _messages(request)
    got = _response(record)
    answer: Message | None = got["answer"]
    note = record.get("note")
    text = next((m.content for m in reversed(messages) if m.role == "user"), "")
    said = message_label(answer) if answer else None
    prior, whole = histories.add(history_labels(messages), said)
    # The harness makes a new mol_conversation_id for each request that names none,
    # so it is a link between requests, never proof that two are apart.
    conversation = got["metadata"].get("mol_conversation_id")
    links = [conversation, got["response_id"], request.get("previous_response_id")]
    facts = RequestFacts(
        number=number,
        started_us=started_us,
        ended_us=started_us + round(_duration_s(record) * 1e6),
        user=request.get("user"),
        text=text_hash(text),
        text_length=len(text),
        answers=answered_calls(messages),
        prior=prior,
        whole=whole,
        links=tuple(text_hash(str(link)) for link in links if link),
        conversation=conversation,
        answered=answer is not None,
        decision=got["metadata"].get("mol_decision"),
        error=str(note) if note else got["error"],
        abandoned=bool(note),
        bare=bool(note) and not request,
    )
    return Request(facts, text, answer, got["response_id"])


def _duration_s(record: dict[str, Any]) -> float:
    """Return how long it took; lakes may hold requests taken in before the field was looked at."""
    seconds = number_in(record.get("duration_s")) or 0.0
    return max(-MAX_DURATION_S, min(seconds, MAX_DURATION_S))


def answered_calls(messages: list[Message]) -> tuple[int, ...]:
    """Return the hashes of the ids of the tool calls whose results end the messages."""
    calls: list[int] = []
    for message in reversed(messages):
        if message.role != "tool":
            break
        if message.tool_call_id:
            calls.append(text_hash(message.tool_call_id))
    return tuple(calls)


def _messages(request: dict[str, Any]) -> list[Message]:
    raw = request.get("messages")
    if raw is None:
        raw = request.get("input")
    if isinstance(raw, str):
        return [Message(role="user", content=raw)]
    return [m for item in raw or () if (m := _message(item)) is not None]


def _message(item: Any) -> Message | None:
    """Read a chat message or an input item of the responses protocol."""
    if not isinstance(item, dict):
        return None
    if item.get("type") == "function_call_output":
        call = str(item.get("call_id") or "")
        return Message(role="tool", content=str(item.get("output") or ""), tool_call_id=call)
    if item.get("type") == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        made = {"id": item.get("call_id"), "function": function}
        return Message.from_openai({"role": "assistant", "tool_calls": [made]})
    try:
        return Message.from_openai(item)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _response(record: dict[str, Any]) -> dict[str, Any]:
    """Return answer, response id, metadata and error of what the client got."""
    got: dict[str, Any] = {"answer": None, "response_id": None, "metadata": {}, "error": None}
    status = record.get("status")
    response = record.get("response")
    if isinstance(status, int) and status >= 400:
        return got | {"error": f"{status} {error_text(response)}"}
    if record.get("sse") is not None:
        stream = reassemble(record["sse"])
        if stream.response is not None:
            record = {**record, "sse": None, "response": stream.response}
            return _response(record) | {"error": _broken(stream)}
        raw = stream.message()
        return {
            "answer": Message.from_openai(raw) if raw else None,
            "response_id": stream.response_id,
            "metadata": stream.metadata,
            "error": _broken(stream),
        }
    body = _dict(response)
    return got | {
        "answer": _plain_answer(body),
        "response_id": body.get("id"),
        "metadata": _dict(body.get("metadata")),
    }


def _broken(stream: Stream) -> str | None:
    return f"broken stream: {stream.broken}" if stream.broken else None


def _plain_answer(body: dict[str, Any]) -> Message | None:
    if body.get("choices"):
        return _message(_dict(body["choices"][0]).get("message"))
    output = [m for item in body.get("output") or () if (m := _message(item)) is not None]
    if not output:
        return None
    calls = tuple(call for m in output for call in m.tool_calls)
    return Message(role="assistant", content="".join(m.content for m in output), tool_calls=calls)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
