"""A canary's way from the first step to champion, or back, over a real registry and a real lake.

Proved: what happens by itself and what waits for a person; that the log says who, why and with
what numbers; that a version which was rolled back does not return by an old report; that doing
it again does nothing; and what traffic says of the gate's forecast. See `canary_traffic` for
what is made up.
"""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from canary_traffic import (
    QUIET_S,
    SLOT,
    calls,
    digest,
    make_home,
    name,
    report_of,
    says,
    settle,
    start_canary,
    traffic,
    verify_of,
    whole,
)
from registry_records import attempted

from promotion.canary.config import CanaryConfig
from promotion.canary.forecast import (
    compare_with,
    difference,
    kept_forecast,
)
from promotion.canary.rollout import RolloutReport, run_canary
from promotion.canary.trials import Promoted
from promotion.gate import save_report
from promotion.promote import begin_canary, promote, read_slots, rollback
from promotion.registry import Registry
from promotion.slot_rows import PromotionRefused, SlotHeld, VersionWithdrawn
from promotion.standing import Withdrawn

HARM = {"by": "canary", "reason": "it did harm.", "rolled_back": digest(2)}
BAD = {"champion": 0.2, "canary": 0.8}
GOOD = {"champion": 0.3, "canary": 0.2}
CONFIG = CanaryConfig(min_pairs=20, quiet_s=QUIET_S, steps=(20, 50), auto_advance=True)
BY_HAND = CONFIG.model_copy(update={"auto_advance": False})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_home(tmp_path / "home")


def look(home: Path, config: CanaryConfig = CONFIG) -> RolloutReport:
    return run_canary(home, SLOT, config, verify_of=verify_of)


def served(home: Path) -> tuple[str | None, str | None, float]:
    (entry,) = (entry for entry in read_slots(home).slots if entry.slot == SLOT)
    return entry.champion, entry.canary, entry.canary_percent


def events(home: Path) -> list:
    with Registry.open(home) as registry:
        registry.verify_chain()
        return list(registry.events(SLOT))


def withdrawn(home: Path) -> dict[str, Withdrawn]:
    with Registry.open(home) as registry:
        return registry.log.withdrawn()


def hold(home: Path, held: bool, by: str = "ann", reason: str = "a customer complained") -> None:
    with Registry.open(home) as registry:
        registry.remark(SLOT, "hold", {"held": held, "by": by, "reason": reason})


def test_harm_ends_a_canary_for_good(home: Path) -> None:
    report = start_canary(home)
    settle(home, traffic("bad", 120, BAD, 50), "bad")
    hold(home, True)  # which stops growth, and never this
    stale = (home / "slots.json").read_bytes()
    found = look(home)
    assert (found.status, found.changed) == ("rolled_back", True)
    assert served(home) == (name(1), None, 0.0)

    event = events(home)[-1]
    note = event.note
    assert (event.kind, note["rolled_back"], note["by"]) == ("canary", digest(2), "canary")
    assert name(2) in note["reason"]
    assert "failures" in note["reason"]
    assert note["evidence"] >= note["threshold"] == 100
    (failures,) = (guard for guard in note["guards"] if guard["guard"] == "failures")
    assert failures["harm"] > 0.3
    assert failures["pairs"] < 60, "it ends at the first moment, not at the last pair"

    before = events(home)
    (home / "slots.json").write_bytes(stale)  # as if it had been killed before the file
    assert look(home).status == "none"
    assert served(home) == (name(1), None, 0.0)
    assert events(home) == before
    assert withdrawn(home)[digest(2)].reason == note["reason"]

    hold(home, False)
    before = events(home)
    # No report from before brings it back, not even one that was never used.
    other = report_of(1, 2, seed=5)
    save_report(home, other)
    for old in (report, other):
        with pytest.raises(PromotionRefused, match="rolled back"):
            begin_canary(home, old, 5, verify=whole)
        with pytest.raises(PromotionRefused, match="rolled back"):
            promote(home, old, verify=whole)
    assert events(home) == before
    # One about an attempt at the gate that was made since does.
    assert begin_canary(home, attempted(home, other), 5, verify=whole).changed


def test_a_good_canary_grows_step_by_step_to_champion(home: Path) -> None:
    report = start_canary(home, percent=20)
    few = look(home)
    assert (few.status, few.pairs) == ("insufficient", 0), "no lake is too little data"
    settle(home, traffic("one", 250, GOOD, 20), "one")

    before = events(home)
    waits = look(home, BY_HAND)
    assert (waits.status, waits.changed) == ("ready", False), "growth waits for a person"
    assert f"flows slots canary L2 {name(2)} --percent 50" in waits.message
    short = look(home, CONFIG.model_copy(update={"min_pairs": waits.pairs + 1}))
    assert (short.status, short.changed) == ("insufficient", False)
    assert events(home) == before

    grown = look(home)
    assert (grown.status, grown.changed, grown.percent) == ("advanced", True, 20)
    assert served(home) == (name(1), name(2), 50.0)
    note = events(home)[-1].note
    assert note["by"] == "canary"
    assert "show no harm" in note["reason"]
    # The pairs of the step before do not count for this one.
    again = look(home)
    assert (again.status, again.pairs) == ("insufficient", 0)

    settle(home, traffic("two", 120, GOOD, 50), "two")
    hold(home, True)
    before = events(home)
    held = look(home)
    assert (held.status, held.changed) == ("held", False)
    assert held.hold is not None
    assert (held.hold.by, held.hold.reason) == ("ann", "a customer complained")
    # Nor does anybody else get around it.
    for grow in (
        lambda: promote(home, report, verify=whole),
        lambda: begin_canary(home, report, 90, verify=whole),
    ):
        with pytest.raises(SlotHeld, match=r"'ann'.*a customer complained.*--release"):
            grow()
    assert events(home) == before

    hold(home, False, by="bob", reason="it was something else")
    assert look(home).status == "promoted"
    assert served(home) == (name(2), None, 0.0)
    event = events(home)[-1]
    assert (event.kind, event.report_key) == ("promote", report.key)
    before = events(home)
    assert look(home).status == "watched"
    assert events(home) == before


@pytest.mark.parametrize(
    ("guard", "fields"),
    [
        ("tool_calls", {"completion": calls("f", x=1), "tools": '[{"name": "g"}]'}),
        ("refusals", {"completion": says("I'm sorry, but I cannot help with that.")}),
        ("latency", {"duration_s": 5.0}),
    ],
)
def test_each_guard_ends_a_canary(home: Path, guard: str, fields: dict) -> None:
    start_canary(home)
    same = {"champion": 0.2, "canary": 0.2}
    settle(home, traffic("one", 120, same, 50, **fields), "one")
    found = look(home)
    assert found.status == "rolled_back"
    assert guard.replace("_", " ") in found.message


def test_a_new_champion_that_does_harm_goes_back_to_the_one_before(home: Path) -> None:
    settle(home, traffic("old", 150, {"champion": 0.2}, 0), "old")
    report = report_of(1, 2)
    save_report(home, attempted(home, report))
    promote(home, report, verify=whole)
    early = look(home)
    assert early.status == "watched"
    assert early.forecast is not None
    assert early.forecast.status == "insufficient"

    settle(home, traffic("new", 150, {"champion": 0.7}, 0, champion=2), "new")
    found = look(home)
    forecast = kept_forecast(home, report.key)
    assert found.forecast == forecast
    assert forecast is not None
    assert (forecast.status, forecast.gained) == ("worse", False)
    # The last conversation, which only tells that the others are over, is not over itself.
    assert (forecast.before, forecast.now, forecast.whole) == (151, 150, False)
    assert (found.status, found.beside, found.changed) == ("rolled_back", name(1), True)
    assert served(home) == (name(1), None, 0.0)
    event = events(home)[-1]
    assert (event.kind, event.note["rolled_back"]) == ("rollback", digest(2))
    assert set(withdrawn(home)) == {digest(2)}
    before = events(home)
    assert look(home).status == "none"
    assert events(home) == before

    # A person may bring it back by a word that the log keeps, and then it is not rolled back.
    with pytest.raises(VersionWithdrawn, match=rf"{name(2)}.*for harm.*failures.*--by NAME"):
        rollback(home, SLOT)
    assert events(home) == before
    word = {"by": "ann", "reason": "the traffic was an attack"}
    rollback(home, SLOT, note=word)
    assert served(home)[0] == name(2)
    assert (events(home)[-1].kind, events(home)[-1].note) == ("rollback", word)
    assert set(withdrawn(home)) == {digest(1)}
    # Going back from it needs none; to it, each time.
    rollback(home, SLOT)
    assert served(home)[0] == name(1)
    with pytest.raises(VersionWithdrawn, match="for harm"):
        rollback(home, SLOT)


def test_guards_go_back_to_what_did_harm_before_as_the_champion_does_more_and_say_so(
    home: Path,
) -> None:
    promote(home, attempted(home, report_of(1, 2)), verify=whole)
    with Registry.open(home) as registry:
        registry.rollback(SLOT, note=HARM)
        registry.rollback(SLOT, note={"by": "ann", "reason": "the traffic was an attack"})
    settle(home, traffic("old", 150, {"champion": 0.2}, 0, champion=2), "old")
    promote(home, attempted(home, report_of(2, 3)), verify=whole)
    with pytest.raises(VersionWithdrawn, match="for harm"):
        rollback(home, SLOT)  # which a person must answer for
    settle(home, traffic("new", 150, {"champion": 0.7}, 0, champion=3), "new")
    found = look(home)
    assert (found.status, found.changed) == ("rolled_back", True)
    assert served(home)[0] == name(2)
    assert f"'{name(2)}' is back, which was itself rolled back for harm at" in found.message
    note = events(home)[-1].note
    assert (note["rolled_back"], note["by"]) == (digest(3), "canary")
    assert name(3) in note["reason"]
    assert "itself" not in note["reason"], "that is no reason against version 3"
    assert set(withdrawn(home)) == {digest(1), digest(3)}, "2 serves"


def test_a_look_that_could_not_take_out_a_harmful_champion_is_not_the_last(home: Path) -> None:
    config = CONFIG.model_copy(update={"watch_conversations": 100})
    settle(home, traffic("old", 150, {"champion": 0.2}, 0), "old")
    report = report_of(1, 2)
    save_report(home, attempted(home, report))
    promote(home, report, verify=whole)
    settle(home, traffic("new", 150, {"champion": 0.7}, 0, champion=2), "new")
    folder = home / "adapters" / digest(1).removeprefix("sha256:")
    folder.rename(home / "away")
    with pytest.raises(PromotionRefused, match="is missing"):
        look(home, config)
    assert served(home)[0] == name(2)
    (home / "away").rename(folder)
    found = look(home, config)
    assert (found.status, found.changed) == ("rolled_back", True)
    assert served(home)[0] == name(1)
    forecast = kept_forecast(home, report.key)
    assert forecast is not None
    assert (forecast.whole, forecast.status) == (True, "worse")


def test_a_damaged_gate_report_keeps_no_harmful_champion(home: Path) -> None:
    settle(home, traffic("old", 150, {"champion": 0.2}, 0), "old")
    report = report_of(1, 2)
    file = save_report(home, attempted(home, report))
    promote(home, report, verify=whole)
    file.write_bytes(file.read_bytes()[:-10])
    settle(home, traffic("new", 150, {"champion": 0.7}, 0, champion=2), "new")
    assert look(home).status == "rolled_back"
    assert served(home)[0] == name(1)


def test_a_canary_that_did_harm_is_not_gone_back_to(home: Path) -> None:
    promote(home, attempted(home, report_of(1, 2)), verify=whole)
    rollback(home, SLOT)  # by a person, who says nothing of harm
    with Registry.open(home) as registry:
        assert not registry.log.withdrawn()[digest(2)].harm
        again = attempted(home, report_of(1, 2, seed=1))
        registry.begin_canary(SLOT, digest(2), 5, again)
        registry.end_canary(SLOT, note=HARM)
        assert registry.log.withdrawn()[digest(2)].harm
    before = events(home)
    with pytest.raises(VersionWithdrawn, match=r"for harm at .*: it did harm\. 'L2' still serves"):
        rollback(home, SLOT)
    assert events(home) == before


def test_a_promotion_lifts_what_was_said_of_harm(home: Path) -> None:
    with Registry.open(home) as registry:
        registry.begin_canary(SLOT, digest(2), 5, attempted(home, report_of(1, 2)))
        registry.end_canary(SLOT, note=HARM)
    promote(home, attempted(home, report_of(1, 2, seed=1)), verify=whole)
    promote(home, attempted(home, report_of(2, 3)), verify=whole)
    assert rollback(home, SLOT).champion == name(2)


@pytest.mark.parametrize(
    ("before", "now", "status", "gained"),
    [
        (0.3, 0.95, "as forecast", True),
        (0.5, 0.52, "less", False),
        (0.5, 0.7, "less", True),
        (0.5, 0.2, "worse", False),
        (0.0, 1.0, "more", True),
    ],
)
def test_traffic_is_compared_with_the_forecast(
    before: float, now: float, status: str, gained: bool
) -> None:
    report = report_of(1, 2)
    said = report.primary.comparison
    assert said is not None
    assert 0.5 < said.lower < said.effect == pytest.approx(40 / 60)
    moment = datetime.now(UTC)
    promoted = Promoted(
        slot=SLOT, digest=digest(2), previous=digest(1), promoted_at=moment, previous_since=moment,
        report_key=report.key,
    )  # fmt: skip

    def outcomes(rate: float, n: int = 400) -> list[float]:
        return [1.0] * round(n * rate) + [0.0] * round(n * (1 - rate))

    found = compare_with(promoted, report, outcomes(before), outcomes(now))
    assert (found.status, found.gained) == (status, gained)
    assert found.observed == pytest.approx(now - before)
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower <= now - before <= found.upper
    assert "points" in found.message
    few = compare_with(promoted, report, outcomes(before), outcomes(now, 20))
    assert (few.status, few.gained, few.observed) == ("insufficient", None, None)


def test_the_limits_of_a_difference_are_newcombes() -> None:
    # Newcombe 1998, table II, (a) 56/70 against 48/80, method 10: 0.0524 to 0.3339.
    ones = lambda n, of: [1.0] * n + [0.0] * (of - n)  # noqa: E731
    effect, lower, upper = difference(ones(48, 80), ones(56, 70))
    assert effect == pytest.approx(0.2)
    assert (lower, upper) == (pytest.approx(0.0524, abs=1e-4), pytest.approx(0.3339, abs=1e-4))
