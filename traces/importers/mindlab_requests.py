"""Client requests of a harness capture, as the hop join needs them.

In: the body of a `requests` row (a line of `turns.jsonl`). Out: `RequestFacts`.
Chat completions and responses, plain and streamed, refused and abandoned ones.
"""

import json
from datetime import timedelta
from typing import Any

from serving.records import Message, utc_from_timestamp
from serving.sse import Stream, reassemble
from traces.importers.mindlab import SOURCE, error_text
from traces.join import RequestFacts, history_keys


def request_facts(request_id: str, body: str) -> RequestFacts:
    """Read a client request; fields of an odd shape count as absent."""
    record = json.loads(body)
    request = _dict(record.get("request"))
    started_at = utc_from_timestamp(float(record["ts"]))
    messages = _messages(request)
    got = _response(record)
    metadata = got["metadata"]
    answer: Message | None = got["answer"]
    note = record.get("note")
    # The harness makes a new mol_conversation_id for each request that names none,
    # so it is a link between requests, never proof that two are apart.
    conversation = metadata.get("mol_conversation_id")
    links = [conversation, got["response_id"], request.get("previous_response_id")]
    return RequestFacts(
        request_id=request_id,
        source=SOURCE,
        started_at=started_at,
        ended_at=started_at + timedelta(seconds=float(record.get("duration_s") or 0.0)),
        user=request.get("user"),
        text=next((m.content for m in reversed(messages) if m.role == "user"), ""),
        answers_calls=answered_calls(messages),
        keys=tuple(history_keys([*messages, answer] if answer else messages)),
        links=tuple(f"{SOURCE} {link}" for link in links if link),
        conversation=conversation,
        response_id=got["response_id"],
        answer=answer,
        route=metadata.get("mol_selected_route"),
        decision=metadata.get("mol_decision"),
        error=str(note) if note else got["error"],
        abandoned=bool(note),
        bare=bool(note) and not request,
    )


def answered_calls(messages: list[Message] | tuple[Message, ...]) -> frozenset[str]:
    """Return the ids of the tool calls whose results end the messages."""
    calls: set[str] = set()
    for message in reversed(messages):
        if message.role != "tool":
            break
        if message.tool_call_id:
            calls.add(message.tool_call_id)
    return frozenset(calls)


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
