"""The OpenAPI 3.1 document of the public API, rendered from the request models.

It says what a request may look like; that a tool result answers a call, or that a
chosen tool exists, no schema can say, and such requests get a 400 all the same.
"""

from functools import cache
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from serving.feedback import FeedbackRequest
from serving.protocols.anthropic_messages import MessageBody
from serving.protocols.chat import ChatBody
from serving.protocols.responses import ResponseBody

_REFUSALS = {
    "400": "The request is wrong; the error names the field.",
    "401": "The API key is missing or wrong.",
    "403": "A server without API keys was asked under a name that is not the loopback's.",
    "404": "There is no such model, response or path.",
    "408": "The body came too slowly.",
    "409": "The turn that the request continues is over.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "429": "The server has too much to do; see Retry-After.",
    "502": "The engine gave no proper answer.",
    "503": "The engine or the adapter is not there, or the server is shutting down.",
    "504": "The engine took too long.",
}


@cache
def openapi() -> dict[str, Any]:
    """Return the document, always the same object."""
    bodies: list[type[BaseModel]] = [ChatBody, ResponseBody, MessageBody, FeedbackRequest]
    refs, definitions = models_json_schema(
        [(body, "validation") for body in bodies], ref_template="#/components/schemas/{model}"
    )
    chat, response, message, opinion = (refs[body, "validation"] for body in bodies)
    return {
        "openapi": "3.1.0",
        "info": {"title": "MoL server", "version": version("mol-loop")},
        "security": [{"bearer": []}],
        "paths": {
            "/v1/chat/completions": _answer("Answer a chat", chat, "ChatCompletion", "Error"),
            "/v1/responses": _answer("Answer, and keep the answer", response, "Response", "Error"),
            "/v1/messages": _answer(
                "Answer in the Anthropic form", message, "AnthropicMessage", "AnthropicError"
            ),
            "/v1/feedback": {
                "post": _operation("Judge an answer", "Feedback", "Error", opinion, "202")
            },
            "/v1/models": {"get": _operation("Names that may be asked for", "Models", "Error")},
            "/health": {"get": _probe("Whether the server runs", "Health")},
            "/readiness": {"get": _probe("Whether it can answer", "Readiness", "503")},
            "/metrics": {"get": _metrics()},
        },
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": definitions["$defs"] | _ANSWERS,
        },
    }


def _answer(summary: str, body: dict[str, Any], answer: str, error: str) -> dict[str, Any]:
    operation = _operation(summary, answer, error, body)
    operation["responses"]["200"]["content"]["text/event-stream"] = {}
    return {"post": operation}


def _operation(
    summary: str,
    answer: str,
    error: str,
    body: dict[str, Any] | None = None,
    status: str = "200",
) -> dict[str, Any]:
    refused = {
        refusal: {"description": why} | _json(error)
        for refusal, why in _REFUSALS.items()
        if body or refusal in ("401", "403")
    }
    if body:
        seconds = {"description": "Seconds to wait.", "schema": {"type": "integer"}}
        for refusal in ("429", "503", "504"):
            refused[refusal]["headers"] = {"Retry-After": seconds}
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {status: {"description": "Done."} | _json(answer)} | refused,
    }
    if body:
        content = {"application/json": {"schema": body}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _probe(summary: str, answer: str, *more: str) -> dict[str, Any]:
    states = {"200": "Yes."} | dict.fromkeys(more, "No.")
    responses = {state: {"description": word} | _json(answer) for state, word in states.items()}
    return {"summary": summary, "security": [], "responses": responses}


def _metrics() -> dict[str, Any]:
    content = {"text/plain": {"schema": {"type": "string"}}}
    answer = {"description": "In the text format of Prometheus.", "content": content}
    refused = {s: {"description": _REFUSALS[s]} | _json("Error") for s in ("401", "403")}
    return {"summary": "Counters", "responses": {"200": answer} | refused}


def _json(name: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"content": {"application/json": {"schema": schema}}}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


_TEXT: dict[str, Any] = {"type": "string"}
_TEXTS: dict[str, Any] = {"type": "array", "items": _TEXT}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_ITEMS: dict[str, Any] = {"type": "array", "items": {"type": "object"}}
_OR_NULL: dict[str, Any] = {"type": ["string", "null"]}

_ANSWERS: dict[str, Any] = {
    "ChatCompletion": _object(
        id=_TEXT,
        object={"const": "chat.completion"},
        created=_COUNT,
        model=_TEXT,
        choices=_ITEMS | {"minItems": 1, "maxItems": 1},
        usage=_object(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT),
    ),
    "Response": _object(
        id=_TEXT,
        object={"const": "response"},
        created_at=_COUNT,
        model=_TEXT,
        status={"enum": ["completed", "incomplete"]},
        output=_ITEMS | {"minItems": 1},
        usage=_object(input_tokens=_COUNT, output_tokens=_COUNT, total_tokens=_COUNT),
    ),
    "AnthropicMessage": _object(
        id=_TEXT,
        type={"const": "message"},
        role={"const": "assistant"},
        model=_TEXT,
        content=_ITEMS,
        stop_reason=_TEXT,
        usage=_object(input_tokens=_COUNT, output_tokens=_COUNT),
    ),
    "Models": _object(
        object={"const": "list"},
        data={
            "type": "array",
            "items": _object(id=_TEXT, object={"const": "model"}, created=_COUNT, owned_by=_TEXT),
        },
    ),
    "Feedback": _object(object={"const": "feedback"}, ids=_TEXTS),
    "Health": _object(status={"const": "ok"}),
    "Readiness": _object(status={"enum": ["ready", "not_ready"]}, reasons=_TEXTS),
    "Error": _object(
        error=_object(message=_TEXT, type=_TEXT, param=_OR_NULL, code=_OR_NULL, request_id=_TEXT)
    ),
    "AnthropicError": _object(
        type={"const": "error"}, error=_object(type=_TEXT, message=_TEXT), request_id=_TEXT
    ),
}
