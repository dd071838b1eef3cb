"""Proves the importer on the real capture of the public harness over a real engine.

Nothing is faked; skipped only where `../shared` is missing.
"""

import json
import shutil
from pathlib import Path

import pytest
from trace_records import CAPTURE, PROFILE, needs_capture, tables

from serving.records import Message
from serving.sse import reassemble
from traces.attribute import attribute
from traces.ingest import IngestReport, ingest
from traces.read import TurnBundle, read_turns

pytestmark = needs_capture


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, IngestReport]:
    home = tmp_path_factory.mktemp("capture") / ".mol"
    return home, ingest(home, CAPTURE)


@pytest.fixture(scope="module")
def bundles(lake: tuple[Path, IngestReport]) -> list[TurnBundle]:
    attribute(lake[0], PROFILE)
    return list(read_turns(lake[0]))


def lines(name: str) -> list[dict]:
    return [json.loads(line) for line in (CAPTURE / name).read_text().splitlines()]


def test_every_hop_lands_and_none_is_lost(lake: tuple[Path, IngestReport]) -> None:
    report = lake[1]

    assert report.format == "mindlab"
    assert report.funnel["hops_added"] == report.funnel["hops_in"] == len(lines("hops.jsonl"))
    assert report.quarantined == {}


def test_every_hop_is_in_exactly_one_turn(bundles: list[TurnBundle]) -> None:
    ids = [hop_id for bundle in bundles for hop_id in bundle.turn.hop_ids]

    assert len(ids) == len(set(ids)) == len(lines("hops.jsonl"))
    assert all(tuple(h.hop_id for h in b.hops) == b.turn.hop_ids for b in bundles)


def test_roles_are_told_apart(bundles: list[TurnBundle]) -> None:
    roles = [hop.role for bundle in bundles for hop in bundle.hops]

    assert {role: roles.count(role) for role in set(roles)} == {
        "route": 61,
        "answer": 61,
        "summary": 41,
    }


def test_every_client_request_is_in_a_turn_with_its_answer(bundles: list[TurnBundle]) -> None:
    by_response = {i: b.turn for b in bundles for i in b.turn.response_ids}
    answered = [t for t in lines("turns.jsonl") if t.get("response", {}).get("choices")]

    for request in answered:
        turn = by_response[request["response"]["id"]]
        assert turn.user == request["request"].get("user")
        assert turn.slot == request["response"]["metadata"]["mol_selected_route"]


def test_a_tool_continuation_is_one_turn_with_both_client_requests(
    bundles: list[TurnBundle],
) -> None:
    (turn,) = [b.turn for b in bundles if b.turn.request == "Get me a taxi to the Paris airport."]

    assert len(turn.hop_ids) == 3
    assert sum(i.startswith("chatcmol-") for i in turn.response_ids) == 2
    assert turn.decision == "routed"


def test_streams_are_put_back_to_what_the_client_got(bundles: list[TurnBundle]) -> None:
    answers = {b.turn.request: b for b in bundles}
    streamed = [t for t in lines("turns.jsonl") if "sse" in t]

    assert len(streamed) == 6
    for request in streamed:
        bundle = answers[request["request"]["messages"][-1]["content"]]
        (hop,) = [h for h in bundle.hops if h.role == "answer"]
        got = reassemble(request["sse"]).message()
        assert got is not None
        assert hop.status == "ok"
        assert hop.completion == bundle.turn.answer == Message.from_openai(got)


def test_missing_adapters_are_failed_turns_blamed_on_the_fallback(
    bundles: list[TurnBundle],
) -> None:
    gone = [b for b in bundles if any(h.status == "engine_error" for h in b.hops)]

    assert len(gone) == 2
    assert all(b.turn.status == "failed" and b.turn.slot is None for b in gone)
    assert all(b.blame is not None and b.blame.klass == "fallback" for b in gone)


def test_refused_and_abandoned_requests_are_turns_with_a_reason(bundles: list[TurnBundle]) -> None:
    refused = [b.turn for b in bundles if not b.turn.hop_ids]
    (left,) = [b.turn for b in bundles if b.turn.status == "abandoned"]

    assert len(refused) == 2
    assert all(t.error and t.error.startswith("request refused: 4") for t in refused)
    assert left.request == "Write a long story about whales."


def test_a_responses_conversation_is_one_conversation(bundles: list[TurnBundle]) -> None:
    turns = [
        b.turn for b in bundles if b.turn.response_ids[:1] and b.turn.response_ids[0][:5] == "resp_"
    ]
    turns.sort(key=lambda t: t.position)

    assert [t.slot for t in turns] == ["L2", "L3", "L0"]
    assert len({t.conversation_id for t in turns}) == 1


def test_every_thumb_finds_its_turn(bundles: list[TurnBundle]) -> None:
    judged = [b for b in bundles if b.outcome.rule == "thumbed"]

    assert len(judged) == len(lines("feedback.jsonl")) == 17


def test_ingesting_it_again_changes_nothing(lake: tuple[Path, IngestReport]) -> None:
    before = tables(lake[0])

    again = ingest(lake[0], CAPTURE)

    assert not again.added
    assert tables(lake[0]) == before


def test_its_parts_in_another_order_give_the_same_tables(
    lake: tuple[Path, IngestReport], tmp_path: Path
) -> None:
    rows = (CAPTURE / "hops.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_text("".join(reversed(rows[:80])))
    (tmp_path / "b.jsonl").write_text("".join(rows[80:]))
    shutil.copy(CAPTURE / "turns.jsonl", tmp_path / "z.jsonl")
    shutil.copy(CAPTURE / "feedback.jsonl", tmp_path / "c.jsonl")
    other = tmp_path / "other"

    report = ingest(other, tmp_path)

    assert report.funnel["hops_added"] == len(rows)
    names = ("hops", "turns", "feedback", "requests")
    assert tables(other, *names) == tables(lake[0], *names)


def test_the_hop_log_alone_gives_turns(tmp_path: Path) -> None:
    ingest(tmp_path / "alone", CAPTURE / "hops.jsonl")

    turns = [b.turn for b in read_turns(tmp_path / "alone")]
    assert sum(len(t.hop_ids) for t in turns) == len(lines("hops.jsonl"))
    assert sum(t.status == "ok" for t in turns) == 58
