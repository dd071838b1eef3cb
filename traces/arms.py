"""The turns that some versions of a slot answered, with what it takes to compare the versions.

In: a home folder, a slot and digests of its versions. Out: an `ArmTurn` for each turn that one
of them answered or routed, and what was said of it, with times, so that a reader can tell what
was known when.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb

from serving.records import NO_KEY, AdapterVersion, Feedback, Message
from traces.attribution.form_checks import tools_in
from traces.attribution.outcomes import settle
from traces.ending import ended_at
from traces.storage.connections import lake_cursor
from traces.storage.lake import Lake
from traces.verifiers.refusal import refuses
from traces.verifiers.tool_call import call_problem

_FETCH_ROWS = 1000
# `name` is what answered. The bare base bears no slot's name: its calls are the slot's where the
# route said so. `unit` is what serving draws the version by. In a turn of our own that is what the
# client calls its conversation, else its user, else the conversation. Below a proxy it is the hop's
# key, else its user, else how it begins: its messages up to the first of the user.
_TURNS = """
    WITH own AS (
        SELECT turn_id, conversation_id, "user", started_at, duration_s, status, answer, hop_ids
        FROM turns WHERE day >= $day AND started_at >= $since
          AND ($until IS NULL OR started_at < $until)),
    calls AS (
        SELECT o.turn_id, h.role, h.completion, h.tools, h.duration_s, h.started_at, h.hop_id,
               coalesce(h.served_name, h.model) AS name,
               {'hop_id': h.hop_id, 'key': h.conversation_id, 'own': h.turn_id IS NOT NULL,
                 'user': nullif(h."user", '')} AS caller
        FROM (SELECT turn_id, unnest(hop_ids) AS hop_id FROM own) o
        JOIN (SELECT * FROM hops WHERE day >= $day AND role IN ('answer', 'route')) h
        USING (hop_id)),
    routes AS (
        SELECT turn_id, arg_max(trim(json_extract_string(completion, '$.content')), started_at)
               AS label
        FROM calls WHERE role = 'route' GROUP BY turn_id),
    arms AS (
        SELECT c.turn_id, arg_min(c.name, c.started_at) AS name, sum(c.duration_s) AS latency_s,
               arg_min(c.caller, c.started_at) AS caller,
               list({'completion': c.completion, 'tools': c.tools}) FILTER (
                   c.role = 'answer' AND json_array_length(c.completion, '$.tool_calls') > 0)
                   AS called
        FROM calls c LEFT JOIN routes r USING (turn_id)
        WHERE list_contains($names, c.name)
           OR ($base AND c.role = 'answer' AND NOT contains(c.name, '@') AND r.label = $slot)
        GROUP BY c.turn_id),
    begun AS (
        SELECT h.hop_id, h.day, h.message_ids FROM hops h JOIN arms a ON h.hop_id = a.caller.hop_id
        WHERE h.day >= $day AND a.caller.key = $no_key AND a.caller.user IS NULL),
    asked AS (
        SELECT b.hop_id, min(b.place) AS place
        FROM (SELECT hop_id, day, unnest(message_ids) AS message_id,
                     generate_subscripts(message_ids, 1) AS place FROM begun) b
        JOIN (SELECT day, message_id FROM messages WHERE day >= $day AND role = 'user') m
        USING (day, message_id) GROUP BY b.hop_id),
    openings AS (
        SELECT hop_id, md5(message_ids[:coalesce(place, len(message_ids))]::VARCHAR) AS opening
        FROM begun LEFT JOIN asked USING (hop_id)),
    again AS (
        SELECT supersedes AS turn_id, min(started_at) AS asked_again_at
        FROM turns WHERE day >= $day AND supersedes <> turn_id GROUP BY supersedes)
    SELECT o.turn_id, a.name, o."user", o.started_at, o.duration_s, o.status, o.answer,
           a.latency_s, a.called, g.asked_again_at, s.signals, p.opening IS NOT NULL AS nameless,
           CASE WHEN p.opening IS NOT NULL THEN 'opening:' || p.opening
                WHEN a.caller.key = $no_key THEN 'user:' || a.caller.user
                WHEN a.caller.own AND coalesce(o."user", '') <> ''
                     AND regexp_full_match(o.conversation_id, 'conv_[0-9a-f]{32}')
                THEN 'user:' || o."user"
                WHEN a.caller.own THEN o.conversation_id ELSE a.caller.key END AS unit
    FROM own o JOIN arms a USING (turn_id) LEFT JOIN again g USING (turn_id)
    LEFT JOIN openings p ON p.hop_id = a.caller.hop_id
    LEFT JOIN (SELECT turn_id, signals FROM outcomes WHERE signals <> '[]') s USING (turn_id)
    ORDER BY (o.started_at, o.turn_id)
"""


@dataclass(frozen=True, slots=True)
class ArmTurn:
    """One turn of one version."""

    turn_id: str
    unit: str
    """Conversation, user or opening by which serving draws the version."""
    version: str | None
    """12 hex digits of the version that answered or routed; None for the bare base model."""
    started_at: datetime
    ended_at: datetime
    status: str
    """As in `Turn`."""
    latency_s: float
    """Time of the version's own calls."""
    broken_call: bool
    """It wrote a tool call that no tool takes."""
    refused: bool
    user: str | None
    asked_again_at: datetime | None
    """When a later turn replaced this one, which then counts instead."""
    signals: tuple[Feedback, ...]
    """In order of time."""
    strangers: frozenset[str] = frozenset()
    """Those who said something of it and never asked anything."""
    nameless: bool = False
    """Its caller named neither conversation nor user: how it began drew the version."""

    def failed_by(self, moment: datetime) -> bool | None:
        """Return whether it was a failure by all that was known then; None if nobody judged it.

        As `traces.attribution.outcomes.settle` says, by tiers A and B; no answer is a failure.
        """
        again = self.asked_again_at is not None and self.asked_again_at <= moment
        known = [signal for signal in self.signals if signal.created_at <= moment]
        outcome = settle(self, known, superseded=again, strangers=self.strangers)
        return None if outcome.success is None else not outcome.success


@dataclass(frozen=True, slots=True)
class ArmTurns:
    """What the lake knows of some versions."""

    turns: tuple[ArmTurn, ...]
    """In order of time."""
    known_until: datetime | None
    """The newest time in the lake: what happened before is in it. None if it is empty.

    Records of a time to come are left out: they tell nothing of what is in it by now.
    """


def read_arms(
    home: Path,
    slot: str,
    digests: Collection[str | None],
    since: datetime,
    until: datetime | None = None,
    *,
    newest: int | None = None,
    oldest: int | None = None,
) -> ArmTurns:
    """Return the turns of some versions of a slot; None among the digests is the bare base.

    `until` leaves out turns that began then or later; of more than `newest`, or `oldest`, only
    those are kept.

    Raises:
        LakeNotFound: if nothing was ingested yet.
    """
    names = [AdapterVersion(slot=slot, digest=digest).name for digest in digests if digest]
    values = {
        "names": names,
        "base": None in digests,
        "slot": slot,
        "no_key": NO_KEY,
        "since": since,
        "until": until,
        "day": since.date(),
    }
    with Lake.open(home, read_only=True) as lake:
        most = newest if newest is not None else oldest
        order = "ASC" if newest is None else "DESC"
        limit = "" if most is None else f"LIMIT {most:d}"
        cursor = lake_cursor(lake.connection)
        cursor.execute(f"{_TURNS} {order} {limit}", values)
        columns = [column[0] for column in cursor.description]
        found: list[ArmTurn] = []
        while rows := cursor.fetchmany(_FETCH_ROWS):
            found += [_turn(dict(zip(columns, row, strict=True))) for row in rows]
        strangers = _strangers(lake.connection, found)
        row = lake.connection.execute(_KNOWN_UNTIL, {"now": datetime.now(UTC)}).fetchone()
        known_until = row[0] if row else None
    found.sort(key=lambda turn: (turn.started_at, turn.turn_id))
    return ArmTurns(tuple(_with_strangers(turn, strangers) for turn in found), known_until)


def turns_of(home: Path, turn_ids: Collection[str], versions: Collection[str]) -> frozenset[str]:
    """Return those of some turns that one of these versions (12 digits) took part in.

    Or that came later in a conversation which one of them took part in.

    Raises:
        LakeNotFound: if nothing was ingested yet.
    """
    with Lake.open(home, read_only=True) as lake:
        rows = lake.connection.execute(
            _TOOK_PART, {"turns": sorted(turn_ids), "versions": sorted(versions)}
        ).fetchall()
    return frozenset(row[0] for row in rows)


_TOOK_PART = """
    WITH own AS (SELECT turn_id, conversation_id, started_at FROM turns
                 WHERE turn_id IN (SELECT unnest($turns))),
    around AS (SELECT conversation_id, started_at, digest, hop_ids FROM turns
               WHERE conversation_id IN (SELECT conversation_id FROM own)),
    theirs AS (
        SELECT conversation_id, started_at FROM around WHERE list_contains($versions, digest)
        UNION ALL
        SELECT conversation_id, started_at
        FROM (SELECT conversation_id, started_at, unnest(hop_ids) AS hop_id FROM around)
        JOIN (SELECT hop_id, served_name, model FROM hops) USING (hop_id)
        WHERE list_contains($versions, split_part(coalesce(served_name, model), '@', 2)))
    SELECT turn_id FROM own
    JOIN (SELECT conversation_id, min(started_at) AS since FROM theirs GROUP BY conversation_id)
    USING (conversation_id) WHERE started_at >= since
"""
_KNOWN_UNTIL = """
    SELECT greatest((SELECT max(started_at) FROM turns WHERE started_at <= $now),
                    (SELECT max(created_at) FROM feedback WHERE created_at <= $now))
"""


def _turn(row: dict[str, Any]) -> ArmTurn:
    name, signals = row["name"], json.loads(row["signals"] or "[]")
    answer = None if row["answer"] is None else Message.model_validate_json(row["answer"])
    return ArmTurn(
        turn_id=row["turn_id"],
        unit=row["unit"],
        version=name.split("@", 1)[1] if "@" in name else None,
        started_at=row["started_at"],
        ended_at=ended_at(row["started_at"], row["duration_s"]),
        status=row["status"],
        latency_s=row["latency_s"],
        broken_call=any(map(_is_broken, row["called"] or ())),
        refused=answer is not None and refuses(answer) is not None,
        user=row["user"],
        nameless=row["nameless"],
        asked_again_at=row["asked_again_at"],
        signals=tuple(Feedback.model_validate(raw) for raw in signals),
    )


def _is_broken(called: dict[str, str]) -> bool:
    """Whether one of a completion's tool calls is none that its tools take."""
    tools = tools_in(called["tools"])
    message = Message.model_validate_json(called["completion"])
    # Without tools the log does not say what was offered; only the JSON can be wrong.
    offered = tools or [{"name": call.name} for call in message.tool_calls]
    return any(call_problem(call, offered) for call in message.tool_calls)


def _strangers(connection: duckdb.DuckDBPyConnection, turns: list[ArmTurn]) -> frozenset[str]:
    voices = {signal.user for turn in turns for signal in turn.signals if signal.user is not None}
    if not voices:
        return frozenset()
    asked = connection.execute(
        'SELECT DISTINCT "user" FROM turns WHERE list_contains($users, "user")',
        {"users": sorted(voices)},
    ).fetchall()
    return frozenset(voices - {row[0] for row in asked})


def _with_strangers(turn: ArmTurn, strangers: frozenset[str]) -> ArmTurn:
    own = strangers & {signal.user for signal in turn.signals if signal.user is not None}
    return replace(turn, strangers=own) if own else turn
