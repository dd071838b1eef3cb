r"""Verify a tool result: what it says went wrong.

One rule in two languages: `tool_error` in Python and `FAILED_SQL` for DuckDB are made from the
same declarations, and a test holds them to the same answers. A result reports an error

- in JSON, by a key at the top of an object: `error` with something in it, `isError`, `ok` or
  `success` that is false, a `status` of `error`, an exit code other than 0, an HTTP status from
  400 on;
- in text, where a harness or a program puts it: at the very beginning (`Error: ...`,
  `ValueError: ...`, `HTTP 404`, `Command timed out`, `exit code: 1`), or at the very end (the
  traceback it ended with, the exit code).

What stands in between is content: a file, a log or a page about errors is no error. Nor is one a
field that is always there and says that there was none (`Error: None`, `"error": {"code": 0}`), nor
a `status` of 404 among data, which may be an order's.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["error", "exit_code", "http_status", "timeout", "traceback"]

_REACH = 2000
"""Characters at either end that are looked at."""
_DETAIL_CHARS = 200

# Both engines read these: no look-around, no flags, no `\s` and no `$`, which differ. `\Z`, the
# end, is written `\z` in SQL.
_EXIT = (
    r"(?:[Ee][Xx][Ii][Tt]|[Rr]eturn)(?:ed)?[ _-]?(?:[Ww]ith )?(?:[Cc]ode|[Ss]tatus)[\"'>:= ]{0,4}"
    r"-?[1-9][0-9]{0,9}\b"
)
_PHRASES = (
    r"(?:Bad Request|Unauthorized|Payment Required|Forbidden|Not Found|Method Not Allowed"
    r"|Not Acceptable|Request Timeout|Conflict|Gone|Payload Too Large|Unprocessable (?:Entity"
    r"|Content)|Too Many Requests|Internal Server Error|Not Implemented|Bad Gateway"
    r"|Service Unavailable|Gateway Time-?[Oo]ut|(?:Client|Server) Error)\b"
)
_EXCEPTION = r"(?:[A-Za-z_][A-Za-z0-9_]*\.){0,6}[A-Z][A-Za-z0-9_]*(?:Error|Exception)"
_TRACEBACK = r"Traceback \(most recent call last\):"
_HEAD: tuple[tuple[Kind, str], ...] = (
    ("traceback", _TRACEBACK),
    (
        "timeout",
        r"(?:(?:Error|ERROR|error): ?)?(?:(?:The|Your|This) )?(?:[A-Za-z]+ ){0,2}(?:has )?"
        r"[Tt]imed[ -]out\b(?: (?:after|while|waiting|during)\b|[.:!]|[ \t\r\n]*\Z)",
    ),
    ("timeout", r"(?:[A-Za-z_.]{0,60}Timeout(?:Error|Expired|Exception)|TIMEOUT|Timeout)[:(]"),
    (
        "http_status",
        r"(?:(?:Error|ERROR|error|Request failed|HTTPError)[:,]? ?(?:with )?)?"
        r"(?:HTTP(?:/[0-9.]{1,3})?(?: [Ee]rror| [Ss]tatus)?(?: [Cc]ode)?:? ?"
        r"|[Ss]tatus(?:[ _][Cc]ode)?[:=]? ?|Error [Cc]ode: ?)[45][0-9][0-9]\b",
    ),
    ("http_status", rf"(?:(?:Error|HTTPError):? )?[45][0-9][0-9]:? {_PHRASES}"),
    ("exit_code", rf"[^\n0-9]{{0,80}}{_EXIT}[ )\]}}.:,;<]*(?:\n|\Z|\([^\n]{{0,60}}\)|<)"),
    ("error", r"[*_]{0,2}\[?(?:Error|ERROR|error|FATAL|(?:Fatal|fatal)(?: error)?)\]?[*_]{0,2}:"),
    ("error", r"[*_\[]{0,2}(?:FAILED|Failed|FAILURE|Failure)[*_\]]{0,2}:"),
    ("error", r"<(?:tool_use_error|tool_error|error|exception)>"),
    ("error", rf"{_EXCEPTION}(?:: |:\n|\()"),
    ("error", rf"{_EXCEPTION}[ \t\r\n]*\Z"),
    (
        "error",
        r"(?:An? )?(?:[Uu]nexpected |[Ii]nternal )?(?:Error|error|exception|Exception) (?:has )?"
        r"(?:occurred|executing|running|calling|invoking|performing|processing|parsing|reading"
        r"|writing|opening|fetching|loading|while|when|during|from|with|in tool|in function"
        r"|in code)\b",
    ),
    (
        "error",
        r"(?:[Tt]he )?(?:Tool|tool|Function|function|Command|command|Execution|Request|Call|Action"
        r"|Operation|Query)(?: [`'\"]?[A-Za-z0-9_.-]{1,60}[`'\"]?)?(?: call| execution)?"
        r"(?: has| was)? (?:failed|not found|does not exist|is not available|errored)\b",
    ),
    (
        "error",
        r"(?:Unknown|Invalid|No such|Unsupported|Missing(?: required)?) (?:tool|function|argument"
        r"|parameter|input|command|option|action)s?\b[^\n]{0,20}[:.'\"`]",
    ),
    ("error", r"(?:Failed|Unable|Could not|Cannot) (?:to )?(?:access|call|complete|connect|create"
              r"|decode|download|execute|fetch|find|import|invoke|load|locate|open|parse|perform"
              r"|process|read|reach|resolve|retrieve|run|save|write)\b[^\n]{0,300}[ \t\r\n]*\Z"),
    ("error", r"[^\n]{1,120}: (?:command not found|[Nn]o such file or directory"
              r"|[Pp]ermission denied|[Cc]onnection refused|[Ii]s a directory"
              r"|[Nn]ot a directory)\.?[ \t\r\n]*\Z"),
)  # fmt: skip
"""Forms at the beginning, after white space; the first that fits names the kind."""
_FIELD = r"[*_\[]{0,2}(?:[Ee]rror|ERROR|[Ff]ailed|FAILED|[Ff]ailure|FAILURE)[*_\]]{0,2}:[*_]{0,2}"
_NONE_SAID = (
    rf"(?:(?:{_FIELD}[ \t]*(?:[Nn]one|NONE|[Nn]ull|NULL|[Nn]il|0|[Ff]alse|[Nn]/?[Aa]|\"\"|''|\[\])"
    r"|(?:Failed|FAILED):[ \t]*[0-9]{1,9}"
    r"|(?:Timeout|TIMEOUT):[ \t]*(?:[Nn]one|NONE|[0-9]{1,9}(?:[.][0-9]{1,9})? ?(?:m?s|seconds)?)"
    rf")[*_]{{0,2}}[ \t]*(?:[,;|]|\r?\n|\Z)|{_FIELD}[ \t]*[Nn]o[*_]{{0,2}}[ \t]*(?:\r?\n|\Z))"
)
"""Fields at the beginning that say that nothing went wrong, count something, or set a limit."""
_TAIL: tuple[tuple[Kind, str], ...] = (
    (
        "traceback",
        rf"\n{_TRACEBACK}\r?\n(?:[ \t][^\n]*\n|\r?\n)+{_EXCEPTION}(?::[^\n]*)?[ \t\r\n]*\Z",
    ),
    ("exit_code", rf"\n[^\n0-9]{{0,80}}{_EXIT}[^\n0-9]{{0,40}}[ \t\r\n]*\Z"),
)
"""Forms at the end."""

_WORDS = (
    "error", "Error", "ERROR", "failed", "Failed", "FAILED", "failure", "Failure", "FAILURE",
    "timeout", "TIMEOUT", "timed_out",
)  # fmt: skip
_FILLED: tuple[tuple[str, Kind], ...] = (
    ("error", "error"),
    ("exception", "error"),
    ("traceback", "traceback"),
)
_TRUE = ("isError", "is_error")
_FALSE = ("ok", "success")
_NAMED = ("status", "type")
_EXIT_KEYS = ("exit_code", "exitCode", "exitcode", "returncode", "return_code", "exit_status")
_HTTP_KEYS = ("status", "status_code", "statusCode", "http_status", "httpStatus")
_STRING, _LENIENT = r'"(?:[^"\\]|\\.)*"', r",[ \t\r\n]*[]}]|[iI]|[nN][aA]"
"""What DuckDB takes for JSON and Python does not: commas before a bracket, infinities, `nan`."""
_NO_WORDS = (
    "", "None", "none", "NONE", "null", "Null", "NULL", "nil", "Nil", "0",
    "false", "False", "n/a", "N/A", "ok", "OK",
)  # fmt: skip
"""Texts that say that there is no error."""
_ZERO = ("0", "0.0", "-0.0")
_EMPTY = ("null", "false", *_ZERO, '""', "[]", "{}")
_EMPTY_OBJECT = rf'\{{(?:{_STRING}:(?:null|false|-?0(?:\.0)?|""|\[\]|\{{\}}),?)+\}}'
"""One that holds nothing but what is empty itself."""
_ABOUT_ERRORS = (
    "code", "detail", "details", "error", "instance", "message", "msg", "reason", "requestId",
    "request_id", "status", "statusText", "title", "traceId", "trace_id", "type",
)  # fmt: skip
"""Keys beside which `status` is that of a request: no data is among them."""


@dataclass(frozen=True, slots=True)
class ToolFailure:
    """What a tool result says went wrong."""

    kind: Kind
    text: str
    """In its own words, cut."""


def tool_error(content: str) -> str | None:
    """Return in its own words what a tool result says went wrong; None if nothing did."""
    failure = tool_failure(content)
    return None if failure is None else failure.text


def tool_failure(content: str) -> ToolFailure | None:
    """Return what a tool result says went wrong; None if nothing did."""
    text = content.lstrip(" \t\r\n")
    if text.startswith("{"):
        failure = _failure_in(_object(content))
        if failure is not None:
            return failure
    head = text[:_REACH]
    if not _NONE_SAID_FORM.search(head):
        for kind, form in _HEAD_FORMS:
            if form.search(head):
                return ToolFailure(kind, text[:_DETAIL_CHARS])
    for kind, form in _TAIL_FORMS:
        if form.search(content[-_REACH:]):
            return ToolFailure(kind, content.rstrip(" \t\r\n")[-_DETAIL_CHARS:])
    return None


def _failure_in(value: dict[str, Any]) -> ToolFailure | None:
    """Return the failure that the keys of an object tell."""
    for key, kind in _FILLED:
        if _is_filled(value.get(key)):
            return _failure(kind, str(value[key]))
    for key in _NAMED:
        if isinstance(value.get(key), str) and value[key] in _WORDS:
            kind = "timeout" if "time" in value[key].lower() else "error"
            return _failure(kind, f"{key} is {value[key]}")
    for key in _EXIT_KEYS:
        if type(value.get(key)) is int and 0 != abs(value[key]) < 10**10:
            return _failure("exit_code", f"{key} is {value[key]}")
    for key in _HTTP_KEYS:
        among_data = key == "status" and not value.keys() <= set(_ABOUT_ERRORS)
        if type(value.get(key)) is int and 400 <= value[key] <= 599 and not among_data:
            return _failure("http_status", f"{key} is {value[key]}")
    for keys, word in ((_TRUE, True), (_FALSE, False)):
        for key in keys:
            if value.get(key) is word:
                return _failure("error", f"{key} is {str(word).lower()}")
    return None


def _is_filled(value: Any) -> bool:
    """Return whether what stands where an error is told tells one."""
    if isinstance(value, str):
        return value not in _NO_WORDS
    if isinstance(value, dict):
        code = value.get("code")
        by_code = type(code) in (int, float) and code == 0
        return not by_code and any(value.values())
    return bool(value)


def _failure(kind: Kind, text: str) -> ToolFailure:
    return ToolFailure(kind, text[:_DETAIL_CHARS])


def _object(content: str) -> dict[str, Any]:
    """Return the JSON object that a text is; an empty one where it is none."""
    try:
        value = json.loads(content, object_pairs_hook=_first_of_each, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _first_of_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a key that stands twice the first counts, and half a character is none, as in DuckDB."""
    for pair in pairs:
        if r"\ud" in str(pair):
            json.dumps(pair, ensure_ascii=False).encode()
    return dict(reversed(pairs))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_NONE_SAID_FORM = re.compile(rf"\A{_NONE_SAID}", re.ASCII)
_HEAD_FORMS = tuple((kind, re.compile(rf"\A(?:{form})", re.ASCII)) for kind, form in _HEAD)
_TAIL_FORMS = tuple((kind, re.compile(form, re.ASCII)) for kind, form in _TAIL)


def _literal(form: str) -> str:
    return "'" + form.replace(r"\Z", r"\z").replace("'", "''") + "'"


def _sql(content: str) -> str:
    """Render the rule as a DuckDB expression over the text `content`."""
    value = f"TRY_CAST({content} AS JSON)"

    quoted = "'{}'".format

    def at(*keys: str) -> str:
        return f"({' -> '.join([value, *map(quoted, keys)])})::VARCHAR"

    def among(texts: Iterable[str]) -> str:
        return f"({', '.join(map(quoted, texts))})"

    words = among(map(json.dumps, _WORDS))
    nothing = among((*_EMPTY, *map(json.dumps, _NO_WORDS)))
    empty = _literal(_EMPTY_OBJECT)
    tests = [
        f"{at(key)} NOT IN {nothing} AND NOT regexp_full_match({at(key)}, {empty})"
        f" AND coalesce({at(key, 'code')} NOT IN {among(_ZERO)}, true)"
        for key, _ in _FILLED
    ]
    tests += [f"{at(key)} IN {words}" for key in _NAMED]
    tests += [f"regexp_full_match({at(key)}, '-?[1-9][0-9]{{0,9}}')" for key in _EXIT_KEYS]
    about = f"list_has_all([{among(_ABOUT_ERRORS)[1:-1]}], json_keys({value}))"
    tests += [
        f"regexp_full_match({at(key)}, '[45][0-9][0-9]')" + f" AND {about}" * (key == "status")
        for key in _HTTP_KEYS
    ]
    tests += [f"{at(key)} = 'true'" for key in _TRUE]
    tests += [f"{at(key)} = 'false'" for key in _FALSE]
    keys = " OR ".join(f"coalesce({test}, false)" for test in tests)
    forms = "|".join(form for _, form in _HEAD)
    head = f"left(ltrim({content}, ' \t\r\n'), {_REACH})"
    ends = [
        f"regexp_matches({head}, {_literal(f'^(?:{forms})')})"
        f" AND NOT regexp_matches({head}, {_literal(f'^{_NONE_SAID}')})"
    ]
    tail = f"right({content}, {_REACH})"
    ends += [f"regexp_matches({tail}, {_literal(form)})" for _, form in _TAIL]
    starts = f"starts_with(ltrim({content}, ' \t\r\n'), '{{')"
    bare = f"regexp_replace({content}, {_literal(_STRING)}, '', 'g')"
    strict = f"NOT regexp_matches({bare}, {_literal(_LENIENT)})"
    return f"(({starts} AND ({keys}) AND {strict}) OR {' OR '.join(ends)})"


FAILED_SQL = _sql("r.content")
"""Whether `r.content` reports an error."""
