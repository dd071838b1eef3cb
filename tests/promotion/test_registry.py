"""The registry on real SQLite files: identity, compare-and-swap, look-up.

Gate reports are made by `judge` from made-up scores; artifacts are not needed here.
"""

from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError
from registry_records import SLOTS, START, digest_of, gated, report_of, version_of

from promotion.gate import GateReport
from promotion.registry import Registry
from promotion.slot_rows import NoPrevious, PromotionRefused, StaleGeneration, UnknownSlot
from promotion.state import BASE
from promotion.tables import (
    Database,
    prefix_query,
    versions_query,
    versions_table,
)
from promotion.version_rows import UnknownAdapter, VersionConflict
from serving.errors import InvalidAdapterName

# --- versions


def test_registering_twice_keeps_the_first(registry: Registry) -> None:
    again = version_of(1, metrics={"rows": 99}, created_at=START)
    assert registry.register(again) == version_of(1)
    assert len(registry.versions()) == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [("slot", "L1"), ("base_digest", digest_of(9)), ("run_key", "other"), ("path", "elsewhere")],
)
def test_a_digest_with_other_content_is_refused(registry: Registry, field: str, value: str) -> None:
    with pytest.raises(VersionConflict, match=f"with {field} .*a version never changes"):
        registry.register(version_of(1, **{field: value}))
    assert registry.version(digest_of(1)) == version_of(1)


def test_a_version_of_an_unknown_slot_is_refused(registry: Registry) -> None:
    with pytest.raises(UnknownSlot, match=r"No slot 'L9' .* 'L0', 'L1', 'L2', 'L3'"):
        registry.register(version_of(9, slot="L9"))


@pytest.mark.parametrize("path", ["/etc", "../outside", "adapters/../../x"])
def test_a_path_outside_the_home_is_refused(path: str) -> None:
    with pytest.raises(ValidationError, match="relative to the home folder"):
        version_of(1, path=path)


def test_versions_come_newest_first_in_pages(registry: Registry) -> None:
    assert [v.run_key for v in registry.versions("L2", limit=2, offset=1)] == ["run-3", "run-2"]
    assert registry.versions("L1") == ()


@pytest.mark.parametrize(
    "reference",
    [
        f"L2@{0xABC:012x}",
        "sha256:" + "a" * 4,
        "a" * 64,
    ],
)
def test_a_version_answers_to_name_and_prefix(registry: Registry, reference: str) -> None:
    wanted = version_of(5, digest="sha256:" + "a" * 64)
    named = version_of(6, digest=f"sha256:{0xABC:012x}" + "f" * 52)
    registry.register(wanted)
    registry.register(named)
    assert registry.version(reference) == (named if "@" in reference else wanted)


@pytest.mark.parametrize("reference", ["L2@ffffffffffff", "L1@000000000000", "ffff", "ab", "%", ""])
def test_an_unknown_version_names_those_there_are(registry: Registry, reference: str) -> None:
    with pytest.raises(UnknownAdapter, match="flows adapters list"):
        registry.version(reference)


def test_an_ambiguous_prefix_is_refused(registry: Registry) -> None:
    with pytest.raises(UnknownAdapter, match="More than one adapter '0000'"):
        registry.version("0000")


def test_a_malformed_name_is_refused(registry: Registry) -> None:
    with pytest.raises(InvalidAdapterName):
        registry.version("L2@nothex")


def test_look_ups_among_many_versions_use_an_index(tmp_path: Path) -> None:
    """No timing: the plans name an index and neither scan nor sort the table."""
    with Registry.open(tmp_path, SLOTS) as registry:
        database = Database(tmp_path)
        rows = [
            version_of(i, slot=SLOTS[i % 4]).model_dump()
            | {"created_at": (START + timedelta(seconds=i)).isoformat(timespec="microseconds")}
            for i in range(20_000)
        ]
        with database.writing() as connection:
            connection.execute(versions_table.insert(), rows)
        for query, index in (
            (versions_query("L2", 50, 0), "versions_by_slot (slot=?)"),
            (versions_query(None, 50, 0), "versions_by_age"),
            (prefix_query("00ab"), "sqlite_autoindex_versions_1 (digest>? AND digest<?)"),
        ):
            text = query.compile(database.engine, compile_kwargs={"literal_binds": True})
            with database.reading() as connection:
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}").all()
            steps = " / ".join(row[-1] for row in plan)
            assert f"USING INDEX {index}" in steps, steps
            assert "TEMP B-TREE" not in steps, steps
        assert registry.versions("L3", limit=1)[0].digest == digest_of(19_999)
        database.close()


# --- slots


def test_slots_start_on_the_base_and_declaring_again_changes_nothing(registry: Registry) -> None:
    registry.bootstrap("L2", digest_of(1))
    registry.declare(["L2", "L4"])
    assert [state.slot for state in registry.slots()] == [*SLOTS, "L4"]
    assert registry.slot("L2").champion == digest_of(1)
    assert registry.slot("L0").champion is None


def test_an_unknown_slot_names_those_there_are(registry: Registry) -> None:
    with pytest.raises(UnknownSlot, match="'L0', 'L1', 'L2', 'L3'"):
        registry.slot("L7")


def test_bootstrap_only_fills_a_slot_without_history(registry: Registry) -> None:
    assert registry.bootstrap("L2", digest_of(1)).changed
    assert not registry.bootstrap("L2", digest_of(1)).changed
    with pytest.raises(PromotionRefused, match=f"serves 'L2@{1:012x}"[:20]):
        registry.bootstrap("L2", digest_of(2))
    assert registry.slot("L2").generation == 1


def test_a_version_of_another_slot_never_serves(registry: Registry) -> None:
    with pytest.raises(PromotionRefused, match="belongs to slot 'L2', not 'L1'"):
        registry.bootstrap("L1", digest_of(1))


# --- promotion


def test_a_passed_report_moves_the_champion(registry: Registry) -> None:
    registry.bootstrap("L2", digest_of(1))
    change = registry.promote("L2", digest_of(2), 1, gated(registry, 1, 2))
    assert change.changed
    state = registry.slot("L2")
    assert (state.champion, state.previous, state.generation) == (digest_of(2), digest_of(1), 2)


def test_promoting_the_champion_again_changes_nothing(registry: Registry) -> None:
    report = gated(registry, None, 2)
    registry.promote("L2", digest_of(2), 0, report)
    again = registry.promote("L2", digest_of(2), 0, report)
    assert not again.changed
    assert len(registry.events()) == 1


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (report_of(1, 2, gains=3), "says 'INCONCLUSIVE'"),
        (report_of(1, 2, verdict="FAIL"), "says 'FAIL'"),
        (report_of(3, 2), "is about champion"),
        (report_of(None, 2), "is about champion 'base'"),
        (report_of(1, 3), "is about challenger"),
        (report_of(1, 2, slot="L1"), "is about slot 'L1'"),
        (report_of(1, 2, base_digest=digest_of(77)), "is about base"),
    ],
)
def test_a_report_that_does_not_fit_changes_nothing(
    registry: Registry, report: GateReport, text: str
) -> None:
    registry.bootstrap("L2", digest_of(1))
    before = registry.slot("L2")
    with pytest.raises(PromotionRefused, match=text) as refusal:
        registry.promote("L2", digest_of(2), 1, report)
    assert "\n" not in str(refusal.value)
    assert registry.slot("L2") == before
    assert len(registry.events()) == 1


def test_a_challenger_on_another_base_is_refused(registry: Registry) -> None:
    other = digest_of(77)
    registry.register(version_of(9, base_digest=other))
    registry.bootstrap("L2", digest_of(1))
    with pytest.raises(PromotionRefused, match="is about base"):
        registry.promote("L2", digest_of(9), 1, gated(registry, 1, 9, base_digest=other))


def test_a_generation_that_passed_is_refused(registry: Registry) -> None:
    registry.bootstrap("L2", digest_of(1))
    with pytest.raises(StaleGeneration, match="at generation 1, not 0"):
        registry.promote("L2", digest_of(2), 0, gated(registry, 1, 2))


def test_a_report_does_not_bring_back_what_was_rolled_back(registry: Registry) -> None:
    report = gated(registry, None, 2)
    registry.promote("L2", digest_of(2), 0, report)
    registry.rollback("L2")
    with pytest.raises(PromotionRefused, match="a report promotes once"):
        registry.promote("L2", digest_of(2), 2, report)


def test_an_unregistered_challenger_is_refused(registry: Registry) -> None:
    with pytest.raises(UnknownAdapter):
        registry.promote("L2", digest_of(50), 0, gated(registry, None, 50))


# --- rollback


def test_rollback_swaps_and_swaps_back(registry: Registry) -> None:
    registry.bootstrap("L2", digest_of(1))
    registry.promote("L2", digest_of(2), 1, gated(registry, 1, 2))
    first = registry.rollback("L2").state
    assert (first.champion, first.previous) == (digest_of(1), digest_of(2))
    assert registry.rollback("L2").state.champion == digest_of(2)


def test_the_first_adapter_rolls_back_to_the_base(registry: Registry) -> None:
    registry.promote("L2", digest_of(2), 0, gated(registry, None, 2))
    assert registry.slot("L2").previous == BASE
    state = registry.rollback("L2").state
    assert (state.champion, state.previous) == (None, digest_of(2))


@pytest.mark.parametrize("bootstrapped", [False, True])
def test_no_previous_is_said_clearly(registry: Registry, bootstrapped: bool) -> None:
    if bootstrapped:
        registry.bootstrap("L2", digest_of(1))
    with pytest.raises(NoPrevious, match="no previous version to go back to"):
        registry.rollback("L2")


def test_rollback_of_a_slot_that_moved_is_refused(registry: Registry) -> None:
    registry.promote("L2", digest_of(2), 0, gated(registry, None, 2))
    with pytest.raises(StaleGeneration):
        registry.rollback("L2", expected_generation=0)
