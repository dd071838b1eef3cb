"""Score one version on one set of one suite: what a trainer may look at, and audits."""

import asyncio
from collections.abc import Sequence

from flows import stages
from flows.config import Settings
from promotion.evaluate import SuiteRun, run_suites
from promotion.proof import prove_served
from promotion.suites.build import build_suites, has_suite
from promotion.suites.external.catalogue import SLOTS, checker_of, is_task, outside_suite
from promotion.suites.score import SuiteScore, score_of
from promotion.suites.sets import Part, divide, take
from promotion.suites.suite import Suite
from serving.errors import MolError
from serving.records import Record
from serving.slots import Profile


class SuiteNotFound(MolError, LookupError):
    """No suite of a slot has this name."""


class Scored(Record):
    """A score and what it is of."""

    suite: str
    slot: str
    set: str
    version: str
    """Name served: the slot's champion, or `base`."""
    checker: str
    """What graded the answers, with its version."""
    score: SuiteScore


def find_suite(
    settings: Settings, profile: Profile, name: str, slot: str | None
) -> tuple[Suite, str]:
    """Return a whole suite and what grades it; of an outside one `slot` may be any slot.

    Raises:
        SuiteNotFound: if there is none.
        MolError: if an outside suite lacks what it needs.
    """
    own_slot = settings.suites.external.get(name) or SLOTS.get(name)
    if own_slot is not None or is_task(name):
        wanted = slot or own_slot
        if wanted is None:
            raise SuiteNotFound(f"Which slot is {name!r} to judge? Name it with '--slot'.")
        suite = outside_suite(profile, name, profile.slot(wanted).name, settings.suites)
        return suite, checker_of(name, settings.suites)
    known = {
        (suite.name, suite.slot): suite
        for owner in ([profile.slot(slot).name] if slot else profile.labels)
        if has_suite(profile, owner, settings.suites)
        for suite in build_suites(profile, owner, settings.seed, settings.suites)
        if suite.slot == owner
    }
    found = [suite for (its_name, _), suite in known.items() if its_name == name]
    if len(found) != 1:
        names = sorted({its_name for its_name, _ in known} | set(SLOTS))
        raise SuiteNotFound(
            f"{'More than one' if found else 'No'} suite {name!r}{f' of {slot}' if slot else ''}; "
            f"there are {', '.join(names)}, and tasks of inspect-ai as 'file.py@task'. "
            "Name one, and its slot with '--slot'."
        )
    return found[0], f"mol-loop {stages.code_version()}"


def score_suite(
    settings: Settings,
    name: str,
    slot: str | None,
    part: Part,
    limit: int | None = None,
    progress: stages.Progress | None = None,
) -> Scored:
    """Score the slot's champion, or the base where it has none, on one set of a suite.

    `limit` takes so many items of it, one of each cluster in turn.

    Raises:
        NotProved: if the engine does not answer as what was trained; nothing is scored.
    """
    from training.artifact import base_digest

    profile = stages.profile_in_force(settings)
    suite, checker = find_suite(settings, profile, name, slot)
    suite = divide(suite).part(part)
    suite = take(suite, limit or len(suite.items))
    base = base_digest(settings.base)
    with stages.open_registry(settings) as registry:
        champion = registry.slot(suite.slot).champion
    version, runs = asyncio.run(
        ask_champion(settings, [suite], suite.slot, champion, base, progress)
    )
    score = score_of(runs[suite.name].scores, [item.cluster for item in suite.items])
    return Scored(
        suite=suite.name, slot=suite.slot, set=part, version=version, checker=checker, score=score
    )


async def ask_champion(
    settings: Settings,
    suites: Sequence[Suite],
    slot: str,
    champion: str | None,
    base: str,
    progress: stages.Progress | None,
) -> tuple[str, dict[str, SuiteRun]]:
    """Ask suites of a slot's champion, once it is proved; return its served name and the runs.

    Those of a server are not kept: by the next time another may answer under its address.

    Raises:
        NotProved: if the engine does not answer as what was trained; nothing is scored.
    """
    from training.proofs import ensure_proofs

    ensure_proofs(settings.home, settings.base, [champion] if champion is not None else [])
    engine, engine_id = stages.open_engine(settings, base)
    try:
        name = await stages.load_version(settings, engine, slot, champion)
        await prove_served(settings.home, engine, {name: champion})
        kept_as = engine_id if settings.engine == stages.EMBEDDED else None
        return name, await run_suites(
            settings.home, engine, suites, {slot: name}, kept_as, progress
        )
    finally:
        await engine.close()
