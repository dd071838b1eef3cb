"""The lake's turns that a router explored: what off-policy estimates are made from.

In: a home, the slots in force, a condition on what was known before the route. Out:
`LoggedTurns`, each with the slot it got, the propensity of that, its outcome and its
conversation, and how many turns were left out why.

A turn is left out only for what did not depend on the slot it got: its router did not explore, a
rule or doubt settled it, its record is incomplete. So one that its slot left without an answer is
no success, and one that was asked again counts with what was said of it. Outcomes are the
exception, for nobody can use a turn without one; where they are known more often for some slots,
`off_policy` refuses.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import duckdb
import numpy as np

from serving.records import Feedback, canonical_json, short_digest
from traces.attribution.apart import is_one_sided, one_sided_sql
from traces.attribution.off_policy import EstimateRefused, Logged, check_draws
from traces.attribution.outcomes import settle
from traces.errors import QueryRefused
from traces.joins.standing import SUPERSEDED
from traces.storage.frugality import little_memory
from traces.storage.lake import Lake

KNOWN_BEFORE = (
    "turn_id", "conversation_id", "position", "user_id", "day", "started_at", "workload", "task",
    "request", "source",
)  # fmt: skip
"""Columns that a condition may use: those that do not depend on which slot answered."""
TOLERANCE = 1e-6
_DRAWN = ("routed", "explored", "rule")
_BY_RULE_OR_DOUBT = "unsure"
_SUBQUERY = '"class":"SUBQUERY"'
"""In canonical JSON; within a text its quotes would be escaped."""
_SEVERAL = 3
"""How many values an error names."""

_QUERY = """
    WITH picked AS (
        SELECT turn_id FROM (
            SELECT turn_id, conversation_id, position, "user" AS user_id, day, started_at,
                   workload, task, request, source
            FROM turns) known
        WHERE (
            {where}
        )),
    places AS (
        SELECT turn_id, unnest(hop_ids) AS hop_id, generate_subscripts(hop_ids, 1) AS place
        FROM turns JOIN picked USING (turn_id)),
    routes AS (
        SELECT p.turn_id,
               arg_min(h.propensity, p.place) FILTER (h.propensity IS NOT NULL) AS propensity,
               arg_min(coalesce(h.harness_digest, h.source), p.place) AS router,
               max(json_array_length(h.params, '$.choices')) AS choices
        FROM places p JOIN hops h USING (hop_id)
        WHERE h.status = 'ok' AND (h.role = 'route' OR h.propensity IS NOT NULL)
        GROUP BY p.turn_id)
    SELECT t.turn_id, t.conversation_id, t."user", t.request, t.slot, t.digest, t.decision,
           t.status, t.origin, r.propensity, coalesce(r.router, t.source), r.choices,
           o.success, o.tier, o.rule, {one_sided},
           CASE WHEN o.rule = '{superseded}' THEN o.signals END
    FROM turns t JOIN picked USING (turn_id) LEFT JOIN routes r USING (turn_id)
    LEFT JOIN outcomes o USING (turn_id)
    ORDER BY t.turn_id
"""

Tier = Literal["A", "B"]


class _Ended(NamedTuple):
    """What settling needs of a turn."""

    turn_id: str
    user: str | None
    status: str


class _Row(NamedTuple):
    """A turn with its route and outcome."""

    turn_id: str
    conversation_id: str
    user: str | None
    request: str
    slot: str | None
    digest: str | None
    decision: str
    status: str
    origin: str
    propensity: float | None
    router: str
    """What shaped the route hop, by its digest."""
    choices: int | None
    """How many labels the route could name, where its parameters tell."""
    success: bool | None
    tier: str | None
    rule: str | None
    one_sided: bool | None
    """Whether the turn is known only because it failed."""
    signals: str | None
    """What was said of a turn that was asked again."""

    @property
    def in_its_own_right(self) -> "_Row":
        """The row with the outcome that it had if it had not been asked again."""
        if self.signals is None:
            return self
        signals = [Feedback.model_validate(each) for each in json.loads(self.signals)]
        ended = _Ended(self.turn_id, self.user, self.status)
        found = settle(ended, signals)
        return self._replace(
            success=found.success,
            tier=found.tier,
            rule=found.rule,
            one_sided=is_one_sided(found),
        )


class LoggedTurn(NamedTuple):
    """A turn that may be weighed."""

    turn_id: str
    conversation_id: str
    user: str | None
    text: str
    """The request, as the router saw it."""
    slot: str
    """The one it got."""
    digest: str | None
    """Version that answered."""
    propensity: float
    success: bool


@dataclass(frozen=True, slots=True)
class LoggedTurns:
    """Turns of a router that explores, in order of their ids."""

    labels: tuple[str, ...]
    turns: tuple[LoggedTurn, ...]
    left_out: dict[str, int]
    """Turns by the reason why they cannot be weighed."""
    epsilons: tuple[float, ...]
    """Shares of turns that were drawn, one a router; the propensities imply them."""

    @property
    def texts(self) -> list[str]:
        """The requests."""
        return [turn.text for turn in self.turns]

    @property
    def arrays(self) -> Logged:
        """What `off_policy.estimate` takes."""
        slots = {label: k for k, label in enumerate(self.labels)}
        numbers: dict[str, int] = {}
        return Logged(
            labels=self.labels,
            action_N=np.array([slots[turn.slot] for turn in self.turns], dtype=np.int64),
            propensity_N=np.array([turn.propensity for turn in self.turns], dtype=np.float64),
            reward_N=np.array([turn.success for turn in self.turns], dtype=np.float64),
            conversation_N=np.array(
                [numbers.setdefault(turn.conversation_id, len(numbers)) for turn in self.turns],
                dtype=np.int64,
            ),
        )

    def only(self, conversations: Iterable[str], reason: str) -> "LoggedTurns":
        """Return the turns of these conversations; the others are left out for `reason`."""
        kept = frozenset(conversations)
        turns = tuple(turn for turn in self.turns if turn.conversation_id in kept)
        fewer = Counter(self.left_out) + Counter({reason: len(self.turns) - len(turns)})
        return LoggedTurns(self.labels, turns, dict(fewer), self.epsilons)


def read_logged(
    home: Path,
    labels: Sequence[str],
    where: str | None = None,
    tiers: Sequence[Tier] = ("A", "B"),
) -> LoggedTurns:
    """Read the turns whose slot was drawn with a logged propensity.

    Args:
        home: has the lake.
        labels: slots in force.
        where: SQL condition on the columns of `KNOWN_BEFORE`.
        tiers: of the outcomes that count.

    Raises:
        EstimateRefused: if there are none, or the log contradicts itself.
        QueryRefused: if the condition is none, or names a column that is not there.
        LakeNotFound: if nothing was ingested yet.
    """
    with Lake.open(home, read_only=True) as lake, little_memory(lake.connection):
        rows = _rows(lake.connection, where or "true")
    left_out: Counter[str] = Counter()
    explored = [row.in_its_own_right for row in _explored(rows, tuple(labels), left_out)]
    epsilons = _checked_epsilons(explored, len(labels))
    _check_complete(rows, {row.router for row in explored})
    drawn_N = np.array([row.decision == "explored" for row in explored])
    chance_N = np.array([_chance_of_draw(row, len(labels)) for row in explored])
    check_draws(drawn_N, chance_N)
    turns = []
    for row in explored:
        reason = _unusable(row, labels, tiers)
        if reason:
            left_out[reason] += 1
        else:
            turns.append(_logged(row))
    if not turns:
        raise EstimateRefused(
            f"None of {len(explored):,} turns of an exploring router has an outcome of tier "
            f"{' or '.join(tiers)} ({_counted(left_out)}). Run 'flows run attribute' after "
            "verifiers or users have said how the answers were."
        )
    return LoggedTurns(tuple(labels), tuple(turns), dict(sorted(left_out.items())), epsilons)


def users_of(home: Path) -> list[tuple[str | None, str]]:
    """Return every user with each of their conversations, of the whole lake."""
    with Lake.open(home, read_only=True) as lake:
        return lake.connection.execute(
            'SELECT DISTINCT "user", conversation_id FROM turns ORDER BY ALL'
        ).fetchall()


def _rows(connection: duckdb.DuckDBPyConnection, where: str) -> list[_Row]:
    try:
        if not _is_condition(connection, where):
            raise QueryRefused(
                f"{where[:80]!r} is no condition without subqueries, such as "
                f"\"workload = 'chat'\". It may use {', '.join(KNOWN_BEFORE)}."
            )
        query = _QUERY.format(where=where, one_sided=one_sided_sql(), superseded=SUPERSEDED)
        return [_Row(*row) for row in connection.execute(query).fetchall()]
    except duckdb.Error as error:
        first = str(error).strip().splitlines()[0]
        raise QueryRefused(
            f"The condition {where[:80]!r} cannot be used: {first} It may use what was known "
            f"before the route: {', '.join(KNOWN_BEFORE)}."
        ) from error


def _is_condition(connection: duckdb.DuckDBPyConnection, where: str) -> bool:
    """Whether this is a condition, and one that asks no other table.

    The statement around it must be the one around `true`: no bracket ends before the condition.
    """
    ours, plain = (_tree(connection, f"SELECT 1 WHERE (\n{each}\n)") for each in (where, "true"))
    if ours is None or plain is None:
        return False
    condition = ours.pop("where_clause")
    plain.pop("where_clause")
    return ours == plain and _SUBQUERY not in canonical_json(condition)


def _tree(connection: duckdb.DuckDBPyConnection, statement: str) -> dict[str, Any] | None:
    """Return a single SELECT as DuckDB reads it; None for anything else."""
    found = connection.execute("SELECT json_serialize_sql($1)", [statement]).fetchall()
    tree = json.loads(found[0][0])
    if tree["error"]:
        raise duckdb.ParserException(tree["error_message"])
    nodes = [each["node"] for each in tree["statements"]]
    return nodes[0] if len(nodes) == 1 and "where_clause" in nodes[0] else None


def _explored(rows: Sequence[_Row], labels: tuple[str, ...], left_out: Counter[str]) -> list[_Row]:
    """Return the turns of routers that explore these slots.

    Raises:
        EstimateRefused: if there are none, with what there is instead.
    """
    found = []
    slots_of = _slots_of(rows, len(labels))
    for row in rows:
        reason = _not_explored(row)
        if not reason and slots_of[row.router] != len(labels):
            reason = "other_slots"
        if reason:
            left_out[reason] += 1
        else:
            found.append(row)
    if found:
        return found
    if not rows:
        raise EstimateRefused("No turn fits the condition. Run 'flows traces list' for the turns.")
    why = f"of {len(rows):,} turns none can be used ({_counted(left_out)})"
    if left_out["no_propensity"] and not left_out["not_explored"] + left_out["other_slots"]:
        raise EstimateRefused(
            f"No routed turn has a logged propensity; {why}. Serve with "
            "'--serve.router.epsilon 0.1', which explores and logs it."
        )
    raise EstimateRefused(
        f"No router explored these slots: {why}. Serve with '--serve.router.epsilon 0.1' for a "
        "while, so that every slot is tried."
    )


def _not_explored(row: _Row) -> str | None:
    if row.decision not in (*_DRAWN, _BY_RULE_OR_DOUBT):
        return "not_routed"
    if row.propensity is None:
        return "no_propensity" if row.status == "ok" else "not_answered"
    if row.decision == _BY_RULE_OR_DOUBT or row.propensity == 1.0:
        return "not_explored"
    # What the join made of a dead server's hops calls some draws fallbacks.
    return "not_recorded" if row.origin != "recorded" else None


def _slots_of(rows: Sequence[_Row], default: int) -> dict[str, int]:
    """Return how many slots each router chose from: as it says, or as its propensities imply."""
    found = {row.router: row.choices for row in rows if row.choices}
    high: dict[str, float] = {}
    low: dict[str, float] = {}
    for row in rows:
        if row.propensity is not None and row.propensity < 1 and row.decision in _DRAWN:
            (low if row.decision == "explored" else high)[row.router] = row.propensity
    for router in low.keys() & high.keys():
        implied = 1 + (1 - high[router]) / low[router] if low[router] > 0 else 0.0
        if abs(implied - round(implied)) < 0.01:
            found.setdefault(router, round(implied))
    return {row.router: found.get(row.router, default) for row in rows}


def _checked_epsilons(explored: Sequence[_Row], slots: int) -> tuple[float, ...]:
    """Return the share of draws of each router, smallest first.

    Raises:
        EstimateRefused: if the propensities of one router imply more than one.
    """
    implied: dict[str, set[float]] = {}
    for row in explored:
        assert row.propensity is not None
        even = (
            row.propensity
            if row.decision == "explored"
            else (1 - row.propensity) / max(slots - 1, 1)
        )
        implied.setdefault(row.router, set()).add(round(even * slots, 9))
    for router, epsilons in implied.items():
        if max(epsilons) - min(epsilons) > TOLERANCE or not 0 < min(epsilons) < 1:
            some = ", ".join(f"{epsilon:.4g}" for epsilon in sorted(epsilons)[:_SEVERAL])
            raise EstimateRefused(
                f"Propensities of router {short_digest(router)!r} imply epsilon {some} over "
                f"{slots} slots, and a router has one, between 0 and 1: they were not logged by "
                "the policy that drew. Leave these turns out by a condition on 'started_at'."
            )
    return tuple(sorted({min(epsilons) for epsilons in implied.values()}))


def _check_complete(rows: Sequence[_Row], routers: set[str]) -> None:
    """Refuse routed turns without a propensity where the same router logged others."""
    lost = [r for r in rows if r.router in routers and _not_explored(r) == "no_propensity"]
    if lost:
        raise EstimateRefused(
            f"{len(lost):,} routed turns have no logged propensity, such as {lost[0].turn_id!r}, "
            "though their router logged others: which turns lack it may depend on the slot they "
            "got. Take the whole spool in, or leave that time out by a condition on 'started_at'."
        )


def _chance_of_draw(row: _Row, slots: int) -> float:
    assert row.propensity is not None
    return (slots - 1) * row.propensity if row.decision == "explored" else 1 - row.propensity


def _unusable(row: _Row, labels: Sequence[str], tiers: Sequence[Tier]) -> str | None:
    if row.slot is None or row.status == "abandoned":
        return "not_answered"
    if row.slot not in labels:
        return "other_slots"
    if row.tier == "C":
        return "implicit_only"
    if row.success is None or row.one_sided:
        return "no_outcome"
    return None if row.status == "failed" or row.tier in tiers else "other_tier"


def _logged(row: _Row) -> LoggedTurn:
    values: dict[str, Any] = {name: getattr(row, name) for name in LoggedTurn._fields
                              if name != "text"}  # fmt: skip
    return LoggedTurn(text=row.request, **values)


def _counted(reasons: Counter[str]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common() if count)
