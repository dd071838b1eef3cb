"""Reports of made-up scores, entered as what attempts at the gate ended in."""

from promotion.gate import GateReport
from promotion.spending import finish, reserve, set_name
from promotion.tables import Database

_UNITS = 10**9
"""These attempts test nothing, so that none is too many."""


def as_attempted(database: Database, report: GateReport) -> GateReport:
    """Enter a report as the outcome of an attempt of its own, and return it."""
    attempt = reserve(
        database,
        set_name(report.slot, report.primary_suite),
        report.key,
        slot=report.slot,
        champion=report.champion_digest,
        challenger=report.challenger_digest,
        alpha=report.alpha,
        units=_UNITS,
    )
    finish(database, attempt, report)
    return report
