"""A message on a page for people: who says it, in a line or a few, cut where it is long."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from rich.text import Text

from serving.records import Message, ToolCall

_NO_CUT = 1_000_000_000
_STYLES = {"system": "dim", "user": "cyan", "assistant": "", "tool": "yellow"}
_ONE_LINE = 100
_INDENT = 5
"""Columns before the later lines of a message."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """How many characters of each kind of text are shown."""

    message: int = 400
    system: int = 160
    tool_result: int = 240
    line: int = 160

    @classmethod
    def none(cls) -> Self:
        """Return cuts that cut nothing."""
        return cls(_NO_CUT, _NO_CUT, _NO_CUT, _NO_CUT)


def flat(text: str, limit: int) -> str:
    """Return text on one line, cut with a note of what is left."""
    return _cut(" ".join(text.split()), limit)


def message_lines(message: Message, cuts: Cuts) -> Iterator[Text]:
    """Yield a message's lines, indented under its hop."""
    limit = {"system": cuts.system, "tool": cuts.tool_result}.get(message.role, cuts.message)
    name: str = message.role
    if message.role == "tool" and message.tool_call_id:
        name = f"tool result {message.tool_call_id}"
    text = Text.assemble((f"   {name}: ", "bold"), style=_STYLES[message.role])
    text.append(_indented(_cut(message.content.strip(), limit)))
    if message.content.strip() or not message.tool_calls:
        yield text
    for call in message.tool_calls:
        called = _indented(call_text(call, cuts))
        yield Text.assemble((f"   {message.role} calls: ", "bold"), called)


def said(message: Message, cuts: Cuts, indent: int = _INDENT) -> Text:
    """Return what a message says and calls, without its role; later lines are indented."""
    parts = [_cut(message.content.strip(), cuts.message)] if message.content.strip() else []
    parts += [call_text(call, cuts) for call in message.tool_calls]
    return Text(_indented("\n".join(parts), indent) if parts else "(empty)")


def call_text(call: ToolCall, cuts: Cuts) -> str:
    """Render a tool call as `name(key=value, ...)`, an argument a line where that is long."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return f"{call.name}({_cut(call.arguments, cuts.message)}) [arguments are not JSON]"
    if not isinstance(arguments, dict):
        return f"{call.name}({_cut(call.arguments, cuts.message)})"
    pairs = [
        f"{key}={_cut(json.dumps(value, ensure_ascii=False), cuts.message)}"
        for key, value in arguments.items()
    ]
    line = f"{call.name}({', '.join(pairs)})"
    if len(line) <= _ONE_LINE:
        return line
    return f"{call.name}(" + "".join(f"\n    {pair}," for pair in pairs) + "\n)"


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit].rstrip()} ... [{len(text) - limit:,} more characters]"


def _indented(text: str, indent: int = _INDENT) -> str:
    return text.replace("\n", "\n" + " " * indent)
