"""Which sealed set of a slot the gate asks next, and what of it.

In: settings, whole suites with the primary one first, and the registry's attempts. Out: the sets in
their order. No set asks of the primary suite what an attempt on another set asked, whatever seed,
sizes and pool there were then. One is spent when a guard that could pass at first no longer can,
and, where another is left, after 20 attempts at the latest.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flows.config import Settings

if TYPE_CHECKING:
    from curation.manifest import Manifest
    from promotion.spending import Spent
    from promotion.suites.suite import Suite
    from promotion.tables import Database


@dataclass(frozen=True, slots=True)
class SealedSet:
    """One set, as the next attempt on it would ask it."""

    number: int
    suites: "list[Suite]"
    """As many items as the settings say, the primary suite first."""
    attempts: int
    """Made so far, the killed ones too."""
    most: int | None
    """Attempts after which it is spent, None for any number."""
    why_spent: str
    """What another attempt lacks and what would do, in words; "" where it lacks nothing."""


def sealed_sets(
    settings: Settings, whole: "Sequence[Suite]", database: "Database | None"
) -> "Iterator[SealedSet]":
    """Yield the sets of whole suites in their order, up to one of which nothing was asked.

    The first of `whole` is the primary one. Attempts are read anew for each set; without a
    database there were none.
    """
    from promotion.spending import MOST_ATTEMPTS, Spent, attempts_worth, spent_on
    from promotion.suites.build import draw
    from promotion.suites.sets import divide, without

    slot, count = whole[0].slot, settings.suites.primary
    sealed = divide(whole[0]).sealed
    for number in itertools.count():
        spent = spent_on(database, slot, sealed.name) if database else {}
        asked = _asked_elsewhere(spent, sealed, count, number)
        if number and (number - 1 not in spent or len(without(sealed, asked).items) < count):
            return
        suites = draw(whole, slot, settings.suites, "sealed", number, asked)
        made = spent.get(number, Spent()).attempts
        guards = guards_of(settings, suites)
        most = attempts_worth([(size, margin) for _, size, margin in guards], settings.gate.alpha)
        after = _asked_elsewhere(spent, sealed, count, number + 1)
        after |= {item.asked_id for item in suites[0].items}
        if len(without(sealed, after).items) >= count:
            most = MOST_ATTEMPTS if most is None else min(most, MOST_ATTEMPTS)
        why = "" if most is None or made < most else _why(settings, suites, number, made)
        yield SealedSet(number, suites, made, most, why)


def present_set(
    settings: Settings, whole: "Sequence[Suite]", database: "Database | None"
) -> SealedSet:
    """Return the set of the next attempt; where all are spent, the last one."""
    last: SealedSet | None = None
    for last in sealed_sets(settings, whole, database):
        if not last.why_spent:
            break
    assert last is not None  # set 0 is always there
    return last


def why_not_trained(settings: Settings, manifest: "Manifest") -> str:
    """Say why no gate could ask about what this dataset would make; "" where one can.

    What was made already may have its attempt: the gate tells.
    """
    from flows import stages
    from promotion.suites.build import build_suites
    from promotion.tables import Database
    from training.runs import list_runs

    made = [(run.manifest_digest, run.seed) for run in list_runs(settings.home)]
    if (manifest.digest, settings.seed) in made:
        return ""
    profile = stages.profile_in_force(settings)
    whole = build_suites(profile, manifest.slot, settings.seed, settings.suites)
    database = Database(settings.registry.url or settings.home)
    try:
        return present_set(settings, whole, database).why_spent
    finally:
        database.close()


def guards_of(settings: Settings, suites: "Sequence[Suite]") -> "list[tuple[Suite, float, float]]":
    """Return the slot's guards that have a margin, how many clusters they tell as much as, and it.

    The first of `suites` is the primary one.
    """
    from promotion.paired import effective_clusters

    return [
        (suite, effective_clusters([item.cluster for item in suite.items]), margin)
        for suite in suites[1:]
        if (margin := settings.gate.margin(suite.name, suite.kind)) and suite.slot == suites[0].slot
    ]


def why_too_small(settings: Settings, suites: "Sequence[Suite]", attempt: int) -> dict[str, str]:
    """Say of each guard that is too small for its margin in this attempt why, and what would do."""
    from promotion.slices import why_not_excluded
    from promotion.spending import alpha_of

    alpha_k = alpha_of(attempt, settings.gate.alpha)
    why = {
        suite.name: why_not_excluded(suite.name, math.floor(size + 1e-9), margin, alpha_k)
        for suite, size, margin in guards_of(settings, suites)
    }
    return {name: words for name, words in why.items() if words}


def _why(settings: Settings, suites: "Sequence[Suite]", number: int, made: int) -> str:
    from promotion.spending import attempts_worth, set_name

    slot, primary = suites[0].slot, suites[0].name
    too_small = why_too_small(settings, suites, made + 1)
    lacks = "it had the most attempts"
    for suite, size, margin in guards_of(settings, suites):
        worth = attempts_worth([(size, margin)], settings.gate.alpha)
        if worth is not None and worth <= made:
            lacks = f"of {suite.name} {too_small[suite.name]}"
            break
    return (
        f"The sealed set {set_name(slot, primary, number)!r} is spent after {made} attempts, no "
        f"other has items that nobody was asked, and nothing was scored: {lacks}; or name a suite "
        f"that nobody was asked for {slot!r} under [suites.primary_suite]."
    )


def _asked_elsewhere(
    spent: "dict[int, Spent]", sealed: "Suite", count: int, number: int
) -> set[str]:
    """Return digests of what was asked on other sets than this one."""
    from promotion.suites.sets import take

    asked: set[str] = set()
    for other, one in spent.items():
        if other == number:
            continue
        asked |= one.asked
        if one.untold:  # earlier code asked one stretch of items after the other
            before = take(sealed, (other + 1) * count).items[other * count :]
            asked |= {item.asked_id for item in before}
    return asked
