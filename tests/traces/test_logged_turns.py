"""Proves that calls of logs that know no turns become turns, and that signals find them.

Agents' loops as OpenAI logs have them, LiteLLM's and LangSmith's recordings, rows of Langfuse and
TensorZero: ingested for real, in any order.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from import_rows import DATA, lines
from logged_calls import CALL, EPISODE, SIGNAL, chat, generation, score
from trace_records import PROFILE

from traces.attribute import attribute
from traces.ingest import ingest
from traces.storage.lake import Lake


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def calls(call_id: str) -> dict[str, Any]:
    function = {"name": "weather", "arguments": "{}"}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def gives(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "rain"}


def loop(city: str, timestamp: int | None) -> list[dict[str, Any]]:
    """Log an agent's three calls for a question, and a fourth for the next message."""
    talk = [user(f"Weather in {city}?"), calls("c1"), gives("c1"), calls("c2"), gives("c2"),
            says(f"Rain in {city}."), user("Thanks!"), says("Bye.")]  # fmt: skip
    return [
        {
            "request": {"model": "m", "messages": talk[:place]},
            "response": {"model": "m", "choices": [{"message": talk[place]}]},
            **({} if timestamp is None else {"timestamp": timestamp}),
        }
        for place in (1, 3, 5, 7)
    ]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def turns(home: Path, columns: str, where: str = "true") -> list[tuple[Any, ...]]:
    with Lake.open(home, read_only=True) as lake:
        return lake.connection.execute(
            f"SELECT {columns} FROM turns WHERE {where} ORDER BY ALL"
        ).fetchall()


@pytest.mark.parametrize("timestamp", [1764432000, None])
def test_an_agents_logged_calls_are_one_turn_and_the_next_message_another(
    tmp_path: Path, timestamp: int | None
) -> None:
    """Two agents in the same second, with the same ids of calls."""
    rows = loop("Paris", timestamp) + loop("Rome", timestamp)
    random.Random(0).shuffle(rows)

    ingest(tmp_path / "home", write(tmp_path / "log.jsonl", rows))

    found = turns(tmp_path / "home", "conversation_id, request, len(hop_ids)")
    by_conversation: dict[str, list[tuple[str, int]]] = {}
    for conversation, request, hops in found:
        by_conversation.setdefault(conversation, []).append((request, hops))
    assert sorted(sorted(turns) for turns in by_conversation.values()) == [
        [("Thanks!", 1), ("Weather in Paris?", 3)],
        [("Thanks!", 1), ("Weather in Rome?", 3)],
    ]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake with all formats, their signals among them, before their calls."""
    folder = tmp_path_factory.mktemp("logs")
    metric = {"metric_name": "solved", "tags": {}}
    write(folder / "a.jsonl", [score(value=0, source="ANNOTATION")])
    write(folder / "b.jsonl", [
        {"id": SIGNAL, "target_id": CALL, "value": False, **metric},
        {"id": CALL, "target_id": EPISODE, "value": True, **metric},
    ])  # fmt: skip
    write(folder / "c.jsonl", [generation(), generation(id="o0", type="SPAN")])
    write(folder / "d.jsonl", [chat()])
    stats = {"feedback_stats": {"user_score": {"n": 1, "avg": 1.0}}}
    write(folder / "e.jsonl", [{**lines("langsmith.jsonl")[0], **stats}])
    for name in ("langsmith.jsonl", "litellm.jsonl"):
        (folder / name).write_bytes((DATA / name).read_bytes())
    ingest(folder / "home", folder)
    return folder / "home"


def test_a_session_of_litellm_is_a_conversation_of_turns(home: Path) -> None:
    found = turns(home, "position, request, len(hop_ids)", "conversation_id = 's-1'"
                  " AND source = 'litellm'")  # fmt: skip

    assert [(request, hops) for _, request, hops in found] == [
        ("Weather in Paris?", 1),
        ("Weather in Paris?", 2),
    ]


def test_a_trace_of_langsmith_is_a_turn(home: Path) -> None:
    root = lines("langsmith.jsonl")[0]["id"]

    assert turns(home, "len(hop_ids), response_ids[1]", f"turn_id = 'langsmith:{root}'") == [
        (2, "chatcmpl-1")
    ]


def test_every_signal_finds_its_turn_and_settles_it(home: Path) -> None:
    report = attribute(home, PROFILE)

    with Lake.open(home, read_only=True) as lake:
        outcomes = dict(
            lake.connection.execute(
                "SELECT turn_id, success FROM outcomes WHERE success IS NOT NULL"
                " AND rule NOT IN ('not_answered', 'engine')"
            ).fetchall()
        )
    assert report.feedback_unmatched == 0
    assert outcomes == {
        "langfuse:t1": False,
        f"tensorzero:{EPISODE}": False,
        f"langsmith:{lines('langsmith.jsonl')[0]['id']}": True,
    }
