"""Messages: an Anthropic request to an `Ask`, a `Reply` and its stream back.

Fields and limits follow the Anthropic API reference ("Create a Message"). Content
other than text, tool calls, tool results and thinking is refused, and so are
Anthropic's own tools; thinking blocks in a request are ignored, for a model's
earlier thoughts are not its input.
"""

import json
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import Field, StringConstraints

from serving.exchange import Ask, RequestInvalid
from serving.protocols.calls import CallLedger, chat_tool, check_tools, mode_choice, named_choice
from serving.protocols.fields import (
    MAX_MESSAGES,
    MAX_TOKENS,
    Body,
    CallId,
    JsonObject,
    Name,
    TokenLimit,
    ToolName,
    options_of,
    text_tag,
)
from serving.protocols.message_stream import INVALID_JSON, StreamWriter, anthropic_error, whole
from serving.protocols.refusals import read, refused
from serving.records import Message, ToolCall

__all__ = ["MessageBody", "StreamWriter", "error_body", "new_response_id", "parse", "whole"]

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_MODES = {"auto": "auto", "any": "required", "none": "none"}


class TextBlock(Body):
    """A piece of text."""

    type: Literal["text"]
    text: str


class ToolUseBlock(Body):
    """A tool call of an earlier answer."""

    type: Literal["tool_use"]
    id: CallId
    name: Name
    input: JsonObject


class ToolResultBlock(Body):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: CallId
    content: str | Annotated[list[TextBlock], Field(fail_fast=True)] | None = None
    is_error: bool | None = None


class ThinkingBlock(Body):
    """What a model thought before an earlier answer; not read."""

    type: Literal["thinking", "redacted_thinking"]


Texts = str | Annotated[list[TextBlock], Field(fail_fast=True)]
UserBlock = Annotated[TextBlock | ToolResultBlock, Field(discriminator="type"), text_tag("type")]
AssistantBlock = Annotated[
    TextBlock | ToolUseBlock | ThinkingBlock, Field(discriminator="type"), text_tag("type")
]


class AnthropicUserMessage(Body):
    """What the user said, and the results of tools."""

    role: Literal["user"]
    content: str | Annotated[list[UserBlock], Field(fail_fast=True)]


class AnthropicAssistantMessage(Body):
    """An earlier answer."""

    role: Literal["assistant"]
    content: str | Annotated[list[AssistantBlock], Field(fail_fast=True)]


class AnthropicSystemMessage(Body):
    """Instructions in the middle of a conversation."""

    role: Literal["system"]
    content: Texts


AnyMessage = Annotated[
    AnthropicUserMessage | AnthropicAssistantMessage | AnthropicSystemMessage,
    Field(discriminator="role"),
    text_tag("role"),
]


class AnthropicTool(Body):
    """A function that the model may call."""

    type: Literal["custom"] | None = None
    name: ToolName
    description: str | None = None
    input_schema: JsonObject
    strict: bool | None = None


class AnthropicModeChoice(Body):
    """Whether the model may, must or must not call tools."""

    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool | None = None


class AnthropicToolChoice(Body):
    """The one tool that the model is to call."""

    type: Literal["tool"]
    name: Name
    disable_parallel_tool_use: bool | None = None


class AnthropicMetadata(Body):
    """Who asks."""

    user_id: Annotated[str, StringConstraints(max_length=512)] | None = None


class Thinking(Body):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]


class OutputFormat(Body):
    """An answer in JSON of one form."""

    type: Literal["json_schema"]
    schema_: Annotated[JsonObject, Field(alias="schema")]


class OutputConfig(Body):
    """How the model answers."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class MessageBody(Body):
    """The body of `POST /v1/messages`."""

    model: Name
    max_tokens: TokenLimit
    messages: Annotated[
        list[AnyMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    ]
    system: Texts | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    stop_sequences: (
        Annotated[
            list[Annotated[str, StringConstraints(min_length=1)]],
            Field(max_length=64, fail_fast=True),
        ]
        | None
    ) = None
    stream: bool | None = None
    metadata: AnthropicMetadata | None = None
    tools: Annotated[list[AnthropicTool], Field(fail_fast=True)] | None = None
    tool_choice: (
        Annotated[
            AnthropicModeChoice | AnthropicToolChoice, Field(discriminator="type"), text_tag("type")
        ]
        | None
    ) = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


def parse(raw: Any) -> Ask:
    """Read the body of a request.

    Raises:
        RequestInvalid: if it is wrong; the message is one line, `param` the field's path.
    """
    body = read(MessageBody, raw)
    systems, messages = _conversation(body)
    tools = tuple(
        chat_tool(tool.name, tool.description, tool.input_schema, tool.strict)
        for tool in body.tools or ()
    )
    check_tools(tools, "tools.{}.name")
    return Ask(
        protocol="messages",
        model=body.model,
        messages=messages,
        instructions="\n\n".join(systems),
        tools=tools,
        options=_options(body, tools),
        max_tokens=body.max_tokens,
        stream=bool(body.stream),
        user=body.metadata.user_id if body.metadata else None,
    )


def new_response_id() -> str:
    """Return an id for one answer."""
    return f"msg_{uuid4().hex}"


def error_body(problem: RequestInvalid, request_id: str) -> dict[str, Any]:
    """Return the body of an error response."""
    other = "api_error" if problem.status >= 500 else "invalid_request_error"
    kind = _ERROR_TYPES.get(problem.status, other)
    return anthropic_error(str(problem), kind, request_id)


def _options(body: MessageBody, tools: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    options = options_of(body, ("temperature", "top_p"))
    if body.top_k:
        options["top_k"] = body.top_k
    if body.stop_sequences:
        options["stop"] = body.stop_sequences
    match body.tool_choice:
        case AnthropicToolChoice(name=name):
            options |= named_choice(name, tools, "tool_choice.name")
        case AnthropicModeChoice(type=mode):
            options |= mode_choice(_MODES[mode], tools)
    if body.tool_choice and body.tool_choice.disable_parallel_tool_use:
        options["parallel_tool_calls"] = False
    if body.thinking and body.thinking.type == "disabled":
        options["reasoning_effort"] = "none"
    elif body.output_config and body.output_config.effort:
        options["reasoning_effort"] = body.output_config.effort
    if body.output_config and body.output_config.format:
        schema = {"name": "answer", "schema": body.output_config.format.schema_}
        options["response_format"] = {"type": "json_schema", "json_schema": schema}
    return options


def _conversation(body: MessageBody) -> tuple[list[str], tuple[Message, ...]]:
    systems = _texts(body.system)
    messages: list[Message] = []
    ledger = CallLedger()
    for at, item in enumerate(body.messages):
        match item:
            case AnthropicSystemMessage():
                systems += _texts(item.content)
            case AnthropicUserMessage(content=str(text)):
                messages.append(Message(role="user", content=text))
            case AnthropicAssistantMessage(content=str(text)):
                messages.append(Message(role="assistant", content=text))
            case AnthropicUserMessage():
                messages += _from_user(item, at, ledger)
            case AnthropicAssistantMessage():
                messages.append(_from_assistant(item, at, ledger))
    if not messages:
        raise refused("messages", "has only system messages; a message of the user is missing.")
    return systems, tuple(messages)


def _from_user(item: AnthropicUserMessage, at: int, ledger: CallLedger) -> list[Message]:
    results, texts = [], []
    for index, block in enumerate(item.content):
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ToolResultBlock):
            ledger.answered(block.tool_use_id, f"messages.{at}.content.{index}.tool_use_id")
            results.append(
                Message(role="tool", content=_result(block), tool_call_id=block.tool_use_id)
            )
    if texts or not results:
        results.append(Message(role="user", content="".join(texts)))
    return results


def _result(block: ToolResultBlock) -> str:
    text = "".join(_texts(block.content))
    # Chat completions have no field for it, and the model must know.
    if block.is_error and not text.lower().startswith("error"):
        return f"Error: {text}"
    return text


def _from_assistant(item: AnthropicAssistantMessage, at: int, ledger: CallLedger) -> Message:
    ledger.new_message()
    texts, calls = [], []
    for index, block in enumerate(item.content):
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ToolUseBlock):
            ledger.called(block.id, f"messages.{at}.content.{index}.id")
            calls.append(ToolCall(id=block.id, name=block.name, arguments=_arguments(block)))
    return Message(role="assistant", content="".join(texts), tool_calls=tuple(calls))


def _arguments(block: ToolUseBlock) -> str:
    broken = block.input.get(INVALID_JSON)
    if len(block.input) == 1 and isinstance(broken, str):
        return broken
    return json.dumps(block.input, ensure_ascii=False)


def _texts(content: str | list[TextBlock] | None) -> list[str]:
    blocks = [content or ""] if isinstance(content, str | None) else [b.text for b in content]
    return [text for text in blocks if text]
