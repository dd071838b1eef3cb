"""A session, an engine call and a score as MetaClaw writes them; the texts are made up."""

from typing import Any

HEAD = {"type": "session", "version": 3, "id": "s1", "timestamp": "2026-03-16T01:00:00.000Z"}


def line(name: str, parent: str | None, minute: int, **fields: Any) -> dict[str, Any]:
    """Return a line of a session."""
    time = f"2026-03-16T01:{minute:02}:00.000Z"
    return {"type": "message", "id": name, "parentId": parent, "timestamp": time} | fields


def asks(name: str, parent: str | None, minute: int, text: str) -> dict[str, Any]:
    """Return a user's line."""
    message = {"role": "user", "content": [{"type": "text", "text": text}]}
    return line(name, parent, minute, message=message)


def answers(
    name: str, parent: str, minute: int, text: str = "", *calls: str, **more: Any
) -> dict[str, Any]:
    """Return an answer's line; `calls` are ids of calls to `read`."""
    parts: list[dict[str, Any]] = [{"type": "thinking", "thinking": f"Hm, {name}."}]
    parts += [{"type": "text", "text": text}] if text else []
    parts += [
        {"type": "toolCall", "id": call, "name": "read", "arguments": {"path": "a.md"}}
        for call in calls
    ]
    usage = {"input": 100, "output": 20, "cacheRead": 300, "cacheWrite": 0}
    message = {"role": "assistant", "content": parts, "model": "m-1", "usage": usage,
               "stopReason": "toolUse" if calls else "stop"} | more  # fmt: skip
    return line(name, parent, minute, message=message)


def gives(name: str, parent: str, minute: int, call: str | None, text: str) -> dict[str, Any]:
    """Return a tool result's line."""
    message = {"role": "toolResult", "toolName": "read", "isError": False,
               "content": [{"type": "text", "text": text}]}  # fmt: skip
    return line(name, parent, minute, message=message | ({"toolCallId": call} if call else {}))


SESSION = [
    HEAD,
    {"type": "model_change", "id": "m", "parentId": None, "provider": "p", "modelId": "m-0"},
    asks("u1", "m", 1, "What is in a.md?"),
    answers("a1", "u1", 2, "", "c1", "c2"),
    gives("r1", "a1", 3, "c1", "One."),
    gives("r2", "r1", 3, None, "Two."),
    answers("a2", "r2", 4, "One and two."),
    asks("u2", "a2", 5, "Thanks."),
    answers("a3", "u2", 6, "You are welcome.", model=None),
]
CALL = {
    "session_id": "s9", "turn": 2, "timestamp": "2026-03-16 01:02:03",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}],
    "instruction_text": "Hi.", "prompt_text": "...", "response_text": "Hello.",
    "tool_calls": None, "next_state": {"role": "user", "content": "Bye."},
}  # fmt: skip
SCORE = {"session_id": "s9", "turn": 2, "score": -1.0, "votes": [-1, -1, 1]}
