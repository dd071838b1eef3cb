"""The gate's reports in this home that count: those that an attempt in the registry ended in.

Any other file in `gates/` was altered or written by hand, is another registry's, or was left by a
gate that was killed before it could say so. None of those is the gate's word.
"""

from typing import TYPE_CHECKING

from flows import stages
from flows.config import Settings
from serving.records import short_digest

if TYPE_CHECKING:
    from promotion.gate import GateReport
    from promotion.judgements import Judgement
    from promotion.registry import Registry


def founded_reports(
    settings: Settings, slot: str | None = None, challenger: str | None = None
) -> "tuple[GateReport, ...]":
    """Return the reports that attempts ended in, in their order: all, a slot's or a version's.

    Raises:
        CorruptReport: if one of them is damaged; what other files are does not matter.
    """
    from promotion.gate import read_reports

    with stages.open_registry(settings) as registry:
        keys = registry.log.report_keys(slot, challenger)
    return read_reports(settings.home, keys)


def founded_judgements(
    settings: Settings, registry: "Registry", slot: str | None = None
) -> "tuple[Judgement, ...]":
    """Return what reports said that knew no attempts, and what founded ones say, oldest first.

    The former promote nothing any more; they are history.

    Raises:
        CorruptReport: if a report is damaged.
    """
    from promotion.judgements import list_judgements

    order = {key: n for n, key in enumerate(registry.log.report_keys(slot))}
    made = list_judgements(settings.home, slot)
    counted = (said for said in made if said.key in order or not said.knows_attempts)
    return tuple(sorted(counted, key=lambda said: order.get(said.key, -1)))


def reports_about(
    settings: Settings, registry: "Registry", slot: str, challenger: str
) -> "tuple[GateReport, ...]":
    """Return a version's reports, oldest first; those without an attempt only if it has no other.

    Such a one is refused, and the refusal says why.

    Raises:
        NothingMade: if there is none at all.
    """
    from promotion.gate import list_reports, read_reports

    founded = read_reports(settings.home, registry.log.report_keys(slot, challenger))
    if founded:
        return founded
    made = list_reports(settings.home, slot)
    others = tuple(report for report in made if report.challenger_digest == challenger)
    if not others:
        raise stages.NothingMade(
            f"The gate has not judged '{slot}@{short_digest(challenger)}'. "
            f"Run 'flows run gate --slot {slot}'."
        )
    return others


def latest_report(settings: Settings, slot: str) -> "GateReport":
    """Return the gate's newest report about the slot's newest training run.

    Raises:
        NothingMade: if nothing was trained, or the gate has not judged it.
    """
    digest = stages.latest_run(settings, slot).digest
    with stages.open_registry(settings) as registry:
        return reports_about(settings, registry, slot, digest)[-1]
