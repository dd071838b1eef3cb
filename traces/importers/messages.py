"""Messages, answers and tool definitions of every dialect, in this project's terms.

    read_messages(value)  any list of messages or items -> tuple[Message, ...]
    read_answer(value)    what the model said           -> Answer (message, reasoning, finish)
    read_tools(value)     any list of tool definitions  -> JSON text, OpenAI's nested form
    read_usage(value)     any usage object              -> Usage

The dialects: OpenAI chat (content parts, the developer role, `function_call`), the items of
OpenAI responses, OpenTelemetry GenAI (`parts`), Anthropic blocks, Gemini contents, the Vercel
AI SDK, LangChain's `type`. Reasoning of earlier answers is left out of the prompt, as chat
templates do; that of the answer comes back beside it. A role nobody knows raises `ValueError`.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from serving.records import Message, Role, ToolCall, canonical_json
from traces.importers.parts import Content, Result, placeholder, result_text, tool_call

_ROLES: dict[str, Role] = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user",
    "assistant": "assistant", "ai": "assistant", "model": "assistant",
    "aimessagechunk": "assistant",
    "tool": "tool", "function": "tool", "toolresult": "tool",
}  # fmt: skip
_PLAIN_ROLES: dict[Any, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
_FINISH = {
    "stop": "stop", "end_turn": "stop", "stop_sequence": "stop", "eos": "stop", "completed": "stop",
    "end": "stop", "complete": "stop", "finish": "stop",
    "length": "length", "max_tokens": "length", "max_output_tokens": "length",
    "incomplete": "length",
    "tool_calls": "tool_calls", "tool_call": "tool_calls", "tool-calls": "tool_calls",
    "tool_use": "tool_calls", "tooluse": "tool_calls", "function_call": "tool_calls",
    "content_filter": "content_filter", "content-filter": "content_filter",
    "safety": "content_filter", "refusal": "content_filter",
}  # fmt: skip
_CALL_ITEMS = ("function_call", "custom_tool_call")
_RESULT_ITEMS = ("function_call_output", "custom_tool_call_output")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model answered."""

    message: Message | None
    reasoning: str | None = None
    finish_reason: str | None = None
    """In OpenAI's words where it is one of the known ones, else as it came."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts; None where the source does not tell."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


def decoded(value: Any) -> Any:
    """Return what JSON text stands for; anything else, and text that is no JSON, as it is."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if not text or (text[0] not in '[{"' and text not in ("null", "true", "false")):
        return value
    try:
        return orjson.loads(text)
    except ValueError:
        pass
    try:  # what only the standard decoder takes: huge numbers, NaN, halves of surrogate pairs
        return json.loads(text)
    except (ValueError, RecursionError):
        return value


def read_messages(value: Any) -> tuple[Message, ...]:
    """Read a conversation: a list of messages or items, one of them, or the user's text.

    Calls without an id get that of their place in the conversation, and results without one
    answer the calls in order.

    Raises:
        ValueError: if a role is unknown, or an element is neither text nor object.
    """
    if value is None:
        return ()
    if isinstance(value, str | dict):
        value = [value]
    reader = _Conversation()
    for raw in value:
        reader.add(raw)
    return tuple(reader.messages)


def read_answer(value: Any) -> Answer:
    """Read an answer: one message, or a list of messages, parts or items that make one up."""
    if value is None or value == [] or value == "":
        return Answer(None)
    raws = list(value) if isinstance(value, list | tuple) else [value]
    content = Content()
    finish = None
    for raw in raws:
        if not isinstance(raw, dict):
            content.add(raw)
            continue
        finish = finish or finish_reason(raw.get("finish_reason") or raw.get("stop_reason"))
        _read_into(content, raw)
    text = [*content.text, *(f"[tool result {result.text}]" for result in content.results)]
    calls = _with_ids(content.calls, 0)
    message = Message(role="assistant", content="".join(text), tool_calls=calls)
    reasoning = "".join(content.reasoning)
    return Answer(message, reasoning or None, finish)


def read_tools(value: Any) -> str:
    """Return tool definitions as JSON text in the nested form of OpenAI's chat completions."""
    value = decoded(value)
    if isinstance(value, dict):
        # A map by name, or one definition alone.
        known = ("function", "name", "parameters", "input_schema", "functionDeclarations")
        flat = any(name in value for name in known)
        value = [value] if flat else [_named(name, tool) for name, tool in value.items()]
    return canonical_json([tool for raw in value or () for tool in _tools_of(decoded(raw))])


def read_usage(value: Any) -> Usage:
    """Read token counts under any of the names in use."""
    usage = decoded(value)
    if not isinstance(usage, dict):
        return Usage()
    nested = ("prompt_tokens_details", "input_tokens_details", "input_token_details")
    details: dict[str, Any] = next((d for n in nested if isinstance(d := usage.get(n), dict)), {})
    cached = _first_int({**details, **usage}, _CACHED)
    return Usage(_first_int(usage, _PROMPT), _first_int(usage, _COMPLETION), cached)


def finish_reason(value: Any) -> str | None:
    """Return a finish reason in OpenAI's words; a list's first; an unknown one as it is."""
    if isinstance(value, list | tuple):
        value = value[0] if value else None
    if value is None or value == "":
        return None
    return _FINISH.get(str(value).lower(), str(value))


def role_of(raw: dict[str, Any]) -> Role:
    """Return the role of a message.

    Raises:
        ValueError: if it is none that is known.
    """
    name = raw.get("role") or raw.get("type") or "user"
    role = _ROLES.get(str(name).lower())
    if role is None:
        raise ValueError(f"role {name!r} is none of {sorted(_ROLES)}")
    return role


class _Conversation:
    """Messages read so far, and the calls that still have no result."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._open: list[str] = []
        self._calls = 0
        self._item_open = False
        """Whether the last message is an answer made of items, to which a call item belongs."""

    def add(self, raw: Any) -> None:
        if isinstance(raw, str):
            raw = {"role": "user", "content": raw}
        if not isinstance(raw, dict):
            raise ValueError(f"a message is a {type(raw).__name__}, neither text nor object")
        kind = raw.get("type")
        if kind in _RESULT_ITEMS and "role" not in raw:
            content = Content()
            content.add(raw)
            self._results(content.results)
        elif kind == "reasoning" and "role" not in raw:
            return
        elif _is_item(raw):
            self._item(raw)
        else:
            self._message(raw)

    def _message(self, raw: dict[str, Any]) -> None:
        text = _plain_text(raw)
        if text is not None and (role := _PLAIN_ROLES.get(raw["role"])) is not None:
            if role == "assistant":
                self._open = []
            self._append(Message(role=role, content=text))
            return
        content = Content()
        _read_into(content, raw)
        role = role_of(raw)
        text = "".join(content.text)
        if role == "tool":
            if not content.results or text:
                call_id = raw.get("tool_call_id") or raw.get("toolCallId") or raw.get("id")
                whole = text if isinstance(raw.get("content"), str) else _tool_text(raw, text)
                content.results.insert(0, Result(str(call_id) if call_id else None, whole))
            self._results(content.results)
            return
        if role == "assistant":
            self._answer(text, content.calls)
            self._results(content.results)
            self._item_open = kind_is_message(raw)
            return
        self._results(content.results)
        if text or not content.results:
            self._append(Message(role=role, content=text))

    def _item(self, raw: dict[str, Any]) -> None:
        content = Content()
        content.add(raw)
        text = "".join(content.text)
        if self._item_open and self.messages:
            last = self.messages.pop()
            calls = self._numbered(content.calls)
            self._open += [call.id for call in calls]
            self.messages.append(
                last.model_copy(
                    update={"content": last.content + text, "tool_calls": last.tool_calls + calls}
                )
            )
        else:
            self._answer(text, content.calls)
        self._item_open = True

    def _answer(self, text: str, raw_calls: Sequence[ToolCall]) -> None:
        calls = self._numbered(raw_calls)
        self._open = [call.id for call in calls]
        self._append(Message(role="assistant", content=text, tool_calls=calls))

    def _results(self, results: Iterable[Result]) -> None:
        for result in results:
            call_id = result.call_id
            if call_id is None and self._open:
                call_id = self._open[0]
            if call_id in self._open:
                self._open.remove(call_id)
            self._append(Message(role="tool", content=result.text, tool_call_id=call_id))

    def _numbered(self, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        numbered = _with_ids(calls, self._calls)
        self._calls += len(calls)
        return numbered

    def _append(self, message: Message) -> None:
        self.messages.append(message)
        self._item_open = False


def _plain_text(raw: dict[str, Any]) -> str | None:
    """Return the text of a message that is nothing but text, as most are; else None."""
    if len(raw) != 2 or "role" not in raw:
        return None
    content = raw.get("content")
    if isinstance(content, str):
        return content
    parts = raw.get("parts")
    if not isinstance(parts, list) or len(parts) != 1:
        return None
    part = parts[0]
    if not isinstance(part, dict) or len(part) != 2 or part.get("type") != "text":
        return None
    text = part.get("content")
    return text if isinstance(text, str) else None


def kind_is_message(raw: dict[str, Any]) -> bool:
    """Return whether a raw message is an item of the responses protocol."""
    return raw.get("type") == "message"


def _is_item(raw: dict[str, Any]) -> bool:
    kind = raw.get("type")
    if "role" in raw or not isinstance(kind, str):
        return False
    return kind in _CALL_ITEMS or kind.lower() not in _ROLES


def _with_ids(calls: Sequence[ToolCall], before: int) -> tuple[ToolCall, ...]:
    """Give calls without an id one that follows from what they are."""
    return tuple(
        call if call.id else call.model_copy(update={"id": call.name or f"call-{before + n}"})
        for n, call in enumerate(calls)
    )


def _read_into(content: Content, raw: dict[str, Any]) -> None:
    """Read one raw message, item or part: its content and the calls beside it."""
    if "role" not in raw and not ({"content", "parts", "tool_calls"} & raw.keys()):
        content.add(raw)
        return
    if "role" not in raw and str(raw.get("type") or "").lower() not in {*_ROLES, "", "message"}:
        content.add(raw)
        return
    for name in ("reasoning", "reasoning_content"):
        if isinstance(raw.get(name), str) and not content.reasoning:
            content.reasoning.append(raw[name])
    content.add(raw.get("content"))
    content.add(raw.get("parts"))
    if raw.get("refusal") and not raw.get("content"):
        content.text.append(str(raw["refusal"]))
    audio = raw.get("audio")
    if isinstance(audio, dict):
        content.text.append(str(audio.get("transcript") or placeholder({"type": "audio", **audio})))
    known = {call.id for call in content.calls if call.id}
    for call in raw.get("tool_calls") or raw.get("toolCalls") or ():
        made = _outer_call(call)
        # LangChain repeats Anthropic's calls beside the blocks that hold them.
        if made.id not in known:
            content.calls.append(made)
    legacy = raw.get("function_call")
    if isinstance(legacy, dict) and legacy.get("name"):
        content.calls.append(tool_call(None, legacy["name"], legacy.get("arguments")))


def _outer_call(call: dict[str, Any]) -> ToolCall:
    content = Content()
    content.add({**call, "type": "tool_call"})
    return content.calls[0]


def _tool_text(raw: dict[str, Any], text: str) -> str:
    found = raw.get("content")
    return text if found is None else result_text(found)


def _named(name: str, tool: Any) -> Any:
    return {"name": name, **tool} if isinstance(tool, dict) else {"name": name}


def _tools_of(raw: Any) -> list[dict[str, Any]]:
    if not isinstance(raw, dict):
        return [{"type": "function", "function": {"name": str(raw)}}]
    if isinstance(raw.get("function"), dict):
        return [{"type": "function", "function": raw["function"]}]
    declared = raw.get("functionDeclarations") or raw.get("function_declarations")
    if isinstance(declared, list):
        return [tool for one in declared for tool in _tools_of(one)]
    if "name" not in raw:
        return [raw]  # a tool that the provider runs, such as {"type": "web_search"}
    schemas = ("parameters", "input_schema", "inputSchema", "json_schema")
    parameters = next((decoded(raw[name]) for name in schemas if raw.get(name)), None)
    function: dict[str, Any] = {"name": raw["name"]}
    if raw.get("description") is not None:
        function["description"] = raw["description"]
    function["parameters"] = parameters or {"type": "object", "properties": {}}
    if raw.get("strict") is not None:
        function["strict"] = raw["strict"]
    return [{"type": "function", "function": function}]


_PROMPT = (
    "prompt_tokens", "input_tokens", "promptTokens", "inputTokens", "promptTokenCount", "input",
    "prompt",
)  # fmt: skip
_COMPLETION = (
    "completion_tokens", "output_tokens", "completionTokens", "outputTokens",
    "candidatesTokenCount", "output", "completion",
)  # fmt: skip
_CACHED = (
    "cached_tokens", "cache_read_input_tokens", "cache_read", "cachedInputTokens",
    "cachedContentTokenCount", "input_cached_tokens", "prompt_tokens_cached",
)  # fmt: skip


def _first_int(usage: dict[str, Any], names: Sequence[str]) -> int | None:
    for name in names:
        value = usage.get(name)
        if isinstance(value, dict):
            value = value.get("total")
        if isinstance(value, str) and value.isascii() and value.isdigit():
            return int(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and value == value:
            return int(value)
    return None
