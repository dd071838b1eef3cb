"""Proves that upkeep makes the lake smaller and says nothing else than before.

Real DuckLake with SQLite, real kills; the clock alone is given. No fakes.
"""

import shutil
import signal
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest
from trace_records import PROFILE, START, hop, line, tables, traffic, user, write_spool
from upkeep_kills import counted_upkeep

from serving.records import UNDATED, Feedback, Hop, Turn
from traces.attribute import attribute
from traces.config import LakeConfig
from traces.errors import LakeNotFound, LakeUnavailable
from traces.ingest import ingest
from traces.joins.changes import find_changes
from traces.read import read_turns
from traces.storage.lake import Lake
from traces.storage.upkeep import upkeep

AT_ONCE = LakeConfig(keep_snapshots_days=0, keep_files_hours=0)
"""Keeps nothing that only a reader of the past would want."""
DAYS = 4
CONTENT = ("hops", "turns", "feedback", "messages", "outcomes", "blame", "requests", "quarantine")

Records = list[Hop | Turn | Feedback]


def one_day(day: int, turns: int = 6) -> Records:
    """Return traffic of one day; its turns are joined from the hops."""
    later = timedelta(days=day)
    records: Records = []
    for record in traffic(turns, recorded=False):
        if isinstance(record, Feedback):
            changed = {"target_id": f"{record.target_id}-{day}"}
            changed["created_at"] = record.created_at + later
        else:
            changed = {
                "turn_id": f"{record.turn_id}-{day}",
                "started_at": record.started_at + later,
            }
            changed["conversation_id"] = f"{record.conversation_id}-{day}"
        records.append(record.model_copy(update=changed))
    return records


def undated() -> Hop:
    return hop(seq=1, turn_id="whenever", messages=(user("Sometime."),), started_at=UNDATED)


def write_days(folder: Path) -> Path:
    """Write files over four days, one hop without a time, and a line that is no record."""
    folder.mkdir()
    for day in range(DAYS):
        write_spool(folder / f"{day}.jsonl", one_day(day))
    (folder / "bad.jsonl").write_text(line(undated()) + '\n{"kind": "hop", "record": {}}\n')
    return folder


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a spool, and a home whose lake took it in many commits and judged it."""
    folder = tmp_path_factory.mktemp("filled")
    ingest(folder / "home", write_days(folder / "spool"), batch_lines=8)
    attribute(folder / "home", PROFILE)
    return folder


@pytest.fixture
def spool(filled: Path) -> Path:
    return filled / "spool"


@pytest.fixture
def lake_home(filled: Path, home: Path) -> Path:
    shutil.copytree(filled / "home", home)
    return home


def days_on(day: int) -> date:
    """Return the day so many days after the first."""
    return START.date() + timedelta(days=day)


def rows(home: Path) -> dict[str, list[tuple]]:
    return tables(home, *CONTENT)


def numbers(home: Path, sql: str) -> list[tuple]:
    with Lake.open(home, read_only=True) as lake:
        return lake.connection.execute(sql).fetchall()


def parquet(home: Path) -> set[Path]:
    return set((home / "lake" / "data").rglob("*.parquet"))


def test_many_small_files_become_one_for_each_table_and_day(lake_home: Path) -> None:
    before = rows(lake_home)
    turns = list(read_turns(lake_home))

    report = upkeep(lake_home, AT_ONCE)

    files = numbers(
        lake_home,
        "SELECT table_name, file_count, delete_file_count FROM ducklake_table_info('lake')",
    )
    assert rows(lake_home) == before
    assert list(read_turns(lake_home)) == turns
    assert {name: count for name, count, _ in files if name in ("hops", "turns", "messages")} == {
        "hops": DAYS + 1,
        "turns": DAYS + 1,
        "messages": DAYS + 1,
    }
    assert sum(deleted for _, _, deleted in files) == 0
    assert report.files_before > 40 > report.files_after == len(parquet(lake_home))
    assert report.snapshots["expired"] > 10
    assert report.changed


def test_long_rows_are_merged_in_row_groups_that_memory_holds(home: Path) -> None:
    with Lake.open(home) as lake:
        for _ in range(3):
            lake.connection.execute(
                "INSERT INTO messages SELECT DATE '2026-01-01', uuid(), 'user',"
                " repeat(md5(n::VARCHAR), 512) FROM range(2000) s(n)"
            )

    upkeep(home, AT_ONCE)

    (file,) = [path for path in parquet(home) if "messages" in path.parts]
    groups = numbers(
        home,
        "SELECT DISTINCT row_group_id, row_group_num_rows * 16384 <= 2 * 32 * 1024 * 1024"
        f" FROM parquet_metadata('{file}')",
    )
    assert len(groups) > 1
    assert all(fits for _, fits in groups)


def test_upkeep_of_an_idle_lake_makes_no_commit(lake_home: Path) -> None:
    first = upkeep(lake_home, AT_ONCE)
    second = upkeep(lake_home, AT_ONCE)

    assert first.snapshots["kept"] == second.snapshots["before"] == 1
    assert second.snapshot_id == first.snapshot_id
    assert not second.changed


def test_what_came_in_is_still_joined_only_where_it_is_new(lake_home: Path, tmp_path: Path) -> None:
    upkeep(lake_home, AT_ONCE.model_copy(update={"keep_days": 2}), today=days_on(DAYS - 1))

    with Lake.open(lake_home) as lake:
        changes = find_changes(lake.connection)
        assert not changes.everything
        assert not changes.news

    report = ingest(lake_home, write_spool(tmp_path / "new.jsonl", one_day(DAYS)))
    assert report.funnel["turns_joined"] == 6
    assert report.funnel["turns_updated"] == 0


def test_where_the_feed_does_not_reach_back_everything_is_joined_again(
    lake_home: Path, tmp_path: Path
) -> None:
    with Lake.open(lake_home) as lake:
        for table in ("blame", "outcomes"):
            lake.commit(lambda c, table=table: c.execute(f"DELETE FROM {table}"))
        lake.connection.execute("CALL ducklake_expire_snapshots('lake', older_than => now())")
        assert lake.commit(find_changes).everything

    report = ingest(lake_home, write_spool(tmp_path / "new.jsonl", one_day(DAYS)))

    assert (report.funnel["turns_joined"], report.funnel["turns_updated"]) == (6, 0)


def test_snapshots_of_datasets_stay_readable(lake_home: Path, tmp_path: Path) -> None:
    with Lake.open(lake_home) as lake:
        kept = lake.snapshot_id()
    seen = list(read_turns(lake_home))
    ingest(lake_home, write_spool(tmp_path / "new.jsonl", one_day(DAYS)))
    with Lake.open(lake_home) as lake:
        other = lake.snapshot_id()
    attribute(lake_home, PROFILE)
    config = AT_ONCE.model_copy(update={"keep_days": 1})

    report = upkeep(lake_home, config, [kept], today=days_on(DAYS + 9))
    again = upkeep(lake_home, config, [kept], today=days_on(DAYS + 9))

    assert report.snapshots["kept_for_datasets"] == again.snapshots["kept_for_datasets"] == 1
    assert list(read_turns(lake_home, snapshot=kept)) == seen
    assert [b.turn.turn_id for b in read_turns(lake_home)] == ["whenever"]
    with pytest.raises(LakeUnavailable, match="No snapshot found"):
        list(read_turns(lake_home, snapshot=other))


def test_young_snapshots_and_their_files_stay(lake_home: Path) -> None:
    before = parquet(lake_home)

    report = upkeep(lake_home, LakeConfig())

    assert report.snapshots["expired"] == report.files_removed == 0
    assert before < parquet(lake_home)


def test_old_days_leave_every_table(lake_home: Path) -> None:
    before = rows(lake_home)

    report = upkeep(lake_home, LakeConfig(keep_days=2), today=days_on(DAYS))

    cutoff = days_on(DAYS - 2)
    for table in ("hops", "turns", "feedback", "messages"):
        days = {day for (day,) in numbers(lake_home, f"SELECT DISTINCT day FROM {table}")}
        undated_day = set() if table == "feedback" else {UNDATED.date()}
        assert days == undated_day | {cutoff, cutoff + timedelta(days=1)}, table
        counts = report.rows[table]
        assert counts["before"] == len(before[table])
        assert counts["kept"] == len(rows(lake_home)[table]) == counts["before"] - counts["deleted"]
    assert numbers(lake_home, "SELECT count(*) FROM outcomes ANTI JOIN turns USING (turn_id)") == [
        (0,)
    ]
    assert report.rows["outcomes"]["deleted"] == report.rows["turns"]["deleted"] == 6 * 2
    assert report.rows["quarantine"]["deleted"] == 0
    assert report.kept_since == cutoff
    assert numbers(lake_home, "SELECT count(*) FROM offsets") == [(DAYS + 2,)]


def test_what_left_the_lake_is_not_taken_in_again(
    lake_home: Path, spool: Path, tmp_path: Path
) -> None:
    upkeep(lake_home, LakeConfig(keep_days=2), today=days_on(DAYS))
    before = rows(lake_home)

    assert not ingest(lake_home, spool).added
    lines = [
        text
        for file in sorted(spool.glob("[0-9]*"))
        for text in file.read_text().splitlines(keepends=True)
    ]
    (tmp_path / "mixed.jsonl").write_text("".join(reversed(lines)))
    report = ingest(lake_home, tmp_path / "mixed.jsonl")

    assert report.funnel["hops_in"] == DAYS * 6 * 3
    assert report.funnel["hops_expired"] == report.funnel["hops_known"] == DAYS * 6 * 3 // 2
    assert report.funnel["feedback_expired"] == DAYS * 6 // 2
    assert not report.added
    assert rows(lake_home) == before


def test_a_turn_over_midnight_leaves_with_its_first_day(home: Path, tmp_path: Path) -> None:
    evening = START.replace(hour=23, minute=59)
    hops = [
        hop(
            seq=n,
            turn_id="late",
            messages=(user(f"{n}"),),
            started_at=evening + timedelta(minutes=n),
        )
        for n in range(3)
    ]
    ingest(home, write_spool(tmp_path / "s.jsonl", [*hops, *one_day(1)]))

    upkeep(home, LakeConfig(keep_days=1), today=days_on(2))

    assert numbers(home, "SELECT count(*) FROM hops") == [(6 * 3,)]
    assert ingest(home, write_spool(tmp_path / "t.jsonl", one_day(2))).funnel["turns_joined"] == 6
    assert numbers(home, "SELECT count(*) FROM turns WHERE turn_id = 'late'") == [(0,)]


def test_set_aside_lines_age_from_the_upkeep_that_first_saw_them(
    lake_home: Path, tmp_path: Path
) -> None:
    config = LakeConfig(keep_days=3)
    upkeep(lake_home, config, today=days_on(10))
    (tmp_path / "more.jsonl").write_text(line(undated()) + '\n{"kind": "turn", "record": {}}\n')
    ingest(lake_home, tmp_path / "more.jsonl")

    deleted = [
        upkeep(lake_home, config, today=days_on(day)).rows.get("quarantine", {}).get("deleted", 0)
        for day in (11, 13, 14, 15)
    ]

    assert deleted == [0, 0, 1, 1]


def test_a_dry_run_tells_what_the_run_does_and_changes_nothing(lake_home: Path) -> None:
    config = AT_ONCE.model_copy(update={"keep_days": 2})
    files = {p: p.stat().st_mtime_ns for p in parquet(lake_home)}
    before = rows(lake_home)
    with Lake.open(lake_home) as lake:
        snapshot = lake.snapshot_id()

    plan = upkeep(lake_home, config, today=days_on(DAYS), dry_run=True)

    assert {p: p.stat().st_mtime_ns for p in parquet(lake_home)} == files
    assert plan.snapshot_id == snapshot
    assert rows(lake_home) == before
    done = upkeep(lake_home, config, today=days_on(DAYS))
    assert plan.rows == done.rows
    assert plan.kept_since == done.kept_since
    assert plan.files_before == done.files_before > done.files_after
    assert plan.dry_run
    assert not done.dry_run


def test_files_of_killed_commits_are_removed_when_they_are_old(lake_home: Path) -> None:
    orphan = lake_home / "lake" / "data" / "main" / "hops" / "ducklake-killed.parquet"
    orphan.write_bytes(next(iter(parquet(lake_home))).read_bytes())

    assert upkeep(lake_home, LakeConfig()).orphans_removed == 0
    assert orphan.exists()
    assert upkeep(lake_home, LakeConfig(keep_files_hours=0)).orphans_removed == 1
    assert not orphan.exists()


def test_without_a_lake_there_is_nothing_to_keep_up(home: Path) -> None:
    with pytest.raises(LakeNotFound, match="flows run ingest"):
        upkeep(home, LakeConfig())
    assert not (home / "lake").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_anywhere_and_run_again_it_ends_the_same(
    filled: Path, lake_home: Path, tmp_path: Path
) -> None:
    config = AT_ONCE.model_copy(update={"keep_days": 2})
    other = tmp_path / "other"
    shutil.copytree(filled / "home", other)
    whole = counted_upkeep(other, config, days_on(DAYS), 1_000_000)
    assert whole.returncode == 0, whole.stderr

    for share in (0.2, 0.5, 0.8, 0.95):
        killed = counted_upkeep(lake_home, config, days_on(DAYS), int(int(whole.stdout) * share))
        assert killed.returncode in (0, -signal.SIGKILL), killed.stderr
    upkeep(lake_home, config, today=days_on(DAYS))

    assert rows(lake_home) == rows(other)
    listed = numbers(
        lake_home,
        "SELECT data_file FROM ducklake_list_files('lake', 'hops') UNION ALL"
        " SELECT data_file FROM ducklake_list_files('lake', 'turns')",
    )
    folders = [lake_home / "lake" / "data" / "main" / name for name in ("hops", "turns")]
    assert {Path(name) for (name,) in listed} == {
        file for folder in folders for file in folder.rglob("*.parquet")
    }


_INGEST = """
import sys
from pathlib import Path
from traces.ingest import ingest
for file in sorted(Path(sys.argv[2]).iterdir()):
    ingest(Path(sys.argv[1]), file)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_runs_beside_an_ingest_and_a_reader(lake_home: Path, tmp_path: Path) -> None:
    more = tmp_path / "more"
    more.mkdir()
    for day in range(DAYS, DAYS + 6):
        write_spool(more / f"{day}.jsonl", one_day(day))
    turns = read_turns(lake_home)
    seen = [next(turns)]

    writer = subprocess.Popen([sys.executable, "-c", _INGEST, lake_home, more])
    runs = 0
    while writer.poll() is None or runs == 0:
        upkeep(lake_home, LakeConfig(keep_snapshots_days=0))
        runs += 1
    seen += turns
    ingest(tmp_path / "other", more)

    assert writer.returncode == 0
    assert len(seen) == DAYS * 6 + 1
    with Lake.open(tmp_path / "other") as lake:
        expected = dict(lake.connection.execute("SELECT hop_id, seq FROM hops").fetchall())
    assert expected.items() <= dict(numbers(lake_home, "SELECT hop_id, seq FROM hops")).items()
    assert numbers(lake_home, "SELECT count(*) FROM hops") == [(len(expected) + DAYS * 6 * 3 + 1,)]
    assert not ingest(lake_home, more).added
