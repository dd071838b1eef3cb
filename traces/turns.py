"""The `turns` table: recorded turns as they come, the others joined from hops.

A turn row is `recorded` (a recorder wrote it) or `joined` (derived from hops and
client requests). Recorded wins. Joined rows are a function of what the lake
holds, so order and number of ingests do not matter; they are recomputed only
when something new came in.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

import json
from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any

import duckdb

from serving.records import Decision, Message, Turn, canonical_json, content_id
from traces.importers.mindlab_requests import answered_calls, request_facts
from traces.importers.rows import turn_row
from traces.join import HopFacts, Unit, history_keys, join
from traces.lake import Lake
from traces.source import Offset
from traces.tables import arrow_table, record_of

_JOIN_MARK = "join"
_FETCH_ROWS = 2000


def store_recorded(lake: Lake, rows: list[dict[str, Any]]) -> list[str]:
    """Store recorded turns, inside a commit; return the ids of new or better ones.

    Of two records of one turn the one with more hops stands (a turn goes on after
    tool results), then the one with the greater content hash.
    """
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["turn_id"] not in best or _rank(row) > _rank(best[row["turn_id"]]):
            best[row["turn_id"]] = row
    if not best:
        return []
    stored = _turns(lake.connection, list(best))
    fresh = {
        turn_id: row
        for turn_id, row in best.items()
        if turn_id not in stored
        or stored[turn_id]["origin"] == "joined"
        or _rank(row) > _rank(stored[turn_id])
    }
    _delete_turns(lake.connection, [turn_id for turn_id in fresh if turn_id in stored])
    lake.insert("turns", arrow_table("turns", list(fresh.values())))
    return list(fresh)


def refresh_turns(lake: Lake) -> tuple[int, int]:
    """Join hops into turns if anything came in since the last join.

    Returns:
        Turns that are new, and turns that changed or went away.
    """
    mark = _mark(lake.connection)
    if lake.connection.execute(
        "SELECT 1 FROM offsets WHERE source_id = $id AND consumed_digest = $digest",
        {"id": _JOIN_MARK, "digest": mark.consumed_digest},
    ).fetchone():
        return 0, 0

    def work(connection: duckdb.DuckDBPyConnection) -> tuple[int, int]:
        wanted = {turn.turn_id: turn for turn in _joined(connection)}
        stored = _turns(connection, None)
        rows = {key: turn_row(turn, "joined").values for key, turn in wanted.items()}
        changed = [key for key in rows if key in stored and _differs(rows[key], stored[key])]
        gone = [key for key in stored if key not in rows]
        new = [key for key in rows if key not in stored]
        _delete_turns(connection, changed + gone)
        lake.insert("turns", arrow_table("turns", [rows[key] for key in new + changed]))
        before = connection.execute(
            "SELECT consumed_digest FROM offsets WHERE source_id = $id", {"id": _JOIN_MARK}
        ).fetchone()
        old = Offset(0, before[0] if before else "")
        lake.move_offset(_JOIN_MARK, "hops and requests", old, _mark(connection), "join")
        return len(new), len(changed) + len(gone)

    return lake.commit(work)


def _mark(connection: duckdb.DuckDBPyConnection) -> Offset:
    """Return a fingerprint of all that the join reads: its tables only grow, or lose rows."""
    row = connection.execute(
        "SELECT (SELECT count(*) FROM hops), (SELECT count(*) FROM requests),"
        " (SELECT count(*) FROM turns WHERE origin = 'recorded'),"
        " (SELECT coalesce(sum(len(hop_ids)), 0) FROM turns WHERE origin = 'recorded')"
    ).fetchone()
    assert row is not None
    return Offset(0, content_id([int(n) for n in row]))


def _joined(connection: duckdb.DuckDBPyConnection) -> list[Turn]:
    hops = _hop_facts(connection)
    requests = [
        request_facts(key, body)
        for key, body in connection.execute("SELECT request_id, body FROM requests").fetchall()
    ]
    recorded = _recorded_starts(connection)
    turns: list[Turn] = []
    for conversation in join(hops, requests):
        conversation_id = _conversation_id(conversation[0])
        starts = recorded.get(conversation_id, [])
        for rank, unit in enumerate(conversation):
            position = rank + sum(start <= unit.started_at for start in starts)
            turns.append(_turn(unit, conversation_id, position))
    return turns


def _hop_facts(connection: duckdb.DuckDBPyConnection) -> list[HopFacts]:
    """Read the hops of no recorded turn, keeping only what the join needs."""
    cursor = connection.execute(
        'SELECT hop_id, source, conversation_id, turn_id, "user", seq, role,'
        " coalesce(served_name, model) AS name, messages, completion, response_id, status,"
        " error, started_at, duration_s, canary FROM v_hops"
        " WHERE hop_id NOT IN"
        " (SELECT unnest(hop_ids) FROM turns WHERE origin = 'recorded')"
    )
    facts: list[HopFacts] = []
    while rows := cursor.fetchmany(_FETCH_ROWS):
        facts += [_facts(row) for row in rows]
    return facts


def _facts(row: tuple[Any, ...]) -> HopFacts:
    (hop_id, source, key, turn_id, user, seq, role, name, messages, completion, response_id,
     status, error, started_at, duration_s, canary) = row  # fmt: skip
    seen = [Message.model_validate(m) for m in json.loads(messages)]
    answer = Message.model_validate_json(completion) if completion else None
    slot, _, digest = str(name).partition("@")
    whole = [*seen, answer] if answer else seen
    return HopFacts(
        hop_id=hop_id,
        source=source,
        key=key,
        turn_id=turn_id,
        user=user,
        seq=seq,
        role=role,
        slot=slot,
        digest=digest or None,
        status=status,
        error=error,
        started_at=started_at,
        ended_at=started_at + timedelta(seconds=duration_s),
        text=next((m.content for m in reversed(seen) if m.role == "user"), ""),
        completion=answer,
        response_id=response_id,
        answers_calls=answered_calls(seen),
        keys=tuple(history_keys(whole)) if role == "answer" and turn_id is None else (),
        canary=canary,
    )


def _turn(unit: Unit, conversation_id: str, position: int) -> Turn:
    hops = unit.hops
    last = _last_answer(unit)
    client = unit.requests[-1] if unit.requests else None
    answered = last is not None and last.status == "ok"
    answer = (client.answer if client else None) or (last.completion if last else None)
    status, error = _status(unit)
    ended = max(
        [h.ended_at for h in hops] + [r.ended_at for r in unit.requests if not r.bare],
        default=unit.started_at,
    )
    ids = [r.response_id for r in unit.requests]
    ids += [h.response_id for h in hops if h.role == "answer"]
    return Turn(
        turn_id=_turn_id(unit),
        source=(hops or unit.requests)[0].source,
        conversation_id=conversation_id,
        user=unit.user,
        position=position,
        request=unit.text,
        answer=answer,
        slot=last.slot if last is not None and answered else None,
        digest=last.digest if last is not None and answered else None,
        decision=_decision(unit),
        status=status,
        error=error,
        hop_ids=tuple(h.hop_id for h in hops),
        response_ids=tuple(dict.fromkeys(i for i in ids if i)),
        started_at=unit.started_at,
        duration_s=max(0.0, (ended - unit.started_at).total_seconds()),
        canary=any(h.canary for h in hops),
    )


def _turn_id(unit: Unit) -> str:
    hops = unit.hops
    if hops and hops[0].turn_id is not None:
        return hops[0].turn_id
    first = hops[0].hop_id if hops else unit.requests[0].request_id
    return content_id(["turn", first])


def _conversation_id(unit: Unit) -> str:
    named = [r.conversation for r in unit.requests if r.conversation]
    keys = [h.key for h in unit.hops]
    return (named or keys or [r.request_id for r in unit.requests])[0]


def _last_answer(unit: Unit) -> HopFacts | None:
    answers = [h for h in unit.hops if h.role == "answer"]
    return answers[-1] if answers else None


def _status(unit: Unit) -> tuple[Any, str | None]:
    """Return the turn's status and why: what the client saw decides, else the hops."""
    client = unit.requests[-1] if unit.requests else None
    last = _last_answer(unit)
    broken = next((h.error or h.status for h in reversed(unit.hops) if h.status != "ok"), None)
    if client is not None and client.abandoned:
        return "abandoned", client.error
    if client is not None and client.error is not None:
        if not unit.hops:
            return "failed", f"request refused: {client.error}"
        return "failed", f"{client.error} ({broken})" if broken else client.error
    if last is None:
        if client is not None and client.answer is not None:
            return "ok", None
        return ("failed", broken) if broken else ("abandoned", "no answer hop")
    if last.status in ("engine_error", "broken_stream"):
        return "failed", last.error or last.status
    return ("abandoned", last.error) if last.status == "abandoned" else ("ok", None)


def _decision(unit: Unit) -> Decision:
    """Return how the turn got its slot: as the harness says, else as the hops show."""
    said = next((r.decision for r in unit.requests if r.decision), None)
    if said is not None and "fallback" in said:
        return "fallback"
    routes = [h for h in unit.hops if h.role == "route"]
    answers = [h for h in unit.hops if h.role == "answer"]
    if not routes:
        sticky = (said and "sticky" in said) or (answers and answers[0].answers_calls)
        return "sticky" if sticky else "direct"
    chosen = routes[-1].completion.content.strip() if routes[-1].completion else None
    if answers and (chosen is None or answers[-1].slot != chosen) and said is None:
        return "fallback"
    return "routed"


def _recorded_starts(connection: duckdb.DuckDBPyConnection) -> dict[str, list[datetime]]:
    """Start times of recorded turns in conversations that also have hops without one."""
    starts: dict[str, list[datetime]] = defaultdict(list)
    for conversation_id, started_at in connection.execute(
        "SELECT conversation_id, started_at FROM turns WHERE origin = 'recorded' AND"
        " conversation_id IN (SELECT conversation_id FROM hops WHERE hop_id NOT IN"
        " (SELECT unnest(hop_ids) FROM turns WHERE origin = 'recorded'))"
    ).fetchall():
        starts[conversation_id].append(started_at)
    return starts


def _turns(
    connection: duckdb.DuckDBPyConnection, turn_ids: list[str] | None
) -> dict[str, dict[str, Any]]:
    """Return stored turn rows by id: the named ones, or all joined ones."""
    where = "turn_id IN (SELECT unnest($ids))" if turn_ids is not None else "origin = 'joined'"
    cursor = connection.execute(
        f"SELECT * FROM turns WHERE {where}", {"ids": turn_ids} if turn_ids is not None else None
    )
    names = [column[0] for column in cursor.description]
    rows = (dict(zip(names, row, strict=True)) for row in cursor.fetchall())
    return {row["turn_id"]: row for row in rows}


def _delete_turns(connection: duckdb.DuckDBPyConnection, turn_ids: list[str]) -> None:
    if turn_ids:
        connection.execute(
            "DELETE FROM turns WHERE turn_id IN (SELECT unnest($ids))", {"ids": turn_ids}
        )


def _rank(row: dict[str, Any]) -> tuple[int, str]:
    return len(row["hop_ids"]), content_id(_comparable(row))


def _differs(row: dict[str, Any], stored: dict[str, Any]) -> bool:
    return _comparable(row) != _comparable(stored)


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    turn = record_of(
        Turn, "turns", {**row, **{name: _text(row.get(name)) for name in ("answer", "tail")}}
    )
    return {**turn.model_dump(mode="json"), "origin": row["origin"]}


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else canonical_json(value)
