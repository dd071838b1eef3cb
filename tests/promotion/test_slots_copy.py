"""`slots.json` beside the registry: a copy that failed, or that is of another registry.

The registry, its log and the files are real; adapters are folders with one file.
"""

from pathlib import Path

import pytest
from canary_traffic import SLOT, digest, make_home, name, report_of, whole
from registry_records import attempted

from promotion.promote import (
    RegistryEmpty,
    export_slots,
    promote,
    read_slots,
    rollback,
)
from promotion.registry import Registry
from serving.disk import DiskFull


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """L2 serves version 2, and 1 before."""
    home = make_home(tmp_path)
    promote(home, attempted(home, report_of(1, 2)), verify=whole)
    return home


def _champion(home: Path) -> str | None:
    slot = read_slots(home).get(SLOT)
    assert slot is not None
    return slot.champion


def _remark(home: Path) -> None:
    with Registry.open(home) as registry:
        registry.remark(SLOT, "hold", {"held": True, "by": "ann", "reason": "2 stays off"})


def test_a_rollback_whose_copy_failed_is_finished_whatever_was_said_since(home: Path) -> None:
    copy = home / "slots.json"
    before = copy.read_bytes()
    copy.unlink()
    copy.mkdir()  # cannot be replaced by a file
    with pytest.raises(DiskFull, match=r"registry.sqlite' is as asked for.*slots.json.*is not yet"):
        rollback(home, SLOT)
    copy.rmdir()
    copy.write_bytes(before)
    with Registry.open(home) as registry:
        assert registry.slot(SLOT).champion == digest(1)
    _remark(home)
    result = rollback(home, SLOT)
    assert "finished going back to" in result.message
    assert (result.changed, result.champion, _champion(home)) == (False, name(1), name(1))
    assert rollback(home, SLOT).champion == name(2)


def test_a_word_after_a_rollback_does_not_stop_going_back_again(home: Path) -> None:
    rollback(home, SLOT)
    _remark(home)
    result = rollback(home, SLOT)
    assert (result.changed, result.champion) == (True, name(2))


@pytest.mark.parametrize("how", ["export", "configure"])
def test_an_empty_registry_takes_nothing_out_of_service(home: Path, how: str) -> None:
    before = (home / "slots.json").read_bytes()
    (home / "registry.sqlite").rename(home / "elsewhere")
    with Registry.open(home, ("L1", SLOT)) as registry:
        if how == "configure":
            registry.configure("L1", {"description": "code"})
        with pytest.raises(RegistryEmpty, match=rf"registry.sqlite' never had.*says that '{SLOT}'"):
            export_slots(home, registry)
        with pytest.raises(RegistryEmpty):
            rollback(home, SLOT)
        assert (home / "slots.json").read_bytes() == before
        (home / "slots.json").unlink()
        export_slots(home, registry)
    assert _champion(home) is None
