"""Proves that any answer can be checked again from what a verifier's feedback carries.

Nothing is faked. Whatever a log says, the registry answers with a check or with none.
"""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.records import Message, ToolCall
from traces.verifiers.check import Check
from traces.verifiers.registry import checker

TOOL = {
    "type": "function",
    "function": {"name": "wait", "parameters": {"required": ["minutes"], "type": "object"}},
}
AT = datetime(2026, 11, 2, tzinfo=UTC)


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def called(name: str, arguments: str) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(id="1", name=name, arguments=arguments),))


CALL = {"verifier": "tool_call", "name": "wait", "arguments": {"minutes": 5}}
REFERENCES = [
    (CALL, called("wait", '{"minutes": 5}'), called("wait", '{"minutes": 6}')),
    ({"verifier": "python_tests", "tests": ["assert f(1) == 2"]},
     said("def f(n): return n + 1"), said("def f(n): return n")),
    ({"verifier": "short_answer", "accepted": ["Paris"], "max_words": 3},
     said("Paris."), said("It is Paris, I think.")),
    ({"verifier": "short_answer", "accepted": ["Paris"]},
     said("It is Paris, I think."), said("Rome")),
    ({"verifier": "short_answer", "accepted": ["Paris"], "rejected": ["Rome"]},
     said("Paris"), said("Paris or Rome")),
    ({"verifier": "interface_schema", "wanted": [{"type": "text", "value": "Hi"}]},
     said('{"type": "card", "title": "T", "children": [{"type": "text", "value": "Hi"}]}'),
     said('{"type": "card", "title": "T", "children": [{"type": "text", "value": "Ho"}]}')),
    ({"verifier": "exact", "accepted": ["Paris"]}, said("paris"), said("It is Paris")),
    ({"verifier": "numeric", "value": 12, "tolerance": 0.1}, said("13"), said("14")),
    ({"verifier": "numeric", "value": 12.0, "absolute": 3}, said("15"), said("15.1")),
]  # fmt: skip


@pytest.mark.parametrize(("reference", "right", "wrong"), REFERENCES)
def test_a_reference_tells_right_from_wrong(
    reference: dict[str, Any], right: Message, wrong: Message
) -> None:
    for form in (reference, json.dumps(reference)):
        check = checker(form, [TOOL])
        assert check is not None
        assert check(right).passed is True
        assert check(wrong).passed is False


BROKEN: list[Any] = [
    "", "null", "[]", "{}", "{", "1", '"exact"', "[" * 100_000, {"verifier": "vibes"},
    {"verifier": None}, {"accepted": ["x"]}, {"verifier": "exact"},
    {"verifier": "exact", "accepted": []}, {"verifier": "exact", "accepted": "Paris"},
    {"verifier": "exact", "accepted": [1]}, {"verifier": "exact", "accepted": ["x"], "odd": 1},
    {"verifier": "numeric", "value": "12"}, {"verifier": "numeric", "value": True},
    '{"verifier": "exact", "accepted": ["a"], "accepted": ["b"]}',
    {"verifier": "numeric", "value": float("nan")}, '{"verifier": "numeric", "value": 1e999}',
    {"verifier": "numeric", "value": 1, "tolerance": -1},
    {"verifier": "tool_call", "name": "wait", "arguments": "{}"},
    {"verifier": "tool_call", "name": 1, "arguments": {}},
    {"verifier": "python_tests", "tests": []}, {"verifier": "python_tests", "tests": [None]},
    {"verifier": "short_answer", "accepted": ["x"], "max_words": 0},
    {"verifier": "interface_schema", "wanted": ["card"]},
]  # fmt: skip


@pytest.mark.parametrize("reference", BROKEN)
def test_a_reference_that_makes_no_sense_has_no_check(reference: Any) -> None:
    assert checker(reference) is None


@pytest.mark.parametrize(
    ("reference", "detail"),
    [
        ({"verifier": "python_tests", "tests": ["assert f("]}, "the tests are no Python"),
        ({"verifier": "interface_schema", "wanted": [{"label": "x"}]}, "a wanted component"),
        ({"verifier": "short_answer", "accepted": [" ?! "]}, "no accepted answer"),
    ],
)
def test_a_check_that_cannot_judge_finds_nothing(reference: dict[str, Any], detail: str) -> None:
    check = checker(reference)
    assert check is not None

    finding = check(said("x"))

    assert finding.passed is None
    assert finding.detail.startswith(detail)


def test_a_verifier_that_crashes_finds_nothing() -> None:
    deep: dict[str, Any] = {}
    deep["itself"] = deep
    check = checker({"verifier": "interface_schema", "wanted": [{"type": "card", "title": deep}]})
    assert check is not None

    finding = check(REFERENCES[5][1])

    assert finding.passed is None
    assert finding.detail.startswith("the verifier crashed: ValueError")
    assert len(finding.detail) <= 160


def test_the_schema_counts_where_the_tools_are_known() -> None:
    expected = {"verifier": "tool_call", "name": "wait", "arguments": {}}
    lenient, strict = checker(expected), checker(expected, [TOOL])
    assert lenient is not None
    assert strict is not None

    assert lenient(called("wait", "{}")).passed is True
    assert strict(called("wait", "{}")).passed is False
    assert lenient(said("no call")) == Check(False, "expected one tool call, got 0")


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([reference for reference, *_ in REFERENCES if "tests" not in reference]),
    st.text(max_size=60),
)
def test_no_answer_is_too_odd(reference: dict[str, Any], text: str) -> None:
    check = checker(reference, [TOOL])
    assert check is not None

    # What may be read in two ways has no verdict.
    doubtful = reference["verifier"] in ("numeric", "short_answer")
    allowed = (True, False, None) if doubtful else (True, False)
    for answer in (said(text), called(text, text), said(text + "\ud800")):
        found = check(answer)
        assert found.passed in allowed
        assert "crashed" not in found.detail
