"""A lake of failed turns, and an engine that is scripted where an outcome must be forced.

For each version the engine says how often a fresh answer succeeds, and answers from the seed of
the request alone, so that the same request gives the same.
"""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

from trace_records import PROFILE, hop, says, signal, turn_of, user, write_spool

from serving.engine import ChatRequest, ChatResult
from serving.errors import EngineUnavailable
from serving.records import Feedback, Hop, Message, Turn
from traces.attribute import attribute
from traces.attribution.replay import ReplayReport, replay
from traces.attribution.replay_jobs import Pool, Version
from traces.config import AttributionConfig
from traces.ingest import ingest
from traces.read import PreferencePair, read_preferences
from traces.storage.lake import Lake

OLD, NEW = "3fa9c1d2e4b5", "77aa77aa77aa"
RIGHT = json.dumps({"verifier": "short_answer", "accepted": ["Paris"]})
VERIFIERS = {"L0": "short_answer", "L1": "tool_call", "L2": "python_tests", "L3": "interface"}


class ScriptedEngine:
    """Answers rightly with a chance that the name decides; the same request gives the same."""

    def __init__(self, chances: dict[str, float], *, gone_after: int | None = None) -> None:
        self.chances = chances
        self.gone_after = gone_after
        self.asked: list[ChatRequest] = []

    async def chat(self, request: ChatRequest, on_delta: Any = None) -> ChatResult:
        await asyncio.sleep(0)
        if self.gone_after is not None and len(self.asked) >= self.gone_after:
            raise EngineUnavailable("No answer from the engine: it was stopped.")
        self.asked.append(request)
        return ChatResult(
            response_id=f"r{len(self.asked)}",
            served_name=request.model,
            message=self.answer(request),
            finish_reason=self.finish(request),
            prompt_tokens=1,
            completion_tokens=1,
        )

    def answer(self, request: ChatRequest) -> Message:
        right = random.Random(request.seed).random() < self.chances[request.model]
        return says("It is Paris." if right else f"It is Rome, {request.seed}.")

    def finish(self, request: ChatRequest) -> str:
        return "stop"


def failed_turn(turn_id: str, slot: str = "L0", **fields: Any) -> list[Hop | Turn | Feedback]:
    """Return a turn that a verifier failed: route, answer, summary."""
    request = fields.pop("request", f"Capital of France, {turn_id}?")
    shared = {"conversation_id": f"c-{turn_id}", "turn_id": turn_id}
    system = Message(role="system", content=PROFILE.slot(slot).system)
    answer = {"messages": (system, user(request)), "completion": says("It is Rome.")}
    answer |= fields.pop("answer", {})
    hops = [
        hop("route", "L0", completion=says(slot), **shared),
        hop(slot=slot, response_id=f"r-{turn_id}", **shared, **answer),
        hop("summary", slot, messages=(user("x"),), completion=says("Asked."), **shared),
    ]
    turn = turn_of(hops, request=request, **shared, **fields)
    name = VERIFIERS[slot]
    return [*hops, turn, signal(name=name, target_id=turn_id, reference=RIGHT)]


def lake_of(home: Path, records: list[Hop | Turn | Feedback]) -> Path:
    home.parent.mkdir(exist_ok=True)
    ingest(home, write_spool(home.parent / "spool.jsonl", records))
    attribute(home, PROFILE)
    return home


def pool_of(engine: ScriptedEngine, served: dict[str, str] | None = None) -> Pool:
    """Return the engine with one champion a slot, and versions that served before."""

    async def former(slot: str, digest: str) -> Version | None:
        return Version(f"{slot}@{digest}", digest) if (served or {}).get(slot) == digest else None

    champions = {slot: Version(f"{slot}@{NEW}", NEW) for slot in PROFILE.labels}
    return Pool(engine, champions, Version("base", None), former)


def run(home: Path, pool: Pool, **config: Any) -> ReplayReport:
    return asyncio.run(replay(home, pool, PROFILE, AttributionConfig(**config)))


def rows(home: Path, query: str) -> list[tuple[Any, ...]]:
    with Lake.open(home, read_only=True) as lake:
        return lake.connection.execute(query).fetchall()


def pairs(home: Path, slot: str | None = None) -> list[PreferencePair]:
    """Return the pairs that count once the replay is attributed."""
    attribute(home, PROFILE)
    return list(read_preferences(home, slot=slot))


def named(**chances: float) -> dict[str, float]:
    return {f"{slot}@{NEW}": chances.get(slot, 0.0) for slot in PROFILE.labels}
