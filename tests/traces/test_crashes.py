"""Proves that an ingest killed anywhere and run again leaves what one that was not killed does.

Kills are real SIGKILLs of real processes: before and after statements of each transaction (the
making of the lake, every load, the join), and at random moments. All tables are compared row for
row with those of an uninterrupted ingest, and so are the offsets. Nothing is faked; the child
is watched by a profile function, which is how it knows where to die.
"""

import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ingest_forks import Forks
from trace_records import capture_hop, capture_request, line, tables, traffic, write_lines

from traces.storage.lake import Lake

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as running:
        yield running


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spool with recorded turns, turns to be joined and a bad line, and a harness capture."""
    folder = tmp_path_factory.mktemp("source")
    spool = [line(record) for record in [*traffic(16), *traffic(30, recorded=False)[75:]]]
    spool.insert(50, '{"kind": "hop", "record": {}}')
    (folder / "a.jsonl").write_text("".join(text + "\n" for text in spool))
    words = ("Sort it.", "And now?", "Thanks.")
    hops = [
        capture_hop(f"key-{n}", role, slot, text, 1000.0 + 10 * n + k)
        for n, text in enumerate(words)
        for k, (role, slot) in enumerate((("route", "L0"), ("answer", "L2")))
    ]
    asked = [
        capture_request(text, 999.5 + 10 * n, 3.0, f"L2 says {text}")
        for n, text in enumerate(words)
    ]
    write_lines(folder / "capture" / "hops.jsonl", hops)
    write_lines(folder / "capture" / "turns.jsonl", asked)
    return folder


def contents(home: Path) -> dict[str, Any]:
    """Return all rows; the join's mark names a snapshot, and a kill makes no snapshot less."""
    offsets = [row for row in tables(home, "offsets")["offsets"] if row[-1] != "join"]
    return {**tables(home), "offsets": offsets}


@dataclass(frozen=True)
class Whole:
    """An ingest that nobody killed."""

    source: Path
    made: Path
    """A home with a lake that holds nothing."""
    points: list[str]
    """What it asked of DuckDB."""
    expected: dict[str, Any]
    """What it left."""
    duration_s: float


@pytest.fixture(scope="module")
def whole(forks: Forks, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    Lake.open(folder / "made").close()
    shutil.copytree(folder / "made", folder / "home")
    began = time.monotonic()
    points = forks.run(folder / "home", source)
    duration_s = time.monotonic() - began
    assert points is not None
    return Whole(source, folder / "made", points, contents(folder / "home"), duration_s)


def assert_the_same_after_dying(forks: Forks, whole: Whole, home: Path, at: int) -> None:
    assert forks.run(home, whole.source, die_at=at) is None
    assert forks.run(home, whole.source) is not None
    assert contents(home) == whole.expected, f"killed {at}"


def test_the_source_gives_all_kinds_of_rows_in_several_loads(whole: Whole) -> None:
    wanted = ("hops", "messages", "turns", "feedback", "requests", "quarantine", "offsets")

    assert [name for name in wanted if not whole.expected[name]] == []
    assert {row[19] for row in whole.expected["turns"]} == {"recorded", "joined"}
    assert sum('"COMMIT"' in point for point in whole.points) >= 2 * 4


def test_killed_before_and_after_every_commit(forks: Forks, whole: Whole, tmp_path: Path) -> None:
    for at, point in enumerate(whole.points, 1):
        if '"COMMIT"' in point:
            home = Path(shutil.copytree(whole.made, tmp_path / str(at)))
            assert_the_same_after_dying(forks, whole, home, at)


@pytest.mark.slow
def test_killed_at_every_statement_and_while_the_lake_is_made(
    forks: Forks, whole: Whole, tmp_path: Path
) -> None:
    points = forks.run(tmp_path / "from-nothing", whole.source)
    assert points is not None

    for at in range(1, len(points) + 1):
        assert_the_same_after_dying(forks, whole, tmp_path / str(at), at)


@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_at_random_moments(forks: Forks, whole: Whole, tmp_path: Path, kills: int) -> None:
    chance = random.Random(kills)
    died = homes = 0
    while died < kills:
        home = Path(shutil.copytree(whole.made, tmp_path / str(homes)))
        homes += 1
        for _ in range(5):
            after_s = chance.uniform(0.0, 0.8 * whole.duration_s)
            if forks.run(home, whole.source, die_after_s=after_s) is not None:
                break
            died += 1
        assert forks.run(home, whole.source) is not None
        assert contents(home) == whole.expected
