"""Proves that what a path holds is found by its content: form, format, or one clear line.

Real files of each kind; the whole ones of ../shared where it is there.
"""

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pytest
from source_files import SPOOL, chunk, json_lines
from trace_records import SHARED, traffic, write_spool

from traces.errors import InputRefused
from traces.ingest import ingest
from traces.sources.detect import FORMATS, find_sources, parse_item

DATA = SHARED / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared")


@pytest.mark.parametrize(
    ("content", "form"),
    [
        (json_lines(SPOOL), "lines"),
        (b"\xef\xbb\xbf" + json_lines(SPOOL).replace(b"\n", b"\r\n"), "lines"),
        (b"\n\n# a comment\n" + json_lines(SPOOL), "lines"),
        (b'{"kind": "hop", \n' + json_lines(SPOOL), "lines"),
        (b"[1, 2]\n" + json_lines(SPOOL), "document"),
        (json.dumps(SPOOL).encode(), "document"),
        (json.dumps(SPOOL, indent=1).encode(), "document"),
        (json.dumps(SPOOL[0], indent=1).encode(), "document"),
        (b"[\n" + b",\n".join(json_lines(SPOOL).splitlines()) + b"]", "document"),
    ],
)
def test_a_file_is_known_by_its_content_whatever_its_name(
    tmp_path: Path, content: bytes, form: str
) -> None:
    file = tmp_path / "trace.log"
    file.write_bytes(content)

    (found,) = find_sources(file).files

    assert (found.form, found.format) == (form, "native")


def _zstd(content: bytes) -> bytes:
    packed: bytes = pa.compress(content, codec="zstd", asbytes=True)
    return packed


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, _zstd])
def test_packed_files_are_unpacked_and_the_offset_counts_unpacked_bytes(
    tmp_path: Path, pack: object
) -> None:
    content = json_lines(SPOOL)
    file = tmp_path / "packed"
    file.write_bytes(pack(content))  # type: ignore[operator]

    (found,) = find_sources(file).files
    batches = list(found.batches([], max_items=5))

    assert [item.value for batch in batches for item in batch.items] == SPOOL
    assert batches[-1].after.consumed_bytes == len(content)
    assert list(found.batches([batches[-1].after])) == []
    rest = list(found.batches([batches[0].after]))
    assert [item.value for batch in rest for item in batch.items] == SPOOL[5:]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_packed_file_that_still_grows_is_followed(tmp_path: Path, pack: object) -> None:
    parts = [json_lines(SPOOL[:7]), json_lines(SPOOL[7:])]
    whole = b"".join(pack(part) for part in parts)  # type: ignore[operator]
    file = tmp_path / "packed"
    file.write_bytes(whole[:-9])
    (found,) = find_sources(file).files
    before = list(found.batches([]))
    file.write_bytes(whole)

    after = list(found.batches([before[-1].after]))

    seen = [item.value for batch in [*before, *after] for item in batch.items]
    assert seen == SPOOL


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PAR1 but no table PAR1", "corrupt file"),
        (json_lines(SPOOL).decode().encode("utf-16"), "UTF-16"),
        (b"\x28\xb5\x2f\xfdgarbage", "zstd"),
        (b"id,text\n1,a\n", "CSV table of an unknown format.*'id', 'text'"),
        (b'{"user": "x", "password": "hunter2"}\n', "keys 'user', 'password'"),
        (b"key=sk-0123456789abcdef0123 started\n", r"begins '\.\.\. started'"),
        (b"[1, 2, 3]", "first item is a JSON int"),
        (b"[]", "first item is a JSON list"),
        (b'{"kind": "hop", "sour', "no complete line yet; it begins '{\"kind"),
        (b"<html></html>", "begins '<html></html>'"),
        (b'{"messages": [{"role": "user", "content": "a"}], "tools": []}\n', "keys 'messages'"),
        (b'{"prompt": "a", "response": "b", "model": "m"}\n', "keys 'prompt'"),
        (b'{"request": {"url": "/", "input": null}, "response": {"status": 200}}\n', "'request'"),
        (b'{"name": "accuracy", "value": 0.5, "source": "nightly"}\n', "keys 'name'"),
        (b'{"task_id": 7, "traj": [[0.5, 1.0]], "reward": 1.0}\n', "keys 'task_id'"),
        (b'{"history": [{"agent": "a", "content": "b"}]}\n', "keys 'history'"),
        (b'{"run_id": 7, "key": "loss", "score": 0.5}\n', "keys 'run_id'"),
        (b'{"target_id": "a", "metric_name": "cpu", "value": 0.5}\n', "keys 'target_id'"),
    ],
)
def test_a_file_of_another_kind_is_one_line_that_tells_its_shape_and_no_secret(
    home: Path, tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "a").write_bytes(content)

    with pytest.raises(InputRefused, match=words) as refused:
        ingest(home, tmp_path / "a")

    text = str(refused.value)
    assert "\n" not in text
    assert "hunter2" not in text
    assert "0123456789" not in text
    assert "Looked for" in text
    assert not home.exists()


def test_a_mixed_folder_has_a_funnel_for_each_format(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    (folder / "deep").mkdir(parents=True)
    write_spool(folder / "deep" / "a.jsonl", traffic(2))
    stream = [chunk("x", "Hi"), chunk("x", "", "stop")]
    (folder / "b").write_bytes(json_lines(stream))
    (folder / "README.md").write_text("# not a trace")
    (folder / ".hidden").write_bytes(json_lines(stream))

    report = ingest(home, folder)

    assert report.format == "native, openai"
    assert report.formats["native"]["hops_added"] == 6
    assert report.formats["openai"]["hops_added"] == 1
    assert report.formats["openai"]["files"] == 1
    assert report.funnel["hops_added"] == 7
    assert report.skipped.keys() == {"README.md"}


def test_the_names_of_formats_are_unlike_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    names = [importer.NAME for importer in FORMATS]
    assert len(set(names)) == len(names)
    with pytest.raises(InputRefused, match=r"'nativ'.*native, mindlab"):
        find_sources(tmp_path, "nativ")


@needs_data
@pytest.mark.parametrize(
    ("path", "format", "items"),
    [
        ("mindlab-harness/hops.jsonl", "mindlab", 163),
        ("tau-bench/gpt-4o-airline.json", "tau-bench", 200),
        ("eval-protocol/logs.jsonl", "eval-protocol", 127),
        ("who-and-when", "who-and-when", 126),
        ("swe-agent", "swe-agent", 1),
        ("tensorzero/chat_datapoint_fixture.jsonl", "tensorzero", 41),
        ("tensorzero/openai", "openai", 6),
        ("openinference/vercel-v6-all-spans.json", "otlp", 10),
    ],
)
def test_the_shared_files_are_known_and_none_of_their_items_is_refused(
    path: str, format: str, items: int
) -> None:
    sources = find_sources(DATA / path)

    assert {file.format for file in sources.files} == {format}
    found = [
        (item, file.context)
        for file in sources.files
        for batch in file.batches([])
        for item in batch.items
    ]
    assert len(found) == items
    rows = [row for item, context in found for row in parse_item(item, context)]
    assert [row for row in rows if row.table == "quarantine"] == []
    assert len(rows) >= items
