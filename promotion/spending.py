"""What one look at a sealed set may cost: alpha-spending over all attempts of its life.

Attempt k on a sealed set is tested at alpha_k = 6 alpha / (pi^2 k^2). These sum to alpha, so
that the chance that any challenger that is no better is ever promoted on one set stays at most
alpha, however many there are (union bound; challengers must not depend on the set's answers,
which is why only verdicts leave it). The bound asks nothing of how alike two attempts' items
are. So attempts are counted for a slot and its primary suite, `<slot>/<suite>`, whatever items
that has by now: other seeds and sizes, a suite that grew, a router head's further held-out turns
are the next attempt on the same set and never a new one. Where a set is spent, the next one, of
items that nobody was asked, has alpha of its own: `<slot>/<suite>/1`.

An attempt is reserved in the registry before anything is scored: two gates at once get different
k, and one that was killed has spent its own. The same question asked again, also after a crash,
is the same attempt; whichever run of it ends first, its report stands. A set is spent when its
guards could not pass any more, or when no result on it could reach alpha_k. Each attempt is a row
that stays, with digests of what its items asked.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from promotion.paired import informative_needed
from promotion.tables import Database, events_table, gate_attempts_table, utc_text
from serving.errors import MolError
from serving.records import Record

if TYPE_CHECKING:
    from promotion.gate import GateReport


MOST_ATTEMPTS = 20
"""Attempts on a set after which another one takes its place, if there is one."""
_ENDLESS = 30.0
"""Logarithm of attempts that nobody makes, and of which the square still is a float."""


class SetSpent(MolError, RuntimeError):
    """No result on this sealed set could reach the level of another attempt."""


class Attempt(Record):
    """One look at a sealed set."""

    sealed_set: str
    attempt: int
    """k, from 1."""
    alpha: float
    """alpha_k, the level of this attempt."""
    report_key: str | None
    """The report that it ended in; None while it runs, or if it was killed."""


def alpha_of(attempt: int, alpha: float) -> float:
    """Return the level of the k-th attempt, k from 1: 6 alpha / (pi^2 k^2)."""
    return 6 * alpha / (math.pi * attempt) ** 2


def set_name(slot: str, suite: str, number: int = 0) -> str:
    """Return the name under which attempts of a slot with this primary suite are counted.

    `number` counts the sets that were spent before.
    """
    return f"{slot}/{suite}/{number}" if number else f"{slot}/{suite}"


def attempts_worth(clusters_margins: Iterable[tuple[float, float]], alpha: float) -> int | None:
    """Return how many attempts a set is worth to its guards; None if they do not limit them.

    The last in which each guard, of so many clusters of one size and with such a margin, can
    still pass where no item differs. One that cannot even in the first attempt does not count.
    """
    halves = (
        (math.log(alpha_of(1, alpha)) - clusters * math.log1p(-margin)) / 2
        for clusters, margin in clusters_margins
    )
    least = (math.ceil(math.exp(min(half, _ENDLESS))) - 1 for half in halves)
    return min((most for most in least if most), default=None)


@dataclass(frozen=True, slots=True)
class Spent:
    """What was spent on one sealed set."""

    attempts: int = 0
    """The killed ones too."""
    asked: frozenset[str] = frozenset()
    """Digests of what the primary suite's items asked in them."""
    untold: bool = False
    """Whether earlier code made some of them, which did not keep what was asked."""


def spent_on(database: Database, slot: str, suite: str) -> dict[int, Spent]:
    """Return what was spent on the sets of a slot's primary suite, by their numbers."""
    columns, first = gate_attempts_table.c, set_name(slot, suite)
    query = sa.select(columns.sealed_set, columns.attempt, columns.asked)
    ours = sa.or_(
        columns.sealed_set == first, columns.sealed_set.startswith(f"{first}/", autoescape=True)
    )
    found: dict[int, Spent] = {}
    with database.reading() as connection:
        for row in connection.execute(query.where(ours)):
            number = row.sealed_set.removeprefix(first).removeprefix("/") or "0"
            if not number.isdecimal():
                continue  # of a suite whose name begins like this one's
            before = found.get(int(number), Spent())
            found[int(number)] = Spent(
                attempts=max(before.attempts, row.attempt),
                asked=before.asked.union(json.loads(row.asked or "[]")),
                untold=before.untold or row.asked is None,
            )
    return found


def _attempts(connection: sa.Connection, sealed_set: str) -> int:
    columns = gate_attempts_table.c
    newest = sa.select(sa.func.max(columns.attempt)).where(columns.sealed_set == sealed_set)
    return connection.scalar(newest) or 0


def reserve(
    database: Database,
    sealed_set: str,
    question: str,
    *,
    slot: str,
    champion: str | None,
    challenger: str,
    alpha: float,
    units: int,
    most: int | None = None,
    asked: Iterable[str] = (),
) -> Attempt:
    """Take the next attempt on a sealed set, before anything is scored.

    A `question` (a digest of all that decides the answer) that was asked of the set before is
    the attempt that it was. `units` are the independent ones of the primary suite, its clusters;
    `most` are the attempts after which the set is spent, None for any number. `asked` are digests
    of what its items ask, which are kept, so that no other set asks it.

    Raises:
        SetSpent: if the question is new and `most` attempts were made.
        SetSpent: if the question is new and even a gain on every unit, 0.5^units, would not reach
            alpha_k. A new set has one attempt in any case; the gate says what it lacks.
    """
    columns = gate_attempts_table.c
    on_set = columns.sealed_set == sealed_set
    with database.writing() as connection:
        same = sa.select(gate_attempts_table).where(on_set, columns.question == question)
        row = connection.execute(same).one_or_none()
        if row is not None:
            return Attempt(**{name: getattr(row, name) for name in Attempt.model_fields})
        attempt = _attempts(connection, sealed_set) + 1
        if most is not None and attempt > most:
            raise SetSpent(f"The sealed set {sealed_set!r} is spent after {most} attempts.")
        needed = informative_needed(alpha_of(attempt, alpha))
        if attempt > 1 and needed > units:
            raise SetSpent(
                f"The sealed set {sealed_set!r} is spent after {attempt - 1} attempts: the next "
                f"could show a gain on {needed} clusters or more, and it has {units}; nothing was "
                "scored. Give it more clusters, or the slot another primary suite."
            )
        made: dict[str, Any] = {
            "sealed_set": sealed_set,
            "attempt": attempt,
            "slot": slot,
            "champion": champion,
            "challenger": challenger,
            "alpha": alpha_of(attempt, alpha),
            "report_key": None,
            "at": utc_text(datetime.now(UTC)),
            "question": question,
            "asked": json.dumps(sorted(asked)),
            "seq": (connection.scalar(sa.select(sa.func.max(columns.seq))) or 0) + 1,
            "after_event": connection.scalar(sa.select(sa.func.max(events_table.c.seq))) or 0,
        }
        connection.execute(gate_attempts_table.insert().values(made))
        return Attempt(**{name: made[name] for name in Attempt.model_fields})


def finish(database: Database, attempt: Attempt, report: "GateReport") -> str:
    """Note which report an attempt ended in; return the key that stands, the first one's."""
    columns = gate_attempts_table.c
    row = sa.and_(columns.sealed_set == attempt.sealed_set, columns.attempt == attempt.attempt)
    with database.writing() as connection:
        unsaid = gate_attempts_table.update().where(row, columns.report_key.is_(None))
        connection.execute(unsaid.values(report_key=report.key, verdict=report.verdict))
        return str(connection.scalar(sa.select(columns.report_key).where(row)))
