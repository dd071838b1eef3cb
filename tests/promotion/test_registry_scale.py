"""Many versions: whatever the registry is asked, it reads a few rows.

Real SQLite. The fast test counts steps of SQLite's machine among 1,000 and 20,000 versions and
events, so that no clock decides; the slow one times a million, also on a real PostgreSQL
(`-m slow -s` prints it).
Rows are inserted in bulk, as registering a million versions one by one takes long.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from postgres_server import PASSWORD, postgres_folder, postgres_server
from registry_records import SLOTS, START, digest_of, gated, version_of

from promotion.events import append_event
from promotion.promote import export_slots
from promotion.registry import Registry
from promotion.slot_rows import state_of
from promotion.tables import Database, events_table, utc_text, versions_table


def _fill(where: Path | str, versions: int, events: int) -> None:
    """Add versions spread over the slots, and events of slot L2 that form no chain."""
    database, chunk = Database(where), 20_000
    with database.writing() as connection:
        for first in range(1000, 1000 + versions, chunk):
            numbers = range(first, min(first + chunk, 1000 + versions))
            rows = [_version_row(n) for n in numbers]
            connection.execute(versions_table.insert(), rows)
        last = append_event(connection, state_of(connection, "L2").changed(), "configure", None)
        row = last.model_dump() | {"at": utc_text(last.at), "champion": digest_of(1)}
        for first in range(last.seq + 1, events, chunk):
            numbers = range(first, min(first + chunk, events))
            more = [row | {"seq": n, "previous_hash": f"p{n}", "hash": f"h{n}"} for n in numbers]
            connection.execute(events_table.insert(), more)
    database.close()


def _version_row(number: int) -> dict[str, Any]:
    # Digests as hashes are: spread over the whole range.
    digest = f"sha256:{number * 0x9E3779B97F4A7C15 % 2**64:016x}{number:048x}"
    moment = START + timedelta(seconds=number)
    row = version_of(1).model_dump() | {"digest": digest, "slot": SLOTS[number % 4]}
    return row | {"created_at": utc_text(moment), "path": f"adapters/{digest[7:]}"}


@contextmanager
def _filled(where: Path | str, versions: int, events: int) -> Iterator[Registry]:
    with Registry.open(where, SLOTS) as registry:
        for number in (1, 2):
            registry.register(version_of(number))
        registry.bootstrap("L2", digest_of(1))
        _fill(where, versions, events)
        yield registry


def _asked(registry: Registry, where: Path | str, home: Path) -> dict[str, Callable[[], object]]:
    """What commands ask, in an order that works."""
    some = _version_row(1500)["digest"]
    report = gated(registry, 1, 2)
    return {
        "list": lambda: registry.versions(limit=50),
        "list of a slot": lambda: registry.versions("L3", limit=50),
        "look up by prefix": lambda: registry.version(some[7:27]),
        "look up by name": lambda: registry.version(f"L0@{some[7:19]}"),
        "register": lambda: registry.register(version_of(3)),
        "check": lambda: registry.check(report),
        "canary": lambda: registry.begin_canary("L2", digest_of(2), 5, report),
        "promote": lambda: registry.promote("L2", digest_of(2), 2, report),
        "last event": lambda: registry.events("L2", newest=1),
        "when it served": lambda: registry.history("L2", digest_of(1)),
        "who served": lambda: registry.history("L2", newest=20),
        "rollback": lambda: registry.rollback("L2"),
        "slots.json": lambda: export_slots(home, registry),
        "open": lambda: Registry.open(where, SLOTS).close(),
    }


def _steps(home: Path, versions: int, events: int) -> dict[str, int]:
    """Return how many hundred steps of SQLite's machine each question takes."""
    counts: dict[str, int] = {}
    ticks = [0]

    def tick() -> int:
        ticks[0] += 1
        return 0

    real = sqlite3.connect

    def connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection = real(*args, **kwargs)
        connection.set_progress_handler(tick, 100)
        return connection

    home.mkdir()
    with _filled(home, versions, events):
        pass
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3.dbapi2, "connect", connect)
        with Registry.open(home, SLOTS) as registry:
            for name, ask in _asked(registry, home, home).items():
                before = ticks[0]
                ask()
                counts[name] = ticks[0] - before
    assert ticks[0] > 0
    return counts


def test_what_is_asked_takes_as_many_steps_among_many_as_among_few(tmp_path: Path) -> None:
    few = _steps(tmp_path / "few", 1_000, 1_000)
    many = _steps(tmp_path / "many", 20_000, 20_000)
    # A pass over 19,000 rows more takes at least a step a row: 190 hundreds.
    grown = {name: (few[name], many[name]) for name in few if many[name] > few[name] + 20}
    assert not grown


@pytest.fixture(params=["sqlite", "postgresql"])
def where(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path | str]:
    """A registry's place: a home folder, or the URL of a server started for the test."""
    if request.param == "sqlite":
        yield tmp_path
        return
    if postgres_folder() is None:
        pytest.skip("PostgreSQL is not installed")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with postgres_server() as server:
        yield server.make_database("million").replace("postgresql:", "postgresql+psycopg:")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_among_a_million_versions_each_answer_takes_milliseconds(
    where: Path | str, tmp_path: Path
) -> None:
    with _filled(where, 1_000_000, 100_000) as registry:
        times = {}
        for name, ask in _asked(registry, where, tmp_path).items():
            began = time.perf_counter()
            ask()
            times[name] = round(1000 * (time.perf_counter() - began), 1)
    print(times)
    assert max(times.values()) < 1000, times
