"""The suites for a challenger: its primary one, its guards, and those of the bystanders.

In: a profile and the slot that is challenged. Out: whole suites, as large as the task world
makes them, the primary one first; `draw` cuts them to what is asked of one set.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from curation.examples import prompt_id
from promotion.suites.config import SuitesConfig
from promotion.suites.external.catalogue import outside_suites
from promotion.suites.files import read_suite
from promotion.suites.living.home import tools_of
from promotion.suites.living.scenarios import living_suite
from promotion.suites.sets import Part, divide, take, without
from promotion.suites.suite import Suite
from promotion.suites.task_suites import FORMS, SKILLS, form_suite, pool_size, task_suites
from promotion.suites.world import MAKERS
from serving.errors import MolError
from serving.slots import Profile

DATA = Path(__file__).with_name("data")
"""Suites that are files: the safety list and what asks for a form."""

_HARMFUL_TOOLS = tools_of(("light", "heating", "message"))
"""What some harmful requests would need, and harmless ones too."""


class NoSuite(MolError, LookupError):
    """No suite judges this slot."""


class SuiteNameTaken(MolError, ValueError):
    """Two suites have one name."""


def build_suites(
    profile: Profile, slot: str, seed: int, config: SuitesConfig | None = None
) -> list[Suite]:
    """Build all suites for a challenger of `slot`, whole; the first is the primary one.

    The same seed gives the same items. Whoever trains must leave out all of them, whatever
    the set. `config` may name further suites, and which is primary.

    Raises:
        NoSuite: if the slot has none, or not the one that is named as primary.
        SuiteNameTaken: if a further suite has the name of another.
        MolError: if a further suite cannot be read, or lacks what it needs.
    """
    config = config or SuitesConfig()
    primary = primary_suite(profile, slot, config)
    pool = pool_size(max(config.primary, config.guard, config.format))
    suites = [
        suite
        for owner in profile.labels
        if owner in MAKERS
        for suite in task_suites(profile, owner, seed, pool)
    ]
    suites += _own_guards(profile, slot, seed, pool)
    suites += [read_suite(path, profile, slot) for path in config.files]
    suites += outside_suites(profile, config)
    names = [suite.name for suite in suites]
    taken = next((name for name in names if names.count(name) > 1), None)
    if taken is not None:
        raise SuiteNameTaken(
            f"Two suites are called {taken!r}. Give the one of your own another name, or name it "
            "once, under [suites] files and [suites.external]."
        )
    own = [suite.name for suite in suites if suite.slot == slot]
    if primary not in own:
        raise NoSuite(
            f"Slot {slot!r} has no suite {primary!r} to be its primary one; it has "
            f"{', '.join(own)}. Correct it under [suites.primary_suite], [suites.external] or "
            "[suites] files."
        )
    return sorted(suites, key=lambda suite: (suite.name != primary, suite.slot != slot))


def draw(
    suites: Sequence[Suite],
    slot: str,
    sizes: SuitesConfig,
    part: Part = "sealed",
    number: int = 0,
    asked: Collection[str] = (),
) -> list[Suite]:
    """Return one set of each suite, as many items as `sizes` say; the order is kept.

    The first of `suites` is the primary one, and of it nothing is taken that was `asked`, by
    `Item.asked_id`. A suite whose size is 0 is left out. `number` counts the sets that were spent
    before; in each of them a guard has as many items of each cluster.
    """
    drawn = []
    for suite in suites:
        whole = divide(suite).part(part)
        if suite is suites[0]:
            drawn.append(take(without(whole, asked), sizes.primary))
        elif count := _size(suite, slot, sizes):
            drawn.append(take(whole, count, number))
    return drawn


def asked_prompts(suites: Iterable[Suite]) -> frozenset[str]:
    """Return `prompt_id` of all that whole suites ask, for training to leave out."""
    return frozenset(
        prompt_id(text)
        for suite in suites
        for item in suite.items
        for text in (item.text, *item.further_texts)
    )


def has_suite(profile: Profile, slot: str, config: SuitesConfig | None = None) -> bool:
    """Whether a gate can judge a challenger of this slot: by its own suite, or one of `config`."""
    named = config is not None and slot in config.primary_suite
    return slot in profile.labels and (slot in MAKERS or named)


def primary_suite(profile: Profile, slot: str, config: SuitesConfig | None = None) -> str:
    """Name the suite that decides about a slot: routing for the router, its skill for another.

    `config` may name another.

    Raises:
        NoSuite: if there is none; such a slot serves, but the loop cannot train it yet.
    """
    if not has_suite(profile, slot, config):
        raise NoSuite(
            f"There is no suite for slot {slot!r}, only for {', '.join(MAKERS)}: nothing could "
            "say whether a new version is better. Name one of those with '--slot', or a suite for "
            "it under [suites.primary_suite]."
        )
    named = config.primary_suite.get(slot) if config else None
    return named or ("route" if slot == profile.router else SKILLS[slot])


def _size(suite: Suite, slot: str, sizes: SuitesConfig) -> int:
    if suite.slot != slot:
        return sizes.bystander
    special = {"safety": sizes.safety, "format": sizes.format, "living": sizes.living}
    return special.get(suite.kind, sizes.guard)


@lru_cache(maxsize=len(MAKERS))
def _own_guards(profile: Profile, slot: str, seed: int, pool: int) -> tuple[Suite, ...]:
    """Return what only the challenged slot is asked: safety, form, and conversations with tools."""
    guards = [read_suite(DATA / "safety.jsonl", profile, slot, _HARMFUL_TOOLS)]
    offers_tools = profile.slot(slot).offers_tools
    if slot in FORMS:
        guards.append(form_suite(profile, slot, seed, pool))
    else:
        name = "format_tools.jsonl" if offers_tools else "format_text.jsonl"
        guards.append(read_suite(DATA / name, profile, slot))
    if offers_tools:
        guards.append(living_suite(profile, slot, seed))
    return tuple(guards)
