"""Records that were set aside: list them, mend one, or read them again after an upgrade.

A quarantine row holds an item's bytes as they were, so that whatever it becomes later follows
from the source alone. In: `<home>`. Out: rows to look at, or a `ReplayReport`. What is read
moves to the tables and out of quarantine in one transaction. By hand: `flows quarantine`.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from serving.errors import MolError
from serving.records import Record
from traces.importers.rows import LineRefused
from traces.joins.turns import refresh_turns
from traces.sources.chunks import begins_stream, streamed
from traces.sources.detect import format_of, parse_item, recognised_as
from traces.sources.items import Context, Item, decode
from traces.sources.source import MAX_LINE_BYTES
from traces.storage.lake import Lake
from traces.storage.store import store_rows

BATCH_BYTES = 32 * 1024 * 1024
BATCH_RECORDS = 1024

# Conditions are our own text; values are bound.
# ruff: noqa: S608

_NOT_AN_ITEM = ("corrupt_file", "not_csv", "too_long")
"""Reasons of records whose bytes are not a whole item: only a person can mend them."""


class RecordNotFound(MolError, LookupError):
    """No record in quarantine, or more than one, has this id or its beginning."""


class FixRefused(MolError, ValueError):
    """The mended bytes are no record either; quarantine has not changed."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which records: those of a reason, source or format; None means any."""

    reason: str | None = None
    source: str | None = None
    format: str | None = None

    def where(self) -> tuple[str, dict[str, Any]]:
        """Return the condition and its parameters."""
        named = {"reason": self.reason, "source": self.source, "format": self.format}
        given = {name: value for name, value in named.items() if value is not None}
        return " AND ".join(["true", *(f"{name} = ${name}" for name in given)]), given


@dataclass(frozen=True, slots=True)
class SetAside:
    """One record in quarantine."""

    quarantine_id: str
    source: str
    position: int
    reason: str
    detail: str
    raw: bytes
    format: str | None


class ReplayReport(Record):
    """What became of records that were read again."""

    read: int
    """Records looked at."""
    moved: int
    """Records that are out of quarantine now."""
    left: dict[str, int]
    """Records that stay, by the reason that they have now."""
    added: dict[str, int]
    """New rows by table."""


def count(home: Path, chosen: Chosen | None = None) -> list[dict[str, Any]]:
    """Return how many records there are of each source, reason and format, most first."""
    where, given = (chosen or Chosen()).where()
    return _ask(
        home,
        "SELECT source, reason, format, count(*) AS records, sum(octet_length(raw))::BIGINT AS "
        f"bytes FROM quarantine WHERE {where} GROUP BY ALL "
        "ORDER BY records DESC, source, reason, format",
        given,
    )


def listed(home: Path, chosen: Chosen | None = None, limit: int = 20) -> list[dict[str, Any]]:
    """Return records without their contents, for these may be secret."""
    where, given = (chosen or Chosen()).where()
    return _ask(
        home,
        "SELECT quarantine_id, source, position, reason, format, octet_length(raw) AS bytes "
        f"FROM quarantine WHERE {where} ORDER BY source, position, quarantine_id LIMIT {limit:d}",
        given,
    )


def find(home: Path, id: str) -> SetAside:
    """Return the record with this id, or the only one whose id begins so.

    Raises:
        RecordNotFound: if there is none, or more than one.
    """
    with Lake.open(home, read_only=True) as lake:
        return _find(lake.connection, id)


def fix(home: Path, id: str, mended: bytes) -> ReplayReport:
    """Put mended bytes in the place of a record's, read them, and take it out of quarantine.

    Raises:
        RecordNotFound: if there is no such record.
        FixRefused: if the mended bytes are no record either.
    """
    if len(mended) > MAX_LINE_BYTES:
        raise FixRefused(f"The mended record is longer than {MAX_LINE_BYTES:,} bytes.")
    record = find(home, id)
    tables = _parse(record, mended)
    for row in tables.get("quarantine", ()):
        raise FixRefused(
            f"The mended record is refused too: {row['reason']}: {row['detail']}. Nothing "
            f"was changed; 'flows quarantine show {short(record.quarantine_id)}' prints the "
            "record."
        )
    with Lake.open(home) as lake:
        report = _replace(lake, [(record, tables)])
        refresh_turns(lake)
        return report


def replay(home: Path, chosen: Chosen | None = None) -> ReplayReport:
    """Read records again with today's importers; what is refused again keeps today's reason."""
    where, given = (chosen or Chosen()).where()
    total = ReplayReport(read=0, moved=0, left={}, added={})
    with Lake.open(home) as lake:
        sizes = lake.connection.execute(
            "SELECT quarantine_id, octet_length(raw) FROM quarantine "
            f"WHERE {where} ORDER BY quarantine_id",
            given,
        ).fetchall()
        for ids in _batches(sizes):
            parsed = [
                (record, {} if record.reason in _NOT_AN_ITEM else _parse(record, record.raw))
                for record in _load(lake, ids)
            ]
            total = _sum(total, _replace(lake, parsed))
        refresh_turns(lake)
    return total


def short(quarantine_id: str) -> str:
    """Return the beginning of an id, long enough to tell it from others."""
    return quarantine_id.removeprefix("sha256:")[:12]


Tables = dict[str, list[dict[str, Any]]]


def _parse(record: SetAside, raw: bytes) -> Tables:
    """Return the rows of a record's bytes by table; none if they hold nothing to store."""
    item = _item(record.position, raw)
    format = record.format
    if item.refusal is None and not recognised_as(format, item.value):
        # Kept before formats were, or read as another one by today's importers.
        format = format_of(item.value) or format
    if format is None:
        unknown = LineRefused("unknown_format", "no importer recognises it")
        item = Item(record.position, raw, refusal=item.refusal or unknown)
    tables: Tables = {}
    for row in parse_item(item, Context(format or "", record.source, record.quarantine_id)):
        tables.setdefault(row.table, []).append(row.values)
    tables.pop("skipped", None)
    return tables


def _item(position: int, raw: bytes) -> Item:
    try:
        is_stream = begins_stream(raw.lstrip().partition(b"\n")[0])
        return Item(position, raw, streamed(raw).value if is_stream else decode(raw))
    except LineRefused as refusal:
        return Item(position, raw, refusal=refusal)


def _batches(sizes: list[tuple[str, int]]) -> Iterator[list[str]]:
    """Yield ids of records that fit into memory together."""
    ids: list[str] = []
    held = 0
    for id, size in sizes:
        ids.append(id)
        held += size
        if held >= BATCH_BYTES or len(ids) >= BATCH_RECORDS:
            yield ids
            ids, held = [], 0
    if ids:
        yield ids


def _replace(lake: Lake, parsed: list[tuple[SetAside, Tables]]) -> ReplayReport:
    """Store what the records became and take them out of quarantine, in one transaction."""
    rows: Tables = {}
    stay: Counter[str] = Counter()
    gone: list[str] = []
    for record, tables in parsed:
        again = tables.get("quarantine", [])
        same = [row for row in again if row["quarantine_id"] == record.quarantine_id]
        if same or not tables:
            stay[record.reason] += 1
            continue
        gone.append(record.quarantine_id)
        whole = len(tables) == 1 and bool(again)
        stay.update([again[0]["reason"]] if whole else [])
        for table, values in tables.items():
            rows.setdefault(table, []).extend(values)

    def work(connection: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
        added = store_rows(lake, rows)
        connection.execute(
            "DELETE FROM quarantine WHERE quarantine_id IN (SELECT unnest($ids))", {"ids": gone}
        )
        return added

    added = lake.commit(work) if gone else {}
    added.pop("quarantine", None)
    return ReplayReport(
        read=len(parsed),
        moved=len(parsed) - sum(stay.values()),
        left=dict(stay),
        added={table: len(ids) for table, ids in added.items() if ids},
    )


def _sum(one: ReplayReport, two: ReplayReport) -> ReplayReport:
    return ReplayReport(
        read=one.read + two.read,
        moved=one.moved + two.moved,
        left=dict(Counter(one.left) + Counter(two.left)),
        added=dict(Counter(one.added) + Counter(two.added)),
    )


def _load(lake: Lake, ids: list[str]) -> Iterator[SetAside]:
    """Yield records one at a time: each may hold many megabytes."""
    for id in ids:
        row = lake.connection.execute(f"{_RECORD} WHERE quarantine_id = $id", {"id": id}).fetchone()
        if row is not None:
            yield SetAside(*row)


_RECORD = "SELECT quarantine_id, source, position, reason, detail, raw, format FROM quarantine"


def _find(connection: duckdb.DuckDBPyConnection, id: str) -> SetAside:
    digits = id.removeprefix("sha256:")
    rows = connection.execute(
        f"{_RECORD} WHERE starts_with(quarantine_id, $id) LIMIT 2", {"id": f"sha256:{digits}"}
    ).fetchall()
    if len(rows) != 1 or not digits:
        many = "More than one record" if rows else "No record"
        raise RecordNotFound(
            f"{many} in quarantine has an id that begins {digits!r}. 'flows quarantine list' "
            "shows the ids."
        )
    return SetAside(*rows[0])


def _ask(home: Path, sql: str, given: dict[str, Any]) -> list[dict[str, Any]]:
    with Lake.open(home, read_only=True) as lake:
        cursor = lake.connection.execute(sql, given)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
