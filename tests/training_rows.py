"""Examples and datasets for the tests of training: small, of several shapes, on real disk."""

import json
from pathlib import Path

from curation.config import CurationConfig
from curation.examples import Example
from curation.manifest import Manifest, dataset_digest, write_dataset
from serving.records import Message, ToolCall

TIMER = {
    "type": "function",
    "function": {
        "name": "set_timer",
        "description": "Set a timer.",
        "parameters": {
            "type": "object",
            "properties": {"minutes": {"type": "integer"}},
            "required": ["minutes"],
        },
    },
}
SYSTEM = Message(role="system", content="You are a helpful assistant.")


def make_example(messages, completion, n=0, **fields) -> Example:
    values = {
        "slot": "L2",
        "duty": "answer",
        "messages": tuple(messages),
        "tools": "[]",
        "completion": completion,
        "source": "edit",
        "weight": 1.0,
        "user": "u1",
        "conversation_id": f"c{n}",
        "turn_id": f"t{n}",
        "hop_id": f"h{n}",
    }
    return Example.make("train", **(values | fields))


def text_example(n: int, answer: str | None = None, **fields) -> Example:
    user = Message(role="user", content=f"What is {n} and {n + 1}?")
    return make_example([SYSTEM, user], assistant(answer or f"It is {2 * n + 1}."), n, **fields)


def route_example(n: int, label: str = "L2", **fields) -> Example:
    user = Message(role="user", content=f"Write function {n}. Answer with one label from: L0 L2.")
    return make_example(
        [user, assistant("model_id=")], assistant(label), n, duty="route", source="route", **fields
    )


def tool_example(n: int, **fields) -> Example:
    """The second call of a turn: a call, its result, and the answer to learn is a call again."""
    messages = [
        SYSTEM,
        Message(role="user", content=f"Set timers for {n} and 10 minutes"),
        assistant("", timer_call("a", n)),
        Message(role="tool", content="SECRET RESULT", tool_call_id="a"),
    ]
    return make_example(
        messages, assistant("", timer_call("b", 10)), n, tools=json.dumps([TIMER]), **fields
    )


def assistant(content: str, *calls: ToolCall) -> Message:
    return Message(role="assistant", content=content, tool_calls=calls)


def timer_call(call_id: str, minutes: int) -> ToolCall:
    return ToolCall(id=call_id, name="set_timer", arguments=json.dumps({"minutes": minutes}))


def make_dataset(home: Path, examples: list[Example], slot: str = "L2") -> Manifest:
    """Write a dataset of these rows as curation does, and return its manifest."""
    rows = sorted(examples, key=lambda row: row.example_id)
    config = CurationConfig()
    manifest = Manifest(
        digest=dataset_digest(slot, rows, config, "test"),
        slot=slot,
        snapshot_id=1,
        config=config,
        code_version="test",
        row_ids=tuple(row.example_id for row in rows),
        stages=(),
        splits={"train": len(rows), "holdout": 0},
        mix={},
        contract=[],
    )
    write_dataset(home, manifest, rows)
    return manifest
