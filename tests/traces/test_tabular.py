"""Proves that Parquet and CSV rows come as plain JSON values, all of them.

Files are written by pyarrow and the csv module.
"""

import csv
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from source_files import items, source, values

from traces.sources.source import Offset
from traces.sources.tabular import partition_columns

TIME = datetime(2026, 1, 31, 12, 30, 15, 250_000, tzinfo=UTC)


def test_parquet_values_are_plain_json(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    nanoseconds = pa.array([1_769_862_615_250_000_123], pa.timestamp("ns", tz="UTC"))
    table = pa.table(
        {
            "text": ["ä"],
            "at": pa.array([TIME], pa.timestamp("us", tz="UTC")),
            "ns": nanoseconds,
            "naive": pa.array([TIME.replace(tzinfo=None)], pa.timestamp("ms")),
            "nested": [{"list": [1, None, 2.5], "inner": {"a": None}}],
            "pairs": pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string())),
            "nan": [float("nan")],
            "money": [Decimal("1.50")],
            "bytes": [b"text"],
            "binary": [b"\xff\x00"],
        }
    )
    pq.write_table(table, file)

    (item,) = items(file, "parquet")

    assert item.value == {
        "text": "ä",
        "at": "2026-01-31T12:30:15.250000+00:00",
        "ns": "2026-01-31T12:30:15.250000+00:00",
        "naive": "2026-01-31T12:30:15.250000",
        "nested": {"list": [1, None, 2.5], "inner": {"a": None}},
        "pairs": [["k", "v"]],
        "nan": None,
        "money": 1.5,
        "bytes": "text",
        "binary": "/wA=",
    }
    assert json.loads(item.raw) == item.value


def test_csv_cells_with_newlines_and_quotes_are_whole(tmp_path: Path) -> None:
    rows = [{"id": str(n), "text": f'line {n}\nsaid "x",\r\nend', "none": ""} for n in range(300)]
    file = tmp_path / "a.csv"
    with file.open("w", newline="", encoding="utf-8-sig") as out:
        writer = csv.DictWriter(out, ["id", "text", "none"])
        writer.writeheader()
        writer.writerows(rows)

    found = values(items(file, "csv"))

    assert found == [{**row, "none": None} for row in rows]


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_cells_may_be_parted_as_spreadsheets_do(tmp_path: Path, delimiter: str) -> None:
    file = tmp_path / "a.csv"
    file.write_text(f'id{delimiter}text\n1{delimiter}"a, b{delimiter}c"\n')

    assert values(items(file, "csv")) == [{"id": "1", "text": f"a, b{delimiter}c"}]


def test_an_odd_csv_row_is_refused_as_it_is_written_and_the_others_are_read(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.csv"
    odd = [b"1,2,3\n", b'4,"x"y"\n', b"5,\xff\n", b"6\n"]
    file.write_bytes(b"id,text\n0,a\n" + b"7,b\n".join(odd) + b"\n8,c\n")

    found = items(file, "csv")

    assert [i.raw for i in found if i.refusal is not None] == odd
    assert [i.value["id"] for i in found if i.refusal is None] == ["0", "7", "7", "7", "8"]


@pytest.mark.parametrize("torn", [b"2", b'2,"half', b'2,"half\nof a cell\n'])
def test_a_torn_last_csv_row_waits(tmp_path: Path, torn: bytes) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b"id,text\n1,a\n" + torn)
    table = source(file, "csv")

    found = [item for batch in table.batches([]) for item in batch.items]

    assert values(found) == [{"id": "1", "text": "a"}]
    assert table.waiting_bytes == len(torn)


def test_a_table_is_known_as_a_whole_and_its_offset_comes_with_the_last_batch(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": list(range(1000))}), file)

    batches = list(source(file, "parquet").batches([], max_items=300))

    assert [len(batch.items) for batch in batches] == [300, 300, 300, 100]
    assert [batch.after == Offset() for batch in batches] == [True, True, True, False]
    assert list(source(file, "parquet").batches([batches[-1].after])) == []


def test_a_broken_parquet_file_ends_with_an_item_that_says_so(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": list(range(2000))}), file, row_group_size=500)
    content = bytearray(file.read_bytes())
    content[len(content) // 3 : len(content) // 3 + 2000] = b"\xff" * 2000
    file.write_bytes(content)

    found = items(file, "parquet")

    assert found[-1].refusal is not None
    assert found[-1].refusal.reason == "corrupt_file"


def test_folders_named_after_columns_add_them(tmp_path: Path) -> None:
    folder = tmp_path / "day=2026-01-31" / "kind=a%2Fb"
    folder.mkdir(parents=True)
    file = folder / "part.parquet"
    pq.write_table(pa.table({"n": [1], "kind": ["own"]}), file)
    table = source(file, "parquet")
    table.columns = partition_columns(file.relative_to(tmp_path))

    (batch,) = table.batches([])

    assert batch.items[0].value == {"day": "2026-01-31", "kind": "own", "n": 1}
