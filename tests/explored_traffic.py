"""Traffic of a gateway that explores, with a known chance of success for every topic and slot.

The turns are made by the real turn code over an engine that draws its answers; so are their
propensities. A verifier says of each answer whether it succeeded.
"""

import asyncio
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from serving.config import RouterConfig
from serving.engine import ChatRequest, ChatResult, OnDelta
from serving.hops import Server
from serving.own_view import Conversation
from serving.records import Feedback, Message, Record, Turn
from serving.slots import load_profile
from serving.turn import close_turn, start_turn

PROFILE = load_profile()
WORDS = {
    "chat": "story capital joke river weather mountain",
    "home": "lights kitchen timer heating door alarm",
    "code": "python function list sort parse string",
    "page": "button card form title table chart",
}
CHANCES = {
    "chat": {"L0": 0.8, "L1": 0.3, "L2": 0.5, "L3": 0.4},
    "home": {"L0": 0.2, "L1": 0.9, "L2": 0.3, "L3": 0.2},
    "code": {"L0": 0.3, "L1": 0.1, "L2": 0.85, "L3": 0.4},
    "page": {"L0": 0.2, "L1": 0.2, "L2": 0.7, "L3": 0.6},
}
GREEDY = {"chat": "L0", "home": "L1", "code": "L2", "page": "L0"}
"""What the router chooses: it knows nothing of pages."""


@dataclass
class DrawnEngine:
    """Routes by topic, and answers `right` with the chance of topic and slot."""

    rng: random.Random
    asked: int = 0
    topic: str = field(default="chat")

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        self.asked += 1
        said = GREEDY[self.topic]
        if not request.choices:
            slot = request.model.split("@")[0]
            said = "right" if self.rng.random() < CHANCES[self.topic][slot] else "wrong"
        return ChatResult(
            response_id=f"r{self.asked}",
            served_name=request.model,
            message=Message(role="assistant", content=said),
            finish_reason="stop",
            prompt_tokens=3,
            completion_tokens=2,
            duration_s=0.1,
        )


def explored_records(
    conversations: int, epsilon: float, seed: int = 0, prefix: str = "c"
) -> list[Record]:
    """Return hops, turns and verifier signals of conversations of four turns."""
    rng = random.Random(seed)
    engine = DrawnEngine(random.Random(seed + 1))
    now = datetime(2026, 3, 1, tzinfo=UTC)
    names = {slot: f"{slot}@{n}a9c1d2e4b5f" for n, slot in enumerate(PROFILE.labels)}
    server = Server(
        engine, PROFILE, names, clock=lambda: now, router=RouterConfig(epsilon=epsilon),
        rng=random.Random(seed + 2),
    )  # fmt: skip
    records: list[Record] = []

    async def converse(number: int) -> None:
        nonlocal now
        conversation = Conversation(f"{prefix}{number:04d}", f"u{number // 2}")
        for _ in range(4):
            engine.topic = rng.choice(list(WORDS))
            text = " ".join(rng.choices(WORDS[engine.topic].split(), k=4))
            opened = await start_turn(server, conversation, text)
            turn = await close_turn(server, conversation, opened)
            records.extend([*opened.hops, turn, verified(turn)])
            now += timedelta(seconds=20)

    async def all_of_them() -> None:
        for number in range(conversations):
            await converse(number)

    asyncio.run(all_of_them())
    return records


def verified(turn: Turn) -> Feedback:
    assert turn.answer is not None
    return Feedback(
        source="mol",
        target_kind="turn",
        target_id=turn.turn_id,
        kind="verifier",
        name="short_answer",
        value=float(turn.answer.content == "right"),
        created_at=turn.started_at + timedelta(seconds=5),
    )


def topic_of(text: str) -> str:
    return next(topic for topic, words in WORDS.items() if text.split()[0] in words.split())


def true_value(records: list[Record], slot: str) -> float:
    """Return what a slot is worth on the turns' topics."""
    chances = [CHANCES[topic_of(r.request)][slot] for r in records if isinstance(r, Turn)]
    return sum(chances) / len(chances)
