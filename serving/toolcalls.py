"""Read tool calls that a model wrote as text, in the Hermes form.

`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, the form of
`infra/chat_template.jinja` and of vLLM's `hermes` parser, whose behaviour on broken
JSON (the whole text stays content) is kept. Half of a surrogate pair becomes `?`: no hash, file
or tokenizer takes it.
"""

import json
import re

from serving.records import Message, ToolCall

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|$)", re.DOTALL)


def parse_tool_calls(text: str, id_prefix: str) -> Message:
    """Return the assistant message that `text` stands for; call ids are `<id_prefix>-<n>`."""
    bodies = _CALL.findall(text)
    if not bodies:
        return Message(role="assistant", content=text)
    calls = []
    for n, body in enumerate(bodies):
        try:
            raw = json.loads(body)
            name, arguments = raw["name"], raw["arguments"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return Message(role="assistant", content=text)
        if not isinstance(name, str):
            return Message(role="assistant", content=text)
        rendered = _storable(json.dumps(arguments, ensure_ascii=False))
        calls.append(ToolCall(id=f"{id_prefix}-{n}", name=_storable(name), arguments=rendered))
    return Message(
        role="assistant", content=text[: text.index("<tool_call>")].strip(), tool_calls=tuple(calls)
    )


def _storable(text: str) -> str:
    return text.encode(errors="replace").decode()
