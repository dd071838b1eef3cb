"""Proves that messages count the same in SQL and in Python, and that prefixes are found.

Real DuckDB; the messages are made up by Hypothesis.
"""

from collections.abc import Iterator

import duckdb
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.records import Message, ToolCall
from traces.joins.histories import (
    NO_NODE,
    Histories,
    history_labels,
    label_sql,
    message_label,
    text_hash,
    text_hash_sql,
)

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["", " a ", "\u2003b\x0b", 'he said "tool_calls":[]', "\0", '{"a": 1}']
)
CALLS = st.lists(st.builds(ToolCall, id=WORDS, name=WORDS, arguments=WORDS), max_size=2)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=WORDS,
    tool_calls=CALLS.map(tuple),
)


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


@given(MESSAGES)
@settings(max_examples=60, deadline=None)
def test_a_message_counts_the_same_in_sql_and_in_python(
    duck: duckdb.DuckDBPyConnection, message: Message
) -> None:
    stored = orjson.dumps(message.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS).decode()

    for body in (stored, message.model_dump_json()):
        row = duck.execute(
            f"SELECT {label_sql('$body', '$role')}, {text_hash_sql('$text')}",
            {"body": body, "role": message.role, "text": message.content},
        ).fetchone()
        assert row == (message_label(message), text_hash(message.content))


def test_space_around_a_text_and_the_ids_of_calls_do_not_count() -> None:
    one = Message(role="assistant", tool_calls=(ToolCall(id="1", name="f", arguments="{}"),))
    two = Message(
        role="assistant", content=" \n", tool_calls=(ToolCall(id="2", name="f", arguments="{}"),)
    )
    other = Message(role="assistant", tool_calls=(ToolCall(id="1", name="g", arguments="{}"),))

    assert message_label(one) == message_label(two) != message_label(other)


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def asked(text: str) -> Message:
    return Message(role="user", content=text)


def test_a_longer_history_leads_back_to_those_that_it_extends() -> None:
    histories = Histories()

    _, first = histories.add(history_labels([asked("a")]), message_label(said("b")))
    _, other = histories.add(history_labels([asked("x")]), message_label(said("b")))
    _, second = histories.add(
        history_labels([asked("a"), said("b"), asked("c")]), message_label(said("d"))
    )
    prior, third = histories.add(
        history_labels([asked("a"), said("b"), asked("c"), said("d"), asked("e")]), None
    )

    assert third == NO_NODE
    assert [*histories.prefixes(prior)] == [second, first]
    assert other not in (first, second)


def test_an_instruction_that_changes_does_not_count() -> None:
    rules = [Message(role="system", content=text) for text in ("be brief", "be long")]

    assert history_labels([rules[0], asked("a")]) == history_labels([rules[1], asked("a")])


def test_an_open_history_that_ends_in_an_answer_does_not_extend_itself() -> None:
    histories = Histories()
    _, whole = histories.add(history_labels([asked("a")]), message_label(said("b")))

    prior, _ = histories.add(history_labels([asked("a"), said("b")]), None)

    assert whole not in [*histories.prefixes(prior)]
