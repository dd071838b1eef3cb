"""Look turns up: a list by filters, or one with everything that a person wants to know of it.

In: a home and some id. Out: plain rows, or `TurnStory`s. Only the files of a turn's own
days are read for its hops, so that it is quick in a large lake.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb

from serving.records import Hop, Turn
from traces.attribution.blame import Blame
from traces.attribution.outcomes import Outcome
from traces.ending import ended_at
from traces.errors import TurnNotFound
from traces.read import TurnBundle
from traces.storage.bodies import read_hops_by_id
from traces.storage.connections import lake_cursor
from traces.storage.lake import Lake
from traces.storage.row_records import record_of
from traces.storage.tables import TABLES

_NAMED = 3
"""How many candidates an error names."""


@dataclass(frozen=True, slots=True)
class TurnFilter:
    """Which turns to list; None and False do not filter."""

    slot: str | None = None
    workload: str | None = None
    failed: bool = False
    blame: str | None = None
    """A class (`adapter`) or class and slot (`adapter:L1`)."""
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class TurnStory:
    """A turn, what was before it, and what its version learned and was taught by it."""

    bundle: TurnBundle
    earlier: tuple[dict[str, Any], ...]
    """Earlier turns of the conversation: position, slot, request, answer, success, rule."""
    learned: dict[str, Any] | None
    """Row of `v_adapters` for the version that answered."""
    taught: tuple[dict[str, Any], ...]
    """Rows of `v_lessons` made from this turn."""


def list_turns(home: Path, limit: int = 20, only: TurnFilter | None = None) -> list[dict[str, Any]]:
    """Return the latest turns as plain rows for a table: newest first.

    Raises:
        LakeNotFound: if nothing was ingested yet.
    """
    only = only or TurnFilter()
    tests = {
        "slot = $slot": only.slot,
        "workload = $workload": only.workload,
        "success = false": only.failed or None,
        "(blame = $blame OR starts_with(blame, $blame || ':'))": only.blame,
        # `day` skips files, `started_at` cuts the first day.
        "day >= $since::TIMESTAMPTZ::DATE AND started_at >= $since": only.since,
    }
    used = {test: value for test, value in tests.items() if value is not None}
    where = f"WHERE {' AND '.join(used)}" if used else ""
    names = {test: name for name in ("slot", "workload", "blame", "since") for test in used
             if f"${name}" in test}  # fmt: skip
    with Lake.open(home, read_only=True) as lake:
        return _rows(
            lake.connection,
            "SELECT turn_id, started_at, user_id, slot, digest, workload, decision, success, tier,"
            f" blame, confidence, request FROM v_turns {where}"
            " ORDER BY started_at DESC, turn_id LIMIT $limit",
            {"limit": limit} | {name: used[test] for test, name in names.items()},
        )


def find_turns(home: Path, wanted: str) -> list[TurnStory]:
    """Return the turn of this id, or all turns of a conversation.

    `wanted` is a turn's id or the beginning of it (`sha256:` may be left out), the id of a
    response or hop of it, or a conversation's id.

    Raises:
        TurnNotFound: if there is none, or several turns' ids begin so.
        LakeNotFound: if nothing was ingested yet.
    """
    with Lake.open(home, read_only=True) as lake:
        ids = _find(lake.connection, wanted)
        return [_story(lake.connection, turn_id) for turn_id in ids]


def _find(connection: duckdb.DuckDBPyConnection, wanted: str) -> list[str]:
    def ids(where: str, order: str = "turn_id", wanted: str = wanted) -> list[str]:
        sql = f"SELECT turn_id FROM turns WHERE {where} ORDER BY {order}"
        return [row[0] for row in connection.execute(sql, {"id": wanted}).fetchall()]

    exact = ids("turn_id = $id")
    if exact:
        return exact
    begins = ids("starts_with(turn_id, $id) OR starts_with(turn_id, 'sha256:' || $id)")
    begins = begins or ids("regexp_full_match(turn_id, $id)", wanted=_short_form(wanted))
    if len(begins) == 1:
        return begins
    conversation = ids("conversation_id = $id", "position, started_at, turn_id") or ids(
        "regexp_full_match(conversation_id, $id)",
        "conversation_id, position, started_at, turn_id",
        _short_form(wanted),
    )
    if conversation:
        return conversation
    if not begins:
        named = ids("list_contains(response_ids, $id)") or ids(
            "len(list_filter(hop_ids, lambda h: starts_with(h, $id)"
            " OR starts_with(h, 'sha256:' || $id))) > 0"
        )
        if len(named) == 1:
            return named
        begins = named
    problem = "More than one turn" if begins else "No turn"
    some = ", ".join(map(repr, begins[:_NAMED])) + (", ..." if len(begins) > _NAMED else "")
    listed = f" ({some})" if begins else ""
    raise TurnNotFound(
        f"{problem}{listed} has or begins with {wanted!r}, as a turn's, response's, hop's or "
        "conversation's id. Run 'flows traces list' for the ids."
    )


def _short_form(wanted: str) -> str:
    """Return a pattern of the ids that lists show as `wanted`: digests in them are cut short."""
    parts = wanted.split(":")
    cut = [re.fullmatch("[0-9a-f]{12}", part) is not None for part in parts]
    return ":".join(
        f"(sha256:)?{part}[0-9a-f]{{52}}" if short else re.escape(part)
        for part, short in zip(parts, cut, strict=True)
    )


def _story(connection: duckdb.DuckDBPyConnection, turn_id: str) -> TurnStory:
    found = lake_cursor(connection)
    turn = record_of(Turn, "turns", _one(found, "turns", turn_id) or {})
    outcome, blame = _one(found, "outcomes", turn_id), _one(found, "blame", turn_id)
    bundle = TurnBundle(
        turn=turn,
        hops=_hops(connection, turn),
        outcome=record_of(Outcome, "outcomes", outcome)
        if outcome
        else Outcome(turn_id=turn_id, success=None, tier=None, rule="unjudged"),
        blame=record_of(Blame, "blame", blame) if blame else None,
    )
    earlier = _rows(
        found,
        "SELECT position, slot, request, answer, success, rule FROM v_turns"
        " WHERE conversation_id = $conversation AND position < $position ORDER BY ALL",
        {"conversation": turn.conversation_id, "position": turn.position},
    )
    learned = _rows(
        found,
        "FROM v_adapters WHERE slot = $slot AND digest = $digest",
        {"slot": turn.slot, "digest": turn.digest},
    )
    taught = _rows(
        found,
        "FROM v_lessons WHERE turn_id = $id ORDER BY manifest_digest, example_id, digest",
        {"id": turn_id},
    )
    return TurnStory(bundle, tuple(earlier), learned[0] if learned else None, tuple(taught))


def _hops(connection: duckdb.DuckDBPyConnection, turn: Turn) -> tuple[Hop, ...]:
    """Read a turn's hops in its order; those the lake lacks are left out."""
    if not turn.hop_ids:
        return ()
    # A day more on both sides covers clocks that disagree; literals let files be skipped.
    first = turn.started_at.date() - timedelta(days=1)
    last = ended_at(turn.started_at, turn.duration_s).date() + timedelta(days=1)
    where = f"day BETWEEN DATE '{first}' AND DATE '{last}' AND hop_id IN (SELECT unnest($ids))"
    hops = dict(read_hops_by_id(connection, where, {"ids": list(turn.hop_ids)}))
    return tuple(hops[hop_id] for hop_id in turn.hop_ids if hop_id in hops)


def _one(connection: duckdb.DuckDBPyConnection, table: str, turn_id: str) -> dict[str, Any] | None:
    names = ", ".join(f'"{column.name}"' for column in TABLES[table])
    rows = _rows(connection, f"SELECT {names} FROM {table} WHERE turn_id = $id", {"id": turn_id})
    return rows[0] if rows else None


def _rows(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: dict[str, Any]
) -> list[dict[str, Any]]:
    cursor = connection.execute(sql, parameters)
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
