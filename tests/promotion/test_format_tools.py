"""Proves that each request with tools of its own can be answered, and that a wrong call is refused.

The bundled file, and one right call for each of its clusters (`tests/data`); the wrong ones are
made from those. No engine.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from promotion.suites.build import DATA
from promotion.suites.files import read_suite
from promotion.suites.sets import divide
from promotion.suites.suite import Item
from serving.records import Message, ToolCall
from serving.slots import load_profile

SUITE = read_suite(DATA / "format_tools.jsonl", load_profile(), "L1")
CALLS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "format_tools_calls.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]
FIRST = {item.cluster: item for item in reversed(SUITE.items)}
"""The item of each cluster that its right call belongs to."""


def functions(item: Item) -> list[dict[str, Any]]:
    return [tool["function"] for tool in item.tools]


def schema(name: str) -> dict[str, Any]:
    (wanted,) = (f["parameters"] for f in functions(FIRST[name]) if f["name"] == name)
    return dict(wanted)


def called(name: str, arguments: Any) -> Message:
    call = ToolCall(id="c", name=name, arguments=json.dumps(arguments))
    return Message(role="assistant", tool_calls=(call,))


def accepted(item: str, name: str, arguments: Any) -> bool:
    return FIRST[item].check(called(name, arguments)).passed is True


def of_another_type(value: Any) -> Any:
    """Return what a careless model writes instead: a number as text, one thing for a list."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list):
        return value[0]
    return list(value.values()) if isinstance(value, dict) else 7


def outside(part: dict[str, Any]) -> Iterator[Any]:
    """Yield values of the right type that the schema of a property rules out."""
    if "enum" in part:
        yield "none of these" if part["type"] == "string" else max(part["enum"]) + 1
    if "minimum" in part:
        yield part["minimum"] - 1
    if "maximum" in part:
        yield part["maximum"] + 1
    if "pattern" in part:
        yield "?"
    if "maxLength" in part:
        yield "x" * (part["maxLength"] + 1)
    if part.get("minItems"):
        yield []


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from leaves(part)
    else:
        yield value


def test_there_are_clusters_enough_for_the_default_margins() -> None:
    assert len(FIRST) >= 320
    assert len({item.cluster for item in divide(SUITE).sealed.items}) >= 173


def test_no_two_requests_are_alike() -> None:
    plain = Counter(
        " ".join(re.sub(r"\W+|\bplease\b", " ", item.text.casefold()).split())
        for item in SUITE.items
    )

    assert [text for text, count in plain.items() if count > 1] == []


def test_requests_come_in_two_languages() -> None:
    assert sum(bool(re.search("[\u4e00-\u9fff]", item.text)) for item in SUITE.items) >= 30


def test_every_tool_is_one_that_openai_would_take() -> None:
    for item in SUITE.items:
        names = [function["name"] for function in functions(item)]
        assert item.cluster in names  # the cluster is the tool that is wanted
        assert 1 <= len(names) == len(set(names)) <= 3
        for tool in item.tools:
            function = tool["function"]
            assert tool["type"] == "function"
            assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", function["name"])
            assert function["description"]
            Draft202012Validator.check_schema(function["parameters"])
            assert function["parameters"]["type"] == "object"


def test_a_tool_is_the_same_wherever_it_is_offered() -> None:
    shapes: dict[str, set[str]] = {}
    for item in SUITE.items:
        for function in functions(item):
            shapes.setdefault(function["name"], set()).add(json.dumps(function, sort_keys=True))

    assert [name for name, shape in shapes.items() if len(shape) > 1] == []


def test_schemas_are_of_many_kinds() -> None:
    text = [json.dumps(schema(name)) for name in FIRST]
    kinds = (
        "integer", "number", "boolean", "array", "enum", "minimum", "maximum", "pattern", "format",
        "minItems", "uniqueItems",
    )  # fmt: skip

    assert all(sum(f'"{kind}"' in one for one in text) >= 10 for kind in kinds)
    assert sum(one.count('"properties"') > 1 for one in text) >= 10  # objects in objects
    assert sum(len(s["properties"]) > len(s.get("required", ())) for s in map(schema, FIRST)) >= 60


def test_a_right_call_of_every_cluster_passes() -> None:
    assert sorted(call["name"] for call in CALLS) == sorted(FIRST)
    assert [c for c in CALLS if not accepted(c["name"], c["name"], c["arguments"])] == []


def test_the_numbers_of_a_right_call_stand_in_its_request() -> None:
    missing = []
    for call in CALLS:
        numbers = [v for v in leaves(call["arguments"]) if isinstance(v, int | float)]
        for number in numbers:
            digits = re.escape(str(number)) + ("0?" if isinstance(number, float) else "")
            found = re.search(rf"(?<!\d){digits}(?!\d)", FIRST[call["name"]].text)
            if abs(number) > 12 and not found:  # small ones may be words
                missing.append((call["name"], number))

    assert missing == []


def test_a_right_call_has_room_in_the_answer_at_two_bytes_a_token() -> None:
    for call in CALLS:
        written = json.dumps(call, ensure_ascii=False).encode()
        assert len(written) / 2 <= FIRST[call["name"]].max_tokens, call["name"]


def test_a_call_that_lacks_a_required_property_is_refused() -> None:
    taken, tried = [], set()
    for name, right in ((call["name"], call["arguments"]) for call in CALLS):
        for key in schema(name).get("required", ()):
            tried.add(name)
            wrong = {k: v for k, v in right.items() if k != key}
            taken += [(name, key)] if accepted(name, name, wrong) else []

    assert taken == []
    assert len(tried) >= 320


def test_a_call_with_a_value_of_another_type_is_refused() -> None:
    taken, tried = [], set()
    for name, right in ((call["name"], call["arguments"]) for call in CALLS):
        for key, value in right.items():
            tried.add(name)
            wrong = right | {key: of_another_type(value)}
            taken += [(name, key)] if accepted(name, name, wrong) else []

    assert taken == []
    assert len(tried) >= 320


def test_a_call_with_a_value_that_the_schema_rules_out_is_refused() -> None:
    taken, tried = [], set()
    for name, right in ((call["name"], call["arguments"]) for call in CALLS):
        for key, part in schema(name)["properties"].items():
            for value in outside(part):
                tried.add(name)
                wrong = right | {key: value}
                taken += [(name, key, value)] if accepted(name, name, wrong) else []

    assert taken == []
    assert len(tried) >= 100


def test_a_nested_object_that_lacks_a_part_is_refused() -> None:
    taken, tried = [], set()
    for name, right in ((call["name"], call["arguments"]) for call in CALLS):
        for key, part in schema(name)["properties"].items():
            inner = part.get("items", part)
            if inner["type"] != "object" or key not in right:
                continue
            for lost in inner["required"]:
                tried.add(name)
                wrong = deepcopy(right)
                del (wrong[key][0] if part["type"] == "array" else wrong[key])[lost]
                taken += [(name, key, lost)] if accepted(name, name, wrong) else []

    assert taken == []
    assert len(tried) >= 8


def test_a_property_that_nobody_offered_is_refused_where_the_schema_is_closed() -> None:
    closed = {n for n in FIRST if schema(n).get("additionalProperties") is False}
    taken = {
        call["name"]
        for call in CALLS
        if accepted(call["name"], call["name"], call["arguments"] | {"made_up": 1})
    }

    assert taken == set(FIRST) - closed
    assert len(closed) >= 250
    assert len(taken) >= 20


def test_a_call_of_a_tool_that_is_not_offered_is_refused() -> None:
    names = [call["name"] for call in CALLS]
    others = dict(zip(names, [*names[1:], names[0]], strict=True))
    for call in CALLS:
        name, other = call["name"], others[call["name"]]
        offered = [function["name"] for function in functions(FIRST[name])]
        if other in offered:
            other += "_2"
        assert not accepted(name, other, call["arguments"]), name


def test_a_call_that_is_written_as_text_or_left_out_is_refused() -> None:
    for call in CALLS:
        for text in (json.dumps(call), "Done.", ""):
            assert not FIRST[call["name"]].check(Message(role="assistant", content=text)).passed
