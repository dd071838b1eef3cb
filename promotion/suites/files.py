"""Suites of one's own: one file each, JSON lines or Python, named in `[suites] files`.

JSON lines: the first line describes the suite, each other one is an item.

    {"suite": "refunds", "slot": "L1", "kind": "skill", "tools": [...], "max_tokens": 64}
    {"text": "I want my money back.", "cluster": "plain", "reference": {"verifier": "tool_call",
     "name": "refund", "arguments": {"order": 7}}}

`slot` may be "*": whichever slot is challenged, and the suite's name then ends with it. An item
has a `text`, asked in the slot's own view, or the `messages` as the engine gets them; `tools`,
`choices` and `max_tokens` may stand in the first line or with an item. References are those of
`traces.verifiers.registry`. Items without a `cluster` are one by what they ask, and so taken for
independent; neither prompts nor limits nor references move what was shown to another set.

Python: a function `suite(profile, slot)` that returns a `promotion.suites.suite.Suite`, for
whatever a reference cannot say; `slot` is the one that is challenged. It runs as part of this
program, so name only files that you would run.
"""

import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import Field, ValidationError

from promotion.suites.references import why_useless
from promotion.suites.suite import Item, Kind, Suite
from serving.errors import MolError
from serving.own_view import Conversation, own_view
from serving.records import Message, Record, content_id
from serving.slots import Profile
from traces.verifiers.registry import VERIFIERS, checker

_Model = TypeVar("_Model", bound=Record)

ANY_SLOT = "*"
"""`slot` of a suite that is asked of whichever slot is challenged."""


class SuiteFileInvalid(MolError, ValueError):
    """A suite's file cannot be read or is wrong."""


class _Head(Record):
    suite: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    slot: str
    kind: Kind = "skill"
    tools: tuple[dict[str, Any], ...] = ()
    choices: tuple[str, ...] = ()
    max_tokens: int | None = Field(default=None, gt=0)


class _Line(Record):
    text: str | None = Field(default=None, min_length=1)
    messages: tuple[dict[str, Any], ...] = ()
    cluster: str | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    choices: tuple[str, ...] | None = None
    max_tokens: int | None = Field(default=None, gt=0)
    reference: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where something is wrong."""

    path: Path
    line: int

    def error(self, problem: str, value: object, allowed: str) -> SuiteFileInvalid:
        given = f"{value!r}"
        return SuiteFileInvalid(
            f"Suite {str(self.path)!r}, line {self.line}: {problem}, got "
            f"{given if len(given) <= 80 else given[:77] + '...'}. Allowed: {allowed}. "
            "See 'Suites' in docs/promotion.md."
        )


def read_suite(
    path: Path, profile: Profile, slot: str, tools: Sequence[Mapping[str, Any]] = ()
) -> Suite:
    """Read a suite for a challenger of `slot` from its file.

    `tools` are offered with a `text` where the file names none and its slot takes tools.

    Raises:
        SuiteFileInvalid: naming the file, the line, the value and what is allowed.
    """
    if path.suffix == ".py":
        return _from_python(path, profile, slot)
    try:
        # Not by `splitlines`: U+2028 and others like it may stand in a JSON text.
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SuiteFileInvalid(
            f"Cannot read the suite {str(path)!r}: {error}. Name a file of JSON lines or a Python "
            "file under 'files' in [suites]."
        ) from error
    numbered = [(_Place(path, n), line) for n, line in enumerate(lines, 1) if line.strip()]
    if len(numbered) < 2:
        raise _Place(path, 1).error("no items", len(numbered), "a first line and one item a line")
    head = _parsed(_Head, *numbered[0])
    _refuse_unknown_slot(numbered[0][0], head.slot, (ANY_SLOT, *profile.labels))
    owner = slot if head.slot == ANY_SLOT else head.slot
    items: dict[str, Item] = {}
    for place, line in numbered[1:]:
        item = _item(place, _parsed(_Line, place, line), head, profile, owner, tools)
        if item.item_id in items:
            raise place.error("this item stands in the file twice", item.text, "each item once")
        items[item.item_id] = item
    name = f"{head.suite}-{owner}" if head.slot == ANY_SLOT else head.suite
    return Suite(name, owner, tuple(items.values()), head.kind)


def _refuse_unknown_slot(place: _Place, slot: str, allowed: Sequence[str]) -> None:
    if slot not in allowed:
        raise place.error("no such slot", slot, ", ".join(map(repr, allowed)))


def _item(
    place: _Place,
    line: _Line,
    head: _Head,
    profile: Profile,
    slot: str,
    offered: Sequence[Mapping[str, Any]],
) -> Item:
    if (line.text is None) == (not line.messages):
        raise place.error("an item asks one thing", line.text, "either 'text' or 'messages'")
    messages = _messages(place, line, profile, slot)
    own_tools = head.tools if line.tools is None else line.tools
    if not own_tools and line.text is not None and profile.slot(slot).offers_tools:
        own_tools = tuple(dict(tool) for tool in offered)
    choices = head.choices if line.choices is None else line.choices
    check = checker(line.reference, own_tools)
    if check is None:
        raise place.error("'reference' describes no check", line.reference, _REFERENCES)
    why = why_useless(check, line.reference, own_tools)
    if why is not None:
        allowed = "a reference that the right answer passes"
        why = " ".join(why.split())[:160]
        raise place.error(f"'reference' can judge nothing ({why})", line.reference, allowed)
    limit = line.max_tokens or head.max_tokens or profile.max_answer_tokens
    prompt = [[m.to_openai() for m in messages], list(own_tools), list(choices), limit]
    item_id = content_id([prompt, line.reference])
    asked = [line.text] if line.text else [m.content for m in messages if m.role == "user"]
    return Item(
        item_id=item_id,
        cluster=line.cluster or content_id(asked),
        text=asked[-1],
        messages=messages,
        tools=own_tools,
        choices=choices,
        max_tokens=limit,
        check=check,
        further_texts=tuple(asked[:-1]),
    )


def _messages(place: _Place, line: _Line, profile: Profile, slot: str) -> tuple[Message, ...]:
    if line.text is not None:
        return own_view(profile, Conversation("suite"), slot, line.text)
    try:
        messages = tuple(map(Message.from_openai, line.messages))
    except (ValidationError, LookupError, TypeError, AttributeError) as error:
        raise place.error("'messages' are none", line.messages, "OpenAI messages") from error
    if not any(message.role == "user" for message in messages):
        raise place.error("nobody asks", line.messages, "a message of role 'user' among them")
    return messages


def _parsed(model: type[_Model], place: _Place, line: str) -> _Model:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise place.error(f"no JSON ({error})", line, "one JSON object") from error
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the line"
        allowed = ", ".join(model.model_fields)
        if first["type"] == "literal_error":
            allowed = str(first["ctx"]["expected"])
        elif first["type"] not in ("extra_forbidden", "missing", "model_type"):
            allowed = first["msg"]
        raise place.error(f"{field}: {first['msg']}", first["input"], allowed) from error


def _from_python(path: Path, profile: Profile, slot: str) -> Suite:
    name = f"suite_{content_id(str(path.resolve()))[7:19]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look their module up
    try:
        spec.loader.exec_module(module)
        made = module.suite(profile, slot)
    except MolError:
        raise
    except Exception as error:
        raise _Place(path, _line_of(error, path)).error(
            "the file fails", error, "a function suite(profile, slot) that returns a Suite"
        ) from error
    if not isinstance(made, Suite) or made.kind not in get_args(Kind):
        raise _Place(path, 1).error("suite(profile, slot) returns no Suite", made, "a Suite")
    _refuse_unknown_slot(_Place(path, 1), made.slot, profile.labels)
    ids = [item.item_id for item in made.items]
    twice = next((item_id for item_id, times in Counter(ids).items() if times > 1), None)
    if twice is not None:
        raise _Place(path, 1).error("two items have one item_id", twice, "an id for each item")
    # Its checks are code: other bytes may score otherwise, under the same items.
    return replace(made, scorer=content_id(path.read_bytes().hex()))


def _line_of(error: BaseException, path: Path) -> int:
    """Return the last line of `path` that an error came through; 1 if it came through none."""
    if isinstance(error, SyntaxError):
        return error.lineno or 1
    line, step = 1, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == str(path):
            line = step.tb_lineno
        step = step.tb_next
    return line


_REFERENCES = f"an object with 'verifier' ({', '.join(VERIFIERS)}) and what it checks against"
