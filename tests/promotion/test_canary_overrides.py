"""A canary of a version that a person's override let in: it begins, grows, and ends as any other.

Proved over a real registry and a real lake; see `canary_traffic` for what is made up. An override
that ran out is made by one that lasts a moment.
"""

import time
from datetime import UTC, datetime, timedelta
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
    traffic,
    verify_of,
    whole,
)
from registry_records import attempted

from promotion.canary.config import CanaryConfig
from promotion.canary.rollout import RolloutReport, run_canary
from promotion.gate import save_report
from promotion.overrides import grant_override
from promotion.promote import PromotionResult, begin_canary
from promotion.registry import Registry
from promotion.signing import SignatureRefused
from promotion.slot_rows import PromotionRefused, VersionWithdrawn
from promotion.state import Event, Override

CONFIG = CanaryConfig(min_pairs=20, quiet_s=QUIET_S, steps=(20, 50), auto_advance=True)
TOMORROW = datetime.now(UTC) + timedelta(days=1)
MOMENT = timedelta(seconds=6)
"""How long a short override lasts: a busy machine must grant it and begin a canary meanwhile."""
FAILED = report_of(1, 2, gains=3)
"""Three gains: nothing is shown."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = make_home(tmp_path / "home")
    save_report(made, attempted(made, FAILED))
    return made


def grant(home: Path, expires_at: datetime = TOMORROW) -> Override:
    return grant_override(
        home, FAILED, by="A. Person", reason="the incident of Tuesday", expires_at=expires_at
    )


def wait_until(moment: datetime) -> None:
    while datetime.now(UTC) <= moment:
        time.sleep(0.02)


def begin(home: Path, percent: float = 20) -> PromotionResult:
    return begin_canary(home, FAILED, percent, verify=whole)


def look(home: Path) -> RolloutReport:
    return run_canary(home, SLOT, CONFIG, verify_of=verify_of)


def newest(home: Path) -> Event:
    with Registry.open(home) as registry:
        registry.verify_chain()
        return registry.events(SLOT)[-1]


def test_it_begins_and_grows_to_champion_while_the_override_lasts(home: Path) -> None:
    with pytest.raises(PromotionRefused, match="only 'PASS' promotes"):
        begin(home)
    override = grant(home)
    assert begin(home).changed
    assert newest(home).state.canary == digest(2)
    assert newest(home).note == {"override": override.id, "by": "A. Person"}
    good = {"champion": 0.3, "canary": 0.2}
    settle(home, traffic("one", 250, good, 20), "one")
    assert look(home).status == "advanced"
    grown = newest(home)
    assert (grown.state.canary_percent, grown.note["override"]) == (50, override.id)
    assert grown.note["by"] == "canary"
    settle(home, traffic("two", 120, good, 50), "two")
    assert look(home).status == "promoted"
    assert newest(home).state.champion == digest(2)
    assert newest(home).note == {"override": override.id, "by": "A. Person"}
    assert newest(home).report_key == FAILED.key


def test_an_override_that_ran_out_begins_none_and_lets_none_grow(home: Path) -> None:
    soon = datetime.now(UTC) + MOMENT
    grant(home, soon)
    begin(home)
    settle(home, traffic("one", 250, {"champion": 0.3, "canary": 0.2}, 20), "one")
    wait_until(soon)
    before = newest(home)
    found = look(home)
    assert (found.status, found.changed) == ("ready", False), "it waits for a person"
    assert "the override of 'A. Person' expired at" in found.message
    assert f"'flows slots canary L2 {name(2)} --percent 50 --override-by NAME" in found.message
    with pytest.raises(PromotionRefused, match="expired at"):
        begin(home, 50)
    assert newest(home) == before
    grant(home)
    assert look(home).status == "advanced"


@pytest.mark.parametrize("config", [CONFIG, CONFIG.model_copy(update={"auto_advance": False})])
def test_at_the_last_step_an_override_that_ran_out_asks_for_a_promotion_by_a_new_one(
    home: Path, config: CanaryConfig
) -> None:
    soon = datetime.now(UTC) + MOMENT
    grant(home, soon)
    begin(home, 50)
    settle(home, traffic("two", 120, {"champion": 0.3, "canary": 0.2}, 50), "two")
    wait_until(soon)
    before = newest(home)
    found = run_canary(home, SLOT, config, verify_of=verify_of)
    assert (found.status, found.changed) == ("ready", False)
    assert "the override of 'A. Person' expired at" in found.message
    words = "'flows promote L2 --override-by NAME --reason TEXT --expires DATE' gives it 100%."
    assert found.message.endswith(words), "no command that gives a canary all traffic"
    assert newest(home) == before
    grant(home)
    found = look(home)
    assert found.status == "promoted"


def test_one_who_lets_it_grow_by_hand_is_told_that_the_override_ran_out(home: Path) -> None:
    soon = datetime.now(UTC) + MOMENT
    grant(home, soon)
    begin(home)
    settle(home, traffic("one", 250, {"champion": 0.3, "canary": 0.2}, 20), "one")
    by_hand = CONFIG.model_copy(update={"auto_advance": False})
    wait_until(soon)
    found = run_canary(home, SLOT, by_hand, verify_of=verify_of)
    assert "the override of 'A. Person' expired at" in found.message
    asks = f"'flows slots canary L2 {name(2)} --percent 50 --override-by NAME --reason TEXT"
    assert asks in found.message
    grant(home)
    found = run_canary(home, SLOT, by_hand, verify_of=verify_of)
    assert found.message.endswith(f"'flows slots canary L2 {name(2)} --percent 50' gives it 50%.")


def test_harm_ends_it_also_when_the_override_ran_out_and_takes_a_new_one(home: Path) -> None:
    soon = datetime.now(UTC) + MOMENT
    grant(home, soon)
    begin(home, 50)
    settle(home, traffic("bad", 120, {"champion": 0.2, "canary": 0.8}, 50), "bad")
    wait_until(soon)
    assert look(home).status == "rolled_back"
    assert newest(home).note["rolled_back"] == digest(2)
    grant(home)
    assert begin(home).changed


def test_an_override_from_before_the_harm_brings_nothing_back(home: Path) -> None:
    grant(home)
    begin(home)
    with Registry.open(home) as registry:
        note = {"by": "canary", "rolled_back": digest(2), "reason": "it did harm."}
        registry.end_canary(SLOT, note=note)
    with pytest.raises(VersionWithdrawn):
        begin(home)


def test_an_override_never_stands_in_for_a_canarys_signature(home: Path) -> None:
    grant(home)
    folder = home / "adapters" / digest(2).removeprefix("sha256:")
    (folder / "adapter_model.safetensors").write_bytes(b"other")
    with pytest.raises(SignatureRefused):
        begin(home)
    assert newest(home).state.canary is None
