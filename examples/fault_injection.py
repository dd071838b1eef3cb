"""One turn with exactly one fault: what is changed, where, and what a log then shows.

    taken = await take(server, conversation, request, fault)

Faults are injected where they would arise: the router's answer, the adapter's weights, the tool's
result, the summary, the user's words, the pool's choice. Everything after that is the models' own.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from examples.fault_world import SKIES, Request
from promotion.suites.household import TOOLS
from serving.config import RouterConfig
from serving.engine import ChatRequest, ChatResult, Engine, OnDelta
from serving.hops import OpenTurn, Server, TurnFailed
from serving.own_view import Conversation
from serving.records import BASE_SLOT, Hop, Message, Turn, canonical_json
from serving.turn import (
    accept_results,
    continue_turn,
    entry_of,
    finished,
    start_turn,
    summarise,
)

Klass = Literal["router", "adapter", "summary", "tool", "fallback", "user"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a known class."""

    klass: Klass
    kind: str
    """Which way it is injected."""
    slot: str | None = None
    """Slot to blame: the router, the damaged adapter's, the one whose summary it is."""
    to_slot: str | None = None
    """Wrong route, or who stands in for a slot that the pool misses."""
    served_name: str | None = None
    """Name of the damaged version."""
    text: str | None = None
    """Vague request, or what the summary says instead."""
    confidence: float | None = None
    """What a router is sure of that names the wrong slot, as right ones of the log are."""


@dataclass(slots=True)
class Taken:
    """A turn that was taken, not yet closed."""

    open_turn: OpenTurn
    passed: bool
    detail: str
    call_passed: bool | None = None
    """For a spoken answer: whether the call before it was right."""


class FaultyEngine:
    """The engine, but for a route or a summary that says something else."""

    def __init__(self, engine: Engine, fault: Fault, summary_prompt: str) -> None:
        self._engine, self._fault, self._summary_prompt = engine, fault, summary_prompt

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        """Answer, and falsify what the fault is about."""
        result = await self._engine.chat(request, on_delta)
        fault, said = self._fault, None
        if request.choices and fault.to_slot in request.choices:
            said = fault.to_slot
            result = replace(result, choice_probability=fault.confidence)
        elif request.messages[-1].content == self._summary_prompt:
            said = fault.text
        if said is None:
            return result
        tokens = len(said) // 4 + 1
        message = Message(role="assistant", content=said)
        return replace(result, message=message, completion_tokens=tokens, finish_reason="stop")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


async def take(
    server: Server, conversation: Conversation, request: Request, fault: Fault | None = None
) -> Taken:
    """Route and answer one request, up to the tool's result and what is said about it."""
    text = request.task.text
    if fault is not None and fault.klass == "user" and fault.text is not None:
        text = fault.text
    faulty = _faulty(server, fault)
    try:
        turn = await start_turn(faulty, conversation, text, TOOLS)
        right = None if fault is None or fault.klass != "fallback" else await _route(server, turn)
        if right is not None:
            told = {"harness_digest": server.harness_digest(turn.tools)}
            rest = [hop.model_copy(update=told) for hop in turn.hops[1:]]
            turn.hops, turn.decision = [right, *rest], "fallback"
        call_passed = None
        if turn.pending_calls and request.spoken:
            call_passed = bool(request.task.check(turn.exchanged[-1]).passed)
        await _results(faulty, turn, request, fault)
    except TurnFailed as failure:
        return Taken(failure.turn, False, failure.turn.error or "")
    answers = [hop.completion for hop in turn.hops if hop.role == "answer" and hop.completion]
    check = request.check(answers[-1])
    broken = fault is not None and fault.klass == "tool" and not request.spoken
    if broken and check.passed:
        return Taken(turn, False, "the device did not act", call_passed)
    return Taken(turn, bool(check.passed), check.detail, call_passed)


async def close(
    server: Server, conversation: Conversation, turn: OpenTurn, fault: Fault | None = None
) -> None:
    """Sum a turn up for the others, with a fault of the summary if there is one."""
    faulty = _faulty(server, fault) if fault is not None and fault.klass == "summary" else server
    said = await summarise(faulty, turn)
    conversation.timeline.append(entry_of(turn, said))


def record_of(turn: OpenTurn) -> Turn:
    """Return the turn's record, failed or not, with what came after its last engine call."""
    record = finished(turn)
    if not turn.exchanged or turn.exchanged[-1].role != "tool" or turn.hops[-1].role == "summary":
        return record
    last = max(n for n, message in enumerate(turn.exchanged) if message.role == "assistant")
    return record.model_copy(update={"tail": tuple(turn.exchanged[last + 1 :])})


def _faulty(server: Server, fault: Fault | None) -> Server:
    if fault is None or fault.klass in ("tool", "user"):
        return server
    if fault.served_name is not None and fault.slot is not None:
        server = replace(server, names={**server.names, fault.slot: fault.served_name})
    if fault.klass == "fallback" and fault.to_slot == BASE_SLOT:
        server = replace(server, router=RouterConfig(min_confidence=1.0))
    if fault.to_slot is None and fault.text is None:
        return server
    engine = FaultyEngine(server.engine, fault, server.profile.summary_prompt)
    return replace(server, engine=engine)


async def _route(server: Server, turn: OpenTurn) -> Hop:
    """Return the route hop as it was: the router chose well, the pool did not have the slot."""
    hop = turn.hops[0]
    result = await server.engine.chat(
        ChatRequest(
            model=hop.model,
            messages=hop.messages,
            max_tokens=24,
            choices=server.profile.labels,
            continue_final=True,
        )
    )
    plain = server.harness_digest(())
    return hop.model_copy(
        update={
            "completion": result.message,
            "confidence": result.choice_probability,
            "propensity": 1.0,
            "harness_digest": plain,
        }
    )


async def _results(server: Server, turn: OpenTurn, request: Request, fault: Fault | None) -> None:
    if not turn.pending_calls:
        return
    results = []
    for call in turn.pending_calls:
        content = canonical_json(dict(request.result)) if request.result else '{"ok": true}'
        if fault is not None and fault.klass == "tool":
            content = corrupted(content, fault.kind, random.Random(turn.turn_id))
        results.append(Message(role="tool", content=content, tool_call_id=call.id))
    if request.spoken:
        await continue_turn(server, turn, results)
    else:
        accept_results(turn, results)


ERRORS = (
    '{"error": "device unreachable"}',
    "Error: timeout after 10 s",
    '{"ok": false}',
    '{"status": 503, "message": "service unavailable"}',
    '{"ok": false, "reason": "permission denied"}',
    "upstream connect error or disconnect/reset before headers",
    '{"success": false, "detail": "no such device"}',
)
CORRUPTIONS = ("error", "truncated", "value", "record", "empty")
_OTHERS: Mapping[str, tuple[Any, ...]] = {
    "room": ("kitchen", "bedroom", "hall", "office", "garage", "attic"),
    "city": ("Paris", "Oslo", "Tokyo", "Lima", "Cairo", "Rome", "Berlin"),
    "person": ("Anna", "Ben", "Clara", "David", "Emma"),
    "item": ("milk", "bread", "eggs", "rice", "soap", "honey"),
    "minutes": (5, 12, 25, 45, 70),
}
_FACTS = ("sky", "degrees", "now", "ends", "items", "lamps", "sent")


def corrupted(content: str, kind: str, rng: random.Random) -> str:
    """Return what a broken tool gives back instead of `content`."""
    if kind == "error":
        return rng.choice(ERRORS)
    if kind == "empty":
        return rng.choice(("", "{}", "null", "[]"))
    if kind == "truncated":
        return content[: rng.randint(1, max(2, len(content) // 3))]
    result = json.loads(content)
    for key in [key for key in result if key in _FACTS]:
        if key != "degrees" or "sky" in result:
            result[key] = _other_fact(key, result[key], rng)
    if kind == "record":
        for key in [key for key in result if key in _OTHERS]:
            others = [other for other in _OTHERS[key] if other != result[key]]
            result[key] = rng.choice(others)
    return canonical_json(result)


def _other_fact(key: str, value: Any, rng: random.Random) -> Any:
    if key == "sky":
        return rng.choice([sky for sky in SKIES if sky != value])
    if isinstance(value, int):
        return abs(value + rng.choice((-7, -5, -3, 4, 6, 9)))
    hours, minutes = map(int, value.split(":"))
    return f"{(hours + rng.randint(1, 9)) % 24}:{(minutes + 17) % 50 + 10}"
