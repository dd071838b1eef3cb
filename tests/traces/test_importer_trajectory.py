"""Proves how trajectories become hops, turns and feedback, and that damage costs only its item.

The trajectories are excerpts of published ones (`tests/data/trajectories`) and small ones made
here. Nothing is faked.
"""

import json
from typing import Any

import pytest
from import_rows import DATA, damaged, decoded, rows_as
from metaclaw_files import CALL, SCORE, SESSION

from serving.records import UNDATED, Hop, Message
from traces.importers import eval_protocol, metaclaw, swe_agent, tau_bench, who_and_when
from traces.importers.rows import Row
from traces.importers.trajectory import Trajectory, exchanges, rows
from traces.storage.tables import TABLES, arrow_table

FILES = DATA / "trajectories"
EVALUATED = (FILES / "eval_protocol.jsonl").read_text()
ITEMS: list[tuple[Any, Any]] = [
    *((tau_bench, item) for item in json.loads((FILES / "tau_bench.json").read_text())),
    (who_and_when, json.loads((FILES / "who_and_when.json").read_text())),
    (swe_agent, json.loads((FILES / "swe_agent.traj").read_text())),
    *((eval_protocol, json.loads(line)) for line in EVALUATED.splitlines()),
    (metaclaw, SESSION),
    (metaclaw, CALL),
    (metaclaw, SCORE),
]


def said(role: str, text: str) -> Message:
    return Message.model_validate({"role": role, "content": text})


def talk(*messages: Message, **about: Any) -> list[dict[str, Any]]:
    """Return the rows of a conversation, decoded."""
    made = exchanges(messages, **about)
    trajectory = Trajectory("test", "c1", messages, made, model="L1@0123456789ab", task="t")
    return [{"table": row.table, **decoded(row)} for row in rows(trajectory)]


def test_every_answer_is_a_hop_that_saw_all_before_it() -> None:
    messages = [said("system", "S"), said("user", "A"), said("assistant", "a"),
                said("user", "B"), said("assistant", "b"), said("tool", "t"),
                said("assistant", "c")]  # fmt: skip

    hops = [row for row in talk(*messages) if row["table"] == "hops"]

    assert [hop["seq"] for hop in hops] == [2, 4, 6]
    for hop in hops:
        assert [m["content"] for m in hop["said"]] == [m.content for m in messages[: hop["seq"]]]
        assert hop["completion"]["content"] == messages[hop["seq"]].content
        assert (hop["started_at"] - UNDATED).total_seconds() * 1e6 == hop["seq"]


def test_a_turn_runs_from_a_user_message_to_the_next() -> None:
    found = talk(
        said("user", "A"), said("assistant", "a"), said("tool", "t"), said("assistant", "b"),
        said("user", "B"), said("user", "C"), said("assistant", "c"),
        said("tool", "u"), said("user", "###STOP###"),
    )  # fmt: skip
    turns = [row for row in found if row["table"] == "turns"]

    assert [(t["request"], len(t["hop_ids"]), t["position"]) for t in turns] == [
        ("A", 2, 0),
        ("C", 1, 1),
    ]
    assert [m["content"] for m in turns[0]["tail"]] == []
    assert [m["content"] for m in turns[1]["tail"]] == ["u", "###STOP###"]
    assert [t["slot"] for t in turns] == ["L1", "L1"]
    assert [t["digest"] for t in turns] == ["0123456789ab"] * 2
    assert {h["turn_id"] for h in found if h["table"] == "hops"} == {t["turn_id"] for t in turns}


def test_a_conversation_without_an_answer_is_one_abandoned_turn() -> None:
    (turn,) = talk(said("system", "S"), said("user", "A"))

    assert (turn["table"], turn["request"], turn["status"]) == ("turns", "A", "abandoned")
    assert [m["content"] for m in turn["tail"]] == ["S", "A"]


def test_a_hop_has_the_id_that_its_record_has() -> None:
    messages = (said("user", "A"), said("assistant", "é\u2028"), said("user", "B"),
                said("assistant", "b"))  # fmt: skip
    made = exchanges(messages)
    row = next(
        row
        for row in rows(Trajectory("test", "c1", messages, made))
        if row.table == "hops" and row.values["seq"] == 3
    )
    fields = {name: row.values[name] for name in Hop.model_fields if name in row.values}
    fields |= {"messages": messages[:3], "completion": messages[3]}

    assert row.values["hop_id"] == Hop.model_validate(fields).hop_id


@pytest.mark.parametrize(("importer", "item"), ITEMS)
def test_whatever_is_damaged_each_item_leaves_whole_rows_or_a_reason(
    importer: Any, item: Any
) -> None:
    for seed, copied in enumerate(damaged(item, seed=7, count=60)):
        found = rows_as(importer.NAME, copied)

        assert found, f"nothing came of damage {seed}"
        assert [row.table for row in found] == [row.table for row in rows_as(importer.NAME, copied)]
        _storable(found)
        if item is not CALL:
            made = {row.values["hop_id"] for row in found if row.table == "hops"}
            in_turns = {i for row in found if row.table == "turns" for i in row.values["hop_ids"]}
            assert made == in_turns


def _storable(found: list[Row]) -> None:
    """Fail unless the lake can hold the rows; some text that is no UTF-8 is in quarantine only."""
    for table in {row.table for row in found} - {"skipped"}:
        values = [row.values for row in found if row.table == table]
        assert arrow_table(table, values).num_rows == len(values)
        required = [c.name for c in TABLES[table] if c.required]
        assert all(row[name] is not None for row in values for name in required)
