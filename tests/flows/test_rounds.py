"""The loop leaves a slot alone after rounds that brought nothing, and says when it goes on.

Proved: what counts as nothing, each way to go on, and that the loop stops itself with a reason
and a status of its own. Records of earlier cycles and gate reports are made up; the registry and
the run at the end are real.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from canary_traffic import SLOT, digest, make_home, name, report_of, whole
from registry_records import attempted
from tiny_loop import tiny_settings

from flows import canaries, manual, rounds, stages
from flows.config import Settings
from flows.cycle import CorruptCycle, CycleResult, find_cycle, rolled_out
from promotion.canary.config import CanaryConfig
from promotion.canary.forecast import compare_with, keep_forecast
from promotion.canary.trials import promoted_of
from promotion.gate import save_report
from promotion.promote import begin_canary, promote
from promotion.slot_rows import PromotionRefused
from serving.disk import write_atomic

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    home = make_home(tmp_path / "home")
    return Settings(home=home, policy={"stop_after_rounds": 3})


def record(settings: Settings, number: int, **fields) -> None:
    """Write the record of a finished cycle."""
    values = {
        "key": f"sha256:{number:064x}",
        "snapshot_id": number,
        "slot": SLOT,
        "verdict": "INCONCLUSIVE",
        "message": "as given",
        "report_key": "f" * 64,
        "seed": 0,
        "cycle_s": {},
        "ended_at": LONG_AGO + timedelta(days=number),
        "blamed": 20,
        "learning": settings.learning_digest,
    }
    made = CycleResult.model_validate(values | fields)
    write_atomic(settings.home / "cycles" / f"{number:064x}.json", made.model_dump_json().encode())
    # What stands beside each record is none itself.
    write_atomic(settings.home / "cycles" / f"{number:064x}.settings.json", b"{}")


def passed(settings: Settings, number: int, challenger: int = 2, seed: int = 0):
    """A round whose challenger passed the gate."""
    report = report_of(1, challenger, seed=seed)
    save_report(settings.home, attempted(settings.home, report))
    record(settings, number, verdict="PASS", report_key=report.key)
    return report


@pytest.mark.parametrize("start", [True, False])
def test_a_canary_begun_while_a_cycle_trained_is_waited_for(
    settings: Settings, start: bool
) -> None:
    settings = settings.model_copy(update={"canary": CanaryConfig(start=start)})
    begin_canary(settings.home, passed(settings, 1), 5, verify=whole)
    trained = passed(settings, 2, challenger=3)
    with pytest.raises(PromotionRefused, match=rf"{name(2)} is still on trial .*'flows run' again"):
        rolled_out(settings, trained, lambda *_: pytest.fail("it took the canary's place"))
    with stages.open_registry(settings) as registry:
        assert registry.slot(SLOT).canary == digest(2)


def test_what_a_later_attempt_did_not_pass_gets_nothing_of_a_cycle(settings: Settings) -> None:
    report = passed(settings, 1)
    later = report_of(1, 2, gains=2, seed=1)
    assert attempted(settings.home, later).verdict == "INCONCLUSIVE"

    def timed(name: str, task, report):
        return begin_canary(settings.home, report, 5, verify=whole)

    serves, words = rolled_out(settings, report, timed)
    assert not serves
    assert f"a later one ({later.key[:12]!r}) says 'INCONCLUSIVE'" in words


def test_a_damaged_record_of_a_cycle_is_named(settings: Settings) -> None:
    record(settings, 1)
    file = settings.home / "cycles" / f"{1:064x}.json"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CorruptCycle, match=rf"'{file}' is damaged.*Delete it"):
        rounds.why_stopped(settings, SLOT, 20)
    with pytest.raises(CorruptCycle, match="is damaged"):
        find_cycle(settings.home, f"sha256:{1:064x}")


def test_a_round_counts_whose_gate_report_is_damaged(settings: Settings) -> None:
    for number in range(3):
        passed(settings, number, seed=number)
    for file in (settings.home / "gates").glob("*.json"):
        file.write_bytes(file.read_bytes()[:-10])
    assert [made.why for made in rounds.counted_rounds(settings, SLOT)] == [
        "the gate passed it"
    ] * 3


def test_so_many_rounds_in_a_row_without_a_gain_stop_a_slot(settings: Settings) -> None:
    for number in range(3):
        assert rounds.why_stopped(settings, SLOT, 20) is None
        record(settings, number, verdict=("FAIL", "INCONCLUSIVE")[number % 2])
    why = rounds.why_stopped(settings, SLOT, 20)
    assert why is not None
    for words in ("'L2'", "3 rounds in a row", "the gate said FAIL", "flows slots resume L2"):
        assert words in why
    assert rounds.why_stopped(settings, "L1", 20) is None, "each slot has rounds of its own"
    never = settings.model_copy(update={"policy": type(settings.policy)(stop_after_rounds=0)})
    assert rounds.why_stopped(never, SLOT, 20) is None


def test_a_round_that_passed_the_gate_brought_something(settings: Settings) -> None:
    record(settings, 0)
    passed(settings, 1)
    record(settings, 2)
    record(settings, 3)
    assert rounds.why_stopped(settings, SLOT, 20) is None
    record(settings, 4)
    assert rounds.why_stopped(settings, SLOT, 20) is not None


def test_what_was_rolled_back_brought_nothing(settings: Settings) -> None:
    for number in range(2):
        record(settings, number)
    report = passed(settings, 2)
    begin_canary(settings.home, report, 5, verify=whole)
    assert rounds.why_stopped(settings, SLOT, 20) is None
    with stages.open_registry(settings) as registry:
        registry.end_canary(SLOT, note={"rolled_back": digest(2), "reason": "it did harm"})
    why = rounds.why_stopped(settings, SLOT, 20)
    assert why is not None
    assert "rolled back (it did harm)" in why


def test_what_traffic_does_not_bear_out_brought_nothing(settings: Settings) -> None:
    for number in range(2):
        record(settings, number)
    report = passed(settings, 2)
    promote(settings.home, report, verify=whole)
    with stages.open_registry(settings) as registry:
        promoted = promoted_of(registry.events(SLOT))
    assert promoted is not None
    few = compare_with(promoted, report, [1.0] * 10, [0.0] * 10)
    keep_forecast(settings.home, few)
    assert rounds.why_stopped(settings, SLOT, 20) is None, "too little is known yet"
    keep_forecast(settings.home, compare_with(promoted, report, [1.0] * 90, [0.0] * 90))
    why = rounds.why_stopped(settings, SLOT, 20)
    assert why is not None
    assert "worse than the one before" in why


def test_it_goes_on_by_a_persons_word(settings: Settings) -> None:
    for number in range(3):
        record(settings, number)
    with pytest.raises(canaries.PersonUnnamed):
        canaries.resume(settings, SLOT, None, "please")
    canaries.hold(settings, SLOT, "ann", "wait", held=True)
    assert rounds.why_stopped(settings, SLOT, 20) is not None, "a hold is no such word"
    canaries.resume(settings, SLOT, "ann", "the teacher is better now")
    assert rounds.why_stopped(settings, SLOT, 20) is None
    after = datetime.now(UTC)
    for number in range(3, 6):
        record(settings, number, ended_at=after + timedelta(seconds=number))
    assert rounds.why_stopped(settings, SLOT, 20) is not None


def test_it_goes_on_with_twice_the_evidence_or_other_settings(settings: Settings) -> None:
    for number in range(3):
        record(settings, number, blamed=20 + number)
    assert rounds.why_stopped(settings, SLOT, 43) is not None
    assert rounds.why_stopped(settings, SLOT, 44) is None
    other = settings.model_copy(update={"seed": 1})
    assert rounds.why_stopped(other, SLOT, 20) is None
    # Traffic rules decide nothing of what is learned.
    same = settings.model_copy(
        update={"canary": settings.canary.model_copy(update={"start": True})}
    )
    assert rounds.why_stopped(same, SLOT, 20) is not None


def test_records_of_earlier_code_count_until_a_person_says_otherwise(settings: Settings) -> None:
    for number in range(3):
        record(settings, number, ended_at=None, blamed=None, learning=None)
    why = rounds.why_stopped(settings, SLOT, 1000)
    assert why is not None
    assert "It goes on by a person's word" in why
    canaries.resume(settings, SLOT, "ann", "go on")
    assert rounds.why_stopped(settings, SLOT, 1000) is None


def test_the_loop_stops_itself_with_a_reason(
    home: Path, tiny_base: Path, spool: Path, prefect: None, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tiny_settings(
        home, tiny_base, (spool,), slot="L0", policy={"stop_after_rounds": 2, "min_blamed": 10}
    )
    for number in range(2):
        record(settings, number, slot="L0", blamed=10_000)
    before = sorted(path.name for path in (home / "cycles").iterdir())
    outcome = manual.run(settings, "cycle")
    assert outcome.loop_stopped
    assert not outcome.gate_said_no
    assert outcome.value["stopped"]
    assert "2 rounds in a row brought nothing" in outcome.value["message"]
    assert "STOP      The loop leaves 'L0' alone" in capsys.readouterr().out
    assert sorted(path.name for path in (home / "cycles").iterdir()) == before
    assert not (home / "runs").exists()
