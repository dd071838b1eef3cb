"""Failures that say nothing about the model that serves: told apart in reports, views and curation.

`canary`: the answer came from a version on trial. `engine`: an engine call failed, so that no
model answered. `truncated`: the answer was cut at its token limit. The first that holds counts.
The same rule stands here for records and for SQL; a test compares them.
"""

import re
from typing import Literal

from serving.records import Turn
from traces.attribution.outcomes import CHECKED, ENGINE, Outcome

_EXPLICIT = re.compile('"kind":"(?:thumb|edit)"')
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


def is_one_sided(outcome: Outcome) -> bool:
    """Return whether a turn is known to have failed only because it failed.

    A broken call shows by itself, a right answer does not: where no deployment's check and no
    user spoke, such failures would stand beside no successes. No share of successes counts them.
    """
    return outcome.rule == CHECKED and not _EXPLICIT.search(outcome.signals)


def one_sided_sql(outcomes: str = "o") -> str:
    """Render `is_one_sided` for rows of the outcomes under this alias."""
    return f"""({outcomes}.rule = '{CHECKED}'
        AND NOT regexp_matches({outcomes}.signals, '{_EXPLICIT.pattern}'))"""
