"""The registry on a real PostgreSQL: the same life as on SQLite, races between processes.

A server of its own on the loopback, one for this file; each test has a database of its own.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy as sa
from postgres_server import PASSWORD, PostgresServer, postgres_folder, postgres_server
from registry_records import SLOTS, digest_of, gated, version_of

from benchmarks.gate_races import race
from promotion.overrides import grant_override
from promotion.registry import Registry, UnknownAdapter
from promotion.slot_rows import NoPrevious, PromotionRefused, StaleGeneration
from promotion.tables import CorruptRegistry, RegistryUnavailable
from serving.slot_table import SlotTraits

pytestmark = pytest.mark.skipif(postgres_folder() is None, reason="PostgreSQL is not installed")

_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.fixture
def url(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    address = server.make_database(f"registry_{next(_numbers)}")
    return address.replace("postgresql:", "postgresql+psycopg:")


def _change(url: str, *statements: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def test_a_slots_life_is_the_same_as_on_sqlite(url: str, tmp_path: Path) -> None:
    lives = []
    for where in (url, tmp_path):
        with Registry.open(where, SLOTS) as registry:
            for number in range(1, 5):
                registry.register(version_of(number))
            registry.register(version_of(5, digest="sha256:" + "a" * 64))
            registry.bootstrap("L2", digest_of(1))
            registry.begin_canary("L2", digest_of(2), 5, gated(registry, 1, 2))
            registry.promote("L2", digest_of(2), 2, gated(registry, 1, 2))
            registry.rollback("L2", note={"by": "A. Person"})
            registry.add("L4", SlotTraits(description="law"))
            with pytest.raises(StaleGeneration):
                registry.rollback("L2", 3)
            with pytest.raises(UnknownAdapter, match="More than one"):
                registry.version("0000")
            events = [(e.seq, e.slot, e.kind, e.payload) for e in registry.events()]
            tenures = [(t.champion, t.by) for t in registry.history("L2", digest_of(1))]
            versions = registry.versions("L2", limit=2, offset=1)
            found = registry.version("L2@aaaaaaaaaaaa").run_key
            lives.append((events, tenures, versions, found, registry.slots()))
            assert registry.verify_chain() == 5
    assert lives[0] == lives[1]


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE events SET champion = NULL WHERE seq = 1",
        "DELETE FROM events WHERE seq = 2",
        "UPDATE slots SET generation = 9 WHERE slot = 'L2'",
    ],
)
def test_a_change_behind_the_registrys_back_is_found(url: str, tampering: str) -> None:
    with Registry.open(url, SLOTS) as registry:
        registry.register(version_of(1))
        registry.bootstrap("L2", digest_of(1))
        registry.configure("L2", {"description": "code"})
        _change(url, tampering)
        with pytest.raises(CorruptRegistry, match="altered or is missing"):
            registry.verify_chain()


def test_a_registry_of_earlier_code_gets_what_came_later(url: str) -> None:
    with Registry.open(url, SLOTS) as registry:
        registry.register(version_of(1))
        registry.bootstrap("L2", digest_of(1))
    _change(
        url,
        "DROP TABLE gate_attempts, overrides, signers",
        "ALTER TABLE versions DROP COLUMN signer",
        "ALTER TABLE events DROP COLUMN champion",
        "ALTER TABLE slots DROP COLUMN canary_percent",
    )
    with Registry.open(url, SLOTS) as registry:
        assert registry.verify_chain() == 1
        assert len(registry.history("L2", digest_of(1))) == 1
        assert registry.signers.keys() == {}


@pytest.mark.parametrize("later", [timedelta(), timedelta(days=-1)])
def test_of_two_words_that_last_the_newer_counts_here_as_well(url: str, later: timedelta) -> None:
    expiry = datetime.now(UTC) + timedelta(days=2)
    with Registry.open(url, SLOTS) as registry:
        for number in (1, 2):
            registry.register(version_of(number))
        registry.bootstrap("L2", digest_of(1))
        report = gated(registry, 1, 2, gains=3)
        for moment in (expiry, expiry + later):
            given = grant_override(url, report, by="ann", reason="a drill", expires_at=moment)
            registry.begin_canary(
                "L2", digest_of(2), 5, report, override=registry.log.override(report)
            )
            assert registry.events("L2")[-1].note["override"] == given.id
            registry.end_canary("L2", note={"rolled_back": digest_of(2), "by": "canary"})


def test_of_several_that_open_a_new_registry_at_once_one_makes_it(
    server: PostgresServer, url: str
) -> None:
    def open_one(address: str) -> None:
        together.wait()
        Registry.open(address, SLOTS).close()

    for _ in range(3):
        together = threading.Barrier(6)
        with ThreadPoolExecutor(6) as pool:
            for opened in [pool.submit(open_one, url) for _ in range(6)]:
                opened.result()
        url = str(server.make_database(f"registry_{next(_numbers)}"))
        url = url.replace("postgresql:", "postgresql+psycopg:")


def test_of_racing_processes_exactly_one_wins_each_race(url: str) -> None:
    figures = race(url, 25)
    assert (figures["races"], figures["winners"], figures["races_with_one_winner"]) == (25, 25, 25)
    assert figures["events"] == figures["generation"] == 25


def test_promotions_rollbacks_and_canaries_at_once_leave_an_unbroken_log(url: str) -> None:
    """Each thread goes its own way for a while; what is refused is refused for a known reason."""
    with Registry.open(url, SLOTS) as registry:
        for number in range(1, 9):
            registry.register(version_of(number))
        registry.bootstrap("L2", digest_of(1))

    def promote(own: Registry, turn: int) -> None:
        state = own.slot("L2")
        champion = None if state.champion is None else int(state.champion[7:], 16)
        report = gated(own, champion, 1 + turn % 8, seed=turn)
        own.promote("L2", report.challenger_digest, state.generation, report)

    def back(own: Registry, _: int) -> None:
        own.rollback("L2", own.slot("L2").generation)

    def configure(own: Registry, turn: int) -> None:
        own.configure("L2", {"description": f"turn {turn}"})

    errors: list[Exception] = []

    def worker(act: Callable[[Registry, int], None]) -> None:
        with Registry.open(url) as own:
            for turn in range(25):
                try:
                    act(own, turn)
                except (PromotionRefused, NoPrevious):
                    continue
                except Exception as error:  # whatever it is, the test shows it
                    errors.append(error)

    threads = [threading.Thread(target=worker, args=(act,)) for act in (promote, back, configure)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with Registry.open(url) as registry:
        assert registry.verify_chain() == registry.slot("L2").generation > 25


def test_a_server_that_is_gone_is_said_in_one_line_without_the_password(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    for address in (
        f"postgresql+psycopg://postgres:{PASSWORD}@127.0.0.1:1/registry",
        server.url("missing").replace("postgresql:", "postgresql+psycopg:"),
    ):
        with pytest.raises(RegistryUnavailable, match="Cannot use registry") as refusal:
            Registry.open(address, SLOTS)
        assert "\n" not in str(refusal.value)
        assert PASSWORD not in str(refusal.value)
