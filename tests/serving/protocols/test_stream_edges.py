"""Streams that do not go the usual way, read back event by event.

Real: the writers. Faked: the engine's pieces.
"""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from scripted_server import CALLS, CREATED_AT, WORDS

from serving.engine import CallDelta, Delta
from serving.errors import BrokenAnswer
from serving.exchange import Ask
from serving.protocols import anthropic_messages, chat, responses
from serving.protocols.message_stream import STOP_SEQUENCE
from serving.records import Message

ASK = Ask(protocol="chat", model="mol", messages=(Message(role="user", content="hello"),))
PROTOCOLS = [chat, responses, anthropic_messages]


def read(written: bytes) -> list[dict[str, Any]]:
    lines = [line for line in written.split(b"\n") if line.startswith(b"data: {")]
    return [orjson.loads(line.removeprefix(b"data: ")) for line in lines]


@pytest.mark.parametrize("protocol", [responses, anthropic_messages])
def test_going_back_to_an_earlier_call_is_a_broken_answer(protocol: Any) -> None:
    writer = protocol.StreamWriter(ASK, "x_1", CREATED_AT)
    writer.begin()
    writer.delta(Delta(calls=(CallDelta(0, "a", "f", "{"), CallDelta(1, "b", "g", "{}"))))
    with pytest.raises(BrokenAnswer, match="went back to tool call 0"):
        writer.delta(Delta(calls=(CallDelta(0, arguments="}"),)))


def test_text_after_a_call_is_an_item_of_its_own() -> None:
    writer = responses.StreamWriter(ASK, "resp_1", CREATED_AT)
    written = writer.begin()
    written += writer.delta(Delta(calls=(CallDelta(0, "call_a", "weather", '{"city": "Köln"}'),)))
    written += writer.delta(Delta(content="Let me see."))
    written += writer.end(CALLS.reply("resp_1", ASK))
    output = read(written)[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["function_call", "message", "function_call"]
    assert len({item["id"] for item in output}) == 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_end_without_a_beginning_is_a_whole_stream(protocol: Any) -> None:
    reply = WORDS.reply("x_1", ASK)
    begun = protocol.StreamWriter(ASK, "x_1", CREATED_AT)
    usual = begun.begin() + begun.end(reply)
    assert protocol.StreamWriter(ASK, "x_1", CREATED_AT).end(reply) == usual


def test_a_failure_before_the_beginning_is_a_failed_response() -> None:
    written = responses.StreamWriter(ASK, "resp_1", CREATED_AT).fail("No.", "overloaded", "req_1")
    events = read(written)
    assert [e["type"] for e in events] == [
        "response.created", "response.in_progress", "response.failed",
    ]  # fmt: skip
    assert events[-1]["response"]["error"]["code"] == "rate_limit_exceeded"


def test_what_the_client_has_seen_is_not_taken_back() -> None:
    writer = responses.StreamWriter(ASK, "resp_1", CREATED_AT)
    written = writer.begin() + writer.delta(Delta(content="\n\nGrüße, 你好!"))
    written += writer.end(WORDS.reply("resp_1", ASK))
    item = read(written)[-1]["response"]["output"][0]
    assert item["content"][0]["text"] == "\n\nGrüße, 你好!"


def test_a_known_stop_sequence_is_told() -> None:
    reply = replace(WORDS.reply("msg_1", ASK), metadata={STOP_SEQUENCE: "END"})
    answer = anthropic_messages.whole(reply)
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "END")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_empty_piece_writes_nothing(protocol: Any) -> None:
    writer = protocol.StreamWriter(ASK, "x_1", CREATED_AT)
    writer.begin()
    assert writer.delta(Delta()) == b""
