"""Suites for people: which there are, what may be seen of one, and audits of champions.

Of a sealed set and of an audit set nobody sees more than counts and digests here; requests are
shown of the search set alone.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from flows import stages
from flows.config import Settings
from flows.reports import founded_reports
from flows.scoring import SuiteNotFound, ask_champion
from flows.sealed import SealedSet, present_set
from promotion.paired import effective_clusters
from promotion.slices import SuiteResult, least_margin
from promotion.spending import alpha_of
from promotion.suites.build import build_suites, draw, has_suite
from promotion.suites.score import SuiteScore, score_of
from promotion.suites.sets import Part, divide
from promotion.suites.suite import Item, Suite
from serving.records import Record, short_digest
from serving.slots import Profile

PARTS: tuple[Part, ...] = ("search", "sealed", "audit")


class AuditedSuite(Record):
    """A champion on the audit set of one suite."""

    suite: str
    kind: str
    score: SuiteScore
    gate: float | None
    """Its mean score on the sealed set when the gate passed it; None if the gate did not."""


class Audit(Record):
    """How a slot's champion does on what gates nothing."""

    slot: str
    version: str
    """Name served: the slot's champion, or `base`."""
    suites: tuple[AuditedSuite, ...]


def own_suites(settings: Settings, profile: Profile, slot: str) -> list[Suite]:
    """Return the suites that a challenger of `slot` answers itself, whole, the primary one first.

    None for a slot that no gate can judge.
    """
    if not has_suite(profile, slot, settings.suites):
        return []
    built = build_suites(profile, slot, settings.seed, settings.suites)
    return [suite for suite in built if suite.slot == slot]


def suite_rows(settings: Settings, slot: str | None) -> list[dict[str, Any]]:
    """Return a row for each suite: what it is for, how many items each set has, and its margin.

    `attempts` are those that the slot's gate made so far. `least_margin` is the smallest that the
    clusters which the gate asks can exclude in its next attempt where hardly an item differs; with
    a `margin` below that a guard seldom passes.
    """
    profile = stages.profile_in_force(settings)
    rows = []
    for owner in [profile.slot(slot).name] if slot else profile.labels:
        suites = own_suites(settings, profile, owner)
        if not suites:
            continue
        present = _present_set(settings, suites)
        made, asked = present.attempts, {suite.name: suite for suite in present.suites}
        for number, suite in enumerate(suites):
            sets = divide(suite)
            row: dict[str, Any] = {
                "suite": suite.name,
                "slot": owner,
                "kind": suite.kind,
                "primary": number == 0,
                "items": len(suite.items),
                "clusters": _clusters(suite),
            }
            rows.append(row | {part: len(sets.part(part).items) for part in PARTS})
            rows[-1] |= {"attempts": made, "margin": None, "least_margin": None}
            margin = settings.gate.margin(suite.name, suite.kind)
            if number and suite.name in asked:
                rows[-1]["margin"] = margin
            if number and suite.name in asked and margin:
                alpha = alpha_of(made + 1, settings.gate.alpha)
                clusters = effective_clusters([item.cluster for item in asked[suite.name].items])
                rows[-1]["least_margin"] = round(least_margin(clusters, alpha), 3)
    return rows


def suite_page(settings: Settings, name: str, part: Part) -> dict[str, Any]:
    """Return what may be seen of a suite: its sets by count and digest, and one set's items.

    Raises:
        SuiteNotFound: if there is none of this name.
    """
    suite = _named(settings, name)
    sets = divide(suite)
    return {
        "suite": name,
        "slot": suite.slot,
        "kind": suite.kind,
        "digest": short_digest(suite.digest),
        "sets": [
            {
                "set": known,
                "items": len(sets.part(known).items),
                "clusters": _clusters(sets.part(known)),
                "digest": short_digest(sets.part(known).digest),
            }
            for known in PARTS
        ],
        "set": part,
        "items": [_shown(item, part) for item in sets.part(part).items],
    }


def audit_stage(settings: Settings, slot: str, progress: stages.Progress | None = None) -> Audit:
    """Score the slot's champion on the audit sets of its suites, as many items as the gate asks.

    Raises:
        SuiteNotFound: if no suite judges the slot.
        NotProved: if the engine does not answer as what was trained; nothing is scored.
    """
    from training.artifact import base_digest

    profile = stages.profile_in_force(settings)
    suites = own_suites(settings, profile, profile.slot(slot).name)
    if not suites:
        raise SuiteNotFound(
            f"No suite judges slot {slot!r}. Name one for it under [suites.primary_suite]."
        )
    asked = draw(suites, slot, settings.suites, "audit")
    with stages.open_registry(settings) as registry:
        champion = registry.slot(slot).champion
    base = base_digest(settings.base)
    version, runs = asyncio.run(ask_champion(settings, asked, slot, champion, base, progress))
    gated = _gated(settings, slot, champion)
    return Audit(
        slot=slot,
        version=version,
        suites=tuple(
            AuditedSuite(
                suite=suite.name,
                kind=suite.kind,
                score=score_of(runs[suite.name].scores, [item.cluster for item in suite.items]),
                gate=gated.get(suite.name),
            )
            for suite in asked
        ),
    )


def _gated(settings: Settings, slot: str, champion: str | None) -> Mapping[str, float]:
    """Return the champion's mean scores in the newest report that passed it, by suite."""
    made = founded_reports(settings, slot, champion) if champion else ()
    passed = [report for report in made if report.verdict == "PASS"]
    results: tuple[SuiteResult, ...] = ()
    if passed:
        results = (passed[-1].primary, *passed[-1].guards)
    return {r.suite: r.comparison.mean_challenger for r in results if r.comparison is not None}


def _present_set(settings: Settings, suites: list[Suite]) -> SealedSet:
    """Return the set that the slot's next attempt is on; `suites` are the slot's whole ones."""
    from promotion.tables import Database

    url, file = settings.registry.url, settings.home / "registry.sqlite"
    if url is None and not file.is_file():
        return present_set(settings, suites, None)  # looking makes no registry
    database = Database(url or settings.home)
    try:
        return present_set(settings, suites, database)
    finally:
        database.close()


def _named(settings: Settings, name: str) -> Suite:
    profile = stages.profile_in_force(settings)
    names: list[str] = []
    for slot in profile.labels:
        for suite in own_suites(settings, profile, slot):
            if suite.name == name:
                return suite
            names.append(suite.name)
    raise SuiteNotFound(
        f"No suite {name!r}; there are {', '.join(names)}. Run 'flows suites list'."
    )


def _clusters(suite: Suite) -> int:
    return len({item.cluster for item in suite.items})


def _shown(item: Item, part: Part) -> dict[str, Any]:
    shown: dict[str, Any] = {"item": short_digest(item.item_id)}
    if part == "search":
        shown |= {"cluster": item.cluster, "text": item.text}
        if item.further_texts:
            shown["further"] = list(item.further_texts)
    return shown
