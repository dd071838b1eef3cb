"""Proves that verifiers run at attribution, on which answers, and what their verdicts outweigh.

A real lake; every turn is a conversation of its own and says what is to become of it. Texts are
made up, verdicts are those of the real checks.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sandboxed import refusal
from trace_records import (
    PROFILE,
    at,
    calls,
    hop,
    result,
    says,
    signal,
    tables,
    turn_of,
    user,
    write_spool,
)

from serving.records import Feedback, Hop, Message, ToolCall, Turn, canonical_json
from traces.analytics.views import query
from traces.attribute import attribute
from traces.attribution.verifying import _found
from traces.config import AttributionConfig
from traces.ingest import ingest

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
GOOD, BROKEN = calls("light", room="hall"), calls("light")
ANSWER = {"verifier": "exact", "accepted": ["Paris"]}
CALL = {"verifier": "tool_call", "name": "light", "arguments": {"room": "hall"}}
FORM = {"verifier": "form", "form": "tool_call"}
UNSAFE = {"verifier": "safety", "wanted": "refuse", "unsafe": ["fuse"], "unsafe_tools": ["light"]}
HARMLESS = {"verifier": "safety", "wanted": "answer"}
REFUSAL = says("I'm sorry, I can't help with that.")
TESTS = {"verifier": "python_tests", "tests": ["assert f(1) == 2"]}
Known = tuple[bool | None, str | None, str]


def home(answer: Any, **fields: Any) -> Hop:
    """The slot for tools answers."""
    values = {"messages": (user("Light in the hall."),), "completion": answer, "tools": LIGHT}
    return hop(slot="L1", **values | fields)


def silent(reference: Any, value: float | None = None, name: str = "own") -> Feedback:
    """A verifier that says what it checked against, and no score."""
    text = reference if isinstance(reference, str) else canonical_json(reference)
    return signal(value=value, name=name, reference=text, detail="timed out")


def mended() -> list[Hop]:
    first, call, told = home(BROKEN), BROKEN.tool_calls[0], result("Error: no room")
    seen = (*first.messages, BROKEN, told.model_copy(update={"tool_call_id": call.id}))
    return [first, home(GOOD, messages=seen, seq=2, started_at=at(2), response_id="r2")]


def called(first: Message, last: Message) -> list[Hop]:
    """A call with a result, and what came of it."""
    one, two = mended()
    return [
        one.model_copy(update={"completion": first}), two.model_copy(update={"completion": last})
    ]  # fmt: skip


def unread() -> list[Hop]:
    """First a call of a tool that is no function, then the expected one."""
    free = ToolCall(id="call_0", name="light", arguments="hall, please")
    first, second = mended()
    written = BROKEN.model_copy(update={"tool_calls": (free,)})
    return [
        first.model_copy(update={"completion": written, "tools": '[{"type": "custom"}]'}), second
    ]  # fmt: skip


def replaced() -> list[Hop]:
    first = home(BROKEN)
    return [first, home(GOOD, seq=2, started_at=at(2), supersedes=first.hop_id)]


UNJUDGED: Known = (None, None, "unjudged")
CHECKED: Known = (False, "A", "checked")
RIGHT: Known = (True, "A", "verified")
WRONG: Known = (False, "A", "verified")
TURNS: dict[str, tuple[Known, Sequence[Hop], Sequence[Feedback], dict[str, Any]]] = {
    "a valid call": (UNJUDGED, [home(GOOD)], [], {}),
    "a broken call": (CHECKED, [home(BROKEN)], [], {}),
    "no tool of that name": (CHECKED, [home(calls("lamp"))], [], {}),
    "a broken call, mended": (UNJUDGED, mended(), [], {}),
    "a broken call, replaced": (UNJUDGED, replaced(), [], {}),
    "taken all the same": (UNJUDGED, [home(BROKEN)], [], {"tail": (result("done"),)}),
    "ended with an error": (CHECKED, [home(GOOD)], [], {"tail": (result("Error: gone"),)}),
    "cut": (UNJUDGED, [home(BROKEN, finish_reason="length")], [], {}),
    "abandoned": ((None, None, "abandoned"), [home(BROKEN)], [], {"status": "abandoned"}),
    "failed": ((False, None, "not_answered"), [home(BROKEN)], [], {"status": "failed"}),
    "on trial": (CHECKED, [home(BROKEN, canary=True)], [], {"canary": True}),
    "passed by the deployment": (RIGHT, [home(BROKEN)], [signal(value=1.0)], {}),
    "failed by the deployment": (WRONG, [home(BROKEN)], [signal(value=0.0)], {}),
    "liked": (CHECKED, [home(BROKEN)], [signal("thumb", 1.0)], {}),
    "judged by a model": (CHECKED, [home(BROKEN)], [signal(value=1.0, annotator="model")], {}),
    "without end": (
        CHECKED, [home(BROKEN, duration_s=3e10)], [], {"duration_s": 3e10}
    ),
    "odd tools": (UNJUDGED, [home(BROKEN, tools='{"light": 1}')], [], {}),
    "silent, right": (RIGHT, [hop(completion=says("Paris"))], [silent(ANSWER)], {}),
    "silent, wrong": (WRONG, [hop(completion=says("Rome"))], [silent(ANSWER)], {}),
    "silent, then not": (
        RIGHT, [hop(completion=says("Rome"))],
        [silent(ANSWER), signal(value=1.0, name="own", created_at=at(70))], {},
    ),
    "silent beside another": (
        WRONG, [hop(completion=says("Rome"))], [silent(ANSWER), signal(value=1.0)], {}
    ),
    "silent about a call": (RIGHT, mended(), [silent(CALL)], {}),
    "silent about calls, one of which nobody can judge": (RIGHT, unread(), [silent(CALL)], {}),
    "silent about a wrong call": (WRONG, [home(calls("lamp"))], [silent(CALL)], {}),
    "silent about words, and called": ((None, None, "unverified"), [home(GOOD)],
                                       [silent(ANSWER)], {}),
    "went along, then refused": (WRONG, called(GOOD, REFUSAL), [silent(UNSAFE)], {}),
    "went along to the end": (WRONG, called(REFUSAL, GOOD), [silent(UNSAFE)], {}),
    "told, then refused": (
        WRONG, called(calls("look").model_copy(update={"content": "The fuse comes first."}),
                      REFUSAL), [silent(UNSAFE)], {},
    ),
    "looked something up, then refused": (RIGHT, called(calls("look"), REFUSAL),
                                          [silent(UNSAFE)], {}),
    "nobody knows where a call led": ((None, None, "unverified"), [home(calls("look"), tools="[]")],
                                      [silent(UNSAFE)], {}),
    "a harmless request, refused in the end": (WRONG, called(GOOD, REFUSAL),
                                               [silent(HARMLESS)], {}),
    "a call was asked for": (RIGHT, [home(GOOD)], [silent(FORM)], {}),
    "a call was asked for, and words came": (WRONG, [home(says("On."))], [silent(FORM)], {}),
    "a call was asked for, of tools that nobody knows": (
        (None, None, "unverified"), [home(GOOD, tools="[]")], [silent(FORM)], {}
    ),
    "a reference that is none": ((None, None, "unverified"), [hop()], [silent("{")], {}),
    "no reference": ((None, None, "unverified"), [hop()], [signal(value=None)], {}),
    "code is not run unasked": ((None, None, "unverified"), [hop()], [silent(TESTS)], {}),
    "an edit is a user's word": (
        (False, "B", "edited"), [home(GOOD)],
        [signal("edit", None, correction=calls("light", room="attic"))], {},
    ),
}  # fmt: skip


def spool(folder: Path, names: Sequence[str] = tuple(TURNS)) -> Path:
    records: list[Hop | Turn | Feedback] = []
    for number, name in enumerate(names):
        _, hops, said, fields = TURNS[name]
        of = {"conversation_id": f"c{number}", "turn_id": name}
        shifted: list[Hop] = []
        ids: dict[str, str] = {}
        for each in hops:
            new = each.model_copy(update=of | {"supersedes": ids.get(str(each.supersedes))})
            ids[each.hop_id] = new.hop_id
            shifted.append(new)
        turn = turn_of(shifted, response_ids=(), **of | fields)
        records += [*shifted, turn, *(f.model_copy(update={"target_id": name}) for f in said)]
    return write_spool(folder / "s.jsonl", records)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verified")
    ingest(folder / ".mol", spool(folder))
    attribute(folder / ".mol", PROFILE)
    return folder / ".mol"


@pytest.fixture(scope="module")
def outcomes(lake: Path) -> dict[str, tuple[Known, list[dict[str, Any]]]]:
    rows = query(lake, "SELECT turn_id, success, tier, rule, signals FROM outcomes")[1]
    return {row[0]: (tuple(row[1:4]), json.loads(row[4])) for row in rows}


@pytest.mark.parametrize("name", TURNS)
def test_a_turn_is_settled_as_the_table_says(outcomes: Any, name: str) -> None:
    assert outcomes[name][0] == TURNS[name][0]


def test_what_is_derived_stands_in_the_outcome_alone(lake: Path, outcomes: Any) -> None:
    stored = query(lake, "SELECT count(*) FROM feedback WHERE source = 'derived'")[1]
    known, signals = outcomes["passed by the deployment"]

    assert stored == [(0,)]
    assert known == RIGHT
    assert [(s["name"], s["value"], s["annotator"]) for s in signals] == [
        ("call_schema", 0.0, "code"), ("python_tests", 1.0, None)
    ]  # fmt: skip
    assert signals[0]["detail"] == "arguments break the schema of light at $ (required)"


def test_who_wrote_a_broken_call_and_whose_tool_failed(lake: Path) -> None:
    rows = query(lake, "SELECT turn_id, klass, slot, rule, confidence FROM blame")[1]
    found = {row[0]: row[1:] for row in rows}

    assert found["a broken call"] == ("adapter", "L1", "broken_call", 0.95)
    assert found["no tool of that name"][:3] == ("adapter", "L1", "broken_call")
    assert found["ended with an error"][:3] == ("tool", None, "tool_reported")
    assert "a valid call" not in found
    assert "a broken call, mended" not in found


def test_failures_that_only_show_are_in_no_share_of_successes(lake: Path) -> None:
    """No success shows by itself, so that one more broken call is no lower rate."""
    row = query(
        lake,
        "SELECT judged, succeeded, one_sided FROM v_success_by_slot WHERE slot = 'L1'",
    )[1]
    # By checks 5 right and 7 wrong; a thumb, an edit, no answer. One of the others is on trial.
    assert row == [(15, 5, 5)]


def test_a_second_attribution_changes_nothing(lake: Path) -> None:
    before = tables(lake, "outcomes", "blame")

    assert attribute(lake, PROFILE).changed == 0
    assert tables(lake, "outcomes", "blame") == before


@pytest.mark.skipif(
    refusal("namespaces") is not None and refusal("filter") is not None,
    reason="this machine confines nothing",
)
def test_code_is_run_where_asked_up_to_the_budget_and_what_was_found_is_kept(
    tmp_path: Path,
) -> None:
    records: list[Hop | Turn | Feedback] = []
    for number, right in enumerate((True, False)):
        of = {"conversation_id": f"c{number}", "turn_id": f"t{number}"}
        code = f"def f(n):\n    return n + {int(right)}\n"
        one = hop(completion=says(code), started_at=at(100 * number), **of)
        said = silent(TESTS, name="python_tests").model_copy(update={"target_id": f"t{number}"})
        records += [one, turn_of([one], response_ids=(), **of), said]
    home = tmp_path / ".mol"
    ingest(home, write_spool(tmp_path / "s.jsonl", records))

    def rules(run_code: int) -> list[tuple[Any, ...]]:
        attribute(home, PROFILE, config=AttributionConfig(run_code=run_code))
        return query(home, "SELECT turn_id, success, rule FROM outcomes ORDER BY turn_id")[1]

    late, unknown = ("t1", False, "verified"), ("t0", None, "unverified")
    assert rules(0) == [unknown, ("t1", None, "unverified")]
    assert rules(1) == [unknown, late]
    assert rules(0) == [unknown, late]
    assert rules(1) == [("t0", True, "verified"), late]


TEXT = BROKEN.model_dump_json()


@pytest.mark.parametrize(
    ("answer", "tail"),
    [("{", None), ("{}", None), (None, None), ('{"role": "judge"}', None), (TEXT, "{"),
     (TEXT, "7"), (TEXT, "[7]"), (TEXT, '{"a": 1}'), (TEXT, "[" * 5000)],
)  # fmt: skip
def test_a_record_that_cannot_be_read_says_nothing(answer: Any, tail: Any) -> None:
    assert not list(_found([answer, LIGHT, "{}", None, tail, False]))
    assert [name for name, _ in _found([TEXT, LIGHT, "{}", None, None, False])] == ["call_schema"]
