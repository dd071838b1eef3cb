"""The registry on real SQLite files: identity, compare-and-swap, log, look-up.

Gate reports are made by `judge` from made-up scores; artifacts are not needed here.
Races run in threads and processes of their own connections, nothing is locked by the test.
"""

import json
import multiprocessing
import sqlite3
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from promotion.config import GateConfig
from promotion.gate import GateIdentity, GateReport, SuiteScores, judge
from promotion.registry import (
    NoPrevious,
    PromotionRefused,
    Registry,
    StaleGeneration,
    UnknownAdapter,
    UnknownSlot,
    VersionConflict,
)
from promotion.state import BASE, RegisteredVersion
from promotion.tables import (
    CorruptRegistry,
    Database,
    RegistryUnavailable,
    prefix_query,
    versions_query,
    versions_table,
)
from serving.errors import InvalidAdapterName

SLOTS = ("L0", "L1", "L2", "L3")
BASE_DIGEST = "sha256:" + "0" * 64
START = datetime(2026, 1, 1, tzinfo=UTC)


def _digest(number: int) -> str:
    return f"sha256:{number:064x}"


def _version(number: int, slot: str = "L2", **changes: Any) -> RegisteredVersion:
    fields = {
        "slot": slot,
        "digest": _digest(number),
        "base_digest": BASE_DIGEST,
        "manifest_digest": "sha256:" + "e" * 64,
        "run_key": f"run-{number}",
        "metrics": {"train_loss": 0.5, "rows": 12},
        "path": f"adapters/{number:064x}",
        "created_at": START + timedelta(minutes=number),
    }
    return RegisteredVersion(**(fields | changes))


def _report(champion: int | None, challenger: int, gains: int = 20, **changes: Any) -> GateReport:
    """A report of 60 items, of which `gains` were won and 2 lost."""
    n, losses = 60, 2
    both = n - gains - losses
    scores = SuiteScores(
        suite="functions",
        slot="L2",
        item_ids=tuple(map(str, range(n))),
        clusters=tuple(map(str, range(n))),
        champion=(0.0,) * gains + (1.0,) * losses + (1.0,) * both,
        challenger=(1.0,) * gains + (0.0,) * losses + (1.0,) * both,
        identical=False,
        unchanged=False,
    )
    fields = {
        "slot": "L2",
        "champion_digest": None if champion is None else _digest(champion),
        "challenger_digest": _digest(challenger),
        "base_digest": BASE_DIGEST,
        "suites_digest": "sha256:" + "d" * 64,
        "seed": 0,
        "code_version": "1",
    }
    report = judge(scores, [], GateConfig(), GateIdentity(**(fields | {"slot": "L2"})))
    return report.model_copy(update=changes)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with Registry.open(tmp_path, SLOTS) as opened:
        for number in range(1, 5):
            opened.register(_version(number))
        yield opened


# --- versions


def test_registering_twice_keeps_the_first(registry: Registry) -> None:
    again = _version(1, metrics={"rows": 99}, created_at=START)
    assert registry.register(again) == _version(1)
    assert len(registry.versions()) == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [("slot", "L1"), ("base_digest", _digest(9)), ("run_key", "other"), ("path", "elsewhere")],
)
def test_a_digest_with_other_content_is_refused(registry: Registry, field: str, value: str) -> None:
    with pytest.raises(VersionConflict, match=f"with {field} .*a version never changes"):
        registry.register(_version(1, **{field: value}))
    assert registry.version(_digest(1)) == _version(1)


def test_a_version_of_an_unknown_slot_is_refused(registry: Registry) -> None:
    with pytest.raises(UnknownSlot, match=r"No slot 'L9' .* 'L0', 'L1', 'L2', 'L3'"):
        registry.register(_version(9, slot="L9"))


@pytest.mark.parametrize("path", ["/etc", "../outside", "adapters/../../x"])
def test_a_path_outside_the_home_is_refused(path: str) -> None:
    with pytest.raises(ValidationError, match="relative to the home folder"):
        _version(1, path=path)


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
    wanted = _version(5, digest="sha256:" + "a" * 64)
    named = _version(6, digest=f"sha256:{0xABC:012x}" + "f" * 52)
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
            _version(i, slot=SLOTS[i % 4]).model_dump()
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
        assert registry.versions("L3", limit=1)[0].digest == _digest(19_999)
        database.close()


# --- slots


def test_slots_start_on_the_base_and_declaring_again_changes_nothing(registry: Registry) -> None:
    registry.bootstrap("L2", _digest(1))
    registry.declare(["L2", "L4"])
    assert [state.slot for state in registry.slots()] == [*SLOTS, "L4"]
    assert registry.slot("L2").champion == _digest(1)
    assert registry.slot("L0").champion is None


def test_an_unknown_slot_names_those_there_are(registry: Registry) -> None:
    with pytest.raises(UnknownSlot, match="'L0', 'L1', 'L2', 'L3'"):
        registry.slot("L7")


def test_bootstrap_only_fills_a_slot_without_history(registry: Registry) -> None:
    assert registry.bootstrap("L2", _digest(1)).changed
    assert not registry.bootstrap("L2", _digest(1)).changed
    with pytest.raises(PromotionRefused, match=f"serves 'L2@{1:012x}"[:20]):
        registry.bootstrap("L2", _digest(2))
    assert registry.slot("L2").generation == 1


def test_a_version_of_another_slot_never_serves(registry: Registry) -> None:
    with pytest.raises(PromotionRefused, match="belongs to slot 'L2', not 'L1'"):
        registry.bootstrap("L1", _digest(1))


# --- promotion


def test_a_passed_report_moves_the_champion(registry: Registry) -> None:
    registry.bootstrap("L2", _digest(1))
    change = registry.promote("L2", _digest(2), 1, _report(1, 2))
    assert change.changed
    state = registry.slot("L2")
    assert (state.champion, state.previous, state.generation) == (_digest(2), _digest(1), 2)


def test_promoting_the_champion_again_changes_nothing(registry: Registry) -> None:
    report = _report(None, 2)
    registry.promote("L2", _digest(2), 0, report)
    again = registry.promote("L2", _digest(2), 0, report)
    assert not again.changed
    assert len(registry.events()) == 1


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (_report(1, 2, gains=3), "says 'INCONCLUSIVE'"),
        (_report(1, 2, verdict="FAIL"), "says 'FAIL'"),
        (_report(3, 2), "is about champion"),
        (_report(None, 2), "is about champion 'base'"),
        (_report(1, 3), "is about challenger"),
        (_report(1, 2, slot="L1"), "is about slot 'L1'"),
        (_report(1, 2, base_digest=_digest(77)), "is about base"),
    ],
)
def test_a_report_that_does_not_fit_changes_nothing(
    registry: Registry, report: GateReport, text: str
) -> None:
    registry.bootstrap("L2", _digest(1))
    before = registry.slot("L2")
    with pytest.raises(PromotionRefused, match=text) as refusal:
        registry.promote("L2", _digest(2), 1, report)
    assert "\n" not in str(refusal.value)
    assert registry.slot("L2") == before
    assert len(registry.events()) == 1


def test_a_challenger_on_another_base_is_refused(registry: Registry) -> None:
    other = _digest(77)
    registry.register(_version(9, base_digest=other))
    registry.bootstrap("L2", _digest(1))
    with pytest.raises(PromotionRefused, match="is about base"):
        registry.promote("L2", _digest(9), 1, _report(1, 9, base_digest=other))


def test_a_generation_that_passed_is_refused(registry: Registry) -> None:
    registry.bootstrap("L2", _digest(1))
    with pytest.raises(StaleGeneration, match="at generation 1, not 0"):
        registry.promote("L2", _digest(2), 0, _report(1, 2))


def test_a_report_does_not_bring_back_what_was_rolled_back(registry: Registry) -> None:
    report = _report(None, 2)
    registry.promote("L2", _digest(2), 0, report)
    registry.rollback("L2")
    with pytest.raises(PromotionRefused, match="a report promotes once"):
        registry.promote("L2", _digest(2), 2, report)


def test_an_unregistered_challenger_is_refused(registry: Registry) -> None:
    with pytest.raises(UnknownAdapter):
        registry.promote("L2", _digest(50), 0, _report(None, 50))


# --- rollback


def test_rollback_swaps_and_swaps_back(registry: Registry) -> None:
    registry.bootstrap("L2", _digest(1))
    registry.promote("L2", _digest(2), 1, _report(1, 2))
    first = registry.rollback("L2").state
    assert (first.champion, first.previous) == (_digest(1), _digest(2))
    assert registry.rollback("L2").state.champion == _digest(2)


def test_the_first_adapter_rolls_back_to_the_base(registry: Registry) -> None:
    registry.promote("L2", _digest(2), 0, _report(None, 2))
    assert registry.slot("L2").previous == BASE
    state = registry.rollback("L2").state
    assert (state.champion, state.previous) == (None, _digest(2))


@pytest.mark.parametrize("bootstrapped", [False, True])
def test_no_previous_is_said_clearly(registry: Registry, bootstrapped: bool) -> None:
    if bootstrapped:
        registry.bootstrap("L2", _digest(1))
    with pytest.raises(NoPrevious, match="no previous version to go back to"):
        registry.rollback("L2")


def test_rollback_of_a_slot_that_moved_is_refused(registry: Registry) -> None:
    registry.promote("L2", _digest(2), 0, _report(None, 2))
    with pytest.raises(StaleGeneration):
        registry.rollback("L2", expected_generation=0)


# --- the log


def test_history_says_who_served_when(registry: Registry) -> None:
    registry.bootstrap("L2", _digest(1))
    registry.promote("L2", _digest(2), 1, _report(1, 2))
    registry.rollback("L2")
    tenures = registry.history("L2")
    assert [t.champion for t in tenures] == [_digest(1), _digest(2), _digest(1)]
    assert [t.by for t in tenures] == ["bootstrap", "promote", "rollback"]
    assert [t.until for t in tenures] == [tenures[1].since, tenures[2].since, None]
    assert registry.history("L1") == ()


def _eventful(registry: Registry) -> None:
    registry.bootstrap("L2", _digest(1))
    registry.promote("L2", _digest(2), 1, _report(1, 2))
    registry.rollback("L2")


def test_an_honest_log_verifies(registry: Registry) -> None:
    _eventful(registry)
    assert registry.verify_chain() == 3


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE events SET kind = 'promote' WHERE seq = 1",
        "UPDATE events SET payload = replace(payload, '\"generation\":2', '\"generation\":3')",
        "UPDATE events SET at = '2020-01-01T00:00:00.000000+00:00' WHERE seq = 3",
        "UPDATE events SET report_key = 'forged' WHERE seq = 2",
        "DELETE FROM events WHERE seq = 2",
        "DELETE FROM events WHERE seq = 3",
        "DELETE FROM events",
        "UPDATE slots SET champion = NULL WHERE slot = 'L2'",
        f"UPDATE slots SET champion = '{_digest(1)}' WHERE slot = 'L1'",
        "UPDATE slots SET generation = 9 WHERE slot = 'L2'",
    ],
)
def test_a_change_behind_the_registrys_back_is_found(
    registry: Registry, tmp_path: Path, tampering: str
) -> None:
    _eventful(registry)
    connection = sqlite3.connect(tmp_path / "registry.sqlite")
    connection.execute(tampering)
    connection.commit()
    connection.close()
    with pytest.raises(CorruptRegistry, match="altered or is missing"):
        registry.verify_chain()


def test_a_forged_event_with_a_fitting_hash_breaks_the_chain(
    registry: Registry, tmp_path: Path
) -> None:
    _eventful(registry)
    forged = registry.events()[0].model_copy(update={"at": START})
    connection = sqlite3.connect(tmp_path / "registry.sqlite")
    connection.execute(
        "UPDATE events SET at = ?, hash = ? WHERE seq = 1",
        (START.isoformat(timespec="microseconds"), forged.computed_hash),
    )
    connection.commit()
    connection.close()
    with pytest.raises(CorruptRegistry, match="event 2"):
        registry.verify_chain()


# --- concurrency


def test_of_eight_racing_promoters_exactly_one_wins(tmp_path: Path) -> None:
    """Four races; each promoter has a passed report against the same champion."""
    champion: int | None = None
    with Registry.open(tmp_path, SLOTS) as registry:
        for race in range(4):
            numbers = [100 + race * 8 + i for i in range(8)]
            for number in numbers:
                registry.register(_version(number))
            outcomes = _race(tmp_path, champion, numbers, registry.slot("L2").generation)
            winners = [number for number, outcome in outcomes if outcome == "won"]
            assert len(winners) == 1, outcomes
            assert registry.slot("L2").champion == _digest(winners[0])
            champion = winners[0]
        assert registry.verify_chain() == registry.slot("L2").generation == 4


def _race(
    home: Path, champion: int | None, numbers: list[int], generation: int
) -> list[tuple[int, str]]:
    barrier, outcomes = threading.Barrier(len(numbers)), []
    reports = {number: _report(champion, number) for number in numbers}

    def promoter(number: int) -> None:
        with Registry.open(home) as own:
            barrier.wait()
            try:
                own.promote("L2", _digest(number), generation, reports[number])
                outcomes.append((number, "won"))
            except PromotionRefused as refusal:
                outcomes.append((number, str(refusal)))

    threads = [threading.Thread(target=promoter, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == len(numbers)
    return outcomes


def _promote_in_process(home: Path, number: int, report: str, results: Any) -> None:
    with Registry.open(home) as own:
        try:
            own.promote("L2", _digest(number), 0, GateReport.model_validate_json(report))
            results.put("won")
        except PromotionRefused:
            results.put("refused")


def test_processes_race_like_threads(tmp_path: Path) -> None:
    with Registry.open(tmp_path, SLOTS) as registry:
        for number in range(1, 4):
            registry.register(_version(number))
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(
            target=_promote_in_process,
            args=(tmp_path, number, _report(None, number).model_dump_json(), results),
        )
        for number in range(1, 4)
    ]
    for process in processes:
        process.start()
    found = sorted(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    results.close()
    results.join_thread()
    assert found == ["refused", "refused", "won"]


def test_slots_opened_at_once_are_declared_once(tmp_path: Path) -> None:
    errors: list[Exception] = []

    def opener() -> None:
        try:
            Registry.open(tmp_path / "new", SLOTS).close()
        except Exception as error:  # whatever it is, the test shows it
            errors.append(error)

    threads = [threading.Thread(target=opener) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with Registry.open(tmp_path / "new") as registry:
        assert len(registry.slots()) == 4


# --- bad files


@pytest.mark.parametrize("content", [b"not a database at all, " * 50, b"\x00\xff" * 600])
def test_a_file_that_is_no_registry_is_refused_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "registry.sqlite"
    file.write_bytes(content)
    with pytest.raises(CorruptRegistry, match="damaged or is something else"):
        Registry.open(tmp_path, SLOTS)
    assert file.read_bytes() == content


def test_another_database_in_its_place_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "registry.sqlite")
    connection.execute("CREATE TABLE slots (name TEXT)")
    connection.commit()
    connection.close()
    with pytest.raises(CorruptRegistry):
        Registry.open(tmp_path, SLOTS)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    Registry.open(tmp_path, SLOTS).close()
    connection = sqlite3.connect(tmp_path / "registry.sqlite")
    connection.execute("UPDATE registry_meta SET value = '99'")
    connection.commit()
    connection.close()
    with pytest.raises(CorruptRegistry, match="schema version '99'"):
        Registry.open(tmp_path)


@pytest.mark.parametrize("url", ["nonsense", "nodb://x", "sqlite:////no/such/folder/r.sqlite"])
def test_a_registry_that_cannot_be_reached_is_one_clear_line(url: str) -> None:
    with pytest.raises(RegistryUnavailable, match="registry"):
        Registry.open(url)


def test_a_url_opens_the_same_registry(registry: Registry, tmp_path: Path) -> None:
    registry.bootstrap("L2", _digest(1))
    with Registry.open(f"sqlite:///{tmp_path}/registry.sqlite") as other:
        assert other.slot("L2") == registry.slot("L2")


def test_what_is_stored_is_plain_json_and_text(registry: Registry, tmp_path: Path) -> None:
    _eventful(registry)
    connection = sqlite3.connect(tmp_path / "registry.sqlite")
    payload, created = connection.execute(
        "SELECT payload, created_at FROM events, versions WHERE seq = 3 AND digest = ?",
        (_digest(1),),
    ).fetchone()
    connection.close()
    assert json.loads(payload)["state"]["generation"] == 3
    assert created == "2026-01-01T00:01:00.000000+00:00"
