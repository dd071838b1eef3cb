"""Proves that streams are put back together, and that a broken one says so. Nothing is faked."""

import json
from typing import Any

import pytest

from traces.importers.sse import reassemble


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
