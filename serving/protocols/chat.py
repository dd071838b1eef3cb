"""Chat completions: an OpenAI request to an `Ask`, a `Reply` and its stream back.

Fields and limits follow the OpenAI API reference ("Create chat completion"). Ours
differ in that log-probabilities, more than one answer and content other than text
are refused, and that reasoning is told as vLLM tells it: `reasoning`, and
`reasoning_content` for older clients.
"""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import Field, StringConstraints

from serving.engine import CallDelta, Delta
from serving.exchange import Ask, Reply, RequestInvalid
from serving.protocols.calls import CallLedger, chat_tool, check_tools, mode_choice, named_choice
from serving.protocols.events import DONE, Progress, encode, event
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
    at_most,
    only,
    options_of,
    text_of,
    text_tag,
)
from serving.protocols.refusals import error_body, openai_error, read, refused
from serving.records import Message, ToolCall

__all__ = ["ChatBody", "StreamWriter", "error_body", "new_response_id", "parse", "whole"]

_OPTIONS = (
    "temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "stop",
    "logit_bias", "parallel_tool_calls", "reasoning_effort", "top_k", "min_p",
    "repetition_penalty",
)  # fmt: skip
_FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter")


class Function(Body):
    """A function that a model called."""

    name: Name
    arguments: str


class Call(Body):
    """A tool call in an earlier answer."""

    id: CallId
    type: Literal["function"] = "function"
    function: Function


class SystemMessage(Body):
    """The client's instructions."""

    role: Literal["system", "developer"]
    content: Content


class UserMessage(Body):
    """What the user said."""

    role: Literal["user"]
    content: Content


class AssistantMessage(Body):
    """An earlier answer; its reasoning is not read."""

    role: Literal["assistant"]
    content: Content | None = None
    tool_calls: Annotated[list[Call], Field(fail_fast=True)] | None = None
    function_call: Annotated[None, only(why="use 'tool_calls' instead")] = None


class ToolMessage(Body):
    """The result of a tool call."""

    role: Literal["tool"]
    content: Content
    tool_call_id: CallId


ChatMessage = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage,
    Field(discriminator="role"),
    text_tag("role"),
]


class FunctionTool(Body):
    """A function that the model may call."""

    name: ToolName
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool on offer."""

    type: Literal["function"]
    function: FunctionTool


class ChosenFunction(Body):
    """The name of a tool."""

    name: Name


class ChosenTool(Body):
    """The one tool that the model is to call."""

    type: Literal["function"]
    function: ChosenFunction


class JsonSchema(Body):
    """The form of an answer."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    description: str | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Body):
    """What kind of text the answer is."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(Body):
    """What a stream tells besides the answer."""

    include_usage: bool | None = None


LogitBias = dict[str, Annotated[float, Field(ge=-100, le=100)]]
StopText = Annotated[str, StringConstraints(min_length=1)]


class ChatBody(OpenAISampling):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[
        list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    ]
    max_tokens: TokenLimit | None = None
    max_completion_tokens: TokenLimit | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=4, fail_fast=True)] | None = None
    logit_bias: Annotated[LogitBias, Field(max_length=1024), at_most(1024)] | None = None
    reasoning_effort: ReasoningEffort | None = None
    response_format: ResponseFormat | None = None
    stream_options: StreamOptions | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    n: Annotated[Literal[1] | None, only(1, why="this server gives one answer a request")] = None
    logprobs: Annotated[
        Literal[False] | None, only(False, why="this server tells no log-probabilities")
    ] = None
    modalities: Annotated[
        list[Literal["text"]] | None, only(["text"], why="this server answers with text alone")
    ] = None
    audio: Annotated[None, only(why="this server answers with text alone")] = None
    functions: Annotated[None, only(why="use 'tools' instead")] = None
    function_call: Annotated[None, only(why="use 'tool_choice' instead")] = None


def parse(raw: Any) -> Ask:
    """Read the body of a request.

    Raises:
        RequestInvalid: if it is wrong; the message is one line, `param` the field's path.
    """
    body = read(ChatBody, raw)
    systems, messages = _conversation(body.messages)
    tools = tuple(
        chat_tool(f.name, f.description, f.parameters, f.strict)
        for f in (tool.function for tool in body.tools or ())
    )
    check_tools(tools, "tools.{}.function.name")
    options = options_of(body, _OPTIONS)
    if isinstance(body.tool_choice, ChosenTool):
        name = body.tool_choice.function.name
        options |= named_choice(name, tools, "tool_choice.function.name")
    elif body.tool_choice is not None:
        options |= mode_choice(body.tool_choice, tools)
    if body.response_format is not None:
        options["response_format"] = _response_format(body.response_format)
    return Ask(
        protocol="chat",
        model=body.model,
        messages=messages,
        instructions="\n\n".join(systems),
        tools=tools,
        options=options,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        user=body.user or body.safety_identifier,
        metadata=body.metadata or {},
    )


def new_response_id() -> str:
    """Return an id for one answer."""
    return f"chatcmpl-{uuid4().hex}"


def whole(reply: Reply, ask: Ask | None = None) -> dict[str, Any]:
    """Return the body of a plain answer; `ask` is not needed here."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": reply.message.content or (None if reply.message.tool_calls else ""),
        "refusal": None,
    }
    if reply.reasoning:
        message |= {"reasoning": reply.reasoning, "reasoning_content": reply.reasoning}
    if reply.message.tool_calls:
        message["tool_calls"] = reply.message.to_openai()["tool_calls"]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(reply)}
    body = {
        "id": reply.response_id,
        "object": "chat.completion",
        "created": int(reply.created_at.timestamp()),
        "model": reply.model,
        "choices": [choice],
        "usage": _usage(reply),
    }
    return body | ({"metadata": reply.metadata} if reply.metadata else {})


class StreamWriter:
    """Writes an answer as chunks: `begin`, any number of `delta`, then `end` or `fail`."""

    def __init__(self, ask: Ask, response_id: str, created_at: datetime) -> None:
        self._include_usage = ask.include_usage
        self._base = {
            "id": response_id,
            "object": "chat.completion.chunk",
            "created": int(created_at.timestamp()),
            "model": ask.model,
        }
        # One piece a token: all that stays the same is written once.
        self._head = b"data: " + encode(self._base)[:-1] + b',"choices":[{"index":0,"delta":'
        usage = b',"usage":null' if self._include_usage else b""
        self._tail = b',"logprobs":null,"finish_reason":null}]' + usage + b"}\n\n"
        self._progress = Progress()
        self._begun = False

    def begin(self) -> bytes:
        """Open the answer."""
        self._begun = True
        return self._head + b'{"role":"assistant","content":""}' + self._tail

    def delta(self, delta: Delta) -> bytes:
        """Write the next piece."""
        self._progress.add(delta)
        piece: dict[str, Any] = {}
        if delta.reasoning:
            piece |= {"reasoning": delta.reasoning, "reasoning_content": delta.reasoning}
        if delta.content:
            piece["content"] = delta.content
        if delta.calls:
            piece["tool_calls"] = [_call_piece(call) for call in delta.calls]
        return self._head + encode(piece) + self._tail if piece else b""

    def end(self, reply: Reply) -> bytes:
        """Write what is left of the answer and close it."""
        opening = b"" if self._begun else self.begin()
        rest = self.delta(self._progress.rest(reply))
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": _finish(reply)}
        last: dict[str, Any] = self._base | {"choices": [choice]}
        if reply.metadata:
            last["metadata"] = reply.metadata
        if not self._include_usage:
            return opening + rest + event(last) + DONE
        usage = self._base | {"choices": [], "usage": _usage(reply)}
        return opening + rest + event(last | {"usage": None}) + event(usage) + DONE

    def fail(self, message: str, code: str, request_id: str) -> bytes:
        """Write an error in place of the rest."""
        return event(openai_error(message, "server_error", None, code, request_id)) + DONE


def _conversation(items: list[Any]) -> tuple[list[str], tuple[Message, ...]]:
    systems: list[str] = []
    messages: list[Message] = []
    ledger = CallLedger()
    for at, item in enumerate(items):
        text = text_of(item.content)
        match item:
            case SystemMessage():
                systems.append(text)
            case UserMessage():
                messages.append(Message(role="user", content=text))
            case AssistantMessage():
                calls = item.tool_calls or []
                ledger.new_message()
                for index, call in enumerate(calls):
                    ledger.called(call.id, f"messages.{at}.tool_calls.{index}.id")
                messages.append(Message(role="assistant", content=text, tool_calls=_calls(calls)))
            case ToolMessage():
                ledger.answered(item.tool_call_id, f"messages.{at}.tool_call_id")
                messages.append(Message(role="tool", content=text, tool_call_id=item.tool_call_id))
    if not messages:
        raise refused("messages", "has only system messages; a message of the user is missing.")
    return [text for text in systems if text], tuple(messages)


def _calls(calls: list[Call]) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
        for call in calls
    )


def _response_format(wanted: ResponseFormat) -> dict[str, Any]:
    if wanted.type != "json_schema":
        return {"type": wanted.type}
    if wanted.json_schema is None:
        raise RequestInvalid(
            "response_format.json_schema is required with type 'json_schema'.",
            param="response_format.json_schema",
        )
    schema = wanted.json_schema.model_dump(by_alias=True, exclude_unset=True)
    return {"type": "json_schema", "json_schema": schema}


def _call_piece(call: CallDelta) -> dict[str, Any]:
    function = {"arguments": call.arguments}
    if not call.name:
        return {"index": call.index, "function": function}
    function = {"name": call.name} | function
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


def _finish(reply: Reply) -> str:
    if reply.finish_reason == "stop" and reply.message.tool_calls:
        return "tool_calls"
    return reply.finish_reason if reply.finish_reason in _FINISH_REASONS else "stop"


def _usage(reply: Reply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens or 0},
    }
