"""Proves that a hop's id, computed fast, is the hash of its canonical JSON whatever it holds."""

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serving.records import Hop, Message, ToolCall, canonical_json, hop_id_fast, hop_id_of

BASE: dict[str, Any] = {
    "source": "mol", "conversation_id": "c", "seq": 1, "role": "answer", "model": "L2@0",
    "messages": (Message(role="user", content="Hi."),), "tools": "[]", "params": "{}",
    "status": "ok", "started_at": datetime(2026, 1, 2, 3, 4, 5, 678901, UTC), "duration_s": 0.5,
}  # fmt: skip
TEXTS = st.text()
"""Without halves of surrogates: those are in no record, as they could not be written down."""
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


def is_canonical(**fields: Any) -> bool:
    hop = Hop(**BASE | fields)
    return hop.hop_id == hop_id_of(hop.model_dump(mode="json"))


@given(TEXTS, TEXTS)
@example('\x00\x1b\x7f\u2028"\\/<>&\b\f\n\r\t', "\U0001f642")
def test_any_text(text: str, name: str) -> None:
    call = ToolCall(id=name, name=name, arguments=text)
    said = Message(role="assistant", content=text, tool_calls=(call,))

    assert is_canonical(messages=(said,), completion=said, reasoning=text, user=name)


@given(st.lists(TEXTS, max_size=3), TEXTS, NUMBERS)
@example(["a"], "b", 1e-5)
@example([], "b", 1e22)
def test_messages_that_are_json_text_already(
    texts: list[str], tools: str, duration_s: float
) -> None:
    hop = Hop(**BASE | {"messages": [Message(role="user", content=t) for t in texts],
                        "tools": tools, "duration_s": duration_s})  # fmt: skip
    raw = hop.model_dump(mode="json")
    fragments = [orjson.Fragment(canonical_json(message)) for message in raw["messages"]]

    assert hop_id_fast({**raw, "messages": fragments}) in (None, hop_id_of(raw))


@given(NUMBERS, NUMBERS)
@example(1e-4, 9.999e-5)
@example(1e16, 9999999999999998.0)
@example(-0.0, 5e-324)
@example(1e22, 123456789.123456789)
def test_any_number(duration_s: float, ttft_s: float) -> None:
    assert is_canonical(duration_s=duration_s, ttft_s=ttft_s)


@pytest.mark.parametrize("number", [0, -1, 2**63, 2**64, 2**200])
def test_any_integer(number: int) -> None:
    assert is_canonical(seq=number, prompt_tokens=number, prompt_token_ids=(number, 1))
