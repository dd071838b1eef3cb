"""How far each signal is to be trusted, measured on the turns that verifiers judged.

In: a lake. Out: one row a signal, as `v_signal_quality` has it, and one line in words.
"""

from collections.abc import Sequence

import duckdb

from serving.records import Record


class SignalQuality(Record):
    """Sensitivity and specificity of one signal; see `traces.analytics.signal_views`."""

    signal: str
    means: str
    """What the signal says of a turn: `failure` or `success`."""
    failed: int
    """Verified turns that failed."""
    succeeded: int
    on_failed: int
    """Those of them on which the signal was seen."""
    on_succeeded: int
    sensitivity: float | None
    """None without a verified turn of the kind."""
    sensitivity_low_95: float | None
    sensitivity_high_95: float | None
    specificity: float | None
    specificity_low_95: float | None
    specificity_high_95: float | None
    precision: float | None
    """How often it was right where it spoke; None where it never did."""
    unverified: int
    on_unverified: int
    information: float | None
    """Sensitivity + specificity - 1: nothing at 0, everything at 1."""
    refused: str | None
    """Why `failed_share` is not told."""
    failed_share: float | None
    """Share of the unverified turns that failed (Rogan-Gladen)."""


def signal_quality(connection: duckdb.DuckDBPyConnection) -> list[SignalQuality]:
    """Return the quality of every signal in an open lake."""
    names = list(SignalQuality.model_fields)
    rows = connection.execute(
        f"SELECT {', '.join(names)} FROM v_signal_quality ORDER BY signal"  # noqa: S608
    ).fetchall()
    return [SignalQuality(**dict(zip(names, row, strict=True))) for row in rows]


def in_words(qualities: Sequence[SignalQuality]) -> str | None:
    """Return one line on the signals that were seen on verified turns, None if none was."""
    seen = [q for q in qualities if q.on_failed + q.on_succeeded and q.precision is not None]
    if not seen:
        return None
    seen.sort(key=lambda q: -(q.on_failed + q.on_succeeded))
    parts = [
        f"{q.signal} {q.precision:.0%} of {q.on_failed + q.on_succeeded}"
        for q in seen
        if q.precision is not None
    ]
    return f"right on verified turns: {', '.join(parts)} (v_signal_quality)"
