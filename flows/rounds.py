"""Rounds of the loop that brought nothing, and when it stops itself because of them.

A round is a cycle that trained a slot; its record is under `cycles/`. It brought nothing if the
gate did not pass what it made, if that was rolled back, or if traffic shows no gain of it
(`promotion.canary.forecast`). One that passed and of which traffic has not told yet did bring
something. After `stop_after_rounds` rounds of a slot in a row that brought nothing, the loop
leaves the slot alone, and says so. It goes on when

- a named person says so: `flows slots resume SLOT --by NAME --reason TEXT`;
- there is new evidence: twice as many turns are blamed on the slot as at the newest round;
- settings of learning or gate have changed: rounds by others do not count.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from flows import stages
from flows.config import Settings
from serving.records import Record

if TYPE_CHECKING:
    from flows.cycle import CycleResult
    from promotion.standing import Withdrawn


class Round(Record):
    """One round of a slot."""

    slot: str
    ended_at: datetime
    gained: bool
    why: str
    blamed: int | None
    """Turns blamed on the slot then; None in records of earlier code."""
    learning: str | None
    """Digest of the settings that it learned by."""


def why_stopped(settings: Settings, slot: str, blamed: int) -> str | None:
    """Return why the loop leaves a slot alone, None if it does not.

    `blamed` is how many turns are blamed on it now.
    """
    most = settings.policy.stop_after_rounds
    if most == 0:
        return None
    last = counted_rounds(settings, slot)[-most:]
    if len(last) < most or any(made.gained for made in last):
        return None
    before = last[-1].blamed
    if before is not None and blamed >= 2 * max(1, before):
        return None
    needed = "" if before is None else f" with {2 * max(1, before)} turns blamed on it, or"
    return (
        f"The loop leaves {slot!r} alone: {len(last)} rounds in a row brought nothing, the last "
        f"because {last[-1].why}. It goes on{needed} by a person's word: "
        f"'flows slots resume {slot} --by NAME --reason TEXT'."
    )


def counted_rounds(settings: Settings, slot: str) -> list[Round]:
    """Return a slot's rounds since a person last said to go on, by these settings, in order."""
    with stages.open_registry(settings) as registry:
        gone, said = registry.log.withdrawn(slot), registry.log.resumed_at(slot)
    made = [
        _round(settings.home, record, path, gone)
        for path, record in _records(settings.home)
        if record.slot == slot
    ]
    return sorted(
        (
            one
            for one in made
            if one.learning in (None, settings.learning_digest)
            and (said is None or one.ended_at > said)
        ),
        key=lambda one: one.ended_at,
    )


def _records(home: Path) -> "list[tuple[Path, CycleResult]]":
    from flows.cycle import read_cycle

    paths = [p for p in (home / "cycles").glob("*.json") if not p.name.endswith(".settings.json")]
    return [(path, read_cycle(path)) for path in paths]


def _round(home: Path, record: "CycleResult", path: Path, gone: "dict[str, Withdrawn]") -> Round:
    gained, why = _outcome(home, record, gone)
    written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return Round(
        slot=str(record.slot),
        ended_at=record.ended_at or written,
        gained=gained,
        why=why,
        blamed=record.blamed,
        learning=record.learning,
    )


def _outcome(home: Path, record: "CycleResult", gone: "dict[str, Withdrawn]") -> tuple[bool, str]:
    """Return whether a round brought something, and in words what became of it."""
    from promotion.canary.forecast import kept_forecast
    from promotion.gate import CorruptReport, UnknownReport, load_report

    if record.verdict != "PASS" or record.report_key is None:
        return False, f"the gate said {record.verdict}"
    try:
        challenger = load_report(home, record.report_key).challenger_digest
    except (UnknownReport, CorruptReport):
        challenger = None
    if challenger in gone:
        return False, f"it was rolled back ({gone[challenger].reason})"
    forecast = kept_forecast(home, record.report_key)
    if forecast is not None and forecast.gained is False:
        return False, forecast.message
    return True, "the gate passed it"
