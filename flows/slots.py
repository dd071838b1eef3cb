"""The slots by hand: what there is, another one, another description, a canary.

Each change goes through the registry, and then to the `slots.json` that serving reads.
"""

from typing import TYPE_CHECKING, Any

from flows import canaries, stages
from flows.config import Settings

if TYPE_CHECKING:
    from promotion.gate import GateReport
    from promotion.promote import PromotionResult


def export(settings: Settings) -> None:
    """Write `slots.json` as the registry says."""
    from promotion.promote import export_slots

    with stages.open_registry(settings) as registry:
        export_slots(settings.home, registry)


def rows(settings: Settings) -> list[dict[str, Any]]:
    """Return one row a slot, as the registry says."""
    from promotion.promote import slot_table

    with stages.open_registry(settings) as registry:
        table = slot_table(registry)
    return [
        {
            "slot": entry.slot,
            "role": entry.role,
            "tier": entry.tier,
            "serves": entry.champion or "base",
            "canary": entry.canary,
            "percent": entry.canary_percent,
            "generation": entry.generation,
            "rule": entry.routing_rule,
            "description": entry.description,
        }
        for entry in table.slots
    ]


def add(settings: Settings, slot: str, traits: dict[str, Any]) -> list[dict[str, Any]]:
    """Add a slot that serves the base until a version of it is promoted; return its row.

    Raises:
        SlotInvalid: if there is one of that name, or the name is none.
        RuleInvalid: if the routing rule is none.
    """
    from serving.routing import parse_rule
    from serving.slot_table import SlotTraits

    parse_rule(traits.get("routing_rule", ""))
    with stages.open_registry(settings) as registry:
        registry.add(slot, SlotTraits.model_validate(traits))
    return _row(settings, slot)


def configure(settings: Settings, slot: str, changes: dict[str, Any]) -> list[dict[str, Any]]:
    """Change what a slot is for; return its row.

    Raises:
        UnknownSlot: naming the slots there are.
        RuleInvalid: if the routing rule is none.
    """
    from serving.routing import parse_rule

    parse_rule(changes.get("routing_rule", ""))
    with stages.open_registry(settings) as registry:
        registry.configure(slot, changes)
    return _row(settings, slot)


def begin_canary(
    settings: Settings,
    slot: str,
    adapter: str,
    percent: float,
    override: tuple[str, str, str] | None = None,
) -> "PromotionResult":
    """Give a version that passed the gate against the present champion a part of the traffic.

    `override` is a person's word where it did not pass, or was rolled back since: who, why and
    until when.

    Raises:
        OverrideRefused: if it needs none, or person, reason or date are not what they must be.
        PromotionRefused: if no gate report allows it.
        NothingMade: if the gate has not judged it.
        UnknownSlot, UnknownAdapter: if the registry does not know one of them.
    """
    report = _report(settings, slot, adapter)
    if override is not None:
        stages.override_stage(settings, report, *override)
    return canaries.begin(settings, report, percent)


def end_canary(settings: Settings, slot: str) -> "PromotionResult":
    """Give all of a slot's traffic back to its champion.

    Raises:
        UnknownSlot: naming the slots there are.
    """
    from promotion.promote import end_canary

    with stages.open_registry(settings) as registry:
        registry.slot(slot)
    return end_canary(settings.home, slot, registry_url=settings.registry.url)


def _report(settings: Settings, slot: str, adapter: str) -> "GateReport":
    """Return the report that allows a canary, or the newest one about the version."""
    from flows.reports import reports_about
    from promotion.slot_rows import PromotionRefused

    with stages.open_registry(settings) as registry:
        registry.slot(slot)
        version = registry.version(adapter)
        if version.slot != slot:
            raise PromotionRefused(
                f"Adapter {version.name!r} belongs to slot {version.slot!r}, not {slot!r}. "
                f"Run 'flows adapters list --slot {slot}'."
            )
        reports = reports_about(settings, registry, slot, version.digest)
        for report in reversed(reports):
            try:
                registry.check(report, registry.log.override(report))
            except PromotionRefused:
                continue
            return report
    return reports[-1]


def _row(settings: Settings, slot: str) -> list[dict[str, Any]]:
    export(settings)
    return [row for row in rows(settings) if row["slot"] == slot]
