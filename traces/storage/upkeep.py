"""Upkeep of the lake: retention by age, compaction, snapshots and files that nobody needs.

    delete rows older than `keep_days`; rewrite files with many deleted rows and merge small
    ones; expire old snapshots; remove files that nothing refers to

Every step is commits of its own under the writers' lock, so that ingests go on in between and
readers are not disturbed. Killed anywhere and run again, it goes on; with nothing to do it
makes no commit. In: `<home>`, the settings, and the snapshots that datasets were made from.
Out: an `UpkeepReport`. By hand: `flows run upkeep`.
"""

# Table and column names come from our own declarations; values are literals made here.
# ruff: noqa: S608

from collections.abc import Callable, Collection
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import duckdb

from serving.records import Record
from traces.config import LakeConfig
from traces.joins.changes import MARK, Changes, find_changes, next_mark
from traces.storage import compaction, retention
from traces.storage.lake import Lake
from traces.storage.tables import TABLES

_UNREFERENCED = "ducklake_cleanup_old_files"
_ORPHANS = "ducklake_delete_orphaned_files"

Progress = Callable[[int, int], None]
"""Called with steps done and steps in all."""


class UpkeepReport(Record):
    """What upkeep found and did; a dry run says what it would do, files about."""

    dry_run: bool
    rows: dict[str, dict[str, int]]
    """By table: `before`, `deleted` by age, `kept`."""
    kept_since: date | None
    """The day before which records have left the lake; None if all are kept."""
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    snapshots: dict[str, int]
    """`before`, `expired`, `kept` as young enough, `kept_for_datasets` though old."""
    files_removed: int
    """Files of expired snapshots and merged files, whose time had passed."""
    orphans_removed: int
    """Files that killed commits had left."""
    snapshot_id: int

    @property
    def changed(self) -> bool:
        """Whether the lake, or its files, are not as they were."""
        return bool(
            any(table["deleted"] for table in self.rows.values())
            or self.files_before != self.files_after
            or self.snapshots["expired"]
            or self.files_removed
            or self.orphans_removed
        )


def upkeep(
    home: Path,
    config: LakeConfig,
    keep_snapshots: Collection[int] = (),
    *,
    today: date | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> UpkeepReport:
    """Keep the lake of `home` small and quick.

    `keep_snapshots` stay readable however old they are. Rows that these show stay in files.
    Retention counts back from `today`; None is the day it is now, UTC.

    Raises:
        LakeNotFound: if nothing was ingested yet.
        LakeUnavailable: if the lake cannot be written; what was done until then stands.
    """
    with Lake.open(home, create=False) as lake:
        run = Upkeep(lake, config, frozenset(keep_snapshots), today)
        return run.plan() if dry_run else run.carry_out(progress or (lambda done, total: None))


class Upkeep:
    """One run over an open lake."""

    def __init__(
        self,
        lake: Lake,
        config: LakeConfig,
        keep_snapshots: frozenset[int],
        today: date | None = None,
    ) -> None:
        self._lake = lake
        self._config = config
        self._keep_snapshots = keep_snapshots
        self._today = today or datetime.now(UTC).date()
        self._before = _row_counts(lake.connection)
        self._totals = compaction.totals(lake.connection)

    def plan(self) -> UpkeepReport:
        """Return what would be done; nothing is changed."""
        connection = self._lake.connection
        cutoff = self._cutoff
        deleted = retention.old_rows(connection, cutoff) if cutoff else {}
        _, snapshots = self._old_snapshots()
        removed, orphans = (
            connection.execute(
                f"SELECT count(*) FROM {function}('lake', dry_run => true, {self._age})"
            ).fetchall()[0][0]
            for function in (_UNREFERENCED, _ORPHANS)
        )
        files = self._plan_compaction().files
        since = cutoff if deleted else retention.kept_since(connection)
        return self._report(True, deleted, since, files, snapshots, removed, orphans)

    def carry_out(self, progress: Progress) -> UpkeepReport:
        """Do it all, step by step."""
        deleted = self._delete_old()
        steps = self._plan_compaction()
        tables = steps.tables()
        total = len(tables) + 3
        for done, table in enumerate(tables):
            self._compact(steps, table)
            progress(done + 1, total)
        self._note()
        snapshots = self._expire_snapshots()
        progress(total - 2, total)
        removed = self._remove_files(_UNREFERENCED)
        progress(total - 1, total)
        orphans = self._remove_files(_ORPHANS)
        progress(total, total)
        files, _ = compaction.totals(self._lake.connection)
        since = retention.kept_since(self._lake.connection)
        return self._report(False, deleted, since, files, snapshots, removed, orphans)

    @property
    def _cutoff(self) -> date | None:
        days = self._config.keep_days
        return None if days is None else self._today - timedelta(days=days)

    @property
    def _target_bytes(self) -> int:
        return self._config.target_file_mb * 1024 * 1024

    @property
    def _age(self) -> str:
        """Render which unreferenced files are old enough to be removed."""
        hours = self._config.keep_files_hours
        if hours == 0:
            return "cleanup_all => true"
        return f"older_than => TIMESTAMPTZ '{datetime.now(UTC) - timedelta(hours=hours)}'"

    def _commit(self, work: Callable[[duckdb.DuckDBPyConnection], int]) -> int:
        """Commit work that brings nothing to join; the join's mark goes along if it may.

        The mark is a commit of its own, because DuckLake wants compactions apart. Without it
        all would be joined again, to the same turns.
        """
        with self._lake.alone():
            changes = self._lake.commit(find_changes)
            changed = self._lake.commit(work)
            if changed and _is_joined(changes):
                self._lake.commit(lambda c: self._move_mark(c, changes))
            return changed

    def _move_mark(self, connection: duckdb.DuckDBPyConnection, changes: Changes) -> None:
        after = next_mark(connection)
        self._lake.move_offset(MARK, "hops and requests", changes.before, after, "join")

    def _plan_compaction(self) -> compaction.Plan:
        share = self._config.rewrite_deleted_share
        return compaction.plan(self._lake.connection, self._target_bytes, share)

    def _delete_old(self) -> dict[str, int]:
        cutoff = self._cutoff
        deleted: dict[str, int] = {}
        if cutoff is None:
            return deleted

        def work(connection: duckdb.DuckDBPyConnection) -> int:
            deleted.clear()
            deleted.update(retention.delete_old(connection, cutoff))
            if deleted:
                self._mark(connection, cutoff)
            return sum(deleted.values())

        self._commit(work)
        return deleted

    def _compact(self, steps: compaction.Plan, table: str) -> None:
        if table in steps.flush:
            self._commit(lambda c: compaction.flush(c, table))
        self._lake.commit(lambda c: compaction.fit_row_groups(c, table))
        if table in steps.rewrite:
            self._commit(lambda c: compaction.rewrite(c, table, steps.rewrite[table]))
        if table in steps.merge:
            while self._commit(lambda c: compaction.merge(c, table, self._target_bytes)):
                pass

    def _note(self) -> None:
        """Note the newest snapshot, if it is not the one that was noted last."""
        row = self._lake.connection.execute("SELECT max(snapshot_id) FROM upkeep").fetchone()
        if row and row[0] == self._lake.snapshot_id():
            return

        with self._lake.alone():
            changes = self._lake.commit(find_changes)

            def work(connection: duckdb.DuckDBPyConnection) -> None:
                self._mark(connection, retention.kept_since(connection))
                if _is_joined(changes):
                    self._move_mark(connection, changes)

            self._lake.commit(work)

    def _mark(self, connection: duckdb.DuckDBPyConnection, since: date | None) -> None:
        # The commit that this is part of makes the next snapshot: it could not get another's.
        snapshot_id = self._lake.snapshot_id() + 1
        connection.execute("INSERT INTO upkeep VALUES (?, ?, ?)", [self._today, snapshot_id, since])

    def _old_snapshots(self) -> tuple[list[int], dict[str, int]]:
        """Return the snapshots to expire, and how many there are and stay."""
        until = datetime.now(UTC) - timedelta(days=self._config.keep_snapshots_days)
        rows = self._lake.connection.execute(
            "SELECT snapshot_id, snapshot_time < $until FROM ducklake_snapshots('lake')"
            " ORDER BY snapshot_id",
            {"until": until},
        ).fetchall()
        old = [int(key) for key, is_old in rows[:-1] if is_old]
        gone = [key for key in old if key not in self._keep_snapshots]
        return gone, {
            "before": len(rows),
            "expired": len(gone),
            "kept_for_datasets": len(old) - len(gone),
            "kept": len(rows) - len(old),
        }

    def _expire_snapshots(self) -> dict[str, int]:
        found: dict[str, int] = {}

        def work(connection: duckdb.DuckDBPyConnection) -> None:
            gone, counts = self._old_snapshots()
            found.update(counts)
            if gone:
                connection.execute(f"CALL ducklake_expire_snapshots('lake', versions => {gone})")

        self._lake.commit(work)
        return found

    def _remove_files(self, function: str) -> int:
        """Remove unreferenced files; under the lock, so that none is of a commit under way."""
        query = f"SELECT count(*) FROM {function}('lake', {self._age})"
        rows = self._lake.commit(lambda connection: connection.execute(query).fetchall())
        return int(rows[0][0])

    def _report(
        self,
        dry_run: bool,
        deleted: dict[str, int],
        since: date | None,
        files: int,
        snapshots: dict[str, int],
        removed: int,
        orphans: int,
    ) -> UpkeepReport:
        return UpkeepReport(
            dry_run=dry_run,
            rows={
                table: {"before": n, "deleted": gone, "kept": n - gone}
                for table, n in self._before.items()
                for gone in [deleted.get(table, 0)]
                if n
            },
            kept_since=since,
            files_before=self._totals[0],
            files_after=files,
            bytes_before=self._totals[1],
            bytes_after=compaction.totals(self._lake.connection)[1],
            snapshots=snapshots,
            files_removed=removed,
            orphans_removed=orphans,
            snapshot_id=self._lake.snapshot_id(),
        )


def _is_joined(changes: Changes) -> bool:
    return not changes.news and not changes.everything


def _row_counts(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    counts = {}
    for table in TABLES.keys() - {"lake_version", "upkeep", "offsets"}:
        row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        counts[table] = int(row[0]) if row else 0
    return dict(sorted(counts.items()))
