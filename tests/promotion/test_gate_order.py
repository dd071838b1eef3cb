"""What the gate, the guards and persons said counts in the order in which they said it.

Proved: whatever the clocks of their machines, no attempt and no override from before a rollback
brings a version back, and one made since does; and the gate's last word on two versions holds, not
an earlier one that passed. The registry is real; clocks are what is written in its rows.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from registry_records import SLOTS, attempted, digest_of, gated, report_between, version_of

from promotion.gate import GateReport
from promotion.overrides import grant_override
from promotion.registry import Registry
from promotion.slot_rows import ReportOutdated, VersionWithdrawn
from promotion.state import Override
from promotion.tables import gate_attempts_table, overrides_table, utc_text

HARM = {"reason": "it did harm", "by": "canary", "rolled_back": digest_of(2)}
AHEAD = datetime.now(UTC) + timedelta(minutes=10)
BEHIND = datetime.now(UTC) - timedelta(minutes=10)


@pytest.fixture
def registry(tmp_path: Path):
    """L2 serves version 1; version 2 was a canary that did harm."""
    with Registry.open(tmp_path, SLOTS) as registry:
        for number in (1, 2):
            registry.register(version_of(number))
        registry.bootstrap("L2", digest_of(1))
        yield registry


def clock_said(registry: Registry, table: sa.Table, moment: datetime) -> None:
    """Let the rows there are be those of a machine whose clock said so."""
    with registry._database.writing() as connection:
        connection.execute(table.update().values(at=utc_text(moment)))


def rolled_back(registry: Registry, report: GateReport, override: Override | None = None) -> None:
    registry.begin_canary("L2", digest_of(2), 5, report, override=override)
    registry.end_canary("L2", note=HARM)


def word(tmp_path: Path, report: GateReport) -> Override:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    return grant_override(tmp_path, report, by="ann", reason="it is safe", expires_at=tomorrow)


def test_an_attempt_from_before_a_rollback_is_from_before_it_by_any_clock(
    registry: Registry,
) -> None:
    report = gated(registry, 1, 2)
    clock_said(registry, gate_attempts_table, AHEAD)
    rolled_back(registry, report)
    with pytest.raises(VersionWithdrawn, match="is older"):
        registry.check(report)


def test_an_attempt_made_since_a_rollback_counts_by_any_clock(registry: Registry) -> None:
    rolled_back(registry, gated(registry, 1, 2))
    again = gated(registry, 1, 2, gains=21)
    clock_said(registry, gate_attempts_table, BEHIND)
    registry.check(again)


def test_an_override_from_before_a_rollback_is_from_before_it_by_any_clock(
    registry: Registry, tmp_path: Path
) -> None:
    report = gated(registry, 1, 2, gains=3)
    word(tmp_path, report)
    clock_said(registry, overrides_table, AHEAD)
    rolled_back(registry, report, registry.log.override(report))
    with pytest.raises(VersionWithdrawn, match="is older"):
        registry.check(report, registry.log.override(report))


def test_an_override_given_since_a_rollback_counts_by_any_clock(
    registry: Registry, tmp_path: Path
) -> None:
    report = gated(registry, 1, 2, gains=3)
    old = word(tmp_path, report)
    rolled_back(registry, report, registry.log.override(report))
    new = word(tmp_path, report)
    clock_said(registry, overrides_table, BEHIND)
    given = registry.log.override(report)
    assert given is not None
    assert (given.id, given.id != old.id) == (new.id, True)
    registry.check(report, given)


@pytest.mark.parametrize(("losses", "verdict"), [(20, "FAIL"), (2, "INCONCLUSIVE")])
def test_a_report_is_refused_once_a_later_attempt_did_not_pass(
    registry: Registry, tmp_path: Path, losses: int, verdict: str
) -> None:
    passed = gated(registry, 1, 2)
    registry.check(passed)
    between = digest_of(1), digest_of(2)
    later = attempted(registry, report_between(*between, gains=2, losses=losses, seed=1))
    clock_said(registry, gate_attempts_table, BEHIND)
    assert (passed.verdict, later.verdict) == ("PASS", verdict)
    words = rf"a later one \('{later.key[:12]}'\) says '{later.verdict}'.*still serves.*--seed N"
    for refused in (
        lambda: registry.check(passed),
        lambda: registry.begin_canary("L2", digest_of(2), 5, passed),
        lambda: registry.promote("L2", digest_of(2), 1, passed),
    ):
        with pytest.raises(ReportOutdated, match=words):
            refused()
    assert len(registry.events("L2")) == 1

    # A person may answer for the later one, and another attempt may pass.
    word(tmp_path, later)
    registry.check(later, registry.log.override(later))
    registry.check(gated(registry, 1, 2, seed=2))


def test_attempts_about_others_or_without_an_answer_say_nothing_against_a_report(
    registry: Registry,
) -> None:
    registry.register(version_of(3))
    passed = gated(registry, 1, 2)
    for champion, challenger in ((1, 3), (None, 2)):
        assert gated(registry, champion, challenger, gains=3).verdict == "INCONCLUSIVE"
    killed = gated(registry, 1, 2, gains=3)
    with registry._database.writing() as connection:
        unsaid = gate_attempts_table.update().where(gate_attempts_table.c.report_key == killed.key)
        connection.execute(unsaid.values(report_key=None, verdict=None))
    registry.check(passed)
    assert registry.log.report_keys("L2", digest_of(2))[0] == passed.key
    assert killed.key not in registry.log.report_keys()
