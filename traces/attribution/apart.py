"""Failures that say nothing about the model that serves: told apart in reports, views and curation.

`canary`: the answer came from a version on trial. `engine`: an engine call failed, so that no
model answered. `truncated`: the answer was cut at its token limit. The first that holds counts.
The same rule stands here for records and for SQL; a test compares them.
"""

from typing import Literal

from serving.records import Turn
from traces.attribution.outcomes import ENGINE, Outcome

Apart = Literal["canary", "engine", "truncated"]


def apart(turn: Turn, outcome: Outcome) -> Apart | None:
    """Return why a failure is not charged to the model that serves; None if it is, or if none."""
    if outcome.success is not False:
        return None
    if turn.canary:
        return "canary"
    if outcome.rule == ENGINE:
        return "engine"
    return "truncated" if outcome.truncated else None


def apart_sql(turns: str = "t", outcomes: str = "o") -> str:
    """Render `apart` for rows of the turns and the outcomes under these aliases."""
    return f"""CASE WHEN {outcomes}.success IS DISTINCT FROM false THEN NULL
        WHEN {turns}.canary THEN 'canary' WHEN {outcomes}.rule = '{ENGINE}' THEN 'engine'
        WHEN {outcomes}.truncated THEN 'truncated' END"""
