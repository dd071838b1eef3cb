"""Looking at the canaries of all slots: one that fails holds up no other, a killed run is finished.

Proved: over a real registry and lake. Traffic and artifacts are made up (see `canary_traffic`);
the base model that growing needs is missing, which is the failure.
"""

import json
from pathlib import Path

import pytest
from canary_traffic import (
    QUIET_S,
    SLOT,
    digest,
    make_home,
    name,
    report_of,
    settle,
    start_canary,
    traffic,
    whole,
)
from registry_records import attempted
from typer.testing import CliRunner

from flows import canaries, stages
from flows.cli import app
from flows.config import Settings
from promotion.gate import save_report
from promotion.promote import promote, read_slots, rollback

STEPS = {"min_pairs": 20, "quiet_s": QUIET_S, "steps": [20, 50], "auto_advance": True}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """L2 has a canary at 20 % that does well."""
    home = make_home(tmp_path / "home")
    start_canary(home, percent=20)
    settle(home, traffic("one", 250, {"champion": 0.3, "canary": 0.2}, 20), "one")
    return Settings(home=home, base=tmp_path / "no-base", canary=STEPS)


def test_one_slot_that_fails_holds_up_no_other(settings: Settings) -> None:
    reports = {report.slot: report for report in canaries.canary_stage(settings)}
    assert reports[SLOT].status == "failed"
    assert "no-base" in reports[SLOT].message
    others = {report.status for slot, report in reports.items() if slot != SLOT}
    assert others == {"none"}
    assert list(reports)[-1] != SLOT, "those after it were looked at too"
    with stages.open_registry(settings) as registry:
        assert registry.slot(SLOT).canary_percent == 20


def test_what_a_killed_run_ended_is_not_served_on(settings: Settings) -> None:
    with stages.open_registry(settings) as registry:
        registry.end_canary(SLOT, note={"rolled_back": digest(2), "reason": "it did harm"})
    served = {entry.slot: entry.canary for entry in read_slots(settings.home).slots}
    assert served[SLOT] == name(2), "as if it had been killed before the file"
    assert not canaries.anything_to_watch(settings)
    assert {entry.canary for entry in read_slots(settings.home).slots} == {None}


def test_the_versions_say_which_were_rolled_back_when_and_why(settings: Settings) -> None:
    where = ("--home", str(settings.home))

    def said(*words: str) -> str:
        done = CliRunner().invoke(app, ["adapters", *words, *where])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.stdout

    def gone() -> dict[str, str | None]:
        return {row["adapter"]: row["rolled_back"] for row in json.loads(said("list", "--json"))}

    assert gone() == {name(1): None, name(2): None, name(3): None}
    with stages.open_registry(settings) as registry:
        note = {"by": "canary", "rolled_back": digest(2), "reason": "it did harm."}
        registry.end_canary(SLOT, note=note)
        moment = f"{registry.events(SLOT)[-1].at:%Y-%m-%d %H:%M}"
    assert gone() == {name(1): None, name(2): moment, name(3): None}
    page = said("show", name(2))
    assert f"{name(2)}, never served, rolled back\n" in page
    assert f"rolled back {moment} by canary, for harm: it did harm.\n" in page
    shown = json.loads(said("show", name(2), "--json"))["rolled_back"]
    assert (shown["harm"], shown["by"], shown["reason"]) == (True, "canary", "it did harm.")
    assert "rolled back" not in said("show", name(1))

    promote(settings.home, attempted(settings.home, report_of(1, 3)), verify=whole)
    rollback(settings.home, SLOT)
    page = said("show", name(3))
    assert f"{name(3)}, previous, rolled back\n" in page
    assert "went back to the version before\n" in page
    assert "for harm" not in page


def test_failures_of_what_was_rolled_back_are_no_reason_to_train(tmp_path: Path) -> None:
    settings = Settings(home=make_home(tmp_path / "home"))
    settle(settings.home, traffic("old", 40, {"champion": 0.2}, 0), "old")
    before = stages.attribute_stage(settings)
    report = report_of(1, 2)
    save_report(settings.home, attempted(settings.home, report))
    promote(settings.home, report, verify=whole)
    settle(settings.home, traffic("new", 40, {"champion": 0.9}, 0, champion=2), "new")
    now = stages.attribute_stage(settings)
    few, many = before.by_slot[SLOT]["blamed"], now.by_slot[SLOT]["blamed"]
    assert 0 < few < many - 20
    assert stages.blamed_turns(settings, now)[SLOT] == many
    rollback(settings.home, SLOT)
    assert stages.blamed_turns(settings, now)[SLOT] == few
