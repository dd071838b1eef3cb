"""When something that was logged ended: its start and its duration, whatever a log holds."""

from datetime import datetime, timedelta

MAX_DURATION_S = 1000 * 366 * 86_400
"""A thousand years. No clock has measured a longer one, and none is taken in."""


def ended_at(started_at: datetime, duration_s: float) -> datetime:
    """Return when it ended; its start where the duration (seconds) is none that a clock has."""
    try:
        return started_at + timedelta(seconds=max(0.0, duration_s))
    except (OverflowError, ValueError):
        return started_at
