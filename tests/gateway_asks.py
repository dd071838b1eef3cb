"""Requests to the MoL server in its three protocols, and what a refusal must look like."""

from typing import Any

import httpx

Body = dict[str, Any]
PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
PROTOCOLS = tuple(PATHS)
_PRIVATE = ("Traceback", 'File "', ".py", "127.0.0.1", "localhost", "/tmp", "/home", "Error(")
"""What no error may tell: traces, paths, addresses."""


def ask(protocol: str, *said: Body | str, **fields: Any) -> Body:
    """Return the body of a request; a string is said by the user."""
    turns = [{"role": "user", "content": s} if isinstance(s, str) else s for s in said or ("Hi",)]
    body: Body = {"model": "mol", _field(protocol): turns}
    if protocol == "messages":
        body["max_tokens"] = 50
    return body | fields


def tool(protocol: str) -> Body:
    """Return a tool in the form of a protocol."""
    schema = {"type": "object", "properties": {"minutes": {"type": "integer"}}}
    match protocol:
        case "chat":
            function = {"name": "set_timer", "parameters": schema}
            return {"type": "function", "function": function}
        case "responses":
            return {"type": "function", "name": "set_timer", "parameters": schema}
    return {"name": "set_timer", "input_schema": schema}


def called(protocol: str, *ids: str) -> list[Body]:
    """Return an assistant's turn that calls `set_timer` under these ids."""
    match protocol:
        case "chat":
            function = {"name": "set_timer", "arguments": '{"minutes": 5}'}
            calls = [{"id": i, "type": "function", "function": function} for i in ids]
            return [{"role": "assistant", "content": None, "tool_calls": calls}]
        case "responses":
            call = {"type": "function_call", "name": "set_timer", "arguments": '{"minutes": 5}'}
            return [call | {"call_id": i} for i in ids]
    use = {"type": "tool_use", "name": "set_timer", "input": {"minutes": 5}}
    return [{"role": "assistant", "content": [use | {"id": i} for i in ids]}]


def results(protocol: str, *ids: str) -> list[Body]:
    """Return the results of these calls."""
    match protocol:
        case "chat":
            return [{"role": "tool", "tool_call_id": i, "content": "ok"} for i in ids]
        case "responses":
            return [{"type": "function_call_output", "call_id": i, "output": "ok"} for i in ids]
    done = [{"type": "tool_result", "tool_use_id": i, "content": "ok"} for i in ids]
    return [{"role": "user", "content": done}]


def said(protocol: str, answer: httpx.Response) -> list[Body]:
    """Return an answer as the history of the next request has it."""
    body = answer.json()
    match protocol:
        case "chat":
            return [body["choices"][0]["message"]]
        case "responses":
            return list(body["output"])
    return [{"role": "assistant", "content": body["content"]}]


def text_of(protocol: str, answer: httpx.Response) -> str:
    """Return the text of an answer."""
    assert answer.status_code == 200, answer.text
    body = answer.json()
    match protocol:
        case "chat":
            return str(body["choices"][0]["message"]["content"])
        case "responses":
            return "".join(p["text"] for item in body["output"] for p in item["content"])
    return "".join(block["text"] for block in body["content"])


def check_refusal(answer: httpx.Response, protocol: str, status: int, code: str = "") -> str:
    """Check an error's status and the shape of its protocol; return its text."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("application/json")
    body = answer.json()
    error = body["error"]
    if protocol == "messages":
        assert body.keys() == {"type", "error", "request_id"}
        assert body["type"] == "error"
        assert error.keys() == {"type", "message"}
        request_id = body["request_id"]
    else:
        assert body.keys() == {"error"}
        assert error.keys() == {"message", "type", "param", "code", "request_id"}
        assert not code or error["code"] == code
        request_id = error["request_id"]
    assert request_id
    assert answer.headers["x-request-id"] == request_id
    message = str(error["message"])
    assert message.isprintable()
    assert len(message) < 800
    assert not [word for word in _PRIVATE if word in message]
    return message


def _field(protocol: str) -> str:
    return "input" if protocol == "responses" else "messages"
