"""Responses: an OpenAI request to an `Ask`, a `Reply` and its stream back.

Fields follow the OpenAI API reference ("Create a response"). Items that only OpenAI's
own servers can read (references, files, built-in tools, conversations kept there) are
refused; reasoning items are ignored, for a model's earlier thoughts are not its
input.
"""

from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import Discriminator, Field, StringConstraints, Tag

from serving.exchange import Ask
from serving.protocols.calls import CallLedger, chat_tool, check_tools, mode_choice, named_choice
from serving.protocols.fields import (
    MAX_MESSAGES,
    Body,
    CallId,
    Content,
    JsonObject,
    Name,
    OpenAISampling,
    ReasoningEffort,
    TokenLimit,
    ToolName,
    only,
    options_of,
    text_of,
    text_tag,
)
from serving.protocols.refusals import error_body, read, refused
from serving.protocols.response_items import whole
from serving.protocols.response_stream import StreamWriter
from serving.records import Message, ToolCall

__all__ = ["ResponseBody", "StreamWriter", "error_body", "new_response_id", "parse", "whole"]

_OPTIONS = (
    "temperature", "top_p", "parallel_tool_calls", "top_k", "min_p", "repetition_penalty",
)  # fmt: skip


class MessageItem(Body):
    """Something said; `type` may be left out."""

    type: Literal["message"] | None = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class FunctionCallItem(Body):
    """A tool call of an earlier answer."""

    type: Literal["function_call"]
    call_id: CallId
    name: Name
    arguments: str


class FunctionCallOutputItem(Body):
    """The result of a tool call."""

    type: Literal["function_call_output"]
    call_id: CallId
    output: Content


class ReasoningItem(Body):
    """What a model thought before an earlier answer; not read."""

    type: Literal["reasoning"]


def _kind(item: Any) -> str | None:
    kind = item.get("type") or "message" if isinstance(item, dict) else None
    return kind if isinstance(kind, str) else None


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_kind),
    text_tag("type"),
]


class ResponseTool(Body):
    """A function that the model may call."""

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class ResponseToolChoice(Body):
    """The one tool that the model is to call."""

    type: Literal["function"]
    name: Name


class PlainFormat(Body):
    """An answer in text or in any JSON."""

    type: Literal["text", "json_object"]


class JsonSchemaFormat(Body):
    """An answer in JSON of one form."""

    type: Literal["json_schema"]
    name: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    schema_: Annotated[JsonObject, Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class TextConfig(Body):
    """What kind of text the answer is."""

    format: (
        Annotated[PlainFormat | JsonSchemaFormat, Field(discriminator="type"), text_tag("type")]
        | None
    ) = None


class Reasoning(Body):
    """How long the model thinks."""

    effort: ReasoningEffort | None = None


class ResponseBody(OpenAISampling):
    """The body of `POST /v1/responses`."""

    input: str | Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: TokenLimit | None = None
    previous_response_id: Name | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    tools: Annotated[list[ResponseTool], Field(fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice | None = None
    background: Annotated[
        Literal[False] | None, only(False, why="this server answers while the client waits")
    ] = None
    conversation: Annotated[None, only(why="use 'previous_response_id' instead")] = None
    prompt: Annotated[None, only(why="this server keeps no prompts; send the text")] = None


def parse(raw: Any) -> Ask:
    """Read the body of a request.

    With `previous_response_id` a tool result may answer a call that is not in the
    request; whether it does only the keeper of that answer knows.

    Raises:
        RequestInvalid: if it is wrong; the message is one line, `param` the field's path.
    """
    body = read(ResponseBody, raw)
    systems, messages = _conversation(body)
    tools = tuple(
        chat_tool(tool.name, tool.description, tool.parameters, tool.strict)
        for tool in body.tools or ()
    )
    check_tools(tools, "tools.{}.name")
    options = options_of(body, _OPTIONS)
    if isinstance(body.tool_choice, ResponseToolChoice):
        options |= named_choice(body.tool_choice.name, tools, "tool_choice.name")
    elif body.tool_choice is not None:
        options |= mode_choice(body.tool_choice, tools)
    if body.text and body.text.format:
        options["response_format"] = _response_format(body.text.format)
    if body.reasoning and body.reasoning.effort:
        options["reasoning_effort"] = body.reasoning.effort
    return Ask(
        protocol="responses",
        model=body.model,
        messages=messages,
        instructions="\n\n".join(systems),
        tools=tools,
        options=options,
        max_tokens=body.max_output_tokens,
        stream=bool(body.stream),
        previous_response_id=body.previous_response_id,
        store=body.store is not False,
        user=body.user or body.safety_identifier,
        metadata=body.metadata or {},
    )


def new_response_id() -> str:
    """Return an id for one answer."""
    return f"resp_{uuid4().hex}"


class _Transcript:
    """Chat messages from items; the assistant's text and calls side by side are one message."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._texts: list[str] = []
        self._calls: list[ToolCall] = []

    def said(self, text: str) -> None:
        if self._texts and not self._calls:
            self.flush()
        self._texts.append(text)

    def called(self, call: ToolCall) -> None:
        self._calls.append(call)

    def add(self, message: Message) -> None:
        self.flush()
        self.messages.append(message)

    def flush(self) -> None:
        if self._texts or self._calls:
            content, calls = "".join(self._texts), tuple(self._calls)
            self.messages.append(Message(role="assistant", content=content, tool_calls=calls))
            self._texts, self._calls = [], []


def _conversation(body: ResponseBody) -> tuple[list[str], tuple[Message, ...]]:
    systems = [body.instructions or ""]
    if isinstance(body.input, str):
        return systems, (Message(role="user", content=body.input),)
    transcript = _Transcript()
    ledger = CallLedger(may_answer_unseen=body.previous_response_id is not None)
    for at, item in enumerate(body.input):
        match item:
            case MessageItem(role="system" | "developer"):
                systems.append(text_of(item.content))
            case MessageItem(role="user"):
                ledger.new_message()
                transcript.add(Message(role="user", content=text_of(item.content)))
            case MessageItem():
                transcript.said(text_of(item.content))
            case FunctionCallItem(call_id=call_id):
                ledger.called(call_id, f"input.{at}.call_id")
                transcript.called(ToolCall(id=call_id, name=item.name, arguments=item.arguments))
            case FunctionCallOutputItem(call_id=call_id):
                ledger.new_message()
                ledger.answered(call_id, f"input.{at}.call_id")
                text = text_of(item.output)
                transcript.add(Message(role="tool", content=text, tool_call_id=call_id))
    transcript.flush()
    if not transcript.messages:
        raise refused("input", "has no message of the user and no tool result.")
    return [text for text in systems if text], tuple(transcript.messages)


def _response_format(wanted: PlainFormat | JsonSchemaFormat) -> dict[str, Any]:
    if isinstance(wanted, PlainFormat):
        return {"type": wanted.type}
    schema = wanted.model_dump(by_alias=True, exclude_unset=True, exclude={"type"})
    return {"type": "json_schema", "json_schema": schema}
