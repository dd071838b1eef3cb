"""Proves that a session's answers saw their path to the root, and that calls and scores meet.

The files are made here after MetaClaw's own; nothing is faked.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from import_rows import decoded, rows_of
from metaclaw_files import CALL, HEAD, SCORE, SESSION, answers, asks, gives, line
from trace_records import PROFILE

from traces.analytics.views import query
from traces.attribute import attribute
from traces.ingest import ingest


def read(lines: Any) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {"hops": [], "turns": [], "quarantine": []}
    for row in rows_of(lines):
        found.setdefault(row.table, []).append(decoded(row))
    return found


def prompts(found: dict[str, list[dict[str, Any]]]) -> dict[str, list[str]]:
    """Return what each answer saw, by the answer."""
    return {
        hop["completion"]["content"]: [m["content"] for m in hop["said"]] for hop in found["hops"]
    }


def test_a_session_is_turns_of_hops() -> None:
    found = read(SESSION)
    first, second, third = found["hops"]

    assert [turn["request"] for turn in found["turns"]] == ["What is in a.md?", "Thanks."]
    assert [turn["hop_ids"] for turn in found["turns"]] == [
        [first["hop_id"], second["hop_id"]],
        [third["hop_id"]],
    ]
    assert [call["id"] for call in first["completion"]["tool_calls"]] == ["c1", "c2"]
    assert [(m["content"], m["tool_call_id"]) for m in second["said"][2:]] == [
        ("One.", "c1"),
        ("Two.", "c2"),
    ]
    assert (first["model"], third["model"]) == ("m-1", "m-0")
    assert first["reasoning"] == "Hm, a1."
    assert (first["prompt_tokens"], first["completion_tokens"], first["cached_tokens"]) == (
        400, 20, 300,
    )  # fmt: skip
    assert first["started_at"].isoformat() == "2026-03-16T01:02:00+00:00"
    assert found["turns"][0]["response_ids"] == ["s1:a1", "s1:a2"]


def test_an_answer_saw_its_path_and_an_edited_request_replaces_the_first() -> None:
    found = read(
        [HEAD, asks("u1", None, 1, "A"), answers("a1", "u1", 2, "a"), asks("u2", "a1", 3, "B"),
         answers("a2", "u2", 4, "b"), asks("u3", "a1", 5, "C"), answers("a3", "u3", 6, "c")]
    )  # fmt: skip

    assert prompts(found) == {"a": ["A"], "b": ["A", "a", "B"], "c": ["A", "a", "C"]}
    ids = [turn["turn_id"] for turn in found["turns"]]
    assert [turn["supersedes"] for turn in found["turns"]] == [None, None, ids[1]]


def test_an_answer_that_broke_off_is_not_shown_again_and_is_replaced() -> None:
    broken = answers("a1", "u1", 2, stopReason="error", errorMessage="overloaded")
    found = read([HEAD, asks("u1", None, 1, "A"), broken, answers("a2", "a1", 3, "a")])
    failed, hop = found["hops"]

    assert (failed["status"], failed["error"]) == ("engine_error", "overloaded")
    assert failed["completion"] is None
    assert ([m["content"] for m in hop["said"]], hop["supersedes"]) == (["A"], failed["hop_id"])
    assert [turn["status"] for turn in found["turns"]] == ["ok"]


def test_after_a_compaction_the_summary_stands_for_what_went_before() -> None:
    found = read(
        [HEAD, asks("u1", None, 1, "A"), answers("a1", "u1", 2, "a"), asks("u2", "a1", 3, "B"),
         answers("a2", "u2", 4, "b"),
         line("k", "a2", 5, type="compaction", summary="A was said.", firstKeptEntryId="u2"),
         asks("u3", "k", 6, "C"), answers("a3", "u3", 7, "c")]
    )  # fmt: skip

    assert prompts(found)["c"] == ["A was said.", "B", "b", "C"]


def test_what_no_call_saw_yet_is_the_turns_tail() -> None:
    found = read(
        [HEAD, asks("u1", None, 1, "A"), answers("a1", "u1", 2, "", "c1"),
         gives("r1", "a1", 3, "c1", "One.")]
    )  # fmt: skip

    assert [[m["content"] for m in turn["tail"]] for turn in found["turns"]] == [["One."]]


def test_a_request_that_nobody_answered_yet_is_a_turn() -> None:
    (turn,) = read([HEAD, asks("u1", None, 1, "A")])["turns"]

    assert (turn["request"], turn["status"], turn["hop_ids"]) == ("A", "abandoned", [])


def test_a_session_without_messages_is_counted() -> None:
    found = read(SESSION[:2])

    assert [row["reason"] for row in found["skipped"]] == ["session_without_messages"]


def test_a_growing_session_ends_as_if_read_at_once(tmp_path: Path) -> None:
    path, home = tmp_path / "s1.jsonl", tmp_path / ".mol"
    written = "".join(json.dumps(one) + "\n" for one in SESSION)
    for end in (written.index('"a2"'), len(written)):
        path.write_text(written[:end])
        report = ingest(home, path)

    again = ingest(home, path)

    assert report.waiting_bytes == 0
    assert not again.added
    rows = [row.values for row in rows_of(SESSION)]
    wanted = sorted(values["hop_id"] for values in rows if "hop_id" in values)
    assert query(home, "SELECT hop_id FROM hops ORDER BY 1")[1] == [(one,) for one in wanted]
    turns = query(home, "SELECT request, hop_ids FROM turns ORDER BY position")[1]
    assert turns == [(v["request"], v["hop_ids"]) for v in rows if "request" in v]
    assert query(home, "SELECT count(*) FROM quarantine")[1] == [(0,)]


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "message", "id": "a1", "parentId": "u1", "message": {"role": "nobody"}},
        "no object",
        {**answers("a1", "u1", 2, "a"), "parentId": "u7"},
        {"type": "message", "id": ["a1"], "parentId": "u1", "message": {}},
    ],
)
def test_a_bad_line_is_set_aside_with_what_hangs_on_it(bad: Any) -> None:
    after = asks("u2", "a1", 3, "B")
    other = [asks("u3", None, 4, "C"), answers("a3", "u3", 5, "c")]

    found = read([HEAD, asks("u1", None, 1, "A"), bad, after, *other])

    assert prompts(found) == {"c": ["C"]}
    assert [json.loads(one["raw"]) for one in found["quarantine"]] == [[HEAD, bad], [HEAD, after]]
    assert found["quarantine"][1]["reason"] == "missing_parent"


def test_a_line_that_is_no_json_does_not_stop_the_session(tmp_path: Path) -> None:
    text = "".join(json.dumps(one) + "\n" for one in SESSION)
    (tmp_path / "s.jsonl").write_text(text.replace('{"type": "model_change"', "{{", 1))

    report = ingest(tmp_path / ".mol", tmp_path / "s.jsonl")

    # The root is gone, so every other line hangs in the air.
    assert report.format == "metaclaw"
    assert report.quarantined == {"not_json": 1, "missing_parent": len(SESSION) - 2}


def test_a_call_and_its_score_meet_at_the_turn(tmp_path: Path) -> None:
    good = {**CALL, "turn": 3, "response_text": "Bye."}
    (tmp_path / "conversations.jsonl").write_text(f"{json.dumps(CALL)}\n{json.dumps(good)}\n")
    scores = [SCORE, {**SCORE, "turn": 3, "score": 1.0}, {**SCORE, "turn": 4, "score": 0.0}]
    (tmp_path / "prm_scores.jsonl").write_text("".join(json.dumps(s) + "\n" for s in scores))

    ingest(tmp_path / ".mol", tmp_path)
    report = attribute(tmp_path / ".mol", PROFILE)

    found = query(
        tmp_path / ".mol",
        "SELECT t.turn_id, t.request, o.tier, o.rule FROM turns t JOIN outcomes o USING (turn_id)"
        " ORDER BY 1",
    )[1]
    assert found == [
        ("metaclaw:s9:2", "Hi.", "C", "suspect"),
        ("metaclaw:s9:3", "Hi.", None, "unjudged"),
    ]
    assert report.feedback_unmatched == 1


def test_a_call_has_exactly_what_was_sent() -> None:
    (hop,) = read(CALL)["hops"]

    assert [(m["role"], m["content"]) for m in hop["said"]] == [
        ("system", "Be brief."),
        ("user", "Hi."),
    ]
    assert hop["completion"]["content"] == "Hello."
    assert hop["started_at"].isoformat() == "2026-03-16T01:02:03+00:00"


@pytest.mark.parametrize(
    ("field", "value"),
    [("score", "bad"), ("score", True), ("score", 2), ("turn", "2"), ("session_id", None)],
)
def test_a_score_that_is_none_is_set_aside(field: str, value: Any) -> None:
    found = read({**SCORE, field: value})

    assert len(found["quarantine"]) == 1
