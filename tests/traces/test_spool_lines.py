"""Proves that the fast reader of spool lines gives what the slow one gives, or leaves them.

Hypothesis makes records with odd texts, numbers and times, and lines that are not quite as
the recorder writes them. Nothing is faked.
"""

import json
from datetime import UTC, timedelta, timezone
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AwareDatetime
from trace_records import calls, hop, result, signal, traffic, turn_of, user

from serving.records import Feedback, Hop, Record, Turn
from traces.importers import native
from traces.importers.rows import Row
from traces.importers.spool_lines import SpoolLines
from traces.sources.items import decode
from traces.storage.bodies import messages_table
from traces.storage.tables import arrow_table

ODD: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=8)
    | st.sampled_from(["", "nul \0", '"\\/', "\u2028", "\u007f\u0080", "\U0001f600", "\\u0041"]),
    float: st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0.0, -0.0, 1e-5, 1e16, 0.1, 123456789012345.6]),
    int: st.integers(0, 9) | st.integers(-(2**65), 2**65),
    bool: st.booleans(),
    type(None): st.none(),
    AwareDatetime: st.datetimes(
        timezones=st.sampled_from([UTC, UTC, timezone(timedelta(hours=-2, seconds=1))])
    ),
}


def odd(kind: Any) -> st.SearchStrategy[Any]:
    """Return the values of a field's type, often odd ones."""
    if kind in ODD:
        return ODD[kind]
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return st.sampled_from(arguments)
    if get_origin(kind) is tuple:
        return st.lists(odd(arguments[0]), max_size=3).map(tuple)
    if arguments:
        return st.one_of([odd(argument) for argument in arguments])
    fields = {name: odd(field.annotation) for name, field in kind.model_fields.items()}
    if "schema_version" in fields:
        fields["schema_version"] = st.sampled_from([1, 1, 1, 1, 2])
    return st.builds(kind, **fields)


RECORDS = odd(Hop) | odd(Turn) | odd(Feedback)


def line(record: Record) -> bytes:
    kind = type(record).__name__.lower().encode()
    return b'{"kind":"%b","record":%b}\n' % (kind, record.model_dump_json().encode())


def slow(data: bytes) -> list[Row] | None:
    try:
        return list(native.parse(decode(data)))
    except (ValueError, ArithmeticError):
        return None


def assert_as_slow(data: bytes) -> bool:
    """Compare what the fast reader makes of a line, if it takes it; return whether it did."""
    lines = SpoolLines()
    rows = lines.take(data)
    hops, messages, turns = lines.hand_out()
    if rows is None:
        assert hops.num_rows == turns.num_rows == 0
        return False
    expected = slow(data)
    assert expected is not None
    for row in expected:
        if row.table == "hops":
            assert hops.equals(arrow_table("hops", [row.values]))
            day, bodies = row.values["day"], dict.fromkeys(row.values["bodies"])
            assert messages.equals(messages_table([(day, body) for body in bodies]))
        elif row.table == "turns":
            assert turns.equals(arrow_table("turns", [row.values]))
        else:
            (ours,) = rows
            assert ours.table == row.table
            assert arrow_table(row.table, [ours.values]).equals(
                arrow_table(row.table, [row.values])
            )
    return True


@settings(deadline=None, max_examples=200)
@given(RECORDS)
def test_a_record_gives_the_same_row_either_way(record: Record) -> None:
    assert_as_slow(line(record))


def edits(data: bytes) -> st.SearchStrategy[bytes]:
    """Return lines that say about the same in another way, or something wrong."""
    value = json.loads(data)
    names = st.sampled_from(sorted(value["record"]))

    def with_value(pair: tuple[str, Any]) -> bytes:
        return json.dumps(
            {**value, "record": {**value["record"], pair[0]: pair[1]}}, separators=(",", ":")
        ).encode() + b"\n"  # fmt: skip

    def without(name: str) -> bytes:
        record = {k: v for k, v in value["record"].items() if k != name}
        return json.dumps({**value, "record": record}, separators=(",", ":")).encode()

    def twice(name: str) -> bytes:
        again = json.dumps({name: value["record"][name]})[1:-1].encode()
        return data.replace(b'"record":{', b'"record":{%b,' % again)

    other = st.sampled_from(
        [None, 0, 1, 1.0, -1.5, "1", "", True, [], {}, [1], "2026-01-01", 2**64]
    )
    return st.one_of(
        st.tuples(names, other).map(with_value),
        names.map(without),
        names.map(twice),
        st.just(json.dumps(value).encode()),
        st.integers(1, len(data)).map(lambda cut: data[:cut]),
        st.tuples(st.integers(0, len(data) - 1), st.binary(min_size=1, max_size=1)).map(
            lambda edit: data[: edit[0]] + edit[1] + data[edit[0] + 1 :]
        ),
    )


@settings(deadline=None, max_examples=400)
@given(RECORDS.map(line).flatmap(edits))
def test_a_line_written_otherwise_gives_the_same_row_or_is_left(data: bytes) -> None:
    assert_as_slow(data)


@pytest.mark.parametrize(
    "record",
    [
        *traffic(2),
        hop(messages=(user("a\n\u00e9"), calls("f", x=1), result("2")), prompt_token_ids=(1, 2)),
        hop(completion=None, status="engine_error", reasoning="", workload="agent.chat"),
        turn_of([hop()], tail=(result("late"),), answer=calls("f")),
        signal("edit", None, correction=user("better"), annotator="human"),
        signal("verifier", 1.0, reference='{"accepted":["4"],"verifier":"exact"}'),
    ],
)
def test_what_the_recorder_writes_is_taken(record: Record) -> None:
    assert assert_as_slow(line(record))


def test_lines_of_an_older_recorder_are_taken() -> None:
    value = json.loads(line(hop()))
    for name in ("span_id", "workload", "task"):
        del value["record"][name]

    assert assert_as_slow(json.dumps(value, separators=(",", ":")).encode())


def test_each_load_holds_only_its_own_hops() -> None:
    lines = SpoolLines()
    first, second = hop(), hop(seq=7, messages=(user("other"),))
    lines.take(line(first))
    lines.hand_out()
    lines.take(line(second))

    hops, messages, _ = lines.hand_out()

    assert hops["hop_id"].to_pylist() == [second.hop_id]
    assert messages["role"].to_pylist() == ["user"]
