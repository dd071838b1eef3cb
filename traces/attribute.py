"""Recompute outcomes and blame of all turns: what happened, and whose doing it was.

    settle the signals of every turn, blame the turns that failed, and write the rows
    that differ in one transaction.

Outcomes and blame are functions of the lake and the profile; feedback may come
days late and an attribution may be repeated at will. If nothing changed there is
no commit and the snapshot id stays. Memory does not grow with the lake: what is found
waits in DuckDB, which goes to disk. By hand: `flows run attribute`.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import duckdb

from serving.records import Record
from serving.slots import Profile
from traces.attribution.apart import apart_sql
from traces.attribution.blaming import blame_turns
from traces.attribution.judge import JudgeReport
from traces.attribution.settling import settle_turns
from traces.attribution.signal_quality import in_words, signal_quality
from traces.config import AttributionConfig
from traces.storage.frugality import little_memory
from traces.storage.lake import Lake
from traces.storage.tables import TABLES

Progress = Callable[[int, int], None]
"""Called with turns done and turns in all."""


_JUDGED = "FROM judged.turns t JOIN judged.outcomes o USING (turn_id)"
_CHARGED = f"b.klass IN ('adapter', 'router') AND NOT o.success AND ({apart_sql()}) IS NULL"
"""Of turns `t`, outcomes `o` and blame `b`: what counts as `blamed`."""


class AttributeReport(Record):
    """What is known about the turns after attribution."""

    turns: int
    outcomes: dict[str, int]
    """Turns by `success`, `failure` and `unjudged`."""
    rules: dict[str, int]
    """Turns by the part of the outcome rule that decided."""
    blame: dict[str, int]
    """Failed or suspect turns by class."""
    by_slot: dict[str, dict[str, int]]
    """Slot to `turns` it answered, `failed` among them, and `blamed`: turns that
    are its adapter's fault, for the router also those it sent wrong. Turns that were
    asked again are not among them."""
    apart: dict[str, int]
    """Failed turns that say nothing about the models that serve: `canary` traffic, `engine`
    errors, `truncated` answers. They are not among the failed and blamed of `by_slot`."""
    signals: str | None = None
    """How often each signal was right on turns that verifiers judged, in one line."""
    judge: JudgeReport | None = None
    """What a judge was found to be worth and did, where one was asked."""
    feedback_unmatched: int
    """Signals about turns that are not in the lake (yet)."""
    changed: int
    """Rows of outcomes and blame that this run wrote or removed."""
    snapshot_id: int


def attribute(
    home: Path,
    profile: Profile,
    progress: Progress | None = None,
    config: AttributionConfig | None = None,
) -> AttributeReport:
    """Settle outcomes and blame for every turn of the lake of `home`.

    Raises:
        LakeNotFound: if nothing was ingested yet.
        LakeUnavailable: if the lake cannot be written; it is as it was.
    """
    with Lake.open(home, create=False) as lake, little_memory(lake.connection):
        connection = lake.connection
        at = f"AT (VERSION => {lake.snapshot_id()})"
        total = _one(connection, f"SELECT count(*) FROM turns {at}")
        signals = _one(connection, f"SELECT count(*) FROM feedback {at}")

        def told(done: int, of: int) -> None:
            if progress is not None:
                progress(min(done, of), of)

        # Settling is quick beside blaming: each counts for half.
        connection.execute("ATTACH ':memory:' AS judged")
        asked = config or AttributionConfig()
        settle_turns(connection, profile, asked, at, lambda done: told(done // 2, total))
        blame_turns(connection, profile, asked, at, lambda done: told((total + done) // 2, total))
        told(total, total)
        changed = lake.commit(_write)
        return _report(lake, profile, signals, changed)


def blamed_of(home: Path, versions: Collection[str]) -> dict[str, int]:
    """Return how many of each slot's `blamed` turns were answered by these versions (12 digits).

    Raises:
        LakeNotFound: if nothing was ingested yet.
    """
    with Lake.open(home, read_only=True) as lake:
        rows = lake.connection.execute(
            "SELECT b.slot, count(*) FROM turns t JOIN outcomes o USING (turn_id)"
            f" JOIN blame b USING (turn_id) WHERE {_CHARGED} AND list_contains($versions, t.digest)"
            " GROUP BY b.slot",
            {"versions": sorted(versions)},
        ).fetchall()
    return dict(rows)


def _write(connection: duckdb.DuckDBPyConnection) -> int:
    """Bring both tables to what was judged; return rows changed."""
    changed = 0
    for table in ("outcomes", "blame"):
        content = ", ".join(f'"{column.name}"' for column in TABLES[table])
        rows = f"(SELECT turn_id, hash({content}) AS content FROM"
        connection.execute(
            "CREATE OR REPLACE TEMP TABLE judged_changes AS"
            " SELECT turn_id, s.content IS NOT NULL AS stale, j.content IS NOT NULL AS fresh"
            f" FROM {rows} {table}) s FULL JOIN {rows} judged.{table}) j USING (turn_id)"
            " WHERE s.content IS DISTINCT FROM j.content"
        )
        found = _one(connection, "SELECT count(*) FROM judged_changes")
        if _one(connection, "SELECT count(*) FROM judged_changes WHERE stale"):
            connection.execute(
                f"DELETE FROM {table} WHERE turn_id IN"
                " (SELECT turn_id FROM judged_changes WHERE stale)"
            )
        if _one(connection, "SELECT count(*) FROM judged_changes WHERE fresh"):
            connection.execute(
                f"INSERT INTO {table} BY NAME SELECT {content} FROM judged.{table}"
                " WHERE turn_id IN (SELECT turn_id FROM judged_changes WHERE fresh)"
            )
        changed += found
    return changed


def _report(lake: Lake, profile: Profile, signals: int, changed: int) -> AttributeReport:
    connection = lake.connection
    outcomes = _counts(
        connection,
        "SELECT CASE WHEN success THEN 'success' WHEN NOT success THEN 'failure'"
        " ELSE 'unjudged' END FROM judged.outcomes",
    )
    return AttributeReport(
        turns=sum(outcomes.values()),
        outcomes=outcomes,
        rules=_counts(connection, "SELECT rule FROM judged.outcomes"),
        blame=_counts(connection, "SELECT klass FROM judged.blame"),
        by_slot=_by_slot(connection, profile),
        apart=_counts(connection, f"SELECT {apart_sql()} {_JUDGED}", "word IS NOT NULL"),
        signals=in_words(signal_quality(connection)),
        feedback_unmatched=signals
        - _one(connection, "SELECT count(DISTINCT feedback_id) FROM judged.named"),
        changed=changed,
        snapshot_id=lake.snapshot_id(),
    )


def _by_slot(connection: duckdb.DuckDBPyConnection, profile: Profile) -> dict[str, dict[str, int]]:
    answered = connection.execute(
        "SELECT t.slot, count(*) FILTER (NOT t.superseded),"
        f" count(*) FILTER (NOT t.superseded AND NOT o.success AND ({apart_sql()}) IS NULL)"
        f" {_JUDGED} WHERE t.slot IS NOT NULL GROUP BY t.slot ORDER BY t.slot"
    ).fetchall()
    blamed = dict(
        connection.execute(
            f"SELECT b.slot, count(*) {_JUDGED} JOIN judged.blame b USING (turn_id)"
            f" WHERE {_CHARGED} GROUP BY b.slot"
        ).fetchall()
    )
    known = {slot: (turns, failed) for slot, turns, failed in answered}
    counts = {}
    for slot in dict.fromkeys([*profile.labels, *known]):
        turns, failed = known.get(slot, (0, 0))
        counts[slot] = {"turns": turns, "failed": failed, "blamed": blamed.get(slot, 0)}
    return counts


def _counts(
    connection: duckdb.DuckDBPyConnection, query: str, where: str = "true"
) -> dict[str, int]:
    """Return how often each value of a query's one column, `word`, occurs, by value."""
    rows = connection.execute(
        f"SELECT word, count(*) FROM ({query}) t(word) WHERE {where} GROUP BY word ORDER BY word"
    ).fetchall()
    return {word: int(count) for word, count in rows}


def _one(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    rows: list[Any] = connection.execute(query).fetchall()
    return int(rows[0][0])
