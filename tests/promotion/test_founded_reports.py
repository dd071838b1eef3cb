"""A report promotes only if an attempt in the registry ended in exactly it.

Registry, reports on disk and signatures are real; an adapter is a folder with one file. Scores
are made up.
"""

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from canary_traffic import SLOT, digest, make_home, report_of, whole
from registry_records import attempted

from promotion.gate import CorruptReport, GateReport, load_report, save_report
from promotion.overrides import grant_override
from promotion.promote import begin_canary, promote
from promotion.registry import Registry
from promotion.slot_rows import PromotionRefused, ReportUnfounded
from promotion.spending import reserve
from promotion.tables import Database, gate_attempts_table

TOMORROW = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_home(tmp_path / "home")


def kept(home: Path, gains: int = 40) -> GateReport:
    """A report on disk that an attempt ended in."""
    report = attempted(home, report_of(1, 2, gains=gains))
    save_report(home, report)
    return load_report(home, report.key)


def everything(home: Path) -> tuple[object, ...]:
    with Registry.open(home) as registry:
        registry.verify_chain()
        return registry.slots(), registry.events()


def assert_refused(home: Path, report: GateReport) -> None:
    """Neither a promotion nor a canary, in one line, and nothing is changed."""
    before = everything(home)
    for act in (
        lambda: promote(home, report, verify=whole),
        lambda: begin_canary(home, report, 5, verify=whole),
    ):
        with pytest.raises(ReportUnfounded, match=rf"{report.key[:12]}.*flows run gate") as refusal:
            act()
        assert "\n" not in str(refusal.value)
    assert everything(home) == before


def test_what_an_attempt_ended_in_promotes(home: Path) -> None:
    assert promote(home, kept(home), verify=whole).changed


def test_a_report_edited_by_hand_is_refused_under_either_name(home: Path) -> None:
    report = kept(home, gains=3)
    with pytest.raises(PromotionRefused, match="says 'INCONCLUSIVE'"):
        promote(home, report, verify=whole)
    file = home / "gates" / f"{report.key}.json"
    said = json.loads(file.read_text())
    file.write_text(json.dumps(said | {"verdict": "PASS"}))
    with pytest.raises(CorruptReport):
        load_report(home, report.key)
    # And if whoever did it gives the file the name that now belongs to it:
    forged = report.model_copy(update={"verdict": "PASS"})
    file.rename(home / "gates" / f"{forged.key}.json")
    assert load_report(home, forged.key) == forged
    assert_refused(home, forged)


def test_a_report_that_nobody_attempted_is_refused(home: Path) -> None:
    assert_refused(home, report_of(1, 2))


def test_an_attempt_that_has_not_ended_vouches_for_nothing(home: Path) -> None:
    report = report_of(1, 2)
    database = Database(home)
    reserve(
        database, f"{SLOT}/code", report.key, slot=SLOT, champion=digest(1), challenger=digest(2),
        alpha=0.05, units=99,
    )  # fmt: skip
    database.close()
    assert_refused(home, report)


def test_a_report_of_another_registry_is_refused(home: Path, tmp_path: Path) -> None:
    other = make_home(tmp_path / "other")
    report = kept(other)
    shutil.copytree(other / "gates", home / "gates")
    assert_refused(home, load_report(home, report.key))


def test_a_person_overrides_no_such_report_either(home: Path) -> None:
    forged = kept(home, gains=3).model_copy(update={"reasons": ("all is well",)})
    before = everything(home)
    with pytest.raises(ReportUnfounded):
        grant_override(home, forged, by="ann", reason="a drill", expires_at=TOMORROW)
    assert everything(home) == before
    with Registry.open(home) as registry:
        assert registry.log.override(forged) is None


def test_a_registry_from_before_there_were_attempts_opens_and_says_so(home: Path) -> None:
    report = kept(home)
    database = Database(home)
    with database.writing() as connection:
        connection.execute(sa.schema.DropTable(gate_attempts_table))
    database.close()
    assert_refused(home, report)
    assert promote(home, attempted(home, report), verify=whole).changed


def test_for_a_router_head_it_names_the_command_that_judges_heads(home: Path) -> None:
    report = report_of(1, 2)
    with Registry.open(home) as registry:
        registry.configure(SLOT, {"role": "head"})
    with pytest.raises(ReportUnfounded, match=r"killed.*Run 'flows router train'; 'gates/\w{64}"):
        promote(home, report, verify=whole)
    with pytest.raises(PromotionRefused, match=r"about champion.*Run 'flows router train' again"):
        promote(home, attempted(home, report_of(3, 2)), verify=whole)
