"""A person overrides the gate: by name, with a reason, for a time, in the log, and nothing else.

Registry, signatures and `slots.json` are real; an adapter is a folder with one file. An override
that ran out is made by one that lasts a moment.
"""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from registry_records import SLOTS, attempted, digest_of, report_of, version_of

from promotion.gate import GateReport
from promotion.overrides import OverrideRefused, grant_override, parse_expiry
from promotion.promote import promote, rollback
from promotion.registry import Registry
from promotion.signing import SignatureRefused, register_signed
from promotion.slot_rows import PromotionRefused, VersionWithdrawn
from promotion.state import Override
from serving.slot_table import SlotTraits

TOMORROW = datetime.now(UTC) + timedelta(days=1)
FAILED = report_of(1, 2, gains=3)
"""Three gains against two losses: nothing is shown."""
PASSED = report_of(1, 2)
HARM = {"by": "canary", "rolled_back": digest_of(2), "reason": "it did harm."}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with Registry.open(tmp_path, SLOTS) as registry:
        for number in (1, 2):
            version = version_of(number)
            (tmp_path / version.path).mkdir(parents=True)
            (tmp_path / version.path / "adapter_model.safetensors").write_bytes(b"weights")
            register_signed(registry, tmp_path, version)
        registry.bootstrap("L2", digest_of(1))
        attempted(registry, FAILED)
    return tmp_path


def grant(home: Path, report: GateReport = FAILED, **changes: Any):
    fields = {"by": "A. Person", "reason": "the incident of Tuesday", "expires_at": TOMORROW}
    return grant_override(home, report, **(fields | changes))


def promoted(home: Path, report: GateReport = FAILED) -> str | None:
    promote(home, report, verify=lambda path: None)
    return champion(home)


def found(home: Path, report: GateReport = FAILED) -> Override | None:
    with Registry.open(home) as registry:
        return registry.log.override(report)


def champion(home: Path) -> str | None:
    with Registry.open(home) as registry:
        return registry.slot("L2").champion


def test_without_an_override_the_champion_stays_exactly(home: Path) -> None:
    with Registry.open(home) as registry:
        before = registry.slots(), registry.events()
    with pytest.raises(PromotionRefused, match="only 'PASS' promotes"):
        promoted(home)
    with Registry.open(home) as registry:
        assert (registry.slots(), registry.events()) == before


def test_an_override_promotes_and_the_chain_tells_who_why_and_until_when(home: Path) -> None:
    override = grant(home)
    assert promoted(home) == digest_of(2)
    with Registry.open(home) as registry:
        said, moved = registry.events("L2")[-2:]
        assert registry.verify_chain() == 3
    assert (said.kind, moved.kind) == ("override", "promote")
    assert said.note == {
        "override": override.id,
        "by": "A. Person",
        "reason": "the incident of Tuesday",
        "expires_at": TOMORROW.isoformat(timespec="microseconds"),
        "report": FAILED.key,
        "verdict": "INCONCLUSIVE",
        "challenger": digest_of(2),
    }
    assert moved.note == {"override": override.id, "by": "A. Person"}
    assert found(home) == override


def test_an_override_is_of_one_report_alone(home: Path) -> None:
    grant(home)
    with pytest.raises(PromotionRefused, match="only 'PASS' promotes"):
        promoted(home, report_of(1, 2, gains=4))
    assert champion(home) == digest_of(1)


def test_an_expired_override_is_refused(home: Path) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=0.5)
    grant(home, expires_at=soon)
    while datetime.now(UTC) <= soon:
        time.sleep(0.05)
    with pytest.raises(PromotionRefused, match="expired at"):
        promoted(home)
    assert champion(home) == digest_of(1)
    grant(home)
    assert promoted(home) == digest_of(2)


def test_an_override_never_stands_in_for_a_signature(home: Path) -> None:
    (home / version_of(2).path / "adapter_model.safetensors").write_bytes(b"other")
    grant(home)
    with pytest.raises(SignatureRefused):
        promoted(home)
    assert champion(home) == digest_of(1)


def test_an_override_never_stands_in_for_the_proof_of_what_serves(home: Path) -> None:
    class ProofFailed(Exception):
        pass

    def verify(path: Path) -> None:
        raise ProofFailed

    grant(home)
    with pytest.raises(ProofFailed):
        promote(home, FAILED, verify=verify)
    assert champion(home) == digest_of(1)


@pytest.mark.parametrize(
    ("report", "changes", "text"),
    [
        (report_of(1, 2), {}, "says PASS"),
        (FAILED, {"by": " "}, "a person and a reason"),
        (FAILED, {"reason": ""}, "a person and a reason"),
        (FAILED, {"expires_at": datetime(2026, 1, 1, tzinfo=UTC)}, "2026-01-01 00:00 UTC is over"),
    ],
)
def test_what_cannot_be_overridden_leaves_no_trace(
    home: Path, report: GateReport, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(OverrideRefused, match=text):
        grant(home, report, **changes)
    assert found(home, report) is None
    with Registry.open(home) as registry:
        assert len(registry.events()) == 1


def end_for_harm(home: Path) -> None:
    """The canary of the version that passed begins, and its guards end it."""
    with Registry.open(home) as registry:
        word = registry.log.override(PASSED)
        registry.begin_canary("L2", digest_of(2), 5, PASSED, override=word)
        registry.end_canary("L2", note=HARM)


def test_a_person_brings_back_a_version_that_passed_and_was_rolled_back(home: Path) -> None:
    attempted(home, PASSED)
    end_for_harm(home)
    with pytest.raises(VersionWithdrawn, match=r"is older.*--seed N.*--override-by NAME --reason"):
        promoted(home, PASSED)
    override = grant(home, PASSED)
    assert found(home, PASSED) == override
    assert promoted(home, PASSED) == digest_of(2)
    with Registry.open(home) as registry:
        assert registry.events("L2")[-1].note == {"override": override.id, "by": "A. Person"}
        registry.verify_chain()


def test_a_word_from_before_harm_that_came_again_brings_nothing_back(home: Path) -> None:
    attempted(home, PASSED)
    end_for_harm(home)
    grant(home, PASSED)
    end_for_harm(home)
    with pytest.raises(VersionWithdrawn, match="a person's new word"):
        promoted(home, PASSED)
    grant(home, PASSED)
    assert promoted(home, PASSED) == digest_of(2)


@pytest.mark.parametrize("later", [timedelta(), timedelta(days=-1), timedelta(days=1)])
def test_of_two_words_that_last_the_newer_counts_however_long_either_does(
    home: Path, later: timedelta
) -> None:
    expiry = TOMORROW + timedelta(days=2)
    grant(home, expires_at=expiry)
    newer = grant(home, expires_at=expiry + later)
    assert found(home) == newer


def test_a_short_newer_word_that_ran_out_leaves_the_older_one_in_force(home: Path) -> None:
    older = grant(home)
    soon = datetime.now(UTC) + timedelta(seconds=2)
    assert grant(home, expires_at=soon) == found(home)
    while datetime.now(UTC) <= soon:
        time.sleep(0.05)
    assert found(home) == older


def test_a_word_that_ran_out_does_not_hinder_a_newer_report_that_passed(home: Path) -> None:
    attempted(home, PASSED)
    end_for_harm(home)
    soon = datetime.now(UTC) + timedelta(seconds=0.5)
    grant(home, PASSED, expires_at=soon)
    while datetime.now(UTC) <= soon:
        time.sleep(0.05)
    with pytest.raises(PromotionRefused, match="expired at"):
        promoted(home, PASSED)
    newer = attempted(home, report_of(1, 2, gains=21))
    assert found(home, newer) is None
    assert promoted(home, newer) == digest_of(2)


@pytest.mark.parametrize("report", [FAILED, PASSED])
def test_an_override_of_a_report_that_promoted_already_leaves_no_trace(
    home: Path, report: GateReport
) -> None:
    attempted(home, report)
    if report is FAILED:
        grant(home, report)
    promoted(home, report)
    for act, refusal, text in (
        (lambda: None, OverrideRefused, "serves 'L2@0{12}' already.*'flows promote L2' finishes"),
        (lambda: rollback(home, "L2"), VersionWithdrawn, "a report promotes once"),
    ):
        act()
        with Registry.open(home) as registry:
            before = registry.events()
        with pytest.raises(refusal, match=text):
            grant(home, report)
        with Registry.open(home) as registry:
            assert registry.events() == before


def test_a_report_that_was_used_up_names_a_way_back_that_is_open(home: Path) -> None:
    attempted(home, PASSED)
    promoted(home, PASSED)
    rollback(home, "L2")
    with pytest.raises(VersionWithdrawn, match=r"Run 'flows rollback L2' to go back to it, or"):
        promoted(home, PASSED)
    rollback(home, "L2")
    with Registry.open(home) as registry:
        registry.rollback("L2", note=HARM)
    asks = r"Run 'flows rollback L2 --by NAME --reason TEXT' to go back to it, or 'flows run gate"
    with pytest.raises(VersionWithdrawn, match=asks):
        promoted(home, PASSED)
    with Registry.open(home) as registry:
        registry.register(version_of(3))
        registry.promote("L2", digest_of(3), 5, attempted(registry, report_of(1, 3)))
        registry.rollback("L2")
    with pytest.raises(VersionWithdrawn, match=r"'L2' still serves .* Run 'flows run gate --slot"):
        promoted(home, PASSED)
    assert champion(home) == digest_of(1)


def test_of_a_router_head_that_was_used_up_the_refusal_names_its_own_commands(home: Path) -> None:
    report = report_of(None, 3, slot="router")
    with Registry.open(home, {"router": SlotTraits(role="head")}) as registry:
        registry.register(version_of(3, slot="router"))
        registry.promote("router", digest_of(3), 0, attempted(registry, report))
        registry.rollback("router")
        asks = "Run 'flows router rollback' to go back to it, or 'flows router train --seed N'"
        with pytest.raises(VersionWithdrawn, match=asks):
            registry.promote("router", digest_of(3), 2, report)


def test_a_day_lasts_to_its_end_and_a_time_needs_its_zone() -> None:
    assert parse_expiry("2026-12-31") == datetime(2026, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert parse_expiry("2026-12-31T18:00+01:00") == datetime(2026, 12, 31, 17, tzinfo=UTC)
    # The last is a moment of which there is none in UTC.
    for wrong in ("soon", "2026-13-01", "2026-12-31T18:00", "9999-12-31T23:59-12:00"):
        with pytest.raises(OverrideRefused, match=wrong):
            parse_expiry(wrong)
