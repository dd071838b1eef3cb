"""Proves that no input makes an error or loses an item: what goes in is a row or in quarantine.

Random and damaged bytes through every form of file, and one whole ingest. The damage is drawn
from fixed seeds.
"""

import contextlib
import csv
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_files import SPOOL, chunk, items, json_lines, source
from trace_records import tables

from traces.errors import InputRefused
from traces.ingest import ingest
from traces.sources.detect import FORMATS, find_sources, format_of, parse_item
from traces.sources.items import Context, Item
from traces.sources.source_file import Form

FORMS: tuple[Form, ...] = get_args(Form)
HOP = json.dumps(SPOOL[0]).encode()
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Return the content with some bytes gone, doubled, replaced or cut off."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                del data[at : at + chance.randint(1, 40)]
            case 1:
                data[at:at] = data[at : at + chance.randint(1, 40)]
            case 2:
                data[at:at] = chance.choice([b"\0", b"\n", b"\r\n", b'"', b"[", b"}", b"\xff"])
            case 3:
                data[at : at + 4] = chance.randbytes(4)
            case 4 if len(data) > 200:
                del data[at:]
    return bytes(data)


def _table() -> bytes:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerows([["id", "text"], *([str(n), 'a "b"\nc'] for n in range(20))])
    return out.getvalue().encode()


STREAM = [chunk("a", "x"), chunk("b", "y"), chunk("a", "", "stop"), chunk("b", "", "stop")]
CONTENTS: dict[str, tuple[Form, bytes]] = {
    "lines": ("lines", json_lines(SPOOL)),
    "an array": ("document", json.dumps(SPOOL, indent=1).encode()),
    "a compact array": ("document", json.dumps(SPOOL).encode()),
    "chunks": ("chunks", json_lines(STREAM * 3)),
    "events": ("chunks", b"data: " + b"\n\ndata: ".join(json_lines(STREAM).splitlines())),
    "csv": ("csv", _table()),
}


@pytest.mark.parametrize(("form", "content"), CONTENTS.values(), ids=CONTENTS.keys())
def test_damaged_files_of_every_form_are_read_to_their_end(
    tmp_path: Path, form: Form, content: bytes
) -> None:
    chance = random.Random(11)
    file = tmp_path / "a"
    for packed in (False, True) * 40:
        hurt = damaged(content, chance)
        file.write_bytes(damaged(gzip.compress(hurt), chance) if packed else hurt)

        for item in items(file, form) if file.stat().st_size else []:
            assert parse_item(item, Context("native"))


@pytest.mark.parametrize("name", ["lines", "an array", "a compact array"])
def test_no_byte_of_a_damaged_file_is_in_no_item(tmp_path: Path, name: str) -> None:
    chance = random.Random(14)
    file = tmp_path / "a"
    form, content = CONTENTS[name]
    for _ in range(60):
        hurt = damaged(content, chance)
        file.write_bytes(hurt)
        read = source(file, form)

        found = [item for batch in read.batches([]) for item in batch.items]

        between = bytearray(hurt[: len(hurt) - read.waiting_bytes])
        for item in reversed(found):
            end = item.position + len(item.raw)
            assert between[item.position : end] == item.raw
            del between[item.position : end]
        assert not between.strip(b"\n\r ,[]")


@pytest.mark.parametrize("form", FORMS)
def test_random_bytes_are_no_error_in_any_form(tmp_path: Path, form: Form) -> None:
    chance = random.Random(12)
    file = tmp_path / "a"
    for size in (1, 2, 7, 100, 5000):
        file.write_bytes(chance.randbytes(size))

        for item in items(file, form):
            (row,) = parse_item(item, Context("native"))
            assert row.table == "quarantine"


def test_damaged_files_are_found_or_refused(tmp_path: Path) -> None:
    chance = random.Random(13)
    file = tmp_path / "a"
    for _form, content in list(CONTENTS.values()) * 20:
        file.write_bytes(damaged(content, chance))
        with contextlib.suppress(InputRefused):
            assert find_sources(file).files


@settings(max_examples=150, deadline=None)
@given(value=JSON_VALUES)
def test_any_json_value_has_rows_from_every_importer_and_is_no_error(value: Any) -> None:
    for importer in FORMATS:
        raw = json.dumps(value).encode()
        rows = parse_item(Item(0, raw), Context(importer.NAME))
        assert rows
    format_of(value)


ODD_LINES = {
    "NUL bytes": b"\0\0\0",
    "no UTF-8": b'{"kind": "\xff"}',
    "half a surrogate pair": HOP.replace(b"Sort", b"\\ud83d Sort"),
    "a huge number": HOP.replace(b'"duration_s": 0.5', b'"duration_s": 1e999'),
    "a number of many digits": HOP.replace(b'"seq": 0', b'"seq": ' + b"9" * 5000),
    "deeply nested": b'{"kind": ' + b"[" * 100_000,
    "wrongly nested": b'{"kind": ["hop"}]',
    "another type": b'{"kind": {"hop": 1}, "record": []}',
    "not an object": b'"text"',
    "two objects": HOP + HOP,
    "NaN": HOP.replace(b'"duration_s": 0.5', b'"duration_s": NaN'),
    "cut off": HOP[: len(HOP) // 2],
}
FINE_LINES = {
    "duplicate keys": HOP.replace(b'"seq": 0', b'"seq": 5, "seq": 6'),
    "a whole surrogate pair": HOP.replace(b"Sort", b"\\ud83d\\ude00 Sort"),
    "a NUL character": HOP.replace(b"Sort", b"\\u0000 Sort"),
    "deep within": HOP.replace(b'"tools": "[]"', b'"tools": "' + b"[" * 400 + b"]" * 400 + b'"'),
}


def test_an_ingest_of_odd_lines_has_every_line_in_a_table_or_in_quarantine(
    home: Path, tmp_path: Path
) -> None:
    lines = [b"\xef\xbb\xbf" + HOP, *ODD_LINES.values(), b"", b"  \r", *FINE_LINES.values()]
    (tmp_path / "a.jsonl").write_bytes(b"\r\n".join(lines) + b"\n")

    report = ingest(home, tmp_path / "a.jsonl")

    kept = tables(home, "hops", "quarantine")
    raw = {row[5].strip() for row in kept["quarantine"]}
    assert raw == {odd.strip() for odd in ODD_LINES.values()}
    assert len(kept["hops"]) == 1 + len(FINE_LINES)
    assert report.funnel["quarantined"] == len(ODD_LINES)
    assert not ingest(home, tmp_path / "a.jsonl").added
