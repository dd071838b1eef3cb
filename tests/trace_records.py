"""Makes hops, turns and signals for the tests of traces, and writes them as a spool.

Real records throughout; the texts stand in for what a model and a user wrote.
"""

import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from serving.records import Feedback, Hop, Message, ToolCall, Turn
from serving.slots import Profile, Slot
from traces.storage.lake import Lake
from traces.storage.tables import TABLES

START = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
SHARED = Path(os.environ.get("MOL_SHARED", Path(__file__).parents[2] / "shared"))
CAPTURE = SHARED / "data" / "mindlab-harness"
needs_capture = pytest.mark.skipif(not CAPTURE.is_dir(), reason="needs ../shared")

PROFILE = Profile(
    slots=(
        Slot(name="L0", description="chat", system="chat", verifiers=("short_answer",)),
        Slot(
            name="L1",
            description="tools",
            system="tools",
            offers_tools=True,
            verifiers=("tool_call",),
        ),
        Slot(name="L2", description="code", system="code", verifiers=("python_tests",)),
        Slot(name="L3", description="interface", system="ui", verifiers=("interface",)),
    ),
    route_prompt="{text}\nPick one of {labels}.\n{slots}",
    summary_prompt="Summarise.",
    handover_template="{summaries}",
)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def says(text: str) -> Message:
    return Message(role="assistant", content=text)


def calls(name: str, call_id: str = "call-1", **arguments: Any) -> Message:
    call = ToolCall(id=call_id, name=name, arguments=json.dumps(arguments))
    return Message(role="assistant", tool_calls=(call,))


def result(content: str, call_id: str = "call-1") -> Message:
    return Message(role="tool", content=content, tool_call_id=call_id)


def hop(role: str = "answer", slot: str = "L2", **fields: Any) -> Hop:
    values: dict[str, Any] = {
        "source": "mol",
        "conversation_id": "c1",
        "turn_id": "t1",
        "seq": {"route": 0, "answer": 1, "summary": 2}[role],
        "role": role,
        "model": f"{slot}@3fa9c1d2e4b5",
        "served_name": f"{slot}@3fa9c1d2e4b5",
        "messages": (user("Sort a list."),),
        "completion": says("sorted(x)"),
        "response_id": "r1",
        "finish_reason": "stop",
        "status": "ok",
        "started_at": at({"route": 0, "answer": 1, "summary": 2}[role]),
        "duration_s": 0.5,
    }
    return Hop.model_validate(values | fields)


def turn_of(hops: Iterable[Hop], **fields: Any) -> Turn:
    hops = tuple(hops)
    answers = [h for h in hops if h.role == "answer"]
    last = answers[-1] if answers else None
    values: dict[str, Any] = {
        "turn_id": "t1",
        "source": "mol",
        "conversation_id": "c1",
        "user": "u1",
        "position": 0,
        "request": "Sort a list.",
        "answer": last.completion if last else None,
        "slot": last.slot if last else None,
        "digest": last.digest if last else None,
        "decision": "routed",
        "status": "ok",
        "hop_ids": tuple(h.hop_id for h in hops),
        "response_ids": tuple(h.response_id for h in answers if h.response_id),
        "started_at": hops[0].started_at if hops else START,
        "duration_s": 3.0,
    }
    return Turn.model_validate(values | fields)


def signal(kind: str = "verifier", value: float | None = 0.0, **fields: Any) -> Feedback:
    names = {"verifier": "python_tests"}
    values: dict[str, Any] = {
        "source": "mol",
        "target_kind": "turn",
        "target_id": "t1",
        "kind": kind,
        "name": names.get(kind, kind),
        "value": value,
        "created_at": at(60),
    }
    return Feedback.model_validate(values | fields)


def traffic(turns: int, *, recorded: bool = True) -> list[Hop | Turn | Feedback]:
    """Return turns of three hops and one verifier signal each; every third one failed."""
    records: list[Hop | Turn | Feedback] = []
    for n in range(turns):
        shared: dict[str, Any] = {"conversation_id": f"c{n // 3}", "turn_id": f"t{n:05d}"}
        hops = [
            hop("route", "L0", seq=0, completion=says("L2"), started_at=at(10 * n), **shared),
            hop(
                seq=1,
                messages=(user(f"Sort list {n}."),),
                started_at=at(10 * n + 1),
                response_id=f"r{n}",
                **shared,
            ),
            hop("summary", seq=2, started_at=at(10 * n + 2), **shared),
        ]
        records += hops
        if recorded:
            request = f"Sort list {n}."
            records.append(turn_of(hops, request=request, position=n % 3, **shared))
        records.append(signal(value=float(n % 3 > 0), target_id=shared["turn_id"]))
    return records


def line(record: Hop | Turn | Feedback) -> str:
    """Return the spool's line of a record."""
    kind = type(record).__name__.lower()
    return json.dumps({"kind": kind, "record": record.model_dump(mode="json")}, ensure_ascii=False)


def write_spool(path: Path, records: Iterable[Hop | Turn | Feedback]) -> Path:
    path.write_text("".join(line(record) + "\n" for record in records), encoding="utf-8")
    return path


def tables(home: Path, *names: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return the tables' rows, sorted, to compare lakes; offsets only if asked for."""
    wanted = names or tuple(name for name in TABLES if name not in ("offsets",))
    with Lake.open(home, read_only=True) as lake:
        return {
            name: sorted(lake.connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr)
            for name in wanted
        }


def capture_hop(key: str, role: str, slot: str, text: str, ts: float, **fields: Any) -> dict:
    """Return one line of a harness capture's `hops.jsonl`; `messages` and `said` override."""
    prompt = text + "\n\nPick one expert." if role == "route" else text
    messages = fields.pop("messages", [{"role": "user", "content": prompt}])
    message = {"role": "assistant", "content": fields.pop("said", f"{slot} says {text}")}
    message |= {"tool_calls": fields.pop("tool_calls")} if "tool_calls" in fields else {}
    headers = {"X-SMG-Routing-Key": key}
    headers |= {"X-MOL-Internal-Hop": "route"} if role == "route" else {}
    request = {"model": slot, "messages": messages, "max_tokens": 192 if role == "summary" else 40}
    return {
        "seq": int(ts * 10),
        "ts": ts,
        "duration_s": 0.5,
        "method": "POST",
        "path": "/v1/chat/completions",
        "request_headers": headers,
        "request": request | {"stream": False},
        "status": 200,
        "stream": False,
        "response": {
            "id": f"chatcmpl-{ts}",
            "model": slot,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 2},
        },
    } | fields


def capture_request(text: str, ts: float, duration_s: float, answer: str, **fields: Any) -> dict:
    """Return one line of a harness capture's `turns.jsonl`."""
    message = {"role": "assistant", "content": answer} | fields.pop("message", {})
    metadata = {"mol_decision": "pure_model_route", "mol_conversation_id": f"molc_{ts}"}
    request = {"model": "M", "messages": [{"role": "user", "content": text}], "user": "u1"}
    return {
        "ts": ts,
        "duration_s": duration_s,
        "path": "/v1/chat/completions",
        "request": request | fields.pop("request", {}),
        "status": 200,
        "response": {
            "id": f"chatcmol-{ts}",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "metadata": metadata | fields.pop("metadata", {}),
        },
    } | fields


def write_lines(path: Path, records: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path
