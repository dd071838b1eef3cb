"""Overrides: a named person lets a report promote that cannot by itself, for a reason and a time.

In: a gate report that did not pass, or one that passed and whose version was rolled back since;
who, why and until when. Out: a row in the registry's `overrides` and an event in its hash chain,
written together; rows stay. Until it expires the override stands in for the report's verdict, and
for its age where the version was rolled back, and for nothing else: the artifact's signature, its
proof, the base and the champion are checked as ever, and a canary may begin and grow on it, whose
guards end it as any other.
"""

import uuid
from datetime import UTC, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from promotion.slot_rows import check_attempted, check_unused, state_of, swap
from promotion.standing import given_in, withdrawn_since
from promotion.state import Override, SlotState
from promotion.tables import Database, overrides_table, utc_text
from serving.errors import MolError

if TYPE_CHECKING:
    # The command that goes back waits for no statistics.
    from promotion.gate import GateReport


class OverrideRefused(MolError, ValueError):
    """This cannot be overridden like this; nothing has changed."""


def parse_expiry(text: str) -> datetime:
    """Return, in UTC, the end of a day, as in 2026-12-31, or a moment given with its time zone.

    Raises:
        OverrideRefused: if it is neither.
    """
    try:
        moment = datetime.fromisoformat(text)
        if len(text) <= len("2026-12-31"):
            return datetime.combine(moment, time.max, UTC)
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise OverrideRefused(
            f"{text!r} is no date. Give a day such as 2026-12-31, or a time such as "
            "2026-12-31T18:00+01:00."
        ) from error
    raise OverrideRefused(f"{text!r} has no time zone. Give one, as in {text}+00:00.")


def grant_override(
    where: Path | str, report: "GateReport", *, by: str, reason: str, expires_at: datetime
) -> Override:
    """Record an override of a report, in the table and in the log, in one transaction.

    Raises:
        OverrideRefused: if nobody or no reason is named, it is over already, or nothing has to be
            overridden: the version serves, or the report passed and nobody took the version out.
        VersionWithdrawn: if the report promoted its version before.
        ReportUnfounded: if no attempt at the gate ended in this report.
        UnknownSlot: if the registry does not know the report's slot.
    """
    now = datetime.now(UTC)
    if not by.strip() or not reason.strip():
        raise OverrideRefused(
            f"An override takes a person and a reason, not {by!r} and {reason!r}. Name both, "
            "'--override-by' and '--reason'."
        )
    if expires_at <= now:
        raise OverrideRefused(
            f"{expires_at:%Y-%m-%d %H:%M %Z} is over. Give a later date with '--expires'."
        )
    override = Override(
        id=uuid.uuid4().hex,
        report_key=report.key,
        slot=report.slot,
        challenger=report.challenger_digest,
        by=by.strip(),
        reason=reason.strip(),
        expires_at=expires_at,
        at=now,
    )
    note = {
        "override": override.id,
        "by": override.by,
        "reason": override.reason,
        "expires_at": utc_text(expires_at),
        "report": report.key,
        "verdict": report.verdict,
        "challenger": report.challenger_digest,
    }
    database = Database(where)
    try:
        with database.writing() as connection:
            state = state_of(connection, report.slot)
            _check_needed(connection, state, report)
            check_unused(connection, state, report)
            check_attempted(connection, state, report)
            swap(connection, state, state.changed(), "override", note=note)
            times = {"expires_at": utc_text(expires_at), "at": utc_text(now)}
            connection.execute(overrides_table.insert().values(override.model_dump() | times))
    finally:
        database.close()
    return override


def find_override(connection: sa.Connection, report: "GateReport") -> Override | None:
    """Return the newest override of a report that is not over, else the one that was last to end.

    None without any, and for a report that needs none.
    """
    if not _is_needed(connection, report):
        return None
    columns = overrides_table.c
    query = sa.select(overrides_table).where(columns.report_key == report.key)
    given = [Override(**row._mapping) for row in connection.execute(query)]
    lasting = [override for override in given if not override.is_over]
    # Of two that last, the newer one: a rollback between them took the older one's effect.
    if lasting:
        return max(lasting, key=lambda override: given_in(connection, override))
    return max(given, key=lambda override: override.expires_at, default=None)


def _is_needed(connection: sa.Connection, report: "GateReport") -> bool:
    """Return whether a report did not pass, or is older than its version's last rollback."""
    if report.verdict != "PASS":
        return True
    version = report.slot, report.challenger_digest, report.key
    return withdrawn_since(connection, *version, override=None) is not None


def _check_needed(connection: sa.Connection, state: SlotState, report: "GateReport") -> None:
    if state.champion == report.challenger_digest:
        raise OverrideRefused(
            f"{state.slot!r} serves {state.champion_name!r} already; nothing has to be overridden. "
            f"If it was broken off, 'flows promote {state.slot}' finishes it."
        )
    if not _is_needed(connection, report):
        raise OverrideRefused(
            "The gate says PASS; nothing has to be overridden. Promote without '--override-by', "
            "'--reason' and '--expires'."
        )
