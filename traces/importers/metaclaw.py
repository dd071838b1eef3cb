"""Importer of MetaClaw: its sessions, its record of engine calls, and its judge's scores.

A session (`{"type": "session", "version": 3, ...}`, as OpenClaw writes it too) is a list of lines
that form a tree by `parentId`: an answer saw the messages on its path to the root, not the lines
before it. A line asked again beside another one supersedes it. `conversations.jsonl` has one
engine call a line with exactly what was sent; `prm_scores.jsonl` a model's score of one of them.
Source: the files and the server of aiming-lab/MetaClaw.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from serving.records import UNDATED, Feedback, Hop, canonical_json
from traces.importers.messages import read_answer, read_messages
from traces.importers.metaclaw_session import session_rows
from traces.importers.rows import LineRefused, Row, feedback_row, hop_row
from traces.importers.trajectory import AGENT

NAME = "metaclaw"


def recognises(value: Any) -> bool:
    """Return whether an item is a session, an engine call or a score."""
    if isinstance(value, list):
        head = value[0] if value else None
        return isinstance(head, dict) and head.get("type") == "session" and "id" in head
    return isinstance(value, dict) and (_is_call(value) or _is_score(value))


def parse(value: Any) -> Iterator[Row]:
    """Yield the rows of a session, an engine call or a score.

    Raises:
        LineRefused: if it is none of them.
    """
    if isinstance(value, list) and recognises(value):
        yield from session_rows(NAME, value[0], value[1:])
    elif isinstance(value, dict) and _is_call(value):
        yield _call(value)
    elif isinstance(value, dict) and _is_score(value):
        yield _score(value)
    else:
        raise LineRefused("unknown_kind", "neither a session, an engine call nor a score")


def _is_call(value: dict[str, Any]) -> bool:
    return value.keys() >= {"session_id", "turn", "messages", "response_text"}


def _is_score(value: dict[str, Any]) -> bool:
    return value.keys() >= {"session_id", "turn", "score", "votes"}


def _call(value: dict[str, Any]) -> Row:
    """Return one engine call, which MetaClaw counts as one turn of the session.

    `next_state`, the message that came next, is part of what the next call saw.
    """
    session, turn = _names(value)
    raw = {"role": "assistant", "content": value["response_text"]}
    answer = read_answer({**raw, "tool_calls": value.get("tool_calls")})
    hop = Hop(
        source=NAME,
        conversation_id=session,
        turn_id=f"{NAME}:{session}:{turn}",
        seq=turn,
        role="answer",
        model=AGENT,
        messages=read_messages(value["messages"]),
        completion=answer.message,
        reasoning=answer.reasoning,
        status="ok",
        started_at=_local_time(value.get("timestamp")),
        duration_s=0.0,
    )
    return hop_row(hop)


def _score(value: dict[str, Any]) -> Row:
    """Return a score: 1 for a good turn, -1 for a bad one; 0 decides nothing."""
    session, turn = _names(value)
    score = value["score"]
    if isinstance(score, bool) or not isinstance(score, int | float) or not -1 <= score <= 1:
        raise LineRefused("bad_score", f"score {score!r} is no number in [-1, 1]")
    feedback = Feedback(
        source=NAME,
        target_kind="turn",
        target_id=f"{NAME}:{session}:{turn}",
        kind="verifier" if score else "comment",
        name="prm",
        value=(score + 1) / 2 if score else None,
        detail=canonical_json({"score": score, "votes": value["votes"]}),
        created_at=UNDATED,
        annotator="model",
    )
    return feedback_row(feedback)


def _names(value: dict[str, Any]) -> tuple[str, int]:
    session, turn = value["session_id"], value["turn"]
    if not isinstance(session, str) or not session:
        raise LineRefused("bad_record", f"session_id {session!r} is no text")
    if isinstance(turn, bool) or not isinstance(turn, int):
        raise LineRefused("bad_record", f"turn {turn!r} is no whole number")
    return session, turn


def _local_time(value: Any) -> datetime:
    """Return the time of a call; it is written without a zone and taken for UTC."""
    if value is None:
        return UNDATED
    return datetime.strptime(value, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
