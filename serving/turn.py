"""The turn itself, as plain functions over an engine: route, answer, summarise.

    conversation = Conversation("c1", user="u1")
    turn = await start_turn(server, conversation, "Turn on the light.", tools)
    ... while turn.pending_calls: await continue_turn(server, conversation, turn, results)
    await close_turn(server, conversation, turn)   # summary; the timeline grows by one

A turn that fails or is dropped before `close_turn` leaves the timeline as it was.
Every engine call becomes a `Hop` in `turn.hops`, also the failed one.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from serving.engine import ChatRequest, ChatResult, Engine
from serving.errors import EngineRefused, EngineUnavailable
from serving.records import (
    Decision,
    Hop,
    HopRole,
    Message,
    ToolCall,
    Turn,
    canonical_json,
    content_id,
)
from serving.slots import Profile

SOURCE = "mol"


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished turn in a conversation's timeline."""

    slot: str
    messages: tuple[Message, ...]
    """User text, answers and tool results, verbatim."""
    summary: str


@dataclass(slots=True)
class Conversation:
    """What the server remembers of a conversation; the timeline only grows."""

    conversation_id: str
    user: str | None = None
    timeline: list[Entry] = field(default_factory=list)
    turns_taken: int = 0


@dataclass(frozen=True, slots=True)
class Server:
    """An engine with the profile and the versions in force."""

    engine: Engine
    profile: Profile
    names: Mapping[str, str]
    """Slot to the name the engine serves its version under."""
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)


@dataclass(slots=True)
class OpenTurn:
    """A turn in progress."""

    turn_id: str
    request: str
    slot: str
    decision: Decision
    started_at: datetime
    position: int
    view: tuple[Message, ...]
    """The adapter's own view up to and including the user's text."""
    tools: tuple[dict[str, Any], ...]
    exchanged: list[Message] = field(default_factory=list)
    """Answers and tool results of this turn, in order."""
    hops: list[Hop] = field(default_factory=list)
    error: str | None = None

    @property
    def pending_calls(self) -> tuple[ToolCall, ...]:
        """Tool calls that wait for their results."""
        if self.exchanged and self.exchanged[-1].role == "assistant":
            return self.exchanged[-1].tool_calls
        return ()


class TurnFailed(Exception):
    """An engine call of a turn failed; the hop is recorded and the timeline unchanged."""


def own_view(
    profile: Profile, conversation: Conversation, slot: str, text: str
) -> tuple[Message, ...]:
    """Return what `slot` sees: its own past verbatim, the others' turns as summaries.

    Views only grow: the view at a later turn starts with the same messages, so that
    an engine's prefix cache holds from visit to visit.
    """
    view = [Message(role="system", content=profile.slot(slot).system)]
    others: list[str] = []
    for entry in conversation.timeline:
        if entry.slot != slot:
            others.append(entry.summary)
            continue
        first, *rest = entry.messages
        view += [_with_handover(profile, others, first.content), *rest]
        others = []
    return (*view, _with_handover(profile, others, text))


def route_view(profile: Profile, text: str) -> tuple[Message, ...]:
    """Return the messages of a route hop: only the user's text, the slots and the prefill."""
    slots = "\n".join(f"{slot.name} {slot.description}" for slot in profile.slots)
    prompt = profile.route_prompt.format(text=text, slots=slots, labels=" ".join(profile.labels))
    return (
        Message(role="user", content=prompt),
        Message(role="assistant", content=profile.route_prefill),
    )


def summary_view(
    profile: Profile, view: Sequence[Message], exchanged: Sequence[Message]
) -> tuple[Message, ...]:
    """Return the messages of a summary hop: the own view with the finished turn, and the order."""
    return (*view, *exchanged, Message(role="user", content=profile.summary_prompt))


async def start_turn(
    server: Server, conversation: Conversation, text: str, tools: Sequence[dict[str, Any]] = ()
) -> OpenTurn:
    """Route a user's text and get the first answer.

    Raises:
        TurnFailed: if an engine call fails or the router names no slot; `args[0]` is the open
            turn with its hops.
    """
    profile = server.profile
    turn = OpenTurn(
        turn_id=content_id([conversation.conversation_id, conversation.turns_taken, text]),
        request=text,
        slot=profile.router,
        decision="routed",
        started_at=server.clock(),
        position=conversation.turns_taken,
        view=(),
        tools=(),
    )
    conversation.turns_taken += 1
    routed = await _hop(
        server, conversation, turn, "route",
        ChatRequest(
            model=server.names[profile.router],
            messages=route_view(profile, text),
            max_tokens=24,
            choices=profile.labels,
            continue_final=True,
        ),
    )  # fmt: skip
    if routed.message.content not in profile.labels:
        turn.error = (
            f"{routed.served_name!r} routed to {routed.message.content[:40]!r}, not to one of "
            f"{', '.join(profile.labels)}: the engine ignores constrained decoding."
        )
        raise TurnFailed(turn)
    turn.slot = routed.message.content
    slot = profile.slot(turn.slot)
    turn.tools = tuple(tools) if slot.offers_tools else ()
    turn.view = own_view(profile, conversation, turn.slot, text)
    await _answer(server, conversation, turn)
    return turn


async def continue_turn(
    server: Server, conversation: Conversation, turn: OpenTurn, results: Sequence[Message]
) -> None:
    """Send tool results to the slot that called: no route, no summary.

    Raises:
        TurnFailed: if the engine call fails.
        ValueError: if a result answers no pending call.
    """
    accept_results(turn, results)
    await _answer(server, conversation, turn)


def accept_results(turn: OpenTurn, results: Sequence[Message]) -> None:
    """Add tool results to the turn without asking for a further answer.

    Raises:
        ValueError: if a result answers no pending call.
    """
    pending = {call.id for call in turn.pending_calls}
    for result in results:
        if result.tool_call_id not in pending:
            raise ValueError(
                f"Tool result for {result.tool_call_id!r}, but pending are {sorted(pending)!r}."
            )
    turn.exchanged += results


async def close_turn(server: Server, conversation: Conversation, turn: OpenTurn) -> Turn:
    """Summarise the finished turn for the other slots and add it to the timeline.

    Raises:
        TurnFailed: if the summary fails; the timeline is as it was.
    """
    summary = await _hop(
        server, conversation, turn, "summary",
        ChatRequest(
            model=server.names[turn.slot],
            messages=summary_view(server.profile, turn.view, turn.exchanged),
            max_tokens=server.profile.max_summary_tokens,
        ),
    )  # fmt: skip
    conversation.timeline.append(
        Entry(
            slot=turn.slot,
            messages=(Message(role="user", content=turn.request), *turn.exchanged),
            summary=" ".join(summary.message.content.split()),
        )
    )
    return finished(conversation, turn)


def finished(conversation: Conversation, turn: OpenTurn) -> Turn:
    """Return the record of a turn, closed or failed."""
    answers = [hop for hop in turn.hops if hop.role == "answer" and hop.status == "ok"]
    last = answers[-1] if answers else None
    return Turn(
        turn_id=turn.turn_id,
        source=SOURCE,
        conversation_id=conversation.conversation_id,
        user=conversation.user,
        position=turn.position,
        request=turn.request,
        answer=last.completion if last else None,
        slot=last.slot if last else None,
        digest=last.digest if last else None,
        decision=turn.decision,
        status="failed" if turn.error else "ok",
        error=turn.error,
        hop_ids=tuple(hop.hop_id for hop in turn.hops),
        response_ids=tuple(hop.response_id for hop in answers if hop.response_id),
        started_at=turn.started_at,
        duration_s=round(sum(hop.duration_s for hop in turn.hops), 6),
    )


def _with_handover(profile: Profile, summaries: Sequence[str], text: str) -> Message:
    before = profile.handover_template.format(summaries=" ".join(summaries)) if summaries else ""
    return Message(role="user", content=before + text)


async def _answer(server: Server, conversation: Conversation, turn: OpenTurn) -> None:
    answer = await _hop(
        server, conversation, turn, "answer",
        ChatRequest(
            model=server.names[turn.slot],
            messages=(*turn.view, *turn.exchanged),
            tools=turn.tools,
            max_tokens=server.profile.max_answer_tokens,
        ),
    )  # fmt: skip
    turn.exchanged.append(answer.message)


async def _hop(
    server: Server, conversation: Conversation, turn: OpenTurn, role: HopRole, request: ChatRequest
) -> ChatResult:
    started_at = turn.started_at + timedelta(seconds=sum(hop.duration_s for hop in turn.hops))
    result, error = None, None
    try:
        result = await server.engine.chat(request)
    except (EngineRefused, EngineUnavailable) as problem:
        error = problem
    params: dict[str, Any] = {"max_tokens": request.max_tokens, "temperature": request.temperature}
    if request.choices:
        params["choices"] = list(request.choices)
    hop = Hop(
        source=SOURCE,
        conversation_id=conversation.conversation_id,
        turn_id=turn.turn_id,
        user=conversation.user,
        seq=turn.position * 100 + len(turn.hops),
        role=role,
        model=request.model,
        served_name=result.served_name if result else None,
        messages=request.messages,
        tools=json.dumps(list(request.tools), ensure_ascii=False),
        params=canonical_json(params),
        completion=result.message if result else None,
        response_id=result.response_id if result else None,
        finish_reason=result.finish_reason if result else None,
        status="ok" if result else "engine_error",
        error=str(error) if error else None,
        confidence=result.choice_probability if result else None,
        propensity=1.0 if role == "route" and result else None,
        prompt_tokens=result.prompt_tokens if result else None,
        completion_tokens=result.completion_tokens if result else None,
        cached_tokens=result.cached_tokens if result else None,
        prompt_token_ids=result.prompt_token_ids if result else None,
        completion_token_ids=result.completion_token_ids if result else None,
        started_at=started_at,
        duration_s=round(result.duration_s, 6) if result else 0.0,
        harness_digest=server.profile.digest,
    )
    turn.hops.append(hop)
    if result is None:
        turn.error = str(error)
        raise TurnFailed(turn) from error
    return result
