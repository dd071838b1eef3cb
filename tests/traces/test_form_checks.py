"""Proves what an answer shows by itself: one table, and that each rule of the checks is held up.

Pure: real messages, made-up texts. Each condition of the module is broken in turn in a copy made
from its own source, never true and always true; a row of the table must notice.
"""

import ast
import inspect
import json
import random
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
from mutants import conditions, functions
from trace_records import calls, result, says

from serving.records import Message, ToolCall, canonical_json
from traces.attribution import form_checks
from traces.attribution.form_checks import FinalAnswer

LIGHT = canonical_json(
    [
        {
            "type": "function",
            "function": {
                "name": "light",
                "parameters": {"properties": {"room": {"type": "string"}}, "required": ["room"]},
            },
        }
    ]
)
CODE_TOO = canonical_json([*json.loads(LIGHT), {"type": "code_interpreter"}])
SIZED = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
AS_ASKED = canonical_json(
    {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SIZED}}}
)
ANY_JSON = canonical_json({"response_format": {"type": "json_object"}})
IN_VLLM = canonical_json({"structured_outputs": {"json": SIZED}})
IN_OLD_VLLM = canonical_json({"guided_json": canonical_json(SIZED)})
AS_TEXT = canonical_json({"response_format": {"type": "text"}})
CHOICE = canonical_json({"structured_outputs": {"choice": ["L1"]}})
BUTTON = '{"type": "button", "label": "Go", "action": "open", "target": "%s"}'
CARD = '{"type": "card", "title": "Lamp", "children": [%s]}'
CLOCK = canonical_json([{"type": "function", "function": {"name": "now"}}])
EMPTY = Message(role="assistant", tool_calls=(ToolCall(id="call-1", name="now", arguments=""),))
TWO = calls("light", room="hall")
TWO = TWO.model_copy(update={"tool_calls": TWO.tool_calls + calls("light", "call-2").tool_calls})
FINE, BROKE = result('{"ok": true}'), result("Error: no such room")


@dataclass(frozen=True)
class Row:
    """A final answer and the names of the checks that it fails."""

    name: str
    answer: Message
    expected: tuple[str, ...] = ()
    under: dict[str, Any] = field(default_factory=dict)


ROWS = (
    Row("a valid call is no failure", calls("light", room="hall"), (), {"tools": LIGHT}),
    Row("a required argument is missing", calls("light"), ("call_schema",), {"tools": LIGHT}),
    Row("a value of another type", calls("light", room=1), ("call_schema",), {"tools": LIGHT}),
    Row("no such tool", calls("lamp", room="hall"), ("call_schema",), {"tools": LIGHT}),
    Row("no tools in the log", calls("lamp", room="hall")),
    Row("a tool whose functions the log does not name", calls("run"), (), {"tools": CODE_TOO}),
    Row("tools that are none", calls("lamp"), (), {"tools": "{}"}),
    Row("tools that are none, in a list", calls("lamp"), (), {"tools": "[3]"}),
    Row("tools that cannot be read", calls("lamp"), (), {"tools": "[" * 5000}),
    Row("one call of several is broken", TWO, ("call_schema",), {"tools": LIGHT}),
    Row("its tool took it", calls("light"), (), {"tools": LIGHT, "tail": (FINE,)}),
    Row(
        "its tool took another one", TWO, ("call_schema",), {"tools": LIGHT, "tail": (FINE,)},
    ),
    Row(
        "a broken call with an error", calls("light"), ("call_schema", "tool_result"),
        {"tools": LIGHT, "tail": (BROKE,)},
    ),
    Row(
        "the turn ends with an error", calls("light", room="hall"), ("tool_result",),
        {"tools": LIGHT, "tail": (BROKE,)},
    ),
    Row("an error without tools in the log", calls("light"), ("tool_result",), {"tail": (BROKE,)}),
    Row("an exit code", calls("sh"), ("tool_result",), {"tail": (result('{"exit_code": 2}'),)}),
    Row("an error of another call", calls("sh"), (), {"tail": (result("Error: x", "call-9"),)}),
    Row(
        "words about an error", calls("sh"), (),
        {"tail": (BROKE.model_copy(update={"role": "user"}),)},
    ),
    *(
        Row(f"a call that was cut: {why}", calls("light"), (),
            {"tools": LIGHT, "finish_reason": why})
        for why in ("length", "max_tokens", "content_filter", "abort", "error")
    ),
    Row("a call that was not cut", calls("light"), ("call_schema",),
        {"tools": LIGHT, "finish_reason": "tool_calls"}),
    Row("a call without arguments", EMPTY, (), {"tools": CLOCK}),
    Row("the schema that was asked for", says('{"size": 3}'), (), {"params": AS_ASKED}),
    Row("against that schema", says('{"size": "3"}'), ("answer_schema",), {"params": AS_ASKED}),
    Row("words for JSON", says("Three."), ("answer_schema",), {"params": AS_ASKED}),
    Row("half the JSON", says('{"size": '), ("answer_schema",), {"params": ANY_JSON}),
    Row("JSON of any kind", says("[1]"), (), {"params": ANY_JSON}),
    Row("a number that JSON has not", says('{"size": NaN}'), ("answer_schema",),
        {"params": ANY_JSON}),
    Row("a key twice", says('{"size": "3", "size": 3}'), ("answer_schema",), {"params": AS_ASKED}),
    Row("cut JSON", says('{"si'), (), {"params": ANY_JSON, "finish_reason": "length"}),
    Row("too deep to say", says("[" * 5000), (), {"params": ANY_JSON}),
    Row("nothing said, such as a refusal", says(" "), (), {"params": AS_ASKED}),
    Row("a call instead of JSON", calls("light"), (), {"params": AS_ASKED}),
    Row("asked of vLLM", says('{"size": "3"}'), ("answer_schema",), {"params": IN_VLLM}),
    Row("asked of an older vLLM", says("{}"), ("answer_schema",), {"params": IN_OLD_VLLM}),
    Row("a choice is no schema", says("L1"), (), {"params": CHOICE}),
    Row("text was asked for", says("Three."), (), {"params": AS_TEXT}),
    Row("a schema that is none", says("Three."), (), {"params": '{"guided_json": true}'}),
    Row("parameters that are none", says("Three."), (), {"params": "[]"}),
    Row("parameters that cannot be read", says("Three."), (), {"params": "{"}),
    Row("an interface", says(CARD % '{"type": "text", "value": "On"}'), (),
        {"writes_interfaces": True}),
    Row("a broken interface", says(CARD % '{"type": "lamp"}'), ("component_schema",),
        {"writes_interfaces": True}),
    Row("an interface that was cut", says(CARD[:40]), (),
        {"writes_interfaces": True, "finish_reason": "length"}),
    Row("a target that is not there", says(CARD % (BUTTON % "x")), ("component_schema",),
        {"writes_interfaces": True}),
    Row("half an interface", says(CARD[:40]), ("component_schema",), {"writes_interfaces": True}),
    Row("an interface of another slot", says(CARD % '{"type": "lamp"}')),
    Row("other JSON", says('{"type": "music", "genre": "jazz"}'), (), {"writes_interfaces": True}),
    Row("words about a card", says('I made a "type": "card".'), (), {"writes_interfaces": True}),
)  # fmt: skip


def failing(module: Any) -> list[str]:
    """Return the names of the rows that a module gets wrong."""
    wrong = []
    for row in ROWS:
        try:
            found = module.failed_checks(FinalAnswer(row.answer, **row.under))
            names = tuple(name for name, _ in found)
        except Exception:
            names = ("broke down",)
        if names != row.expected:
            wrong.append(row.name)
    return wrong


SOURCE = inspect.getsource(form_checks)
COUNT = len(conditions(functions(ast.parse(SOURCE))))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_answer_fails_what_the_table_says(row: Row) -> None:
    found = list(form_checks.failed_checks(FinalAnswer(row.answer, **row.under)))

    assert tuple(name for name, _ in found) == row.expected
    assert all(check.passed is False and check.detail for _, check in found)


@pytest.mark.parametrize("value", [False, True], ids=["never", "always"])
@pytest.mark.parametrize("place", range(COUNT))
def test_a_broken_rule_is_noticed(place: int, value: bool) -> None:
    tree = ast.parse(SOURCE)
    conditions(functions(tree))[place](ast.Constant(value))
    mutant = ModuleType("mutant")
    exec(compile(ast.fix_missing_locations(tree), "mutant", "exec"), vars(mutant))

    assert failing(mutant)


ODD = (
    "", "null", "1", "true", '"x"', "[]", "{}", "[null]", "[[]]", '{"": 1}', "1e400", "NaN",
    r'"\ud800"', "9" * 5000, '{"type": "function"}', '{"function": null}',
    '{"function": {"name": ["f"]}}', '{"function": {"name": "f", "parameters": 7}}',
    '{"$ref": "#/nowhere"}', '{"pattern": "("}', '{"multipleOf": 0}',
)  # fmt: skip
"""What may stand where a log should have something else."""
SHAPES = {
    "tools": ("%s", "[%s]", '[{"type": "function", "function": {"name": "f", "parameters": %s}}]'),
    "params": ("%s", '{"response_format": %s}', '{"structured_outputs": {"json": %s}}',
               '{"response_format": {"type": "json_schema", "json_schema": {"schema": %s}}}',
               '{"guided_json": {"properties": %s}}'),
    "text": ("%s", '{"error": %s}', '{"exit_code": %s}', '{"status": %s}', '{"type": "card"%s',
             '{"type": "card", "title": "T", "children": %s}'),
}  # fmt: skip


def odd(random_: random.Random, what: str, *more: str) -> str:
    return random_.choice(SHAPES[what]) % random_.choice((*ODD, *more))


def odd_answer(random_: random.Random, *more: str) -> FinalAnswer:
    """Return an answer under a log that holds anything; `more` is among what may stand there."""
    texts = [odd(random_, "text", *more) for _ in range(3)]
    answer = says(texts[0])
    if random_.random() < 0.5:
        call = ToolCall(id=random_.choice(("", "c")), name="f", arguments=texts[0])
        answer = Message(role="assistant", tool_calls=(call,))
    tail = [Message(role="tool", content=text, tool_call_id="c") for text in texts[1:]]
    tools, params = odd(random_, "tools", *more), odd(random_, "params", *more)
    return FinalAnswer(answer, tools, params, None, tail, random_.random() < 0.5)


@pytest.mark.parametrize("seed", range(20))
def test_no_check_raises_whatever_a_log_holds(seed: int) -> None:
    random_ = random.Random(seed)
    depth = random_.randrange(300, 1100)  # JSON can be read as deep as Python's limit, 1,000
    deep = ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth)
    for _ in range(100):
        for name, check in form_checks.failed_checks(odd_answer(random_, *deep)):
            assert check.passed is False, name
