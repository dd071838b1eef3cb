"""The registry under hostile conditions: forged logs, races, files that are no registry.

Races run in threads and processes of their own connections, nothing is locked by the test.
"""

import contextlib
import json
import multiprocessing
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from registry_records import SLOTS, START, digest_of, gated, version_of

from promotion.gate import GateReport
from promotion.registry import (
    Registry,
)
from promotion.slot_rows import PromotionRefused
from promotion.tables import (
    CorruptRegistry,
    RegistryUnavailable,
)

# --- the log


def test_history_says_who_served_when(registry: Registry) -> None:
    registry.bootstrap("L2", digest_of(1))
    registry.promote("L2", digest_of(2), 1, gated(registry, 1, 2))
    registry.rollback("L2")
    tenures = registry.history("L2")
    assert [t.champion for t in tenures] == [digest_of(1), digest_of(2), digest_of(1)]
    assert [t.by for t in tenures] == ["bootstrap", "promote", "rollback"]
    assert [t.until for t in tenures] == [tenures[1].since, tenures[2].since, None]
    assert registry.history("L1") == ()


def _eventful(registry: Registry) -> None:
    registry.bootstrap("L2", digest_of(1))
    registry.promote("L2", digest_of(2), 1, gated(registry, 1, 2))
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
        f"UPDATE slots SET champion = '{digest_of(1)}' WHERE slot = 'L1'",
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


@pytest.mark.parametrize(
    ("tampering", "words"),
    [
        ("UPDATE events SET kind = 'gift' WHERE seq = 2", "Event 2: kind"),
        ("UPDATE events SET at = 'noon' WHERE seq = 2", "Event 2: at"),
        ("UPDATE events SET payload = '[]' WHERE seq = 2", "Event 2: payload"),
        ("UPDATE events SET payload = 'x' WHERE seq = 2", "Event 2: payload"),
        ("UPDATE slots SET tier = 'gold' WHERE slot = 'L1'", "SlotTraits 'L1': tier"),
        ("UPDATE slots SET canary_percent = 'all' WHERE slot = 'L2'", "L2"),
        ("UPDATE versions SET created_at = 'noon'", "created_at"),
        ("UPDATE versions SET path = '/etc'", "path.* must be relative"),
        ("UPDATE versions SET metrics = 'x'", "is no JSON"),
    ],
)
def test_what_no_code_wrote_is_told_in_one_line(
    registry: Registry, tmp_path: Path, tampering: str, words: str
) -> None:
    _eventful(registry)
    with contextlib.closing(sqlite3.connect(tmp_path / "registry.sqlite")) as connection:
        connection.execute(tampering)
        connection.commit()
    look = registry.versions if "versions" in tampering else registry.verify_chain
    with pytest.raises(CorruptRegistry, match=words) as refusal:
        look()
    assert "\n" not in str(refusal.value)


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
                registry.register(version_of(number))
            outcomes = _race(tmp_path, champion, numbers, registry.slot("L2").generation)
            winners = [number for number, outcome in outcomes if outcome == "won"]
            assert len(winners) == 1, outcomes
            assert registry.slot("L2").champion == digest_of(winners[0])
            champion = winners[0]
        assert registry.verify_chain() == registry.slot("L2").generation == 4


def _race(
    home: Path, champion: int | None, numbers: list[int], generation: int
) -> list[tuple[int, str]]:
    barrier, outcomes = threading.Barrier(len(numbers)), []
    reports = {number: gated(home, champion, number) for number in numbers}

    def promoter(number: int) -> None:
        with Registry.open(home) as own:
            barrier.wait()
            try:
                own.promote("L2", digest_of(number), generation, reports[number])
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
            own.promote("L2", digest_of(number), 0, GateReport.model_validate_json(report))
            results.put("won")
        except PromotionRefused:
            results.put("refused")


def test_processes_race_like_threads(tmp_path: Path) -> None:
    with Registry.open(tmp_path, SLOTS) as registry:
        for number in range(1, 4):
            registry.register(version_of(number))
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(
            target=_promote_in_process,
            args=(tmp_path, number, gated(tmp_path, None, number).model_dump_json(), results),
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


@pytest.mark.parametrize(
    "url", ["nonsense", "nodb://x", "postgresql://db:abc/x", "sqlite:////no/such/folder/r.sqlite"]
)
def test_a_registry_that_cannot_be_reached_is_one_clear_line(url: str) -> None:
    with pytest.raises(RegistryUnavailable, match="registry"):
        Registry.open(url)


def test_a_url_opens_the_same_registry(registry: Registry, tmp_path: Path) -> None:
    registry.bootstrap("L2", digest_of(1))
    with Registry.open(f"sqlite:///{tmp_path}/registry.sqlite") as other:
        assert other.slot("L2") == registry.slot("L2")


def test_what_is_stored_is_plain_json_and_text(registry: Registry, tmp_path: Path) -> None:
    _eventful(registry)
    connection = sqlite3.connect(tmp_path / "registry.sqlite")
    payload, created = connection.execute(
        "SELECT payload, created_at FROM events, versions WHERE seq = 3 AND digest = ?",
        (digest_of(1),),
    ).fetchone()
    connection.close()
    assert json.loads(payload)["state"]["generation"] == 3
    assert created == "2026-01-01T00:01:00.000000+00:00"
