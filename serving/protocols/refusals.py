"""What is wrong with a request, in one line: field, value shortened, what is allowed.

`read` runs a pydantic model over a body and turns the first and deepest of its
complaints into a `RequestInvalid`; `error_type` names what a status means in the
OpenAI protocols.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from serving.exchange import RequestInvalid

MAX_SHOWN = 80
MAX_DEPTH = 200
_WRITER_DEPTH = 254
"""Levels that the JSON writer manages; answers and calls of engines wrap a request's parts."""

B = TypeVar("B", bound=BaseModel)

_SHOULD = re.compile(r"^\w+ should (?P<rest>.*)$")
_PLAIN = re.compile(r"^[A-Za-z0-9_.-]{1,64}$")
_WORDS = (
    (
        re.compile(r"a valid dictionary( or (instance of \w+|object to extract fields from))?"),
        "an object",
    ),
    (re.compile(r"(a valid )?None"), "null"),
    (re.compile(r"a valid boolean"), "true or false"),
    (re.compile(r"(a) valid (string|integer|number|list)"), r"\1 \2"),
    (re.compile(r"a integer"), "an integer"),
    (re.compile(r" after validation, not .*"), ""),
    (re.compile(r"a string, unable to parse raw data as a unicode string"), "valid Unicode text"),
)
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
}


def read(model: type[B], raw: Any) -> B:
    """Validate a request's body.

    Raises:
        RequestInvalid: if `raw` is not what `model` wants.
    """
    if not isinstance(raw, dict):
        raise RequestInvalid(f"The body is {shown(raw)}, but must be a JSON object.")
    try:
        body = model.model_validate(raw)
    except ValidationError as error:
        raise _first_fault(error, raw) from None
    try:
        # Python's reader lets pass what nobody after us can write: half surrogate pairs,
        # integers of any size, nesting of any depth.
        orjson.dumps(raw)
    except TypeError as error:
        raise _unwritable(raw, str(error)) from None
    return body


def check_depth(text: bytes, value: Any) -> None:
    """Refuse a body that is nested so deep that its parts could not be passed on.

    Raises:
        RequestInvalid: if it has more than 200 levels.
    """
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return
    for _ in range(_WRITER_DEPTH - MAX_DEPTH):
        value = [value]
    try:
        orjson.dumps(value)
    except TypeError:
        raise RequestInvalid(f"The body is nested more than {MAX_DEPTH} levels deep.") from None


def refused(param: str, why: str, code: str = "invalid_request") -> RequestInvalid:
    """Return the error about one field; `why` continues the sentence."""
    return RequestInvalid(f"{param} {why}", param=param, code=code)


def shown(value: Any) -> str:
    """Render a value of a request in at most 80 characters of one line."""
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case str():
            text = repr(value[:MAX_SHOWN])
            cut = len(value) > MAX_SHOWN or len(text) > MAX_SHOWN
            return text[: MAX_SHOWN - 1] + "…" if cut else text
        case int():
            # Python refuses to write down integers of some thousands of digits.
            return str(value) if value.bit_length() < 200 else "an integer of over 60 digits"
        case float():
            return repr(value)
        case Mapping():
            return f"an object of {len(value)} fields"
        case Sequence():
            return f"a list of {len(value)}"
    return f"a {type(value).__name__}"


def error_type(status: int) -> str:
    """Return the OpenAI protocols' name for a status."""
    if status >= 500:
        return "server_error"
    return _ERROR_TYPES.get(status, "invalid_request_error")


def error_body(problem: RequestInvalid, request_id: str) -> dict[str, Any]:
    """Return the body of an error response of chat completions and responses."""
    return openai_error(
        str(problem), error_type(problem.status), problem.param, problem.code, request_id
    )


def openai_error(
    message: str, kind: str, param: str | None, code: str, request_id: str
) -> dict[str, Any]:
    """Return an error in the form of the OpenAI protocols."""
    return {
        "error": {
            "message": message,
            "type": kind,
            "param": param,
            "code": code,
            "request_id": request_id,
        }
    }


def _first_fault(error: ValidationError, raw: Any) -> RequestInvalid:
    faults = error.errors(include_url=False)
    paths = [_path(fault["loc"], raw, fault["type"]) for fault in faults]
    # Of the forms that a field may have, the one that was meant got furthest.
    deepest = max(paths, key=len)
    here = [fault for fault, path in zip(faults, paths, strict=True) if path == deepest]
    fault = here[0]
    context = fault.get("ctx") or {}
    match fault["type"]:
        case "missing":
            return refused(_dotted(deepest), "is required.")
        case "union_tag_invalid" | "union_tag_not_found":
            return _tag_fault(deepest, fault["input"], str(context.get("expected_tags", "")))
        case "tag_type":
            value = fault["input"][context["field"]]
            where = _dotted((*deepest, context["field"]))
            return refused(where, f"is {shown(value)}, but must be a string.")
        case "unsupported":
            return refused(_dotted(deepest), fault["msg"], code="unsupported")
        case "not_json":
            return refused(_dotted(deepest), fault["msg"])
    if deepest and deepest[-1] == "type" and len(deepest) > 2 and "content" in deepest:
        return _unsupported_content(_dotted(deepest), fault["input"], str(context["expected"]))
    # Where one form of a field has the right type, the others are not what was meant.
    here = [each for each in here if not each["type"].endswith("_type")] or here
    wanted = " or be ".join(dict.fromkeys(_wanted(each["msg"]) for each in here))
    wanted = wanted.replace("or be be", "or")
    return refused(_dotted(deepest), f"is {shown(fault['input'])}, but must {wanted}.")


def _unwritable(raw: Any, why: str) -> RequestInvalid:
    branches = [_children((), raw)]
    while branches:
        path, value = next(branches[-1], ((), None))
        if not path:
            branches.pop()
        elif not _is_unicode(path[-1]):
            return refused(_dotted(path), "is no valid Unicode name.")
        elif isinstance(value, dict | list):
            if len(path) >= MAX_DEPTH:
                return refused(path[0], f"is nested {MAX_DEPTH} levels deep or more.")
            branches.append(_children(path, value))
        elif isinstance(value, str) and not _is_unicode(value):
            return refused(_dotted(path), f"is {shown(value)}, but must be valid Unicode text.")
        elif isinstance(value, int) and not -(2**63) <= value < 2**64:
            return refused(_dotted(path), f"is {shown(value)}, but must fit into 64 bits.")
    return RequestInvalid(f"The body cannot be written as JSON: {why[:MAX_SHOWN]}.")


def _children(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return (((*path, str(key)), each) for key, each in pairs)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _tag_fault(path: tuple[str, ...], value: Any, expected: str) -> RequestInvalid:
    if not isinstance(value, dict):
        return refused(_dotted(path), f"is {shown(value)}, but must be an object.")
    # Roles tell messages apart, types everything else.
    field = "role" if path[:-1] == ("messages",) else "type"
    where = _dotted((*path, field))
    if field not in value:
        return refused(where, f"is required: one of {expected}." if expected else "is required.")
    if "content" in path:
        return _unsupported_content(where, value[field], expected)
    return refused(where, f"is {shown(value[field])}, but must be one of {expected}.")


def _unsupported_content(where: str, value: Any, expected: str) -> RequestInvalid:
    why = f"is unsupported content {shown(value)}; allowed here: {expected}."
    return refused(where, why, code="unsupported_content")


def _wanted(message: str) -> str:
    match = _SHOULD.match(message)
    text = match["rest"] if match else f"be valid ({message})"
    for pattern, word in _WORDS:
        text = pattern.sub(word, text)
    return text


def _path(loc: tuple[int | str, ...], raw: Any, kind: str) -> tuple[str, ...]:
    """Keep the parts of pydantic's location that the request has, without names of models."""
    path: list[str] = []
    value = raw
    for at, part in enumerate(loc):
        inside = isinstance(value, dict) and part in value
        if inside or (isinstance(value, list) and isinstance(part, int) and part < len(value)):
            value = value[part]
            path.append(str(part))
        elif at == len(loc) - 1 and kind == "missing":
            path.append(str(part))
    return tuple(path)


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(part if _PLAIN.match(part) else shown(part) for part in path)
