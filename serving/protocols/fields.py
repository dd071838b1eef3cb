"""Pydantic types that the request bodies of several protocols share.

Bodies are read strictly (no number from a string), ignore fields they do not know,
and stop at a list's first wrong element, so that a large body of nonsense costs
little.
"""

from typing import Annotated, Any, Literal

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)
from pydantic_core import PydanticCustomError

MAX_TOKENS = 2**31 - 1
MAX_MESSAGES = 10_000
"""Of one request; more would hold up everybody else, and no model takes so many."""


class Body(BaseModel):
    """Base of everything a client sends."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


def only(*allowed: Any, why: str) -> BeforeValidator:
    """Refuse all but null and some values of a field, saying why."""

    def check(value: Any) -> Any:
        if value is None or any(type(value) is type(each) and value == each for each in allowed):
            return value
        raise PydanticCustomError("unsupported", f"is not supported: {why}.")

    return BeforeValidator(check)


def at_most(count: int) -> BeforeValidator:
    """Refuse an object of too many fields before any of them is looked at."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > count:
            raise PydanticCustomError(
                "too_long", "Object should have at most {count} fields", {"count": count}
            )
        return value

    return BeforeValidator(check)


def text_tag(field: str) -> BeforeValidator:
    """Refuse a tagged object whose tag is no text.

    Pydantic itself writes such a tag down, and fails at it where it is deep or huge.
    """

    def check(value: Any) -> Any:
        if isinstance(value, dict) and not isinstance(value.get(field), str | None):
            raise PydanticCustomError("tag_type", "is no text", {"field": field})
        return value

    return BeforeValidator(check)


def plain_json(value: Any) -> Any:
    """Pass a value on if it can be written as JSON by everyone after us.

    Python's reader takes more than that: lone surrogates, NaN, integers of any size,
    nesting of any depth.
    """
    try:
        text = orjson.dumps(value)
    except TypeError as error:  # includes orjson's own JSONEncodeError
        raise PydanticCustomError(
            "not_json", "cannot be written as JSON: {why}.", {"why": str(error)[:80]}
        ) from None
    # The encoder writes NaN and infinity as null; looking for them is slow and rarely needed.
    if b"null" in text and _has_no_number(value):
        raise PydanticCustomError("not_json", "holds a number that is not finite.")
    return value


def _has_no_number(value: Any) -> bool:
    rest = [value]
    while rest:
        match rest.pop():
            case dict() as mapping:
                rest += mapping.values()
            case list() as items:
                rest += items
            case float() as number:
                if number - number != 0:
                    return True
    return False


JsonObject = Annotated[dict[str, Any], AfterValidator(plain_json)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
CallId = Annotated[str, StringConstraints(min_length=1, max_length=256)]
ToolName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
TokenLimit = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Metadata = Annotated[
    dict[
        Annotated[str, StringConstraints(max_length=64)],
        Annotated[str, StringConstraints(max_length=512)],
    ],
    Field(max_length=16),
    at_most(16),
]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class TextPart(Body):
    """A piece of text in a message."""

    type: Literal["text", "input_text", "output_text"]
    text: str


class RefusalPart(Body):
    """What a model said instead of an answer."""

    type: Literal["refusal"]
    refusal: str


Part = Annotated[TextPart | RefusalPart, Field(discriminator="type"), text_tag("type")]
Content = str | Annotated[list[Part], Field(fail_fast=True)]


def text_of(content: str | list[TextPart | RefusalPart] | None) -> str:
    """Join the pieces of a message's text."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


class OpenAISampling(Body):
    """What chat completions and responses agree on; the last three are vLLM's."""

    model: Name
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    user: Annotated[str, StringConstraints(max_length=512)] | None = None
    safety_identifier: Annotated[str, StringConstraints(max_length=512)] | None = None
    store: bool | None = None
    top_logprobs: Annotated[
        Literal[0] | None, only(0, why="this server tells no log-probabilities")
    ] = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None


def options_of(body: Body, names: tuple[str, ...]) -> dict[str, Any]:
    """Return those of the named fields that the client set."""
    return {name: value for name in names if (value := getattr(body, name)) is not None}
