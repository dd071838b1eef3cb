"""Proves that streams are put back together, and that a broken one says so. Nothing is faked."""

import json
from typing import Any

import pytest

from serving.engine import CallDelta, Delta
from serving.sse import Stream, reassemble


def chunk(finish: str | None = None, **delta: Any) -> str:
    body = {"id": "x", "model": "L1", "choices": [{"delta": delta, "finish_reason": finish}]}
    return f"data: {json.dumps(body)}\n\n"


def test_text_and_reasoning_are_joined() -> None:
    raw = chunk(reasoning="Hm") + ": ping\n\n" + chunk(content="a") + chunk("stop", content="b")

    stream = reassemble(raw + "data: [DONE]\n\n")

    assert (stream.content, stream.reasoning, stream.broken) == ("ab", "Hm", None)


def test_tool_calls_come_in_pieces_by_index() -> None:
    def piece(index: int, **function: str) -> dict[str, Any]:
        return {"index": index, "function": function} | ({"id": f"c{index}"} if function else {})

    raw = chunk(tool_calls=[piece(0, name="a", arguments='{"x"')])
    raw += chunk(tool_calls=[piece(1, name="b", arguments="{}"), piece(0, arguments=": 1}")])

    message = reassemble(raw + chunk("tool_calls") + "data: [DONE]\n").message()

    assert message is not None
    assert [c["function"] for c in message["tool_calls"]] == [
        {"name": "a", "arguments": '{"x": 1}'},
        {"name": "b", "arguments": "{}"},
    ]


def test_older_protocols_have_their_text_and_their_call_elsewhere() -> None:
    texts = [{"text": "a", "finish_reason": None}, {"text": "b", "finish_reason": "stop"}]
    legacy = "".join(f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in texts)
    calls = chunk(function_call={"name": "f", "arguments": "{"})
    calls += chunk("function_call", function_call={"arguments": "}"})

    message = reassemble(calls).message()

    assert reassemble(legacy).content == "ab"
    assert message is not None
    assert message["tool_calls"] == [
        {"id": "f", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (chunk(content="a"), "finish_reason"),
        (chunk("stop", content="a"), "DONE"),
        (chunk(content="a") + 'data: {"id": "x", "cho', "cut"),
        (chunk(content="a") + 'data: {"error": {"message": "engine died"}}\n', "engine died"),
        ("", "finish_reason"),
    ],
)
def test_a_stream_that_is_not_whole_says_why(raw: str, why: str) -> None:
    assert why in str(reassemble(raw).broken)


def whole() -> tuple[bytes, Stream]:
    """Return a stream with everything in it, and what it is when read at once."""
    call = {"index": 0, "id": "c0", "function": {"name": "f", "arguments": '{"é": "'}}
    more = {"index": 0, "function": {"arguments": '\u2028"}'}}
    usage = {"id": "x", "choices": [], "usage": {"prompt_tokens": 3}}
    text = ": ping\n\n" + chunk(role="assistant", content="") + chunk(reasoning="Hm")
    text += chunk(content="ä\u2028b") + chunk(tool_calls=[call]) + chunk(tool_calls=[more])
    text += chunk("tool_calls") + f"data: {json.dumps(usage)}\n\n" + "data: [DONE]\n\n"
    return text.encode(), reassemble(text)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_where_the_network_cuts_makes_no_difference(size: int, line_end: bytes) -> None:
    raw, expected = whole()
    raw = raw.replace(b"\n", line_end)
    stream, deltas = Stream(), []
    for start in range(0, len(raw), size):
        deltas += stream.feed(raw[start : start + size])
    deltas += stream.end()

    assert stream.broken is None
    assert stream.message() == expected.message()
    assert stream.usage == {"prompt_tokens": 3}
    assert deltas == [
        Delta(reasoning="Hm"),
        Delta(content="ä\u2028b"),
        Delta(calls=(CallDelta(0, "c0", "f", '{"é": "'),)),
        Delta(calls=(CallDelta(0, arguments='\u2028"}'),)),
    ]


def test_a_chunk_is_told_as_soon_as_its_line_is_whole() -> None:
    stream, raw = Stream(), chunk(content="a").encode()

    assert stream.feed(raw[:-3]) == []
    assert stream.feed(raw[-3:-1]) == [Delta(content="a")]


def test_data_in_several_lines_is_one_chunk() -> None:
    body = json.dumps({"choices": [{"delta": {"content": "a"}}]}, indent=1)
    event = "".join(f"data: {line}\n" for line in body.splitlines())

    assert reassemble(f"event: message\n{event}id: 7\n\n").content == "a"


def test_lines_without_the_blank_ones_between_are_read() -> None:
    lines = [chunk(content="a").strip(), chunk("stop", content="b").strip(), "data: [DONE]"]

    stream = reassemble(lines)

    assert (stream.content, stream.broken) == ("ab", None)


def test_token_ids_and_logprobs_are_gathered() -> None:
    def part(ids: list[int], **more: Any) -> str:
        logprobs = {"content": [{"token": "t", "logprob": -float(i)} for i in ids]}
        choice = {"delta": {"content": "t"}, "token_ids": ids, "logprobs": logprobs}
        return f"data: {json.dumps({'choices': [choice], **more})}\n\n"

    stream = reassemble(part([1, 2], prompt_token_ids=[9, 8]) + part([3]))

    assert (stream.prompt_token_ids, stream.token_ids) == ([9, 8], [1, 2, 3])
    assert [entry["logprob"] for entry in stream.logprobs] == [-1.0, -2.0, -3.0]


def test_empty_data_keeps_the_connection_and_nothing_after_done_counts() -> None:
    raw = "data:\n\n" + chunk("stop", content="a") + "data: [DONE]\n\n" + chunk(content="b")

    stream = reassemble(raw)

    assert (stream.content, stream.broken) == ("a", None)


@pytest.mark.parametrize("odd", ['{"choices": 1}', '{"choices": [1]}', '{"choices": [[]]}'])
def test_a_chunk_of_another_form_breaks_the_stream(odd: str) -> None:
    stream = reassemble(chunk(content="a") + f"data: {odd}\n\n" + chunk(content="b"))

    assert "none of a chat completion" in str(stream.broken)
    assert stream.content == "a"


@pytest.mark.parametrize("skipped", ["[]", "null", "7", '"text"', "{}"])
def test_data_that_is_no_chunk_is_skipped(skipped: str) -> None:
    assert reassemble(f"data: {skipped}\n\n" + chunk("stop") + "data: [DONE]\n").broken is None
