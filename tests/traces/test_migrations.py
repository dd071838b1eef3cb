"""Proves that an old lake becomes a new one with nothing lost, also when it is killed on the way.

`lake_1.tar.gz` is a lake as version 1 made it. Real DuckLake, real kills; no fakes.
"""

import json
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import duckdb
import pytest
from trace_records import CAPTURE, needs_capture, write_spool

from serving.records import Hop, hop_id_of
from traces.errors import LakeUnavailable
from traces.ingest import IngestReport, ingest
from traces.read import read_turns
from traces.storage.bodies import read_hops_by_id
from traces.storage.lake import Lake
from traces.storage.lake_address import Address, attach
from traces.storage.migrations import SCHEMA_VERSION, compare

ARCHIVE = Path(__file__).parents[1] / "data" / "lake_1.tar.gz"

# What was in the lake when it was frozen: the harness capture (163 hops, 64 requests, 17
# feedback), 40 synthetic hops and a line that is no record; both attributed.
ROWS = {
    "hops": 203,
    "turns": 103,
    "feedback": 17,
    "requests": 64,
    "outcomes": 103,
    "blame": 10,
    "quarantine": 1,
    "offsets": 5,
}


@pytest.fixture
def old_home(home: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(home, filter="data")
    return home


def rows(connection: duckdb.DuckDBPyConnection, table: str) -> list[tuple]:
    return connection.execute(f"SELECT * FROM {table} ORDER BY ALL").fetchall()


def old_rows(home: Path, columns: dict[str, str]) -> dict[str, list[tuple]]:
    """Read the lake as the program of its time did."""
    connection = attach(home / "lake", Address(), read_only=True)
    found = {
        table: connection.execute(f"SELECT {what} FROM {table} ORDER BY ALL").fetchall()
        for table, what in columns.items()
    }
    connection.close()
    return found


KEPT = {
    "hops": "hop_id, turn_id, seq, model, completion, params, started_at",
    "turns": "turn_id, conversation_id, request, answer, hop_ids, response_ids, started_at",
    "feedback": "feedback_id, target_id, kind, value, correction, created_at",
    "requests": "*",
    "outcomes": "turn_id, success, tier, rule, signals, correction",
    "blame": "turn_id, klass, slot, confidence, evidence, right_slot, code_version",
    "quarantine": "quarantine_id, source, position, reason, detail, raw",
    "offsets": "*",
}


@pytest.mark.parametrize("read_only", [False, True])
def test_every_row_of_an_old_lake_is_there(old_home: Path, read_only: bool) -> None:
    before = old_rows(old_home, KEPT)
    messages = dict(old_rows(old_home, {"hops": "hop_id, messages"})["hops"])

    with Lake.open(old_home, read_only=read_only) as lake:
        assert compare(lake.connection).version == SCHEMA_VERSION
        assert {t: len(rows(lake.connection, t)) for t in ROWS} == ROWS
        after = {
            table: lake.connection.execute(f"SELECT {what} FROM {table} ORDER BY ALL").fetchall()
            for table, what in KEPT.items()
        }
        hops = dict(read_hops_by_id(lake.connection))
        days = lake.connection.execute(
            "SELECT count(*) FROM hops h SEMI JOIN messages m USING (day)"
            " WHERE h.day = h.started_at::DATE"
        ).fetchall()

    assert after == before
    assert days == [(ROWS["hops"],)]
    assert {key: hop_id_of(hop.model_dump(mode="json")) for key, hop in hops.items()} == {
        key: key for key in messages
    }
    for key, hop in hops.items():
        old = hop.model_dump() | {"messages": json.loads(messages[key])}
        assert hop == Hop.model_validate(old)


def added(report: IngestReport) -> dict[str, int]:
    # Turns are joined anew by a newer program; they are compared by what they say.
    return {step: n for step, n in report.funnel.items() if step.endswith(("_added", "_joined"))}


def test_reading_what_a_migrated_lake_held_takes_nothing_in_again(
    old_home: Path, tmp_path: Path
) -> None:
    with Lake.open(old_home) as lake:
        hops = [hop for _, hop in read_hops_by_id(lake.connection)]
    turns = {bundle.turn.turn_id: bundle.turn for bundle in read_turns(old_home)}

    report = ingest(old_home, write_spool(tmp_path / "again.jsonl", hops))

    assert report.funnel["hops_in"] == ROWS["hops"]
    assert set(added(report).values()) == {0}
    assert {b.turn.turn_id: b.turn for b in read_turns(old_home)} == turns
    assert not ingest(old_home, tmp_path / "again.jsonl").added


@needs_capture
def test_the_capture_that_a_migrated_lake_was_made_from_adds_nothing(old_home: Path) -> None:
    assert set(added(ingest(old_home, CAPTURE)).values()) == {0}
    assert not ingest(old_home, CAPTURE).added


def test_a_migrated_lake_is_opened_without_a_commit(old_home: Path) -> None:
    with Lake.open(old_home) as lake:
        first = lake.snapshot_id()
    with Lake.open(old_home) as lake:
        assert (lake.snapshot_id(), compare(lake.connection).is_current) == (first, True)


def test_a_migrated_lake_serves_turns(old_home: Path) -> None:
    bundles = list(read_turns(old_home))

    assert len(bundles) == ROWS["turns"]
    assert sum(len(bundle.hops) for bundle in bundles) == ROWS["hops"]


def test_a_newer_lake_is_refused_in_one_line(home: Path) -> None:
    with Lake.open(home) as lake:
        lake.connection.execute(f"UPDATE lake_version SET version = {SCHEMA_VERSION + 1}")

    for read_only in (False, True):
        with pytest.raises(LakeUnavailable, match="Update the program") as refusal:
            Lake.open(home, read_only=read_only)
        assert "\n" not in str(refusal.value)


_UPGRADE = """
import os, signal, sys
from pathlib import Path
from traces.storage.lake_address import Address, attach
from traces.storage.migrations import upgrade

class Counted:
    # The connection, until it has run so many statements; then the process is killed.
    def __init__(self, real, left): self.real, self.left = real, left
    def execute(self, *arguments):
        self.left -= 1
        if self.left < 0: os.kill(os.getpid(), signal.SIGKILL)
        return self.real.execute(*arguments)
    def __getattr__(self, name): return getattr(self.real, name)

connection = Counted(attach(Path(sys.argv[1]), Address(), read_only=False), int(sys.argv[2]))
connection.execute("BEGIN")
upgrade(connection)
connection.execute("COMMIT")
print(int(sys.argv[2]) - connection.left)
"""


def upgrade(home: Path, statements: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _UPGRADE, home / "lake", str(statements)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_a_killed_migration_runs_again(old_home: Path, tmp_path: Path) -> None:
    shutil.copytree(old_home, tmp_path / "whole")
    whole = upgrade(tmp_path / "whole", 1_000_000)
    assert whole.returncode == 0, whole.stderr
    before = old_rows(old_home, KEPT)

    for share in (0.3, 0.6, 0.9):
        killed = upgrade(old_home, int(int(whole.stdout) * share))
        assert killed.returncode == -signal.SIGKILL
        assert old_rows(old_home, KEPT) == before

    with Lake.open(old_home) as lake, Lake.open(tmp_path / "whole") as other:
        for table in [*ROWS, "messages"]:
            assert rows(lake.connection, table) == rows(other.connection, table)
