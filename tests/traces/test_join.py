"""Proves the hop join on small captures in the harness's format, one oddity each.

Real lakes in `tmp_path`; the captures are made up line by line after the real one,
which `test_capture.py` reads.
"""

import json
from pathlib import Path
from typing import Any

from trace_records import capture_hop, capture_request, write_lines

from serving.records import Turn
from traces.ingest import ingest
from traces.read import read_turns


def joined(
    home: Path, folder: Path, hops: list[Any], requests: list[Any] | None = None
) -> list[Turn]:
    """Return the turns of a capture in order of time."""
    write_lines(folder / "hops.jsonl", hops)
    if requests is not None:
        write_lines(folder / "turns.jsonl", requests)
    ingest(home, folder)
    return sorted((b.turn for b in read_turns(home)), key=lambda t: (t.started_at, t.turn_id))


def exchange(key: str, slot: str, text: str, ts: float) -> list[Any]:
    """Return the route, answer and summary hop of one request."""
    history = [{"role": "user", "content": text}, {"role": "assistant", "content": "said"}]
    return [
        capture_hop(key, "route", "L0", text, ts, said=slot),
        capture_hop(key, "answer", slot, text, ts + 1),
        capture_hop(
            key,
            "summary",
            slot,
            text,
            ts + 2,
            messages=[*history, {"role": "user", "content": "Sum up."}],
        ),
    ]


def test_without_client_requests_hops_alone_make_turns(home: Path, tmp_path: Path) -> None:
    hops = exchange("k1", "L1", "Book it.", 100) + exchange("k2", "L2", "Sort it.", 110)

    first, second = joined(home, tmp_path / "c", hops)

    assert (first.request, first.slot, first.decision, first.status) == (
        "Book it.",
        "L1",
        "routed",
        "ok",
    )
    assert len(second.hop_ids) == 3
    assert first.conversation_id != second.conversation_id


def test_the_same_question_with_the_same_answer_is_another_conversation(
    home: Path, tmp_path: Path
) -> None:
    hops = exchange("k1", "L1", "Play folk.", 100) + exchange("k2", "L1", "Play folk.", 110)

    first, second = joined(home, tmp_path / "c", hops)

    assert (first.request, first.answer) == (second.request, second.answer)
    assert first.conversation_id != second.conversation_id
    assert (first.position, second.position) == (0, 0)


def test_two_requests_at_once_keep_their_own_hops(home: Path, tmp_path: Path) -> None:
    one, two = exchange("k1", "L1", "Book it.", 100), exchange("k2", "L2", "Sort it.", 100.5)
    mixed = sorted(one + two, key=lambda h: h["ts"])
    requests = [
        capture_request("Sort it.", 100.4, 5, "L2 says Sort it."),
        capture_request("Book it.", 99.9, 5, "L1 says Book it."),
    ]

    first, second = joined(home, tmp_path / "c", mixed, requests)

    assert (first.request, first.slot, first.response_ids[0]) == ("Book it.", "L1", "chatcmol-99.9")
    assert (second.request, second.slot) == ("Sort it.", "L2")
    assert len(first.hop_ids) == len(second.hop_ids) == 3


def test_the_same_text_at_once_goes_to_the_nearest_in_time(home: Path, tmp_path: Path) -> None:
    hops = exchange("k1", "L1", "Hi.", 100) + exchange("k2", "L2", "Hi.", 101.3)
    requests = [
        capture_request("Hi.", 99.99, 9, "L1 says Hi."),
        capture_request("Hi.", 101.29, 9, "L2 says Hi.", request={"user": "u2"}),
    ]

    first, second = joined(home, tmp_path / "c", hops, requests)

    assert (first.user, first.slot) == ("u1", "L1")
    assert (second.user, second.slot) == ("u2", "L2")


def test_a_tool_result_continues_the_turn_that_called(home: Path, tmp_path: Path) -> None:
    call = {"id": "t-1", "type": "function", "function": {"name": "book", "arguments": "{}"}}
    asked = [
        {"role": "user", "content": "Book it."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t-1", "content": '{"ok": true}'},
    ]
    hops = [
        capture_hop("k1", "route", "L0", "Book it.", 100, said="L1"),
        capture_hop("k1", "answer", "L1", "Book it.", 101, said="", tool_calls=[call]),
        capture_hop("k2", "answer", "L1", "Book it.", 110, messages=asked, said="Booked."),
    ]
    requests = [
        capture_request("Book it.", 99.9, 3, "", message={"tool_calls": [call]}),
        capture_request(
            "",
            109.9,
            3,
            "Booked.",
            request={"messages": asked},
            metadata={"mol_decision": "sticky_tool_continuation"},
        ),
    ]

    alone = joined(home / "a", tmp_path / "a", hops)
    (turn,) = joined(home / "b", tmp_path / "b", hops, requests)

    assert [len(t.hop_ids) for t in alone] == [3]
    assert (turn.request, turn.decision) == ("Book it.", "routed")
    assert turn.answer is not None
    assert turn.answer.content == "Booked."
    assert {"chatcmol-99.9", "chatcmol-109.9"} <= set(turn.response_ids)


def test_a_history_that_extends_another_is_the_same_conversation(
    home: Path, tmp_path: Path
) -> None:
    def history(*texts: str) -> list[dict[str, str]]:
        roles = ("user", "assistant")
        return [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]

    requests = [
        capture_request("Hi.", 99.9, 3, "Hello."),
        capture_request("Hi.", 104.9, 3, "Hello.", request={"user": "u2"}),
        capture_request(
            "", 109.9, 3, "Good.", request={"messages": history("Hi.", "Hello.", "How are you?")}
        ),
        capture_request(
            "", 119.9, 3, "No.", request={"messages": history("Hi.", "Hey there.", "What now?")}
        ),
    ]
    hops = [
        *exchange("k1", "L1", "Hi.", 100),
        *exchange("k2", "L1", "Hi.", 105),
        *exchange("k3", "L0", "How are you?", 110),
        *exchange("k4", "L0", "What now?", 120),
    ]

    turns = joined(home, tmp_path / "c", hops, requests)

    assert [t.position for t in turns] == [0, 0, 1, 0]
    assert turns[2].conversation_id == turns[0].conversation_id
    assert len({t.conversation_id for t in turns}) == 3


def test_turns_of_one_routing_key_are_cut_at_route_hops(home: Path, tmp_path: Path) -> None:
    hops = exchange("resp_1", "L1", "One.", 100) + exchange("resp_1", "L2", "Two.", 110)

    first, second = joined(home, tmp_path / "c", hops)

    assert first.conversation_id == second.conversation_id
    assert (second.request, second.position, second.slot) == ("Two.", 1, "L2")


def test_a_repeated_route_of_one_request_stays_one_turn(home: Path, tmp_path: Path) -> None:
    failed = capture_hop("k", "route", "L0", "One.", 99, status=500, response={"error": "busy"})

    (turn,) = joined(home, tmp_path / "c", [failed, *exchange("k", "L1", "One.", 100)])

    assert len(turn.hop_ids) == 4
    assert turn.status == "ok"


def test_a_client_that_left_makes_an_abandoned_turn(home: Path, tmp_path: Path) -> None:
    hops = [*exchange("k1", "L1", "A.", 100), capture_hop("k2", "route", "L0", "B.", 110)]
    note = {"ts": 112.0, "path": "/v1/chat/completions", "note": "client closed the stream early"}
    requests = [capture_request("A.", 99.9, 4, "L1 says A."), note]

    first, left = joined(home, tmp_path / "c", hops, requests)

    assert first.status == "ok"
    assert (left.status, left.request, left.error) == ("abandoned", "B.", note["note"])


def test_refused_requests_become_failed_turns_without_hops(home: Path, tmp_path: Path) -> None:
    error = {"error": {"message": "no such model", "code": "model_not_found"}}
    refused = capture_request("Hi.", 105, 0.01, "", status=404, response=error)
    empty = {**refused, "ts": 106.0, "request": {"model": "M"}, "status": 400}

    turns = joined(home, tmp_path / "c", exchange("k1", "L1", "Hi.", 100), [refused, empty])

    assert [(t.status, len(t.hop_ids)) for t in turns] == [("ok", 3), ("failed", 0), ("failed", 0)]
    assert turns[1].error == "request refused: 404 model_not_found: no such model"


def test_a_pool_that_fell_back_is_said_or_seen(home: Path, tmp_path: Path) -> None:
    hops = [
        capture_hop("k1", "route", "L0", "Sort it.", 100, said="L2"),
        capture_hop("k1", "answer", "L0", "Sort it.", 101),
    ]
    said = capture_request(
        "Sort it.", 99.9, 3, "x", metadata={"mol_decision": "pool_miss_fallback"}
    )

    (seen,) = joined(home / "a", tmp_path / "a", hops)
    (told,) = joined(home / "b", tmp_path / "b", hops, [said])

    assert seen.decision == told.decision == "fallback"


def test_a_broken_stream_is_a_failed_turn_with_its_reason(home: Path, tmp_path: Path) -> None:
    chunk = {"id": "x", "model": "L1", "choices": [{"delta": {"content": "half"}}]}
    broken = capture_hop("k1", "answer", "L1", "A.", 101, response=None)
    broken["sse"] = f"data: {json.dumps(chunk)}\n\n"
    hops = [capture_hop("k1", "route", "L0", "A.", 100, said="L1"), broken]

    (turn,) = joined(home, tmp_path / "c", hops)

    assert turn.status == "failed"
    assert turn.error == "the stream ended without a finish_reason"


def test_the_order_in_which_files_come_does_not_matter(home: Path, tmp_path: Path) -> None:
    hops = exchange("k1", "L1", "A.", 100) + exchange("k2", "L2", "B.", 110)
    requests = [capture_request("A.", 99.9, 4, "L1 says A."), capture_request("B.", 109.9, 4, "b")]
    together = joined(home / "a", tmp_path / "a", hops, requests)

    parts = [requests[1:], hops[3:], requests[:1], hops[:3]]
    for number, part in enumerate(parts):
        ingest(home / "b", write_lines(tmp_path / f"{number}.jsonl", part))

    apart = sorted((b.turn for b in read_turns(home / "b")), key=lambda t: t.started_at)
    assert apart == together
