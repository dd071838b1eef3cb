"""The turn itself, as plain functions over an engine: route, answer, summarise.

    conversation = Conversation("c1", user="u1")
    turn = await start_turn(server, conversation, "Turn on the light.", tools)
    ... while turn.pending_calls: await continue_turn(server, turn, results)
    await close_turn(server, conversation, turn)   # summary; the timeline grows by one

A turn that fails or is dropped before `close_turn` leaves the timeline as it was.
Every engine call becomes a `Hop` in `turn.hops`, also the failed one.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from serving.engine import CallDelta, ChatRequest, ChatResult, Delta, OnDelta
from serving.errors import EngineRefused, EngineUnavailable
from serving.head import HiddenStateInvalid
from serving.hops import (
    SOURCE,
    OpenTurn,
    Server,
    TurnFailed,
    record_failed_route,
    record_route,
    run_hop,
)
from serving.own_view import (
    Conversation,
    Entry,
    clipped_summary,
    own_view,
    route_view,
    summary_view,
)
from serving.records import BASE_SLOT, Message, ToolCall, Turn, content_id
from serving.routing import (
    ChoiceInvalid,
    Settled,
    change_model_tool,
    chosen_by_tool,
    rule_for,
    settle,
)

Settle = Callable[[str, float | None], dict[str, Any]]
"""Takes the router's choice and its confidence, settles the turn's slot and returns the route
hop's fields that follow."""
RULES = "rules"
"""Name under which a route by keywords is recorded."""


async def start_turn(
    server: Server,
    conversation: Conversation,
    text: str,
    tools: Sequence[dict[str, Any]] = (),
) -> OpenTurn:
    """Route a user's text and get the first answer.

    Args:
        server: the engine and the versions in force.
        conversation: read, and counts one more turn.
        text: what the user says.
        tools: what the client offers, in OpenAI form.

    Raises:
        TurnFailed: if an engine call fails or the router names no slot; it carries the open
            turn with its hops.
    """
    turn = OpenTurn(
        turn_id=content_id([conversation.conversation_id, conversation.turns_taken, text]),
        conversation_id=conversation.conversation_id,
        user=conversation.user,
        request=text,
        started_at=server.clock(),
        position=conversation.turns_taken,
    )
    await begin_turn(server, conversation, turn, tools)
    return turn


async def begin_turn(
    server: Server,
    conversation: Conversation,
    turn: OpenTurn,
    tools: Sequence[dict[str, Any]] = (),
    on_delta: OnDelta | None = None,
) -> None:
    """Route a turn made elsewhere and get its first answer; `on_delta` takes it as it comes.

    Raises:
        TurnFailed: as `start_turn`.
    """
    conversation.turns_taken += 1
    turn.slot = server.profile.router
    answered = await _route(server, conversation, turn, tools)
    if answered is not None:
        await _tell(answered, on_delta)
        turn.exchanged.append(answered.message)
        return
    _take_slot(server, conversation, turn, tools)
    await _answer(server, turn, on_delta)


async def continue_turn(
    server: Server, turn: OpenTurn, results: Sequence[Message], on_delta: OnDelta | None = None
) -> None:
    """Send tool results to the slot that called: no route, no summary.

    Raises:
        TurnFailed: if the engine call fails.
        ValueError: if a result answers no pending call, or not all calls are answered.
    """
    accept_results(turn, results)
    await _answer(server, turn, on_delta)


def accept_results(turn: OpenTurn, results: Sequence[Message]) -> None:
    """Add tool results, and what the user says with them, without asking for a further answer.

    Raises:
        ValueError: if a result answers no pending call, one call is answered twice or not at
            all.
    """
    check_results(turn.pending_calls, results)
    turn.exchanged += results


def check_results(calls: Sequence[ToolCall], results: Sequence[Message]) -> None:
    """Check that the tool results among messages answer these calls, each one once.

    Raises:
        ValueError: if one answers none of them, one is answered twice or not at all.
    """
    pending = {call.id for call in calls}
    answered: set[str | None] = set()
    for result in results:
        if result.role != "tool":
            continue
        if result.tool_call_id in answered:
            raise ValueError(f"Two tool results for {result.tool_call_id!r}; send one.")
        if result.tool_call_id not in pending:
            raise ValueError(
                f"Tool result for {result.tool_call_id!r}, but pending are {sorted(pending)!r}."
            )
        answered.add(result.tool_call_id)
    if pending - answered:
        raise ValueError(f"No tool result for {sorted(pending - answered)!r}; send one for each.")


async def close_turn(server: Server, conversation: Conversation, turn: OpenTurn) -> Turn:
    """Summarise the finished turn for the other slots and add it to the timeline.

    The client has its answer already, so the turn stands even if no summary can be had:
    the answer's first words stand in for it.
    """
    summary = await summarise(server, turn)
    conversation.timeline.append(entry_of(turn, summary))
    return finished(turn)


async def summarise(server: Server, turn: OpenTurn) -> str:
    """Let the slot that answered say in short what the others need to know of the turn."""
    request = ChatRequest(
        model=_name(server, turn.slot),
        messages=summary_view(server.profile, turn.view, turn.exchanged),
        max_tokens=server.profile.max_summary_tokens,
    )
    try:
        result = await run_hop(server, turn, "summary", request)
    except TurnFailed:
        turn.error = None
        return clipped_summary(server.profile, turn.exchanged)
    said = " ".join(result.message.content.split())
    return said or clipped_summary(server.profile, turn.exchanged)


def entry_of(turn: OpenTurn, summary: str) -> Entry:
    """Return what the timeline keeps of a turn."""
    user = Message(role="user", content=turn.request)
    return Entry(slot=turn.slot, messages=(user, *turn.exchanged), summary=summary)


def finished(turn: OpenTurn, status: str = "ok") -> Turn:
    """Return the record of a turn, closed, failed or abandoned."""
    answers = [hop for hop in turn.hops if hop.role == "answer" and hop.status == "ok"]
    last = answers[-1] if answers else None
    return Turn(
        turn_id=turn.turn_id,
        source=SOURCE,
        conversation_id=turn.conversation_id,
        user=turn.user,
        position=turn.position,
        request=turn.request,
        answer=last.completion if last else None,
        slot=last.slot if last else None,
        digest=last.digest if last else None,
        decision=turn.decision,
        status="failed" if turn.error else status,
        error=turn.error,
        hop_ids=tuple(hop.hop_id for hop in turn.hops),
        response_ids=(*turn.response_ids, *(h.response_id for h in answers if h.response_id)),
        started_at=turn.started_at,
        duration_s=round(sum(hop.duration_s for hop in turn.hops), 6),
        canary=turn.canary,
        supersedes=turn.supersedes,
    )


async def _route(
    server: Server, conversation: Conversation, turn: OpenTurn, tools: Sequence[dict[str, Any]]
) -> ChatResult | None:
    """Settle the turn's slot; the answer itself where the router slot gave it meanwhile."""
    rule = rule_for(server.rules, turn.request)
    labels = server.profile.labels

    def settled(greedy: str, confidence: float | None) -> dict[str, Any]:
        settlement = settle(server.router, labels, greedy, confidence, rule, server.rng)
        return _apply(turn, settlement)

    if (rule is not None and rule.override) or server.router.mode == "rules":
        greedy = rule.slot if rule is not None else server.profile.router
        record_route(server, turn, RULES, greedy, 0.0, **settled(greedy, None))
    elif server.router.mode == "head":
        await _route_by_head(server, turn, settled)
    elif server.router.mode == "tool":
        return await _route_by_tool(server, conversation, turn, tools, settled)
    else:
        await _route_by_label(server, turn, settled)
    return None


async def _route_by_label(server: Server, turn: OpenTurn, settled: Settle) -> None:
    profile = server.profile
    request = ChatRequest(
        model=_name(server, profile.router),
        messages=route_view(profile, turn.request),
        max_tokens=24,
        choices=profile.labels,
        continue_final=True,
    )

    def more(result: ChatResult) -> dict[str, Any]:
        label = result.message.content
        if label not in profile.labels:
            return {}
        return settled(label, result.choice_probability)

    routed = await run_hop(server, turn, "route", request, more=more)
    if routed.message.content not in profile.labels:
        turn.error = (
            f"{routed.served_name!r} routed to {routed.message.content[:40]!r}, not to one of "
            f"{', '.join(profile.labels)}: the engine ignores constrained decoding."
        )
        raise TurnFailed(turn)


async def _route_by_head(server: Server, turn: OpenTurn, settled: Settle) -> None:
    if server.head is None:
        turn.error = "The router is set to 'head', but the slot table names none."
        raise TurnFailed(turn)
    started = time.monotonic()
    try:
        hidden = await (server.embed or server.engine.embed)(turn.request)
        chances = server.head.probabilities(hidden)
    except (EngineRefused, EngineUnavailable, HiddenStateInvalid) as problem:
        record_failed_route(server, turn, server.head.name, problem)
        turn.error = str(problem)
        raise TurnFailed(turn) from problem
    legal = {label: chances.get(label, 0.0) for label in server.profile.labels}
    greedy = max(legal, key=lambda label: legal[label])
    fields = settled(greedy, legal[greedy])
    record_route(server, turn, server.head.name, greedy, time.monotonic() - started, **fields)


async def _route_by_tool(
    server: Server,
    conversation: Conversation,
    turn: OpenTurn,
    tools: Sequence[dict[str, Any]],
    settled: Settle,
) -> ChatResult | None:
    """Let the router slot answer, or call `change_model`; only the call is explicit.

    Its answer is held back until it is whole: whether it is one shows only then.
    """
    profile = server.profile
    _take_slot(server, conversation, turn, tools)
    request = _answer_request(server, turn)
    request = replace(request, tools=(*request.tools, change_model_tool(profile)))

    def more(result: ChatResult) -> dict[str, Any]:
        answered = True
        try:
            chosen = chosen_by_tool(result.message, profile.labels)
        except ChoiceInvalid:
            chosen, answered = None, False
        fields = settled(chosen or profile.router, None)
        answered = answered and chosen is None and turn.slot == profile.router
        return fields | {"role": "answer" if answered else "route"}

    result = await run_hop(server, turn, "answer", request, more=more)
    return result if turn.hops[-1].role == "answer" else None


def _apply(turn: OpenTurn, settlement: Settled) -> dict[str, Any]:
    turn.slot, turn.decision = settlement.slot, settlement.decision
    fields: dict[str, Any] = {"propensity": settlement.propensity}
    if settlement.confidence is not None:
        fields["confidence"] = settlement.confidence
    return fields


def _take_slot(
    server: Server, conversation: Conversation, turn: OpenTurn, tools: Sequence[dict[str, Any]]
) -> None:
    offers = turn.slot != BASE_SLOT and server.profile.slot(turn.slot).offers_tools
    turn.tools = tuple(tools) if offers else ()
    turn.view = own_view(server.profile, conversation, turn.slot, turn.request)
    turn.canary = turn.slot in server.canaries


def _name(server: Server, slot: str) -> str:
    return server.names.get(slot, server.base_name)


def _answer_request(server: Server, turn: OpenTurn) -> ChatRequest:
    options = turn.options
    if not turn.tools:
        about_tools = ("tool_choice", "parallel_tool_calls")
        options = {k: v for k, v in options.items() if k not in about_tools}
    return ChatRequest(
        model=_name(server, turn.slot),
        messages=(*turn.view, *turn.exchanged),
        tools=turn.tools,
        max_tokens=turn.max_tokens or server.profile.max_answer_tokens,
        options=options,
    )


async def _answer(server: Server, turn: OpenTurn, on_delta: OnDelta | None) -> None:
    answer = await run_hop(server, turn, "answer", _answer_request(server, turn), on_delta)
    turn.exchanged.append(answer.message)


async def _tell(answer: ChatResult, on_delta: OnDelta | None) -> None:
    """Hand over an answer that was held back, in one piece."""
    if on_delta is None:
        return
    calls = tuple(
        CallDelta(n, call.id, call.name, call.arguments)
        for n, call in enumerate(answer.message.tool_calls)
    )
    await on_delta(Delta(answer.message.content, answer.reasoning, calls))
