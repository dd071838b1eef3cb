"""Proves that the chunks of a streamed answer are one item, however the streams are written.

Chunks are OpenAI's, made here.
"""

import json
from itertools import chain, zip_longest
from pathlib import Path

import pytest
from source_files import chunk, items, json_lines, source, values

ONE = [chunk("a", "Hel"), chunk("a", "lo"), chunk("a", "", "stop")]
TWO = [chunk("b", "Good"), chunk("b", " day"), chunk("b", "."), chunk("b", "", "stop")]
USAGE = {**chunk("a", ""), "choices": [], "usage": {"prompt_tokens": 3}}


def events(chunks: list[dict[str, object]], end: str = "\n\n") -> bytes:
    lines = [f"data: {json.dumps(c)}{end}" for c in chunks]
    return "".join([*lines, f"data: [DONE]{end}"]).encode()


@pytest.mark.parametrize(
    "content",
    [
        json_lines([*ONE, *TWO]),
        json_lines([*ONE, USAGE, *TWO]),
        events(ONE) + events(TWO),
        events(ONE, "\r\n\r\n") + b": ping\r\n\r\n" + events(TWO, "\r\n\r\n"),
        b"event: message\n" + events(ONE) + b"retry: 3\nid: 1\n" + events(TWO),
    ],
    ids=["lines", "with usage", "events", "CRLF and a comment", "other fields"],
)
def test_the_chunks_of_a_response_are_one_item(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "s.jsonl"
    file.write_bytes(content)

    found = values(items(file, "chunks"))

    assert [[c for c in one if c != USAGE] for one in found] == [ONE, TWO]


def test_interleaved_streams_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    mixed = [c for c in chain(*zip_longest(ONE, TWO)) if c is not None]
    file.write_bytes(json_lines(mixed))

    assert sorted(values(items(file, "chunks")), key=str) == sorted([ONE, TWO], key=str)


def test_a_stream_that_broke_off_among_others_ends_after_a_while(tmp_path: Path) -> None:
    others = [c for n in range(400) for c in (chunk(f"o{n}", "x"), chunk(f"o{n}", "", "stop"))]
    file = tmp_path / "s.jsonl"
    file.write_bytes(json_lines([*ONE[:2], *others, *others]))

    found = values(items(file, "chunks"))

    assert ONE[:2] in found


def test_wherever_a_growing_file_is_cut_each_stream_comes_once(tmp_path: Path) -> None:
    whole = json_lines([*ONE, *TWO])
    file = tmp_path / "s.jsonl"
    for cut in range(0, len(whole), 13):
        file.write_bytes(whole[:cut])
        growing = source(file, "chunks")
        before = list(growing.batches([]))
        file.write_bytes(whole)

        after = items(file, "chunks", [before[-1].after] if before else [])

        assert values([i for b in before for i in b.items] + after) == [ONE, TWO]
        last = before[-1].after.consumed_bytes if before else 0
        assert growing.waiting_bytes == cut - last


def test_other_lines_between_streams_are_items_of_their_own(tmp_path: Path) -> None:
    answer = {"object": "chat.completion", "id": "c", "choices": []}
    file = tmp_path / "s.jsonl"
    file.write_bytes(json_lines([answer, *ONE]) + b"oops\n" + json_lines([answer]))

    found = items(file, "chunks")

    # The stream might have gone on until the end of the file.
    assert [i.value for i in found if i.refusal is None] == [answer, answer, ONE]
    assert [i.raw for i in found if i.refusal is not None] == [b"oops\n"]


def test_usage_that_comes_after_its_stream_was_taken_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    file.write_bytes(json_lines(ONE))
    (batch,) = source(file, "chunks").batches([])
    file.write_bytes(json_lines([*ONE, USAGE]))

    (late,) = items(file, "chunks", [batch.after])

    assert late.refusal is not None
    assert late.refusal.reason == "late_chunk"


def test_events_of_legacy_completions_are_one_item_and_their_lines_are_not(tmp_path: Path) -> None:
    parts = [
        {"id": "c", "object": "text_completion", "choices": [{"text": t, "finish_reason": f}]}
        for t, f in (("a", None), ("b", "stop"))
    ]
    file = tmp_path / "s"
    file.write_bytes(events(parts))
    assert values(items(file, "chunks")) == [parts]
    file.write_bytes(json_lines(parts))
    assert values(items(file, "chunks")) == parts
