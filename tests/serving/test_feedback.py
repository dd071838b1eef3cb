"""Proves feedback: what a client says becomes the records that settle a turn, days later too.

The end-to-end test goes through the real recorder, ingest and attribution; the
turns are made up. Nothing is faked.
"""

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from trace_records import PROFILE, at, calls, hop, says, signal, turn_of

from serving.config import RecordConfig
from serving.exchange import RequestInvalid
from serving.feedback import FeedbackRequest, parse
from serving.recorder import Recorder
from serving.records import Feedback
from traces.attribute import attribute
from traces.ingest import ingest
from traces.read import read_turns

TURN = {"turn_id": "t1"}


def records(**body: Any) -> list[Feedback]:
    return list(parse(TURN | body).records(at(60)))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"thumb": "up"}, signal("thumb", 1.0)),
        ({"thumb": "down", "user": "u1"}, signal("thumb", -1.0, user="u1")),
        ({"score": 0.75}, signal("thumb", 1.0, name="score", detail="score 0.75")),
        ({"score": 0}, signal("thumb", -1.0, name="score", detail="score 0")),
        ({"score": 0.5}, signal("thumb", None, name="score", detail="score 0.5")),
        ({"correction": "no"}, signal("edit", None, correction=says("no"))),
        ({"comment": "hm"}, signal("comment", None, detail="hm")),
        (
            {"outcome": {"name": "python_tests", "passed": False, "detail": "2 of 3"}},
            signal("verifier", 0.0, detail="2 of 3"),
        ),
        ({"outcome": {"name": "python_tests", "passed": True}}, signal("verifier", 1.0)),
        ({"outcome": {"name": "python_tests", "value": 0.5}}, signal("verifier", 0.5)),
    ],
)
def test_every_signal_is_one_record(body: dict[str, Any], expected: Feedback) -> None:
    assert records(**body) == [expected]


def test_a_correction_may_be_a_message_with_tool_calls() -> None:
    call = {"id": "call-1", "function": {"name": "light", "arguments": '{"room": "hall"}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}

    (edit,) = records(correction=message)

    assert edit.correction == calls("light", room="hall")


def test_signals_of_one_body_are_told_apart() -> None:
    found = records(thumb="down", score=0.2, correction="x", comment="y",
                    outcome={"name": "t", "passed": True})  # fmt: skip

    assert [f.kind for f in found] == ["thumb", "edit", "verifier", "comment"]


@pytest.mark.parametrize(
    ("field", "kind"),
    [("response_id", "response"), ("turn_id", "turn"), ("conversation_id", "conversation")],
)
def test_each_target_is_kept(field: str, kind: str) -> None:
    (record,) = parse({field: "x", "thumb": "up"}).records(at(0))

    assert (record.target_kind, record.target_id) == (kind, "x")


WRONG = [
    ({}, "response_id", "given: none"),
    ({"thumb": "up"}, "response_id", "given: none"),
    (TURN, "thumb", "or 'score', 'correction', 'comment' or 'outcome' is required"),
    (TURN | {"response_id": "r", "thumb": "up"}, "turn_id", "response_id and turn_id"),
    ({"turn_id": "", "thumb": "up"}, "turn_id", "is '', but must"),
    ({"turn_id": 7, "thumb": "up"}, "turn_id", "is 7, but must be a string"),
    (TURN | {"thumb": "sideways"}, "thumb", "'up' or 'down'"),
    (TURN | {"score": 1.5}, "score", "is 1.5, but must be less than or equal to 1"),
    (TURN | {"score": -1}, "score", "greater than or equal to 0"),
    (TURN | {"score": "0.5"}, "score", "is '0.5', but must be a number"),
    (TURN | {"score": float("nan")}, "score", "finite"),
    (TURN | {"score": 0.1, "thumb": "up"}, "score", "contradicts the thumb 'up'"),
    (TURN | {"score": 0.9, "thumb": "down"}, "score", "contradicts the thumb 'down'"),
    (TURN | {"comment": "x" * 10_001}, "comment", "10000 characters"),
    (TURN | {"comment": "\ud800"}, "comment", "valid Unicode"),
    (TURN | {"correction": "x" * 200_001}, "correction", "200000 characters"),
    (TURN | {"correction": " \n"}, "correction", "must have text or tool calls"),
    (TURN | {"correction": {"role": "user", "content": "x"}}, "correction.role", "'assistant'"),
    (
        TURN | {"correction": {"role": "assistant", "content": [{"type": "text", "text": "x"}] * 2}}
        | {"thumb": "up", "score": 0.4}, "score", "contradicts",
    ),
    (
        TURN | {"correction": {"role": "assistant", "content": "x" * 200_001}},
        "correction", "has 200001 characters, but must have 200000 at most",
    ),
    (TURN | {"outcome": {"name": "a b", "passed": True}}, "outcome.name", "is 'a b', but must"),
    (TURN | {"outcome": {"name": "t"}}, "outcome", "'passed' or 'value'"),
    (TURN | {"outcome": {"name": "t", "passed": True, "value": 1}}, "outcome", "not both"),
    (TURN | {"outcome": {"name": "t", "passed": 1}}, "outcome.passed", "true or false"),
    (TURN | {"outcome": {"name": "t", "value": 2}}, "outcome.value", "is 2, but must"),
    (["not an object"], None, "must be a JSON object"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param", "text"), WRONG)
def test_a_wrong_body_is_refused_in_one_line(body: Any, param: str | None, text: str) -> None:
    with pytest.raises(RequestInvalid) as caught:
        parse(body)

    assert caught.value.param == param
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert caught.value.status == 400


GOOD = [
    TURN | {"thumb": "up"},
    {"response_id": "r", "score": 0.5, "comment": "x"},
    {"conversation_id": "c", "outcome": {"name": "t", "value": 0.5}},
    TURN | {"correction": {"role": "assistant", "content": "x"}, "some_field": 1},
]


def test_the_schema_allows_what_is_read_and_forbids_what_types_can_tell() -> None:
    validator = jsonschema.Draft202012Validator(FeedbackRequest.model_json_schema())
    refused = [case for case in WRONG if not validator.is_valid(case[0])]

    assert all(validator.is_valid(body) and parse(body) for body in GOOD)
    # Contradictions, blanks, finite numbers and half a surrogate are beyond a schema.
    assert len(WRONG) - len(refused) == 7


def test_null_is_the_same_as_absent() -> None:
    body = {"response_id": None, "score": None, "outcome": None, "thumb": "up"}

    assert records(**body) == records(thumb="up")


def test_late_feedback_changes_the_outcome_whatever_its_order_and_number(
    tmp_path: Path, home: Path
) -> None:
    spool = tmp_path / "spool"
    turns = []
    for n in range(4):
        own: dict[str, Any] = {"turn_id": f"t{n}", "conversation_id": f"c{n}"}
        hops = [hop(response_id=f"r{n}", started_at=at(n), **own)]
        turns += [*hops, turn_of(hops, **own)]
    write(spool, turns)
    ingest(home, spool)
    before = attribute(home, PROFILE)
    bodies = [
        ({"response_id": "r0", "thumb": "up", "user": "u"}, 5),
        ({"response_id": "r0", "thumb": "down", "user": "u"}, 1),
        ({"turn_id": "t1", "correction": "better"}, 2),
        ({"turn_id": "t1", "thumb": "up"}, 3),
        ({"conversation_id": "c2", "outcome": {"name": "python_tests", "passed": True}}, 4),
        ({"turn_id": "t3", "comment": "interesting"}, 4),
        ({"turn_id": "t-unseen", "score": 1}, 4),
    ]
    said = [
        record
        for body, days in bodies
        for record in parse(body).records(at(0) + timedelta(days=days))
    ]
    random.Random(3).shuffle(said)
    write(spool, [*said, *reversed(said)])
    write(spool, said)

    report = ingest(home, spool)
    after = attribute(home, PROFILE)

    assert before.rules == {"unjudged": 4}
    assert (report.funnel["feedback_in"], report.funnel["feedback_added"]) == (21, 7)
    assert after.feedback_unmatched == 1
    found = {b.turn.turn_id: (b.outcome.rule, b.outcome.success) for b in read_turns(home)}
    assert found == {
        "t0": ("thumbed", True),
        "t1": ("edited", False),
        "t2": ("verified", True),
        "t3": ("unjudged", None),
    }
    assert attribute(home, PROFILE).changed == 0


def write(spool: Path, records: list[Any]) -> None:
    recorder = Recorder(spool, RecordConfig())
    recorder.start()
    assert all([recorder.put(record) for record in records])
    assert recorder.close()
    assert recorder.stats().dropped == {}


def test_a_body_survives_its_way_through_json() -> None:
    for body in GOOD:
        assert parse(json.loads(json.dumps(body))).records(at(0)) == parse(body).records(at(0))
