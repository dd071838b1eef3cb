"""What went in and came out of a call, in whatever shape a tracing tool kept it.

    read_input(value)    messages, a request's body, LangChain's inputs, a prompt, any object
    read_output(value)   a message, a response's body, LangChain's generations, a text, any object

Tools keep the arguments and the result of whatever function was traced, so there is no schema:
known shapes are read, and an object of no known shape is the text of its JSON. LangChain's
messages are serialised constructors ({"lc": 1, "kwargs": {...}}), dumps ({"type", "data"}) or
pairs of role and text. In: a cell, decoded or JSON text. Out: `Asked`, `Answered`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from serving.records import canonical_json
from traces.importers.cells import mapping, text_cell
from traces.importers.chat_bodies import Answered, Asked, read_request, read_response
from traces.importers.messages import (
    Usage,
    decoded,
    finish_reason,
    read_answer,
    read_messages,
    read_tools,
    read_usage,
)  # fmt: skip
from traces.importers.parts import plain_text
from traces.importers.rows import LineRefused

_ANSWER_KEYS = ("role", "content", "tool_calls", "parts", "function_call", "refusal")
_ROLES = ("system", "human", "user", "ai", "assistant", "developer", "placeholder")


def read_input(value: Any) -> Asked:
    """Read what a call was given; with tools and parameters where it was a request's body.

    Raises:
        LineRefused: if it holds several conversations.
    """
    value = decoded(value)
    if isinstance(value, dict) and isinstance(value.get("kwargs"), dict) and not _is_lc(value):
        value = {**value["kwargs"], **{k: v for k, v in value.items() if k == "messages"}}
    match value:
        case None | "":
            return Asked(None, (), "[]", {})
        case {"messages": messages}:
            return read_request({**value, "messages": plain_messages(messages)})
        case {"prompts": list() as prompts}:
            return read_request({"prompt": prompts})
        case {"contents": contents}:
            return _gemini_input(contents, value)
        case {"prompt": _} | {"input": list() | str()}:
            return read_request(value)
        case list() | str():
            return Asked(None, read_messages(plain_messages(value)), "[]", {})
        case dict() if _is_lc(value) or "role" in value:
            return Asked(None, read_messages(plain_messages([value])), "[]", {})
        case _:
            return Asked(None, read_messages(canonical_json(value)), "[]", {})


def read_output(value: Any) -> Answered:
    """Read what a call gave back."""
    value = decoded(value)
    if not value and value != 0:
        return Answered()
    match value:
        case {"generations": list() as generations}:
            return _generation(generations, mapping(value.get("llm_output")))
        case {"choices": list()} | {"output": list()} | {"type": "message", "content": _}:
            return read_response(value)
        case {"candidates": [dict() as first, *_]}:
            made = read_output(first.get("content"))
            finish, usage = finish_reason(first.get("finishReason")), value.get("usageMetadata")
            model = text_cell(value, "modelVersion")
            return replace(made, finish_reason=finish, usage=read_usage(usage), model=model)
        case {"toolCalls": list() as calls}:
            return _said({"role": "assistant", "content": value.get("text"), "tool_calls": calls})
        case {"message": dict() as message}:
            made = read_output(message)
            finish = finish_reason(value.get("finish_reason"))
            return replace(made, finish_reason=finish or made.finish_reason)
        case {"messages": list() as messages}:
            return read_output(messages)
        case {"output": str() | dict() as output} if len(value) == 1:
            return read_output(output)
        case list():
            return _said(_spoken(plain_messages(value)))
        case dict() if _is_lc(value) or any(name in value for name in _ANSWER_KEYS):
            return _said(plain_message(value))
        case str():
            return _said(value)
        case _:
            return _said(canonical_json(value))


def _gemini_input(contents: Any, body: dict[str, Any]) -> Asked:
    system = body.get("systemInstruction") or body.get("system_instruction")
    system = system.get("parts") if isinstance(system, dict) else system
    told = [{"role": "system", "content": plain_text(system)}] if system else []
    asked = contents if isinstance(contents, list) else [contents]
    return Asked(None, read_messages([*told, *asked]), read_tools(body.get("tools")), {})


def plain_messages(value: Any) -> list[Any]:
    """Return messages in plain form: one conversation, alone or as a batch of one.

    Raises:
        LineRefused: if there are several conversations.
    """
    value = decoded(value)
    if not isinstance(value, list | tuple):
        return [] if value is None else [plain_message(value)]
    nested = [inner for inner in value if isinstance(inner, list | tuple) and not _is_pair(inner)]
    if nested and len(nested) == len(value):
        if len(nested) > 1:
            raise LineRefused("many_prompts", f"{len(nested)} conversations in one call")
        return plain_messages(nested[0])
    return [plain_message(inner) for inner in value]


def plain_message(value: Any) -> Any:
    """Return one message in plain form: LangChain's as OpenAI's, others as they are."""
    value = decoded(value) if isinstance(value, str) and value.startswith("{") else value
    if isinstance(value, list | tuple) and _is_pair(value):
        return {"role": value[0], "content": value[1]}
    if not isinstance(value, dict):
        return value
    kind: Any = value.get("type")
    told = value
    if _is_lc(value):
        told = mapping(value.get("kwargs"))
        # The path of the class, such as ["langchain", "schema", "messages", "HumanMessage"].
        name = str((value.get("id") or [""])[-1])
        kind = told.get("type") or name.removesuffix("Chunk").removesuffix("Message").lower()
    elif isinstance(value.get("data"), dict) and "content" in value["data"]:
        told = value["data"]
    elif "additional_kwargs" not in value:
        return value
    return _from_langchain(told, kind)


def _from_langchain(told: dict[str, Any], kind: Any) -> dict[str, Any]:
    more = mapping(told.get("additional_kwargs"))
    calls = [*(told.get("tool_calls") or ()), *(told.get("invalid_tool_calls") or ())]
    made = {
        "role": told.get("role") or kind or told.get("type"),
        # LlamaIndex has blocks.
        "content": told["content"] if told.get("content") is not None else told.get("blocks"),
        "tool_calls": calls or more.get("tool_calls"),
        "function_call": None if calls else more.get("function_call"),
        "reasoning_content": more.get("reasoning_content"),
        "tool_call_id": told.get("tool_call_id"),
        "usage": told.get("usage_metadata"),
        "about": told.get("response_metadata"),
        "id": told.get("id"),
    }
    return {name: found for name, found in made.items() if found is not None}


def _generation(generations: Sequence[Any], more: dict[str, Any]) -> Answered:
    """Read LangChain's generations: the first of the first prompt is the answer."""
    first: Any = generations[0] if generations else None
    if isinstance(first, list):
        first = first[0] if first else None
    if not isinstance(first, dict):
        return Answered()
    message = first.get("message")
    made = _said(plain_message(message) if message is not None else first.get("text"))
    info = mapping(first.get("generation_info"))
    finish = finish_reason(info.get("finish_reason"))
    return replace(
        made,
        finish_reason=made.finish_reason or finish,
        model=made.model or text_cell(more, "model_name", "model"),
        usage=made.usage if made.usage != Usage() else read_usage(_counts(more)),
    )


def _counts(more: dict[str, Any]) -> Any:
    return more.get("token_usage") or more.get("usage") or more


def _said(raw: Any) -> Answered:
    """Read one message, or the parts of one, with what LangChain tells about it."""
    answer = read_answer(raw)
    told = raw if isinstance(raw, dict) else {}
    about = mapping(told.get("about"))
    usage = read_usage(told.get("usage"))
    finish = about.get("finish_reason") or about.get("stop_reason")
    return Answered(
        completion=answer.message,
        reasoning=answer.reasoning,
        finish_reason=answer.finish_reason or finish_reason(finish),
        response_id=text_cell(about, "id") or text_cell(told, "id"),
        model=text_cell(about, "model_name", "model") or text_cell(told, "model"),
        usage=usage if usage != Usage() else read_usage(_counts(about)),
    )


def _spoken(messages: list[Any]) -> Any:
    """Return the last of whole messages; parts and items make up one message together."""
    whole = [m for m in messages if isinstance(m, dict) and "role" in m]
    items = any(m.get("type") == "message" for m in whole)
    return whole[-1] if whole and len(whole) == len(messages) and not items else messages


def _is_lc(value: dict[str, Any]) -> bool:
    return value.get("lc") == 1 and isinstance(value.get("kwargs"), dict)


def _is_pair(value: Sequence[Any]) -> bool:
    """Whether this is LangChain's short form of a message, `["human", "Hello"]`."""
    return len(value) == 2 and all(isinstance(w, str) for w in value) and value[0] in _ROLES
