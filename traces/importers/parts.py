"""Content parts of messages in every dialect, read into text, reasoning, calls and results.

In: the `content` or `parts` of a message: a text, or a list of parts as OpenAI chat and
responses, OpenTelemetry GenAI, Anthropic, Gemini, LangChain and the Vercel AI SDK write them.
Out: a `Content`. What is no text (an image, a file, a part of an unknown type) leaves a
placeholder in the text, `[image image/png sha256:1f2e3d4c5b6a]`, so that it is never lost
unseen. Pure: bytes in messages become their digest, links and names are kept.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from serving.records import ToolCall, canonical_json

_INLINE_CHARS = 400
"""An unknown part's JSON is kept up to this size; of a longer one the digest is."""


@dataclass(slots=True)
class Result:
    """What a tool gave back."""

    call_id: str | None
    text: str


@dataclass(slots=True)
class Content:
    """The parts of one message, apart by kind and in order."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    def add(self, value: Any) -> None:
        """Read a `content` of any form: None, a text, a part, or a list of those."""
        if value is None:
            return
        if isinstance(value, str):
            self.text.append(value)
        elif isinstance(value, dict):
            self._add_part(value)
        elif isinstance(value, list | tuple):
            for part in value:
                self.add(part)
        else:
            self.text.append(json_text(value))

    def _add_part(self, part: dict[str, Any]) -> None:
        # The Vercel AI SDK records calls without a type.
        kind = str(part.get("type") or ("tool-call" if "toolName" in part else "")).lower()
        if (read := _READERS.get(kind)) is not None:
            read(self, part)
        elif not kind and (name := next((n for n in _UNTYPED if n in part), None)):
            _UNTYPED[name](self, part[name])
        else:
            self.text.append(placeholder(part))


def json_text(value: Any) -> str:
    """Return a text as it is and anything else as JSON text in the order of its keys."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def arguments_text(value: Any) -> str:
    """Return a call's arguments, object or text, as the JSON text that OpenAI carries."""
    return value if isinstance(value, str) else json.dumps(value or {}, ensure_ascii=False)


def tool_call(call_id: Any, name: Any, arguments: Any) -> ToolCall:
    """Return a call; an id the source does not give is empty until the conversation is read."""
    return ToolCall(
        id=str(call_id or ""), name=str(name or ""), arguments=arguments_text(arguments)
    )


def decoded_parts(value: Any) -> Any:
    """Return the parts that JSON text stands for; text that is no JSON list of parts stays text.

    Instrumentations write a content of several parts as JSON; a user's text that happens to be
    JSON is not taken for one.
    """
    if not isinstance(value, str) or not value.startswith("[{"):
        return value
    try:
        parts = json.loads(value)
    except (ValueError, RecursionError):
        return value
    known = all(
        isinstance(part, dict)
        and (str(part.get("type")).lower() in _KNOWN or (_UNTYPED.keys() & part.keys()))
        for part in parts
    )
    return parts if known else value


def plain_text(value: Any) -> str:
    """Return the text of a content of any form, with placeholders for what is no text."""
    content = Content()
    content.add(value)
    return "".join(content.text)


def placeholder(part: dict[str, Any]) -> str:
    """Return what stands in the text for a part that is no text."""
    kind = str(part.get("modality") or part.get("type") or "part")
    kind = _KINDS.get(kind.lower(), kind)
    found = {**part, **_nested(part)}
    media = next((str(found[name]) for name in _MEDIA_TYPES if found.get(name)), "")
    link = next((found[name] for name in _LINKS if found.get(name)), None)
    data = next((found[name] for name in _DATA if found.get(name)), None)
    if isinstance(link, str) and link.startswith("data:"):
        head, _, data = link[5:].partition(",")
        media = media or head.split(";", 1)[0]
        link = None
    if link is None and data is None:
        link = _shown(part)
    mark = json_text(link) if link is not None else digest_of(json_text(data))
    return f"[{' '.join(word for word in (kind, media, mark) if word)}]"


def digest_of(text: str) -> str:
    """Return a short digest that stands for data too large to keep in a message."""
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _shown(part: dict[str, Any]) -> str:
    text = canonical_json({k: v for k, v in part.items() if k != "type"})
    return text if len(text) <= _INLINE_CHARS else digest_of(text)


def _nested(part: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the object that some dialects put a part's data in."""
    for name in ("image_url", "source", "input_audio", "file", "image", "inline_data", "audio"):
        if isinstance(part.get(name), dict):
            return dict(part[name])
    return {}


_KINDS = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "input_file": "file",
    "image-data": "image",
    "image-url": "image",
    "file-data": "file",
    "file-url": "file",
    "file-id": "file",
    "media": "file",
}
_MEDIA_TYPES = ("mime_type", "media_type", "mediaType", "mimeType", "format")
_LINKS = (
    "url", "uri", "image_url", "file_url", "file_id", "fileId", "filename", "ref",
)  # fmt: skip
_DATA = ("data", "image", "file_data", "content", "base64")


def _text(content: Content, part: dict[str, Any]) -> None:
    text = part.get("text")
    # Some dialects wrap once more: {"text": {"value": ...}} of OpenAI's threads.
    if isinstance(text, dict):
        text = text.get("value")
    content.add(text if text is not None else part.get("content"))


def _refusal(content: Content, part: dict[str, Any]) -> None:
    content.text.append(str(part.get("refusal") or ""))


def _reasoning(content: Content, part: dict[str, Any]) -> None:
    names = ("thinking", "content", "text", "reasoning", "summary")
    found = next((part[name] for name in names if part.get(name)), None)
    if found is not None:
        content.reasoning.append(plain_text(decoded_parts(found)))


def _call(content: Content, part: dict[str, Any]) -> None:
    # OpenAI's custom tools are called with plain text: {"type": "custom", "custom": {...}}.
    nested = (part.get(name) for name in ("function", "custom"))
    inner = next((found for found in nested if isinstance(found, dict)), part)
    names = ("arguments", "args", "input", "parameters")
    arguments = next((inner[name] for name in names if inner.get(name) is not None), None)
    call_id = part.get("call_id") or part.get("toolCallId") or part.get("id")
    name = inner.get("name") or inner.get("toolName")
    content.calls.append(tool_call(call_id, name, arguments))


def _result(content: Content, part: dict[str, Any]) -> None:
    ids = ("tool_use_id", "toolCallId", "call_id", "tool_call_id", "id")
    call_id = next((str(part[name]) for name in ids if part.get(name)), None)
    # GenAI 1.37 says `result`, 1.41 `response`; Vercel `result`, from version 5 `output`.
    names = ("response", "result", "output", "content")
    found = next((part[name] for name in names if part.get(name) is not None), "")
    content.results.append(Result(call_id, result_text(found)))


def result_text(value: Any) -> str:
    """Return a tool's result as text: texts and text parts as they are, other values as JSON."""
    if isinstance(value, dict) and value.get("type") in _WRAPPED and "value" in value:
        return result_text(value["value"])
    if isinstance(value, list) and value and all(_is_part(item) for item in value):
        return plain_text(value)
    if _is_part(value) and value["type"] == "text":
        return plain_text(value)
    return json_text(value)


_WRAPPED = ("text", "json", "error-text", "error-json", "content", "execution-denied")


def _is_part(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") in (
        "text", "image", "image_url", "output_text", "input_text", "input_image", "input_file",
        "document", "media", "image-data", "image-url", "file-data", "file-url", "file-id",
        "search_result", "tool_reference",
    )  # fmt: skip


def _untyped_text(content: Content, text: Any) -> None:
    content.add(text)


def _bedrock_call(content: Content, call: dict[str, Any]) -> None:
    content.calls.append(tool_call(call.get("toolUseId"), call.get("name"), call.get("input")))


def _bedrock_result(content: Content, result: dict[str, Any]) -> None:
    inner = result.get("content") or []
    texts = [
        item["text"] if set(item) == {"text"} else json_text(item.get("json", item))
        for item in inner
    ]
    call_id = result.get("toolUseId")
    content.results.append(Result(str(call_id) if call_id else None, "".join(texts)))


def _bedrock_reasoning(content: Content, value: dict[str, Any]) -> None:
    content.reasoning.append(str((value.get("reasoningText") or {}).get("text") or ""))


def _gemini_call(content: Content, call: dict[str, Any]) -> None:
    content.calls.append(tool_call(call.get("id"), call.get("name"), call.get("args")))


def _gemini_result(content: Content, result: dict[str, Any]) -> None:
    call_id = result.get("id")
    content.results.append(
        Result(str(call_id) if call_id else None, result_text(result.get("response")))
    )


_READERS: dict[str, Callable[[Content, dict[str, Any]], None]] = {
    **dict.fromkeys(("text", "input_text", "output_text", "summary_text"), _text),
    "refusal": _refusal,
    **dict.fromkeys(("reasoning", "thinking", "reasoning_text", "reasoning_content"), _reasoning),
    **dict.fromkeys(
        (
            "tool_call", "tool-call", "toolcall", "tool_use", "function_call", "function",
            "custom_tool_call",
        ),
        _call,
    ),
    **dict.fromkeys(
        (
            "tool_call_response", "tool-result", "tool_result", "function_call_output",
            "custom_tool_call_output",
        ),
        _result,
    ),
}  # fmt: skip
_KNOWN = {*_READERS, *_KINDS, "image", "audio", "file", "document", "blob", "uri", "media"}
_UNTYPED: dict[str, Callable[[Content, Any], None]] = {
    "functionCall": _gemini_call,
    "function_call": _gemini_call,
    "functionResponse": _gemini_result,
    "function_response": _gemini_result,
    "toolUse": _bedrock_call,
    "toolResult": _bedrock_result,
    "reasoningContent": _bedrock_reasoning,
    "text": _untyped_text,
}
