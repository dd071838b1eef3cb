"""One hop: an engine call made for a turn, tried again where that is safe, and recorded.

In: the server in force and the open turn. Out: the engine's answer, and a `Hop` in
`turn.hops` for every attempt, also the failed one; a later attempt says which one it
supersedes.
"""

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from serving.config import RouterConfig
from serving.engine import ChatRequest, ChatResult, Delta, Engine, OnDelta
from serving.errors import BrokenAnswer, EngineRefused, EngineUnavailable, MolError
from serving.head import RouterHead
from serving.loading import VersionRefused
from serving.lost import LostNames
from serving.records import (
    Decision,
    Hop,
    HopRole,
    HopStatus,
    Message,
    ToolCall,
    canonical_json,
    content_id,
)
from serving.slots import Profile

SOURCE = "mol"
_RNG = random.Random()  # noqa: S311
"""Seeding one of its own for every turn would cost more than most of the turn's other steps."""


@dataclass(frozen=True, slots=True)
class Server:
    """An engine with the profile and the versions in force for one turn."""

    engine: Engine
    profile: Profile
    names: Mapping[str, str]
    """Slot to the name the engine serves its version under."""
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    router: RouterConfig = field(default_factory=RouterConfig)
    rules: tuple[tuple[str, str], ...] = ()
    """Slot and its routing rule, in the slot table's order."""
    head: RouterHead | None = None
    """The trained router, for mode `head`."""
    embed: Callable[[str], Any] | None = None
    """Asks for the base's hidden state of a text; None asks the engine."""
    base_name: str = "base"
    canaries: frozenset[str] = frozenset()
    """Slots whose name is a canary's."""
    attempts: int = 1
    """Tries of a call that got no answer at all."""
    hop_timeout_s: float | None = None
    lost: LostNames | None = None
    """Brings back the names that the engine lost; calls under them wait."""
    rng: random.Random = _RNG
    """Draws the explored turns."""
    on_hop: Callable[[Hop], None] = lambda hop: None
    """Told of every hop as soon as it ended."""

    def harness_digest(self, tools: tuple[dict[str, Any], ...] = ()) -> str:
        """Return the digest of all that shapes a hop beside its messages: prompts, router, tools.

        The profile's own where the router is the plain one and no tools are offered.
        """
        return _harness_digest(self.profile, self.router, json.dumps(tools) if tools else "[]")


@dataclass(slots=True)
class OpenTurn:
    """A turn in progress."""

    turn_id: str
    conversation_id: str
    user: str | None
    request: str
    started_at: datetime
    position: int
    slot: str = ""
    """Who answers; settled by the route."""
    decision: Decision = "routed"
    view: tuple[Message, ...] = ()
    """The adapter's own view up to and including the user's text."""
    tools: tuple[dict[str, Any], ...] = ()
    """Those the slot is offered."""
    options: dict[str, Any] = field(default_factory=dict)
    """The client's sampling fields, for answer hops."""
    max_tokens: int | None = None
    """The client's limit for an answer; None is the profile's."""
    supersedes: str | None = None
    """Turn that the client asked again."""
    exchanged: list[Message] = field(default_factory=list)
    """Answers and tool results of this turn, in order."""
    hops: list[Hop] = field(default_factory=list)
    response_ids: list[str] = field(default_factory=list)
    """Ids under which the client got the turn's answers."""
    error: str | None = None
    canary: bool = False

    @property
    def pending_calls(self) -> tuple[ToolCall, ...]:
        """Tool calls that wait for their results."""
        if self.exchanged and self.exchanged[-1].role == "assistant":
            return self.exchanged[-1].tool_calls
        return ()


class TurnFailed(Exception):
    """An engine call of a turn failed; the hop is recorded and the timeline unchanged."""

    def __init__(self, turn: OpenTurn) -> None:
        super().__init__(turn)
        self.turn = turn


async def run_hop(
    server: Server,
    turn: OpenTurn,
    role: HopRole,
    request: ChatRequest,
    on_delta: OnDelta | None = None,
    more: Callable[[ChatResult], dict[str, Any]] = lambda result: {},
) -> ChatResult:
    """Ask the engine and record the hop; `more` adds fields that follow from the answer.

    A call that failed before its first piece is tried again, on another replica if there
    is one.

    Raises:
        TurnFailed: if the last attempt fails.
    """
    started: list[Delta] = []
    mark: int | None = None

    def check_trust() -> None:
        if server.lost and mark is not None and not server.lost.trusts(request.model, mark):
            raise EngineUnavailable(f"The engine lost {request.model!r} while it was asked.")

    async def watched(delta: Delta) -> None:
        if not started:
            check_trust()
        started.append(delta)
        assert on_delta is not None
        await on_delta(delta)

    supersedes: str | None = None
    for attempt in range(server.attempts):
        request = replace(
            request, affinity=turn.conversation_id, timeout_s=server.hop_timeout_s, attempt=attempt
        )
        hop = _Draft(server, turn, role, request, supersedes)
        try:
            mark = await server.lost.settled(request.model) if server.lost else None
            result = await server.engine.chat(request, watched if on_delta else None)
            if not started:
                check_trust()
        except (EngineRefused, EngineUnavailable, VersionRefused) as problem:
            failed = hop.failed(problem)
            last = attempt + 1 == server.attempts
            if last or started or not await _is_mended(server, request.model, problem, mark):
                turn.error = str(problem)
                raise TurnFailed(turn) from problem
            supersedes = failed.hop_id
        except asyncio.CancelledError:
            hop.record("abandoned", error="the client left before the answer was whole")
            raise
        else:
            hop.record("ok", result, **more(result))
            return result
    raise AssertionError("the last attempt returns or raises")


def record_route(
    server: Server, turn: OpenTurn, model: str, label: str, duration_s: float, **fields: Any
) -> None:
    """Record a route that no language model made: a rule's or the head's."""
    request = ChatRequest(model=model, messages=(Message(role="user", content=turn.request),))
    result = ChatResult(
        response_id="",
        served_name=model,
        message=Message(role="assistant", content=label),
        finish_reason="stop",
        prompt_tokens=0,
        completion_tokens=0,
        duration_s=duration_s,
    )
    draft = _Draft(server, turn, "route", request, None)
    draft.record("ok", result, response_id=None, params=canonical_json({}), **fields)


def record_failed_route(server: Server, turn: OpenTurn, model: str, problem: MolError) -> None:
    """Record that the head could not route."""
    request = ChatRequest(model=model, messages=(Message(role="user", content=turn.request),))
    draft = _Draft(server, turn, "route", request, None)
    draft.record("engine_error", error=str(problem), params=canonical_json({}))


async def _is_mended(server: Server, name: str, problem: MolError, mark: int | None) -> bool:
    """Say whether a failed call may be made again: nobody answered, or the adapter was lost."""
    if isinstance(problem, EngineUnavailable):
        return not problem.timed_out
    if not isinstance(problem, EngineRefused) or problem.status != 404 or server.lost is None:
        return False
    try:
        await server.lost.ensure(name, mark)
    except MolError:
        return False
    return True


class _Draft:
    """A hop being asked for."""

    def __init__(
        self, server: Server, turn: OpenTurn, role: HopRole, request: ChatRequest,
        supersedes: str | None,
    ) -> None:  # fmt: skip
        self.server, self.turn, self.role, self.request = server, turn, role, request
        self.supersedes = supersedes
        # A simulated clock stands still during a turn; durations are measured all the same.
        by_hops = turn.started_at + timedelta(seconds=sum(h.duration_s for h in turn.hops))
        self.started_at = max(server.clock(), by_hops)
        self.asked_at = server.clock()

    def failed(self, problem: MolError) -> Hop:
        broken = isinstance(problem, BrokenAnswer)
        partial = problem.partial if isinstance(problem, BrokenAnswer) else None
        status: HopStatus = "broken_stream" if broken else "engine_error"
        return self.record(status, partial, error=str(problem), finish_reason=None)

    def record(self, status: HopStatus, result: ChatResult | None = None, **fields: Any) -> Hop:
        server, turn, request = self.server, self.turn, self.request
        spent_s = (server.clock() - self.asked_at).total_seconds()
        duration_s = result.duration_s if result else max(0.0, spent_s)
        values: dict[str, Any] = {
            "source": SOURCE,
            "conversation_id": turn.conversation_id,
            "turn_id": turn.turn_id,
            "user": turn.user,
            "seq": turn.position * 100 + len(turn.hops),
            "role": self.role,
            "model": request.model,
            "messages": request.messages,
            "tools": _tools_json(request.tools),
            "params": canonical_json(_params(request)),
            "status": status,
            "started_at": self.started_at,
            "duration_s": round(duration_s, 6),
            "harness_digest": server.harness_digest(request.tools),
            "harness_version": harness_version(),
            "canary": request.model.split("@", 1)[0] in server.canaries,
            "supersedes": self.supersedes,
        }
        if result is not None:
            values |= {
                "served_name": result.served_name,
                "completion": result.message,
                "reasoning": result.reasoning or None,
                "response_id": result.response_id,
                "finish_reason": result.finish_reason,
                "confidence": result.choice_probability,
                "prompt_tokens": result.prompt_tokens,
                "completion_tokens": result.completion_tokens,
                "cached_tokens": result.cached_tokens,
                "prompt_token_ids": result.prompt_token_ids,
                "completion_token_ids": result.completion_token_ids,
                "ttft_s": None if result.ttft_s is None else round(result.ttft_s, 6),
            }
        hop = Hop(**values | fields)
        turn.hops.append(hop)
        server.on_hop(hop)
        return hop


@cache
def harness_version() -> str:
    """Return this program's name and version, as hops carry it."""
    try:
        return f"mol-loop/{version('mol-loop')}"
    except PackageNotFoundError:
        return "mol-loop/unknown"


@cache
def _harness_digest(profile: Profile, router: RouterConfig, tools: str) -> str:
    if router == RouterConfig() and tools == "[]":
        return profile.digest
    return content_id([profile.digest, router.model_dump(mode="json"), tools])


def _tools_json(tools: tuple[dict[str, Any], ...]) -> str:
    return json.dumps(list(tools), ensure_ascii=False) if tools else "[]"


def _params(request: ChatRequest) -> dict[str, Any]:
    params: dict[str, Any] = {"max_tokens": request.max_tokens, "temperature": request.temperature}
    params |= request.options
    if request.choices:
        params["choices"] = list(request.choices)
    return params
