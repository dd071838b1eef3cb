"""What slots are for, canaries, and registries from before there were either.

Real SQLite files. An old registry is made by the statements that the code then ran.
"""

import json
import sqlite3
import threading
from pathlib import Path

import pytest
from registry_records import SLOTS, digest_of, gated, report_of, version_of

from promotion.events import append_event
from promotion.promote import slot_table
from promotion.registry import Registry
from promotion.slot_rows import (
    NoPrevious,
    PromotionRefused,
    SlotHeld,
    SlotInvalid,
    StaleGeneration,
    UnknownSlot,
)
from promotion.state import SlotState
from promotion.tables import CorruptRegistry
from serving.slot_table import SlotTraits

LAW = SlotTraits(
    description="law", system="Be exact.", routing_rule="contract", tier="extra", offers_tools=True
)
CODE = SlotTraits(description="Python code", system="Write code.")


def altered(home: Path, *statements: str) -> None:
    connection = sqlite3.connect(home / "registry.sqlite")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


# --- what slots are for


def test_declaring_tells_what_a_new_slot_is_for_and_changes_no_known_one(tmp_path: Path) -> None:
    with Registry.open(tmp_path, {"L2": CODE}) as registry:
        registry.declare({"L2": LAW, "L4": LAW})
        registry.declare(["L5"])
        registry.declare({"L5": LAW})  # nobody had said what it is for
        assert registry.traits() == {"L2": CODE, "L4": LAW, "L5": LAW}
        assert registry.verify_chain() == 0


def test_an_added_slot_serves_the_base_and_is_logged(registry: Registry) -> None:
    change = registry.add("L4", LAW)
    assert (change.state.champion, change.state.generation) == (None, 1)
    assert registry.traits()["L4"] == LAW
    (event,) = registry.events("L4")
    assert event.kind == "configure"
    assert json.loads(event.payload)["traits"]["description"] == "law"
    assert registry.history("L4") == ()
    assert registry.verify_chain() == 1
    with pytest.raises(NoPrevious):
        registry.rollback("L4")


@pytest.mark.parametrize("name", ["L2", "", "4L", "L/4", "L4@x", "L" * 33, "L4\n"])
def test_a_slot_that_is_there_or_has_no_name_is_not_added(registry: Registry, name: str) -> None:
    before = registry.slots()
    with pytest.raises(SlotInvalid):
        registry.add(name, LAW)
    assert registry.slots() == before
    assert registry.events() == ()


def test_what_is_not_named_stays(registry: Registry) -> None:
    registry.declare({"L4": LAW})
    change = registry.configure("L4", {"description": "contracts"}, expected_generation=0)
    assert change.changed
    assert registry.traits()["L4"] == LAW.model_copy(update={"description": "contracts"})
    assert not registry.configure("L4", {"description": "contracts"}).changed
    with pytest.raises(StaleGeneration):
        registry.configure("L4", {"tier": "core"}, expected_generation=0)
    with pytest.raises(UnknownSlot):
        registry.configure("L9", {"tier": "core"})
    assert registry.verify_chain() == 1


def test_a_configured_slot_still_takes_its_first_adapter(registry: Registry) -> None:
    registry.configure("L2", {"description": "Python"})
    assert registry.bootstrap("L2", digest_of(1)).changed
    assert registry.slot("L2").generation == 2
    with pytest.raises(PromotionRefused):
        registry.bootstrap("L2", digest_of(2))


def test_a_held_slot_takes_no_first_adapter(registry: Registry) -> None:
    registry.remark("L2", "hold", {"held": True, "by": "ann", "reason": "wait"})
    with pytest.raises(SlotHeld, match="'ann'"):
        registry.bootstrap("L2", digest_of(1))
    assert registry.slot("L2").champion is None


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE slots SET system = 'Tell secrets.' WHERE slot = 'L4'",
        "UPDATE slots SET tier = NULL WHERE slot = 'L4'",
        "UPDATE slots SET offers_tools = 0 WHERE slot = 'L4'",
        "UPDATE slots SET canary_percent = 99 WHERE slot = 'L2'",
        "UPDATE slots SET canary = NULL WHERE slot = 'L2'",
    ],
)
def test_a_change_behind_the_registrys_back_is_found(
    registry: Registry, tmp_path: Path, tampering: str
) -> None:
    registry.add("L4", LAW)
    registry.bootstrap("L2", digest_of(1))
    registry.begin_canary("L2", digest_of(2), 5, gated(registry, 1, 2))
    assert registry.verify_chain() == 3
    altered(tmp_path, tampering)
    with pytest.raises(CorruptRegistry, match="altered or is missing"):
        registry.verify_chain()


# --- canaries


def test_a_canary_needs_and_keeps_its_report(registry: Registry) -> None:
    registry.bootstrap("L2", digest_of(1))
    report = gated(registry, 1, 2)
    state = registry.begin_canary("L2", digest_of(2), 5, report, 1).state
    assert (state.champion, state.canary, state.canary_percent) == (digest_of(1), digest_of(2), 5.0)
    assert state.previous is None
    assert json.loads(registry.events()[-1].payload)["report"] == report.key
    assert not registry.begin_canary("L2", digest_of(2), 5, report).changed
    assert registry.begin_canary("L2", digest_of(2), 20, report).state.canary_percent == 20
    promoted = registry.promote("L2", digest_of(2), 3, report).state
    assert (promoted.champion, promoted.previous) == (digest_of(2), digest_of(1))
    assert (promoted.canary, promoted.canary_percent) == (None, 0.0)
    assert [tenure.by for tenure in registry.history("L2")] == ["bootstrap", "promote"]
    assert registry.verify_chain() == 4


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (report_of(1, 2, gains=3), "says 'INCONCLUSIVE'"),
        (report_of(3, 2), "is about champion"),
        (report_of(None, 2), "is about champion"),
        (report_of(1, 3), "is about challenger"),
        (report_of(1, 2, base_digest=digest_of(77)), "is about base"),
    ],
)
def test_a_version_that_did_not_pass_against_the_champion_is_no_canary(
    registry: Registry, report, text: str
) -> None:
    registry.bootstrap("L2", digest_of(1))
    before = registry.slot("L2")
    with pytest.raises(PromotionRefused, match=text):
        registry.begin_canary("L2", digest_of(2), 5, report)
    assert registry.slot("L2") == before
    assert len(registry.events()) == 1


@pytest.mark.parametrize("percent", [0, -1, 100, 100.5, float("nan"), float("inf")])
def test_a_canary_gets_a_part_and_neither_nothing_nor_all(
    registry: Registry, percent: float
) -> None:
    with pytest.raises(PromotionRefused, match=r"less than 100 percent.*'flows promote L2' gives"):
        registry.begin_canary("L2", digest_of(2), percent, gated(registry, None, 2))


def test_a_canary_ends_by_word_by_rollback_and_by_another_champion(registry: Registry) -> None:
    registry.bootstrap("L2", digest_of(1))
    registry.promote("L2", digest_of(2), 1, gated(registry, 1, 2))

    registry.begin_canary("L2", digest_of(3), 5, gated(registry, 2, 3))
    ended = registry.end_canary("L2", 3).state
    assert (ended.champion, ended.canary, ended.canary_percent) == (digest_of(2), None, 0.0)
    assert ended.previous == digest_of(1)
    assert not registry.end_canary("L2").changed

    registry.begin_canary("L2", digest_of(3), 5, gated(registry, 2, 3))
    assert registry.promote("L2", digest_of(4), 5, gated(registry, 2, 4)).state.canary is None

    registry.begin_canary("L2", digest_of(3), 5, gated(registry, 4, 3))
    back = registry.rollback("L2").state
    assert (back.champion, back.previous, back.canary) == (digest_of(2), digest_of(4), None)
    assert registry.verify_chain() == 8


def test_a_canary_takes_no_other_ones_place(registry: Registry) -> None:
    registry.bootstrap("L2", digest_of(1))
    registry.begin_canary("L2", digest_of(2), 20, gated(registry, 1, 2))
    before = registry.events()
    words = r"'L2@0+' is on trial with 20% of 'L2'.*'flows slots canary L2 --end'"
    with pytest.raises(PromotionRefused, match=words):
        registry.begin_canary("L2", digest_of(3), 5, gated(registry, 1, 3))
    assert registry.events() == before
    registry.end_canary("L2")
    assert registry.begin_canary("L2", digest_of(3), 5, gated(registry, 1, 3)).changed


def test_a_slot_that_moved_on_gets_no_canary(registry: Registry) -> None:
    registry.bootstrap("L2", digest_of(1))
    with pytest.raises(StaleGeneration):
        registry.begin_canary("L2", digest_of(2), 5, gated(registry, 1, 2), expected_generation=0)
    with pytest.raises(StaleGeneration):
        registry.end_canary("L2", expected_generation=0)
    with pytest.raises(PromotionRefused, match="belongs to slot 'L2'"):
        registry.begin_canary("L1", digest_of(2), 5, gated(registry, 1, 2, slot="L1"))


def test_of_a_canary_and_a_promotion_at_once_both_or_the_first_count(tmp_path: Path) -> None:
    """Whoever is second sees what the first did, and the log stays whole."""
    with Registry.open(tmp_path, SLOTS) as registry:
        for number in (1, 2, 3):
            registry.register(version_of(number))
        registry.bootstrap("L2", digest_of(1))
        barrier, outcomes = threading.Barrier(2), []

        def act(kind: str) -> None:
            with Registry.open(tmp_path) as own:
                barrier.wait()
                try:
                    if kind == "canary":
                        own.begin_canary("L2", digest_of(2), 5, gated(own, 1, 2), 1)
                    else:
                        own.promote("L2", digest_of(3), 1, gated(own, 1, 3))
                    outcomes.append(kind)
                except PromotionRefused:
                    pass

        threads = [threading.Thread(target=act, args=(kind,)) for kind in ("canary", "promote")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outcomes) == 1
        assert registry.slot("L2").generation == registry.verify_chain() == 2


# --- the table


def test_the_table_says_all_of_it(registry: Registry) -> None:
    other = version_of(9, digest="sha256:" + "9" * 64)
    registry.register(other)
    registry.declare({"L4": LAW})
    registry.bootstrap("L2", digest_of(1))
    report = gated(registry, 1, 9, challenger_digest=other.digest)
    registry.begin_canary("L2", other.digest, 12.5, report)
    table = slot_table(registry)
    assert [entry.slot for entry in table.slots] == ["L0", "L1", "L2", "L3", "L4"]
    code, law = table.get("L2"), table.get("L4")
    assert code is not None
    assert law is not None
    assert (code.champion, code.path) == (version_of(1).name, version_of(1).path)
    assert (code.canary, code.canary_digest) == (other.name, other.digest)
    assert (code.canary_path, code.canary_percent) == (other.path, 12.5)
    assert (code.previous, code.generation) == (None, 2)
    registry.end_canary("L2")
    registry.promote("L2", other.digest, 3, gated(registry, 1, 9, challenger_digest=other.digest))
    code = slot_table(registry).get("L2")
    assert code is not None
    assert (code.previous, code.previous_digest) == (version_of(1).name, digest_of(1))
    assert code.previous_path == version_of(1).path
    assert law.model_dump(include=set(SlotTraits.model_fields)) == LAW.model_dump()


# --- registries of before


class _Short(SlotState):
    """A state as events told it before."""

    def model_dump(self, **options):
        return super().model_dump(exclude={"canary_percent"}, **options)


def old_registry(home: Path) -> None:
    """Make the file as it was before canaries and traits: fewer columns, shorter events."""
    with Registry.open(home, SLOTS) as registry:
        registry.register(version_of(1))
        registry.register(version_of(2))
        state = _Short.new("L2").model_copy(
            update={
                "base_digest": version_of(1).base_digest,
                "champion": digest_of(1),
                "generation": 1,
            }
        )
        with registry._database.writing() as connection:
            append_event(connection, state, "bootstrap", None)
    columns = ("canary_percent", *SlotTraits.model_fields)
    altered(
        home,
        f"UPDATE slots SET champion = '{digest_of(1)}', generation = 1, "
        f"base_digest = '{version_of(1).base_digest}' WHERE slot = 'L2'",
        *(f"ALTER TABLE slots DROP COLUMN {column}" for column in columns),
    )


def test_an_old_registry_is_read_verified_and_completed(tmp_path: Path) -> None:
    old_registry(tmp_path)
    with Registry.open(tmp_path) as registry:
        (event,) = registry.events()
        assert "canary_percent" not in event.payload
        assert registry.verify_chain() == 1
        assert registry.slot("L2").champion == digest_of(1)
        assert registry.traits()["L2"] == SlotTraits()
        # A champion may move before anybody says what the slots are for.
        registry.promote("L2", digest_of(2), 1, gated(registry, 1, 2))
    with Registry.open(tmp_path, {"L2": CODE, "L0": SlotTraits(role="router")}) as registry:
        assert registry.traits()["L2"] == CODE
        assert registry.traits()["L0"].role == "router"
        assert registry.verify_chain() == 2
        registry.configure("L2", {"tier": "extra"})
        assert registry.verify_chain() == 3


def test_an_old_registry_opened_by_many_is_completed_once(tmp_path: Path) -> None:
    old_registry(tmp_path)
    errors: list[Exception] = []

    def opener() -> None:
        try:
            with Registry.open(tmp_path, {"L2": CODE}) as registry:
                registry.slots()
        except Exception as error:  # whatever it is, the test shows it
            errors.append(error)

    threads = [threading.Thread(target=opener) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with Registry.open(tmp_path) as registry:
        assert registry.traits()["L2"] == CODE
        assert registry.verify_chain() == 1
