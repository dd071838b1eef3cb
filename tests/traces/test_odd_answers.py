"""Proves that an attribution ends whatever answers hold: one place for what no row can hold.

A model may write the escape of half a surrogate pair. It is ASCII in the log, and once its JSON is
read it is no text that a row, an id or a file could hold. Whole lakes of answers that hold such
things anywhere; the checks, the rules and the lake are real, nothing is faked.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from trace_records import PROFILE, at, hop, says, signal, tables, turn_of, user, write_spool

from serving.records import Feedback, Hop, Message, ToolCall, Turn, canonical_json
from traces.analytics.views import query
from traces.attribute import attribute
from traces.attribution.blame import Blame
from traces.attribution.outcomes import settle
from traces.attribution.references import References, references_of
from traces.attribution.replayed import Preference
from traces.ingest import ingest
from traces.verifiers.check import Check
from traces.verifiers.registry import checker

HALF = "\\ud800"
"""As it stands in a log."""
NUMBERS = {"additionalProperties": {"type": "integer"}}
KEYED = f'{{"{HALF}": "x", "room": "hall"}}'
VALUED = f'{{"room": "{HALF}"}}'
TOLD = f'{{"error": "{HALF}", "room": "attic {HALF}"}}'
CODE = f"def f(n):\n    raise ValueError('{HALF}')"
CARD = f'{{"type": "card", "title": "{HALF}", "children": [{{"type": "{HALF}"}}]}}'
TURNS = 60
TEXTS = (KEYED, VALUED, TOLD, CODE, CARD, HALF, f'"{HALF}"', f'[["{HALF}"]]', f'{{"{HALF}', "")
REFERENCES: tuple[dict[str, Any], ...] = (
    {"verifier": "tool_call", "name": "light", "arguments": {"room": "hall"}},
    {"verifier": "tool_call", "name": "light", "arguments": {"room": "\ud800"}},
    {"verifier": "exact", "accepted": ["\ud800"]},
    {"verifier": "short_answer", "accepted": ["Rome"], "rejected": ["\ud800"]},
    {"verifier": "numeric", "value": 3},
    {"verifier": "interface_schema", "wanted": [{"type": "button", "label": "\ud800"}]},
    {"verifier": "form", "form": "json", "schema": NUMBERS},
    {"verifier": "form", "form": "tool_call"},
    {"verifier": "form", "form": "python"},
    {"verifier": "safety", "wanted": "refuse", "unsafe": ["x"], "unsafe_tools": ["light"]},
    {"verifier": "safety", "wanted": "answer"},
)  # fmt: skip
PARAMS = (
    {},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": NUMBERS}}},
    {"guided_json": {"properties": {"\ud800": {"type": "integer"}}}},
)


def escaped(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def tools(rng: random.Random) -> str:
    schema = rng.choice((NUMBERS, {"required": ["\ud800"]}, {"pattern": "\ud800"}, {}))
    return escaped([{"type": "function", "function": {"name": "light", "parameters": schema}}])


def answer(rng: random.Random) -> Message:
    calls = tuple(
        ToolCall(id=f"c{n}", name="light", arguments=rng.choice(TEXTS))
        for n in range(rng.choice((0, 1, 1, 2)))
    )
    return Message(role="assistant", content=rng.choice(TEXTS), tool_calls=calls)


def odd_turn(rng: random.Random, number: int) -> list[Hop | Turn | Feedback]:
    """Return a turn of one or two calls of the engine, with results, and what was said of it."""
    name = f"t{number:03}"
    own: dict[str, Any] = {"conversation_id": f"c{number // 2}", "turn_id": name}
    slot = rng.choice(("L0", "L1", "L2", "L3"))
    asked, hops = (user(rng.choice(("In the hall.", KEYED))),), []
    for seq in range(rng.choice((1, 1, 2))):
        said = answer(rng)
        hops.append(
            hop(
                slot=slot, seq=seq, messages=asked, completion=said, tools=tools(rng),
                params=escaped(rng.choice(PARAMS)), started_at=at(100 * number + seq),
                response_id=f"r{number}-{seq}", **own,
            )
        )  # fmt: skip
        results = tuple(
            Message(role="tool", content=rng.choice(TEXTS), tool_call_id=call.id)
            for call in said.tool_calls
        )
        asked = (*asked, said, *results)
    tail = results if rng.random() < 0.5 else ()
    turn = turn_of(hops, request=asked[0].content, position=number % 2, tail=tail, **own)
    told: list[Feedback] = []
    for _ in range(rng.randrange(3)):
        score = rng.choice((None, None, 0.0))
        known = escaped(rng.choice(REFERENCES))
        told.append(signal(value=score, name=f"v{len(told)}", target_id=name, reference=known))
    if rng.random() < 0.4:
        said = signal("edit", None, target_id=name, correction=answer(rng))
        told.append(said)
    return [*hops, turn, *told]


@pytest.mark.parametrize("seed", range(2))
def test_an_attribution_ends_and_repeats_itself(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    records = [record for n in range(TURNS) for record in odd_turn(rng, n)]
    report = ingest(tmp_path / ".mol", write_spool(tmp_path / "s.jsonl", records))
    attribute(tmp_path / ".mol", PROFILE)
    before = tables(tmp_path / ".mol", "outcomes", "blame")

    assert attribute(tmp_path / ".mol", PROFILE).changed == 0
    assert tables(tmp_path / ".mol", "outcomes", "blame") == before
    assert len(before["outcomes"]) == TURNS, report
    assert {row[3] for row in before["outcomes"]} > {"checked", "verified", "unverified"}


FAILING: dict[str, tuple[Hop, list[Feedback]]] = {
    "call": (
        hop(slot="L1", completion=Message(
            role="assistant", tool_calls=(ToolCall(id="c", name="light", arguments=KEYED),)
        ), tools=escaped([{"function": {"name": "light", "parameters": NUMBERS}}])), [],
    ),
    "answer": (hop(completion=says(KEYED), params=escaped(PARAMS[2])), []),
    "again": (
        hop(slot="L1", completion=Message(
            role="assistant", tool_calls=(ToolCall(id="c", name="light", arguments=KEYED),)
        )), [signal(value=None, name="own", reference=escaped(REFERENCES[0]))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILING)
def test_what_is_told_of_an_answer_stands_in_its_row_as_it_was_written(
    tmp_path: Path, name: str
) -> None:
    made, said = FAILING[name]
    records = [made, turn_of([made]), *said]
    ingest(tmp_path / ".mol", write_spool(tmp_path / "s.jsonl", records))
    attribute(tmp_path / ".mol", PROFILE)

    ((success, signals),) = query(tmp_path / ".mol", "SELECT success, signals FROM outcomes")[1]

    assert success is False
    assert any(HALF in (each["detail"] or "") for each in json.loads(signals))


def test_what_a_check_or_a_blame_tells_can_be_written() -> None:
    told = Blame(turn_id="t", klass="tool", slot=None, confidence=0.5, evidence="about \ud800")

    assert told.evidence == f"about {HALF}"
    assert Check(False, "\udc00 你好").detail == "\\udc00 你好"


def test_a_pair_of_answers_that_no_id_could_hold_has_an_id() -> None:
    one, other = (
        Message(role="assistant", tool_calls=(ToolCall(id="c", name="light", arguments=text),))
        for text in (KEYED, VALUED)
    )
    made = hop()

    pair = Preference.make(turn_of([made]), made, None, one, other, "replay", at(0))
    again = Preference.make(turn_of([made]), made, None, one, other, "replay", at(1))

    assert pair.pair_id == again.pair_id


def test_an_edit_or_reference_that_no_id_could_hold_is_nothing_to_check_against() -> None:
    call = Message(role="assistant", tool_calls=(ToolCall(id="c", name="light", arguments=VALUED),))
    edit = signal("edit", None, correction=call)
    kept = signal(reference=escaped(REFERENCES[2]))
    turn = turn_of([hop()])

    assert checker(escaped(REFERENCES[1])) is None
    assert references_of(settle(turn, [edit, kept])) is None
    plain = signal(reference=canonical_json(REFERENCES[0]))
    assert references_of(settle(turn, [edit, kept, plain])) == References((REFERENCES[0],))
