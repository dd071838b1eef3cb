"""`flows rollback` and the first adapters ask the registry, whatever `slots.json` says or lacks.

A real registry and real adapters of the tiny base; the command runs in this process.
"""

from pathlib import Path

import pytest
from engine_calls import make_adapter
from tiny_loop import tiny_settings
from typer.testing import CliRunner, Result

from flows import slots, stages
from flows.cli import app
from flows.config import Settings
from promotion.slot_rows import NoPrevious, PromotionRefused, UnknownSlot


def flows(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="flows")


@pytest.fixture
def settings(tiny_base: Path, tmp_path: Path) -> Settings:
    """First adapters for L1 and L2."""
    first = tmp_path / "first"
    for seed, slot in enumerate(("L1", "L2")):
        make_adapter(first / slot, tiny_base, seed)
    made = tiny_settings(tmp_path / "home", tiny_base, ())
    return made.model_copy(update={"first_adapters": first})


def served(settings: Settings) -> dict[str, bool]:
    return {row["slot"]: row["serves"] != "base" for row in slots.rows(settings)}


@pytest.mark.parametrize(
    ("command", "then"), [("rollback", NoPrevious), ("promote", stages.NothingMade)]
)
def test_a_slot_that_only_the_registry_knows_is_one(
    settings: Settings, command: str, then: type[Exception]
) -> None:
    where = ("--home", settings.home)
    slots.add(settings, "L4", {"description": "long tasks", "system": "You plan."})
    (settings.home / "slots.json").unlink()
    done = flows(command, "L4", *where)
    assert isinstance(done.exception, then), done.exception
    unknown = flows(command, "L9", *where)
    assert isinstance(unknown.exception, UnknownSlot)
    assert "'L3', 'L4'" in str(unknown.exception)
    assert "--slot" not in str(unknown.exception)


def test_a_router_head_has_commands_of_its_own(settings: Settings) -> None:
    slots.add(settings, "router", {"role": "head"})
    done = flows("rollback", "router", "--home", settings.home)
    assert isinstance(done.exception, PromotionRefused)
    assert "flows router rollback" in str(done.exception)


def test_a_slot_that_was_only_configured_gets_its_first_adapter(settings: Settings) -> None:
    slots.configure(settings, "L2", {"routing_rule": "python"})
    stages.prepare_registry(settings)
    assert served(settings) == {"L0": False, "L1": True, "L2": True, "L3": False}


def test_a_slot_that_a_person_holds_gets_none_and_is_named(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    with stages.open_registry(settings) as registry:
        registry.remark("L2", "hold", {"held": True, "by": "ann", "reason": "not yet"})
    stages.prepare_registry(settings)
    assert served(settings) == {"L0": False, "L1": True, "L2": False, "L3": False}
    assert "'L2' is held by 'ann'" in capsys.readouterr().err
