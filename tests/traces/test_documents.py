"""Proves that JSON documents give every element once, with its bytes, whatever is wrong in them.

Files are made here; known answers are the values that were written, counted in the test.
"""

import json
import random
from pathlib import Path

import pytest
from source_files import items, source, values

from traces.importers.rows import LineRefused
from traces.sources.detect import find_sources

ROWS = [
    {"i": i, "text": 'ä\n"[{,}]\\' * (i % 40), "deep": [[i, None], {"x": 1.5}]} for i in range(3000)
]
WRITINGS = {
    "compact": json.dumps(ROWS, separators=(",", ":")),
    "spaced": json.dumps(ROWS, ensure_ascii=False),
    "indented": json.dumps(ROWS, indent=2),
    "a line each": "[\n" + ",\n".join(json.dumps(row) for row in ROWS) + "\n]\n",
    "objects in a row": "\n".join(json.dumps(row, indent=1) for row in ROWS),
    "arrays in a row": json.dumps(ROWS[:1000]) + "\n" + json.dumps(ROWS[1000:]),
    "with a byte order mark": "\ufeff" + json.dumps(ROWS, indent="\t").replace("\n", "\r\n"),
}


@pytest.mark.parametrize("text", WRITINGS.values(), ids=WRITINGS.keys())
def test_every_element_comes_once_with_its_exact_bytes(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(text.encode())

    found = items(file, "document")

    assert values(found) == ROWS
    whole = file.read_bytes()
    assert all(whole[i.position : i.position + len(i.raw)] == i.raw for i in found)


@pytest.mark.parametrize("writing", ["compact", "indented", "objects in a row"])
def test_a_growing_document_is_read_on_where_it_ended(tmp_path: Path, writing: str) -> None:
    file = tmp_path / "a.json"
    whole = WRITINGS[writing].encode()
    for cut in random.Random(5).sample(range(len(whole)), 6):
        file.write_bytes(whole[:cut])
        growing = source(file, "document")
        before = list(growing.batches([], max_items=500))
        file.write_bytes(whole)

        after = items(file, "document", [before[-1].after] if before else [])

        assert values([i for b in before for i in b.items] + after) == ROWS
        last = before[-1].after.consumed_bytes if before else 0
        assert last + growing.waiting_bytes <= cut


def test_a_document_torn_within_an_element_says_how_much_waits(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(b'[{"a": 1},\n {"a": "x')
    torn = source(file, "document")

    (batch,) = torn.batches([])

    assert values(batch.items) == [{"a": 1}]
    assert torn.waiting_bytes == len(b'{"a": "x')


BROKEN = {
    "a word": b'{"i": nul}',
    "no value": b'{"i": }',
    "not a number": b'{"i": NaN}',
    "too large": b'{"i": 1e999}',
    "too many digits": b'{"i": ' + b"9" * 5000 + b"}",
    "half a surrogate pair": b'{"i": "\\ud800"}',
    "no UTF-8": b'{"i": "\xff\xfe"}',
    "a raw control character": b'{"i": "\x01"}',
    "deeply nested": b'{"i": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "wrongly nested": b'{"i": [}',
}


@pytest.mark.parametrize("bad", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_element_is_one_refused_item_and_the_others_are_read(
    tmp_path: Path, bad: bytes
) -> None:
    elements = [json.dumps({"i": i}).encode() for i in range(5)]
    file = tmp_path / "a.json"
    file.write_bytes(b"[\n" + b",\n".join([*elements[:2], bad, *elements[2:]]) + b"\n]")

    found = items(file, "document")

    refused = [i for i in found if i.raw.startswith(bad[:9])]
    assert [i.raw for i in refused] == [bad]
    with pytest.raises(LineRefused) as refusal:
        _ = refused[0].value
    assert refusal.value.reason == "not_json"
    assert values([i for i in found if i is not refused[0]]) == [{"i": i} for i in range(5)]


def test_where_no_next_element_can_be_found_the_rest_is_kept_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(b'[{"i": 0}, {"i": nope}, {"i": 2}]')

    found = items(file, "document")

    assert found[0].value == {"i": 0}
    assert found[1].raw == b'{"i": nope}, {"i": 2}]'
    assert found[1].refusal is not None
    assert found[1].refusal.reason == "not_json"


def test_the_lists_of_a_large_object_are_taken_apart(tmp_path: Path) -> None:
    spans = [{"name": f"s{n}", "text": '"]}'} for n in range(500)]
    whole = {"count": 500, "resourceSpans": spans, "meta": {"page": [1]}, "data": [1, None]}
    file = tmp_path / "a.json"
    for indent in (None, 2):
        file.write_text(json.dumps(whole, indent=indent))

        found = items(file, "object")

        wrapped = [{"resourceSpans": [span]} for span in spans] + [{"data": [1]}, {"data": [None]}]
        assert values(found) == wrapped
        assert [json.loads(item.raw) for item in found] == wrapped


def test_a_large_object_that_breaks_off_says_so(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"resourceSpans": [{"a": 1}, {"a": ')

    first, last = items(file, "object")

    assert first.value == {"resourceSpans": [{"a": 1}]}
    assert last.refusal is not None
    assert last.refusal.reason == "corrupt_file"


@pytest.mark.slow
def test_an_object_larger_than_an_item_may_be_is_found_to_be_one(tmp_path: Path) -> None:
    attribute = {"key": "gen_ai.input.messages", "value": {"stringValue": "x" * 1_000_000}}
    span = {"traceId": "0" * 32, "spanId": "0" * 16, "name": "chat", "attributes": [attribute]}
    resource = {"scopeSpans": [{"spans": [span]}]}
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"resourceSpans": [resource] * 70}))

    (found,) = find_sources(file).files

    assert (found.form, found.format) == ("object", "otlp")
    assert sum(len(batch.items) for batch in found.batches([])) == 70
