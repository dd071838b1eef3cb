"""Promotion and rollback on disk: artifact check, registry, `slots.json`, kill and rerun.

The registry and files are real. An adapter is a folder with one file, and its
check is a small function here: the real one is training's and tested there.
A kill ends the process in the rename of `slots.json`, or before it, by an audit hook.
"""

import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from registry_records import BASE_DIGEST, attempted, report_between

from promotion.gate import GateReport, save_report
from promotion.promote import (
    PromotionResult,
    begin_canary,
    end_canary,
    export_slots,
    promote,
    read_slots,
    rollback,
)
from promotion.registry import Registry
from promotion.signing import register_signed
from promotion.slot_rows import NoPrevious, PromotionRefused, UnknownSlot
from promotion.state import RegisteredVersion
from promotion.version_rows import UnknownAdapter
from serving.errors import AdapterNotServable
from serving.slot_table import SlotEntry

ROOT = Path(__file__).parents[2]


def _digest(number: int) -> str:
    return f"sha256:{number:012x}" + "f" * 52


def _name(number: int, slot: str = "L2") -> str:
    return f"{slot}@{number:012x}"


def _add(registry: Registry, home: Path, number: int, slot: str = "L2") -> None:
    path = f"adapters/{_digest(number).removeprefix('sha256:')}"
    (home / path).mkdir(parents=True)
    (home / path / "adapter_model.safetensors").write_bytes(b"weights")
    version = RegisteredVersion(
        slot=slot,
        digest=_digest(number),
        base_digest=BASE_DIGEST,
        path=path,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    register_signed(registry, home, version)


def _report(
    home: Path, champion: int | None, challenger: int, slot: str = "L2", gains: int = 20
) -> GateReport:
    before = None if champion is None else _digest(champion)
    report = report_between(before, _digest(challenger), gains=gains, slot=slot)
    return attempted(home, report)


def _whole(path: Path) -> None:
    """Refuse a folder whose weights are not those written above."""
    if (path / "adapter_model.safetensors").read_bytes() != b"weights":
        raise AdapterNotServable(f"Adapter {str(path)!r} was altered.")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with Registry.open(tmp_path, ("L0", "L1", "L2")) as registry:
        for number in (1, 2, 3):
            _add(registry, tmp_path, number)
        _add(registry, tmp_path, 11, "L1")
        registry.bootstrap("L2", _digest(1))
        export_slots(tmp_path, registry)
    return tmp_path


def _promote(home: Path, champion: int | None = 1, challenger: int = 2) -> PromotionResult:
    return promote(home, _report(home, champion, challenger), verify=_whole)


def _everything(home: Path) -> tuple[object, ...]:
    """The state that a refusal must leave alone."""
    with Registry.open(home) as registry:
        return registry.slots(), registry.events(), (home / "slots.json").read_bytes()


def test_promotion_is_what_serving_reads(home: Path) -> None:
    result = _promote(home)
    assert result.changed
    assert (result.champion, result.previous) == (_name(2), _name(1))
    entry = next(e for e in read_slots(home).slots if e.slot == "L2")
    assert (entry.champion, entry.previous, entry.generation) == (_name(2), _name(1), 2)
    assert entry.path is not None
    assert (home / entry.path / "adapter_model.safetensors").is_file()


def test_no_other_slot_moves(home: Path) -> None:
    before = {e.slot: e for e in read_slots(home).slots}
    _promote(home)
    after = {e.slot: e for e in read_slots(home).slots}
    assert [slot for slot in before if before[slot] != after[slot]] == ["L2"]


def test_promoting_again_says_that_nothing_changed(home: Path) -> None:
    _promote(home)
    before = _everything(home)
    again = _promote(home)
    assert not again.changed
    assert again.message == f"Slot 'L2' serves already '{_name(2)}' (generation 2)."
    assert _everything(home) == before


def test_a_report_that_did_not_pass_changes_nothing(home: Path) -> None:
    before = _everything(home)
    with pytest.raises(PromotionRefused, match=r"says 'INCONCLUSIVE'.*still serves"):
        promote(home, _report(home, 1, 2, gains=2), verify=_whole)
    assert _everything(home) == before


def test_a_report_about_a_former_champion_changes_nothing(home: Path) -> None:
    stale = _report(home, 1, 3)
    _promote(home)
    before = _everything(home)
    with pytest.raises(PromotionRefused, match="is about champion"):
        promote(home, stale, verify=_whole)
    assert _everything(home) == before


def test_an_altered_artifact_changes_nothing(home: Path) -> None:
    folder = home / "adapters" / _digest(2).removeprefix("sha256:")
    (folder / "adapter_model.safetensors").write_bytes(b"other")
    before = _everything(home)
    with pytest.raises(AdapterNotServable, match="altered"):
        _promote(home)
    assert _everything(home) == before


def test_a_missing_artifact_changes_nothing(home: Path) -> None:
    folder = home / "adapters" / _digest(2).removeprefix("sha256:")
    folder.rename(home / "elsewhere")
    before = _everything(home)
    with pytest.raises(PromotionRefused, match="is missing"):
        _promote(home)
    assert _everything(home) == before


def test_an_unknown_challenger_changes_nothing(home: Path) -> None:
    before = _everything(home)
    with pytest.raises(UnknownAdapter, match=_name(1)):
        _promote(home, challenger=99)
    assert _everything(home) == before


def test_an_unknown_slot_is_refused(home: Path) -> None:
    with pytest.raises(UnknownSlot, match="'L0', 'L1', 'L2'"):
        promote(home, _report(home, 1, 2, slot="L8"), verify=_whole)
    with pytest.raises(UnknownSlot, match="'L0', 'L1', 'L2'"):
        rollback(home, "L8")


def test_rollback_restores_what_served(home: Path) -> None:
    before = next(e for e in read_slots(home).slots if e.slot == "L2")
    _promote(home)
    result = rollback(home, "L2")
    after = next(e for e in read_slots(home).slots if e.slot == "L2")
    assert result.message == f"Slot 'L2' went back to '{_name(1)}' (generation 3)."
    assert (after.champion, after.path) == (before.champion, before.path)
    assert after.previous == _name(2)


def test_rollback_of_a_first_adapter_serves_the_base(home: Path) -> None:
    promote(home, _report(home, None, 11, slot="L1"), verify=_whole)
    result = rollback(home, "L1")
    assert result.champion is None
    assert "went back to 'base'" in result.message
    entry = next(e for e in read_slots(home).slots if e.slot == "L1")
    assert (entry.champion, entry.path) == (None, None)


def test_rollback_without_a_previous_changes_nothing(home: Path) -> None:
    before = _everything(home)
    with pytest.raises(NoPrevious):
        rollback(home, "L2")
    assert _everything(home) == before


def test_rollback_to_a_missing_artifact_changes_nothing(home: Path) -> None:
    _promote(home)
    (home / "adapters" / _digest(1).removeprefix("sha256:")).rename(home / "elsewhere")
    before = _everything(home)
    with pytest.raises(PromotionRefused, match="is missing"):
        rollback(home, "L2")
    assert _everything(home) == before


def test_slots_on_disk_follow_the_registry_whoever_writes(home: Path) -> None:
    """Promotions of different slots at once: the file ends as the registry says."""
    reports = [_report(home, 1, 2), _report(home, None, 11, slot="L1")]
    threads = [
        threading.Thread(target=promote, args=(home, report), kwargs={"verify": _whole})
        for report in reports
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = {e.slot: e.champion for e in read_slots(home).slots}
    assert entries == {"L0": None, "L1": _name(11, "L1"), "L2": _name(2)}


@pytest.mark.parametrize("content", [b"", b"{}", b"\x00\xff", b"[1]"])
def test_a_damaged_slots_file_is_written_anew(home: Path, content: bytes) -> None:
    (home / "slots.json").write_bytes(content)
    _promote(home)
    assert len(read_slots(home).slots) == 3


_KILLED = """
import os, sys
from pathlib import Path
from promotion.gate import load_report
from promotion.promote import promote, rollback

def end_in_rename(event, args):
    if event == "os.rename" and str(args[1]).endswith("slots.json"):
        os._exit(9)

sys.addaudithook(end_in_rename)
home = Path(sys.argv[1])
if sys.argv[2] == "rollback":
    rollback(home, "L2")
else:
    verify = (lambda path: os._exit(9)) if sys.argv[3:] else (lambda path: None)
    promote(home, load_report(home, sys.argv[2]), verify=verify)
"""


def _run_until_killed(*arguments: str) -> None:
    command = [sys.executable, "-c", _KILLED, *arguments]
    result = subprocess.run(command, check=False, cwd=ROOT)
    assert result.returncode == 9


def test_a_promotion_killed_before_the_flip_changes_nothing(home: Path) -> None:
    report = _report(home, 1, 2)
    save_report(home, report)
    before = _everything(home)
    _run_until_killed(str(home), report.key, "in-verify")
    assert _everything(home) == before


def test_a_promotion_killed_after_the_flip_is_finished_by_the_next_run(home: Path) -> None:
    report = _report(home, 1, 2)
    save_report(home, report)
    _run_until_killed(str(home), report.key)
    assert next(e for e in read_slots(home).slots if e.slot == "L2").champion == _name(1)
    result = promote(home, report, verify=_whole)
    assert not result.changed
    assert next(e for e in read_slots(home).slots if e.slot == "L2").champion == _name(2)
    with Registry.open(home) as registry:
        assert registry.verify_chain() == 2


def test_a_rollback_killed_after_the_flip_is_finished_not_undone(home: Path) -> None:
    _promote(home)
    _run_until_killed(str(home), "rollback")
    result = rollback(home, "L2")
    assert (result.changed, result.champion) == (False, _name(1))
    assert "finished going back" in result.message
    assert next(e for e in read_slots(home).slots if e.slot == "L2").champion == _name(1)


def test_a_word_that_finishing_a_rollback_did_not_use_is_said_so(home: Path) -> None:
    """Also without a crash: another home of the registry went back, and this file is behind."""
    _promote(home)
    with Registry.open(home) as registry:
        registry.rollback("L2", note={"by": "canary", "rolled_back": _digest(2), "reason": "harm."})
        events = registry.events()
    word = {"by": "ann", "reason": "the traffic was an attack"}
    result = rollback(home, "L2", note=word)
    assert (result.changed, result.champion) == (False, _name(1)), "what was done is not undone"
    assert result.message == (
        f"Slot 'L2' finished going back to '{_name(1)}' (generation 3). Nothing else was done, and "
        f"the word of 'ann' was not used: run the same again to go back to '{_name(2)}'."
    )
    with Registry.open(home) as registry:
        assert registry.events() == events
    again = rollback(home, "L2", note=word)
    assert (again.changed, again.champion) == (True, _name(2))
    assert again.message == f"Slot 'L2' went back to '{_name(2)}' (generation 4)."


def test_a_rollback_by_a_word_that_was_killed_is_finished_by_the_same_word(home: Path) -> None:
    _promote(home)
    word = {"by": "ann", "reason": "it is slow"}
    with Registry.open(home) as registry:
        registry.rollback("L2", note=word)  # and no file
    result = rollback(home, "L2", note=word)
    assert result.message == f"Slot 'L2' finished going back to '{_name(1)}' (generation 3)."
    assert _l2(home).champion == _name(1)


def _l2(home: Path) -> SlotEntry:
    return next(entry for entry in read_slots(home).slots if entry.slot == "L2")


def test_a_canary_is_what_serving_reads_until_it_ends(home: Path) -> None:
    result = begin_canary(home, _report(home, 1, 2), 5, verify=_whole)
    assert result.message == f"Slot 'L2' gives 5% of its traffic to '{_name(2)}' (generation 2)."
    entry = _l2(home)
    assert (entry.champion, entry.canary, entry.canary_percent) == (_name(1), _name(2), 5.0)
    assert entry.canary_path is not None
    assert (home / entry.canary_path / "adapter_model.safetensors").is_file()
    assert end_canary(home, "L2").changed
    assert (_l2(home).canary, _l2(home).canary_path, _l2(home).generation) == (None, None, 3)
    assert not end_canary(home, "L2").changed


def test_a_canary_that_cannot_serve_changes_nothing(home: Path) -> None:
    folder = home / "adapters" / _digest(2).removeprefix("sha256:")
    (folder / "adapter_model.safetensors").write_bytes(b"other")
    before = _everything(home)
    with pytest.raises(AdapterNotServable, match="altered"):
        begin_canary(home, _report(home, 1, 2), 5, verify=_whole)
    with pytest.raises(PromotionRefused, match="INCONCLUSIVE"):
        begin_canary(home, _report(home, 1, 3, gains=2), 5, verify=_whole)
    assert _everything(home) == before


def test_a_canary_that_wins_is_promoted_by_its_report(home: Path) -> None:
    report = _report(home, 1, 2)
    begin_canary(home, report, 5, verify=_whole)
    assert promote(home, report, verify=_whole).changed
    assert (_l2(home).champion, _l2(home).canary) == (_name(2), None)


def test_going_back_after_a_canary_whose_export_was_lost_goes_back(home: Path) -> None:
    """The last thing logged is no rollback, so there is none to be finished."""
    _promote(home)
    rollback(home, "L2")
    with Registry.open(home) as registry:
        registry.begin_canary("L2", _digest(3), 5, _report(home, 1, 3))
    result = rollback(home, "L2")
    assert (result.changed, result.champion) == (True, _name(2))
    assert _l2(home).canary is None
