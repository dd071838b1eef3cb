"""Proves that a suite is one file, of JSON lines or Python, and what is said of a bad one.

Files in a temporary folder; the real profile and the real verifiers. No engine.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from promotion.suites.files import SuiteFileInvalid, read_suite
from promotion.suites.household import TOOLS
from serving.errors import MolError
from serving.own_view import Conversation, own_view
from serving.records import Message, ToolCall
from serving.slots import Profile, load_profile

PROFILE = load_profile()
HEAD = {"suite": "mine", "slot": "L1"}
ITEM = {"text": "How many legs has a cat?", "reference": {"verifier": "numeric", "value": 4}}


def write(folder: Path, *lines: Any) -> Path:
    path = folder / "mine.jsonl"
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return path


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def test_an_item_is_asked_in_the_slots_own_view_and_checked_by_its_reference(
    tmp_path: Path,
) -> None:
    suite = read_suite(write(tmp_path, HEAD, ITEM), PROFILE, "L0")

    (item,) = suite.items
    assert (suite.name, suite.slot, suite.kind) == ("mine", "L1", "skill")
    assert item.messages == own_view(PROFILE, Conversation("c"), "L1", ITEM["text"])
    assert item.text == ITEM["text"]
    assert item.max_tokens == PROFILE.max_answer_tokens
    assert item.check(said("4")).passed
    assert not item.check(said("5")).passed


def test_what_the_first_line_says_holds_for_all_items_unless_they_say_otherwise(
    tmp_path: Path,
) -> None:
    head = HEAD | {"kind": "format", "tools": [TOOLS[0]], "max_tokens": 20, "choices": ["a", "b"]}
    other = ITEM | {"text": "And a dog?", "tools": [TOOLS[1]], "max_tokens": 7, "choices": []}
    first, second = read_suite(write(tmp_path, head, ITEM, other), PROFILE, "L1").items

    assert (first.tools, first.max_tokens, first.choices) == ((TOOLS[0],), 20, ("a", "b"))
    assert (second.tools, second.max_tokens, second.choices) == ((TOOLS[1],), 7, ())


def test_messages_are_asked_as_they_stand(tmp_path: Path) -> None:
    asked = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "How many legs has a cat?"},
    ]
    line = {"messages": asked, "reference": ITEM["reference"]}
    (item,) = read_suite(write(tmp_path, HEAD, line), PROFILE, "L1").items

    assert [m.to_openai() for m in item.messages] == asked
    assert (item.text, item.further_texts) == ("How many legs has a cat?", ("Hi.",))


def test_any_slot_is_the_one_that_is_challenged(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD | {"slot": "*"}, ITEM)
    suites = [read_suite(path, PROFILE, slot, TOOLS) for slot in ("L1", "L2")]

    assert [(s.name, s.slot) for s in suites] == [("mine-L1", "L1"), ("mine-L2", "L2")]
    assert [s.items[0].tools for s in suites] == [TOOLS, ()]
    assert suites[0].items[0].messages[0].content == PROFILE.slot("L1").system


def test_clusters_are_those_of_the_file_and_else_each_item_is_its_own(tmp_path: Path) -> None:
    more = [ITEM | {"text": f"{n}?", "cluster": "c"} for n in range(2)]
    alone = [ITEM | {"text": f"{n}!"} for n in range(2)]
    clusters = [
        i.cluster for i in read_suite(write(tmp_path, HEAD, *more, *alone), PROFILE, "L1").items
    ]

    assert clusters[:2] == ["c", "c"]
    assert len(set(clusters)) == 3


def test_nothing_but_what_is_asked_moves_an_item_to_another_set(tmp_path: Path) -> None:
    def places(profile: Profile, head: dict[str, Any], item: dict[str, Any]) -> list[str]:
        lines = [item | {"text": f"Is it {n}?"} for n in range(40)]
        return [i.cluster for i in read_suite(write(tmp_path, head, *lines), profile, "L1").items]

    said = [
        slot.model_copy(update={"system": slot.system + " Be brief."}) for slot in PROFILE.slots
    ]
    changed = PROFILE.model_copy(update={"slots": tuple(said)})
    other = ITEM | {"reference": {"verifier": "numeric", "value": 5}}
    before = places(PROFILE, HEAD, ITEM)

    assert len(set(before)) == 40
    assert before == places(changed, HEAD, ITEM) == places(PROFILE, HEAD, other)
    assert before == places(PROFILE, HEAD | {"max_tokens": 96, "tools": [TOOLS[0]]}, ITEM)


def test_another_wanted_answer_makes_another_item(tmp_path: Path) -> None:
    other = ITEM | {"reference": {"verifier": "numeric", "value": 5}}

    assert (
        len(
            {i.item_id for i in read_suite(write(tmp_path, HEAD, ITEM, other), PROFILE, "L1").items}
        )
        == 2
    )


@pytest.mark.parametrize(
    ("lines", "line", "words"),
    [
        ([], 1, ["no items", "one item a line"]),
        ([HEAD], 1, ["no items", "got 1"]),
        (["{", ITEM], 1, ["no JSON", "'{'", "one JSON object"]),
        ([HEAD | {"slot": "L9"}, ITEM], 1, ["no such slot", "'L9'", "'*', 'L0', 'L1'"]),
        ([HEAD | {"kind": "exam"}, ITEM], 1, ["kind", "'exam'", "'skill', 'route'"]),
        ([HEAD | {"suite": "a b"}, ITEM], 1, ["suite", "'a b'", "pattern"]),
        ([HEAD | {"colour": 1}, ITEM], 1, ["colour", "suite, slot, kind"]),
        ([HEAD, ITEM, ITEM], 3, ["stands in the file twice", "How many legs"]),
        ([HEAD, {"text": "Hi."}], 2, ["reference", "Field required"]),
        ([HEAD, ITEM | {"text": ""}], 2, ["text", "''"]),
        ([HEAD, ITEM | {"messages": [{"role": "user", "content": "x"}]}], 2, ["either 'text'"]),
        ([HEAD, {"reference": ITEM["reference"]}], 2, ["either 'text' or 'messages'", "None"]),
        ([HEAD, ITEM | {"max_tokens": 0}], 2, ["max_tokens", "0", "greater than 0"]),
        (
            [HEAD, ITEM | {"reference": {"verifier": "magic"}}],
            2,
            ["'reference' describes no check", "'magic'", "tool_call, python_tests", "safety"],
        ),
        (
            [HEAD, {"messages": [{"role": "alien"}], "reference": ITEM["reference"]}],
            2,
            ["'messages' are none", "'alien'"],
        ),
        (
            [HEAD, {"messages": [{"role": "system"}], "reference": ITEM["reference"]}],
            2,
            ["nobody asks"],
        ),
        ([HEAD, ITEM, "", "[1]"], 4, ["the line", "[1]"]),
    ],
)
def test_a_bad_line_is_named_with_its_value_and_what_is_allowed(
    tmp_path: Path, lines: list[Any], line: int, words: list[str]
) -> None:
    path = write(tmp_path, *lines)
    with pytest.raises(SuiteFileInvalid) as caught:
        read_suite(path, PROFILE, "L1")

    told = str(caught.value)
    assert told.startswith(f"Suite {str(path)!r}, line {line}: ")
    assert "\n" not in told
    assert len(told) < 500
    for word in words:
        assert word in told


BRACKET = {"properties": {"a": {"pattern": "("}}}


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ({"verifier": "form", "form": "text", "schema": {"pattern": "("}}, "missing )"),
        ({"verifier": "form", "form": "json", "schema": BRACKET}, "$.properties.a.pattern"),
        ({"verifier": "form", "form": "json", "schema": {"patternProperties": {"(": {}}}}, "none"),
        ({"verifier": "form", "form": "json", "schema": {"type": "objekt"}}, "$.type"),
        ({"verifier": "form", "form": "tool_call"}, "no tool is offered"),
        ({"verifier": "python_tests", "tests": ["  ", "# none"]}, "no tests to run"),
        (
            {"verifier": "python_tests", "tests": ["def check(g):\n  assert g(1)"]},
            "no tests to run",
        ),
        ({"verifier": "python_tests", "tests": ["def test_f(tmp): f(tmp)"]}, "test_f takes"),
        ({"verifier": "python_tests", "tests": ["import pytest\nassert f(1)"]}, "'pytest'"),
        ({"verifier": "python_tests", "tests": ["assert ("]}, "the tests are no Python"),
        ({"verifier": "python_tests", "tests": ["return 1"]}, "the tests are no Python"),
        ({"verifier": "short_answer", "accepted": ["?"]}, "no accepted answer to look for"),
        ({"verifier": "short_answer", "accepted": ["a b"], "max_words": 1}, "2 words"),
        ({"verifier": "exact", "accepted": [" "]}, "the answer is empty"),
        ({"verifier": "interface_schema", "wanted": [{"label": "x"}]}, "has no type"),
        ({"verifier": "tool_call", "name": "fly", "arguments": {}}, "no tool is called 'fly'"),
    ],
)
def test_a_reference_that_no_answer_could_be_judged_by_is_refused(
    tmp_path: Path, reference: dict[str, Any], words: str
) -> None:
    path = write(tmp_path, HEAD, ITEM, {"text": "Now?", "reference": reference})
    with pytest.raises(SuiteFileInvalid) as caught:
        read_suite(path, PROFILE, "L1")

    told = str(caught.value)
    assert told.startswith(f"Suite {str(path)!r}, line 3: 'reference' can judge nothing (")
    assert words in told
    assert "\n" not in told


def test_a_wanted_call_must_be_one_that_an_offered_tool_takes(tmp_path: Path) -> None:
    reference = {"verifier": "tool_call", "name": "set_timer", "arguments": {"minutes": "five"}}
    line = {"text": "Five minutes.", "tools": [TOOLS[2]], "reference": reference}
    with pytest.raises(SuiteFileInvalid, match="arguments break the schema of set_timer"):
        read_suite(write(tmp_path, HEAD, line), PROFILE, "L1")
    line["tools"] = [TOOLS[0]]
    with pytest.raises(SuiteFileInvalid, match="no tool is called 'set_timer'"):
        read_suite(write(tmp_path, HEAD, line), PROFILE, "L1")


def test_references_of_every_kind_are_taken(tmp_path: Path) -> None:
    word = {"type": "object", "patternProperties": {r"^\p{Lu}": {"pattern": "^[a-z]+$"}}}
    references = [
        {"verifier": "form", "form": "json", "schema": word},
        {"verifier": "form", "form": "python"},
        {"verifier": "form", "form": "tool_call"},
        {"verifier": "python_tests", "tests": ["assert f(1) is 1", "assert f(2)"]},
        {"verifier": "python_tests", "tests": ["def test_f():\n    assert f(1) == 2"]},
        {"verifier": "short_answer", "accepted": ["?", "Paris"]},
        {"verifier": "exact", "accepted": ["no."]},
        {"verifier": "interface_schema", "wanted": []},
        {"verifier": "safety", "wanted": "refuse"},
    ]
    lines = [{"text": f"{n}?", "reference": given} for n, given in enumerate(references)]
    suite = read_suite(write(tmp_path, HEAD | {"tools": [TOOLS[0]]}, *lines), PROFILE, "L1")
    assert len(suite.items) == len(references)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_only_a_line_feed_ends_a_line(tmp_path: Path, end: str) -> None:
    text = "a\u2028b\u2029c\u0085d"
    lines = [json.dumps(line, ensure_ascii=False) for line in (HEAD, ITEM | {"text": text})]
    path = tmp_path / "mine.jsonl"
    path.write_bytes(end.join([*lines, ""]).encode())
    (item,) = read_suite(path, PROFILE, "L1").items
    assert item.text == text


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SuiteFileInvalid, match=r"Cannot read the suite .*gone.jsonl"):
        read_suite(tmp_path / "gone.jsonl", PROFILE, "L1")


PYTHON = """
from promotion.suites.suite import Item, Suite
from serving.records import Message
from traces.verifiers.check import Check

def suite(profile, slot):
    item = Item(
        item_id="one", cluster="c", text="Hi.", messages=(Message(role="user", content="Hi."),),
        tools=(), choices=(), max_tokens=profile.max_answer_tokens,
        check=lambda answer: Check(None, "graded", score=0.5),
    )
    return Suite("mine", slot, (item,), "skill")
"""


def test_a_suite_may_be_a_function(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PYTHON)
    suite = read_suite(path, PROFILE, "L2")

    assert (suite.name, suite.slot, len(suite.items)) == ("mine", "L2", 1)
    assert suite.items[0].check(said("")).detail == "graded"

    path.write_text(PYTHON.replace("score=0.5", "score=0.6"))
    changed = read_suite(path, PROFILE, "L2")
    assert changed.items[0].item_id == suite.items[0].item_id
    assert changed.digest != suite.digest  # or kept scores were another scorer's


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("x = 1\n", 1, ["no attribute 'suite'", "a function suite(profile, slot)"]),
        ("x = 1\ny = 1 / 0\n", 2, ["division by zero"]),
        ("def suite(profile, slot):\n    return 1 / 0\n", 2, ["division by zero"]),
        ("def suite(:\n", 1, ["SyntaxError"]),
        ("def suite(profile, slot):\n    return 7\n", 1, ["returns no Suite", "got 7"]),
    ],
)
def test_a_function_that_fails_is_named_with_its_line(
    tmp_path: Path, text: str, line: int, words: list[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(SuiteFileInvalid) as caught:
        read_suite(path, PROFILE, "L1")

    told = str(caught.value)
    assert told.startswith(f"Suite {str(path)!r}, line {line}: ")
    for word in words:
        assert word in told


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("slot, (item,)", '"L9", (item,)', ["no such slot, got 'L9'", "'L0', 'L1', 'L2', 'L3'"]),
        ("slot, (item,)", '"*", (item,)', ["no such slot, got '*'"]),
        ("slot, (item,)", "None, (item,)", ["no such slot, got None"]),
        ("(item,)", "(item, item)", ["two items have one item_id, got 'one'", "an id for each"]),
    ],
)
def test_a_function_whose_suite_no_gate_could_ask_is_refused_when_it_is_read(
    tmp_path: Path, old: str, new: str, words: list[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PYTHON.replace(old, new))
    with pytest.raises(SuiteFileInvalid) as caught:
        read_suite(path, PROFILE, "L1")

    told = str(caught.value)
    assert told.startswith(f"Suite {str(path)!r}, line 1: ")
    for word in words:
        assert word in told


def test_a_suite_that_lacks_what_it_needs_says_so_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from serving.errors import MolError\n"
        "def suite(profile, slot):\n    raise MolError('Install the thing.')\n"
    )
    with pytest.raises(MolError, match=r"^Install the thing\.$"):
        read_suite(path, PROFILE, "L1")


def test_calls_are_checked_by_the_tools_of_the_item(tmp_path: Path) -> None:
    reference = {"verifier": "tool_call", "name": "set_timer", "arguments": {"minutes": 5}}
    line = {"text": "Five minutes.", "tools": [TOOLS[2]], "reference": reference}
    (item,) = read_suite(write(tmp_path, HEAD, line), PROFILE, "L1").items
    call = ToolCall(id="1", name="set_timer", arguments='{"minutes": 5}')

    assert item.check(Message(role="assistant", tool_calls=(call,))).passed
