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
guards could not pass any more whatever was answered; the last one, when no result on it could
reach alpha_k. Each attempt is a row that stays.
"""

import math
from collections.abc import Iterable
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


def attempts_worth(clusters_margins: Iterable[tuple[float, float]], alpha: float) -> int:
    """Return how many attempts a set is worth, from 1 to 20.

    The last in which each guard, of so many clusters of one size and with such a margin, can
    still pass where no item differs. One that cannot even in the first attempt is not asked.
    """
    least = (
        math.ceil(math.sqrt(alpha_of(1, alpha) / (1 - margin) ** clusters)) - 1
        for clusters, margin in clusters_margins
    )
    return min([MOST_ATTEMPTS, *(most for most in least if most)])


def attempts_made(database: Database, sealed_set: str) -> int:
    """Return how many attempts on a sealed set there were, the killed ones too."""
    with database.reading() as connection:
        return _attempts(connection, sealed_set)


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
) -> Attempt:
    """Take the next attempt on a sealed set, before anything is scored.

    A `question` (a digest of all that decides the answer) that was asked of the set before is
    the attempt that it was. `units` are the independent ones of the primary suite, its clusters;
    `most` are the attempts after which another set is asked, None where there is no other.

    Raises:
        SetSpent: if the question is new and `most` attempts were made.
        SetSpent: if the question is new and even a gain on every unit, 0.5^units, would not reach
            alpha_k. A new set has one attempt in any case; the gate says what it lacks.
    """
    columns = gate_attempts_table.c
    on_set = columns.sealed_set == sealed_set
    with database.writing() as connection:
        asked = sa.select(gate_attempts_table).where(on_set, columns.question == question)
        row = connection.execute(asked).one_or_none()
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
