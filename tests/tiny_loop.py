"""A loop small enough for tests: traffic over a scripted server, a tiny random base model.

The server routes badly on purpose and answers rightly where it routed right, so that the
evidence points at the router. What a random model can learn of it is real: which words ask
for which slot. Everything else in the loop is the real part.
"""

import asyncio
import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tiny import make_tiny_base

from examples.record import record_traffic, write_spool
from flows.config import Settings
from promotion.suites.world import ConversationPlan, make_tasks, plan_traffic
from serving.disk import write_atomic
from serving.engine import ChatRequest, ChatResult, OnDelta
from serving.own_view import route_view
from serving.records import Message
from serving.slots import load_profile

FIRST_DAY = datetime(2026, 11, 2, tzinfo=UTC)


class ScriptedEngine:
    """Answers from the plans: routes right with a given chance, and answers rightly."""

    def __init__(self, plans: list[ConversationPlan], right_routes: float = 0.4) -> None:
        self.tasks = {turn.task.text: turn.task for plan in plans for turn in plan.turns}
        self.right_routes = right_routes
        self.rng = random.Random(1)
        self.count = 0

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        self.count += 1
        return ChatResult(
            response_id=f"chatcmpl-{self.count}",
            served_name=request.model,
            message=self._answer(request),
            finish_reason="stop",
            prompt_tokens=10,
            completion_tokens=5,
            duration_s=0.01,
        )

    async def close(self) -> None:
        """Nothing is open."""

    def _answer(self, request: ChatRequest) -> Message:
        asked = next(
            task
            for text, task in sorted(self.tasks.items(), key=lambda pair: -len(pair[0]))
            if any(m.role == "user" and text in m.content for m in request.messages)
        )
        if request.choices:
            wrong = [c for c in request.choices if c != asked.slot]
            right = self.rng.random() < self.right_routes
            return Message(
                role="assistant", content=asked.slot if right else self.rng.choice(wrong)
            )
        if request.messages[-1].content.startswith("Say in one sentence"):
            return Message(role="assistant", content=f"Asked: {asked.text}")
        if request.model.startswith(asked.slot):
            return asked.answer
        return Message(role="assistant", content="I do not know.")


def make_spool(folder: Path, turns: int = 260, seed: int = 3) -> Path:
    """Write a spool of simulated traffic and return its folder."""
    plans = plan_traffic(turns, seed, FIRST_DAY)
    names = {slot: slot for slot in ("L0", "L1", "L2", "L3")}
    records = asyncio.run(record_traffic(ScriptedEngine(plans), names, plans, at_once=1))
    write_spool(folder, records)
    return folder


def make_words(folder: Path) -> Path:
    """Write a suite of routing in the traffic's own phrasings with other values; return its file.

    A random model learns words and nothing of what they mean: the gate's own phrasings, in words
    that no traffic has, are beyond it.
    """
    path = folder / "words.jsonl"
    profile = load_profile()
    lines: list[dict[str, Any]] = [{"suite": "words", "slot": "L0", "choices": profile.labels}]
    for slot in profile.labels:
        for task in make_tasks(slot, 75, 5, "traffic"):
            messages = [message.to_openai() for message in route_view(profile, task.text)]
            reference = {"verifier": "short_answer", "accepted": [slot]}
            lines.append({"messages": messages, "reference": reference})
    write_atomic(path, "\n".join(map(json.dumps, lines)).encode())
    return path


def tiny_settings(home: Path, base: Path, sources: tuple[Path, ...], **changes: Any) -> Settings:
    """Return settings for a cycle of seconds."""
    return Settings.model_validate(
        {
            "home": home,
            "base": base,
            "sources": sources,
            "training": {"epochs": 20, "learning_rate": 3e-3, "batch_size": 16, "threads": 1},
            "gate": {
                "margins": {"skill": 0.4, "handover": 0.4, "route": 0.4},
                "latency_items": 0,
            },
            "suites": {
                "primary": 64,
                "guard": 32,
                "bystander": 1,
                "safety": 0,
                "format": 0,
                "files": [make_words(base.parent)],
                "primary_suite": {"L0": "words"},
            },
            "curation": {"max_duty_ratio": 20},
            "policy": {"min_blamed": 10},
            **changes,
        }
    )


__all__ = ["make_spool", "make_tiny_base", "tiny_settings"]
