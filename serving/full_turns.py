"""Requests for the public model name: place in the conversation, turn, memory, record.

In: an `Ask`. Out: a `Reply`, and while it is made its pieces. The turn is answered by one
version of its slot from the first hop to the summary, also when tool results come back
minutes later. The summary is written after the client has its answer; a request that
follows waits for it.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import uuid4

from serving.config import ServeConfig
from serving.conversations import Conversations, Place, Waiting, results_refused
from serving.engine import Engine, OnDelta
from serving.exchange import Ask, Reply, RequestInvalid
from serving.harness import Harnesses
from serving.hops import OpenTurn, Server, TurnFailed
from serving.leases import Lease
from serving.metrics import Metrics
from serving.own_view import Conversation, clipped_summary
from serving.recorder import Recorder
from serving.records import Hop, Message
from serving.turn import begin_turn, check_results, continue_turn, finished, summarise
from serving.versions import Versions

WAIT_FOR_RESULTS_S = 3600.0
"""A turn whose tool results have not come by then counts as abandoned."""
MOST_HELD = 10_000
"""Turns that may wait for tool results; of more the longest waiting counts as abandoned."""
SUMMARY_HOP_S = 60.0
"""Limit for the engine call of a summary; the answer's first words do without."""
MOST_SUMMARIES = 512
"""Summaries under way at once; turns beyond them keep their first words."""
SUMMARY_LIMIT_S = 15.0
"""How long a server that stops waits for summaries."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    name: str = ""
    """Holder of an API key, without the key."""
    session: str = ""
    """What the client calls its conversation."""

    @property
    def conversation(self) -> str:
        """Id of the conversation that the session names; another caller's is another one."""
        return f"{self.name}.{self.session}" if self.name and self.session else self.session

    def scope(self, user: str | None) -> str:
        """Return what keeps this client's transcripts apart from another's."""
        return hashlib.sha256(
            "\0".join((self.name, self.session, user or "")).encode()
        ).hexdigest()[:24]


@dataclass(slots=True)
class _Held:
    """A turn that waits for tool results, with its versions."""

    turn: OpenTurn
    lease: Lease
    until: float


@dataclass(slots=True)
class FullTurns:
    """Takes turns; one a server."""

    engine: Engine
    config: ServeConfig
    versions: Versions
    harnesses: Harnesses
    conversations: Conversations
    recorder: Recorder
    metrics: Metrics
    embed: Callable[[str], Any] | None = None
    _held: dict[str, _Held] = field(default_factory=dict)
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    async def take(
        self, ask: Ask, caller: Caller, response_id: str, created_at: datetime,
        on_delta: OnDelta | None = None,
    ) -> Reply:  # fmt: skip
        """Answer one request.

        Raises:
            RequestInvalid: if it does not fit the conversation.
            TurnFailed: if the engine fails; the conversation is as it was.
        """
        if not self.versions.ready:
            raise RequestInvalid(
                "The server has no slot table yet; try again in a moment.",
                code="not_ready", status=503, retry_after_s=1,
            )  # fmt: skip
        scope = caller.scope(ask.user)
        named = bool(caller.session or ask.user)
        place = await self.conversations.locate(ask, scope, named)
        if place.waiting is not None and place.results:
            waiting, lease = await self._resumed(place.waiting, place.results, ask, caller)
            conversation = None
        else:
            waiting, lease, conversation = await self._begun(place, ask, caller)
        turn = waiting.turn
        lease.hold(turn.turn_id)
        try:
            server = self._server(lease, waiting.names)
            self.conversations.note_asked(scope, place, turn.turn_id)
            if conversation is None:
                await continue_turn(server, turn, place.results, on_delta)
            else:
                await begin_turn(server, conversation, turn, ask.tools, on_delta)
            turn.response_ids.append(response_id)
            reply = _reply(ask, turn, response_id, created_at)
            if turn.pending_calls:
                self.conversations.keep_waiting(ask, scope, waiting, response_id)
            else:
                first_words = clipped_summary(server.profile, turn.exchanged)
                self.conversations.keep(ask, scope, place, turn, first_words, response_id)
        except (TurnFailed, asyncio.CancelledError) as problem:
            self._end(turn, lease, "failed" if isinstance(problem, TurnFailed) else "abandoned")
            raise
        except BaseException as problem:
            turn.error = f"{type(problem).__name__}: {problem}"
            self._end(turn, lease, "failed")
            raise
        if place.waiting is not None and not place.results:
            held = self._held.get(place.waiting.turn.turn_id)
            # It may wait further on by now, for a client that has gone back.
            if held is not None and len(held.turn.exchanged) == len(place.waiting.turn.exchanged):
                self._leave(place.waiting.turn.turn_id)
        if turn.pending_calls:
            self._hold(turn, lease)
        else:
            self._finish(server, turn, lease)
        return reply

    async def sweep(self, every_s: float = 5.0) -> None:
        """End turns whose tool results never came; runs until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            now = time.monotonic()
            for turn_id in [i for i, held in self._held.items() if held.until < now]:
                self._leave(turn_id)

    async def close(self, limit_s: float = SUMMARY_LIMIT_S) -> None:
        """Finish the summaries under way; what waits for tool results is left to a restart.

        A summary that takes longer is given up: the turn's first words stand in for it.
        """
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=limit_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _begun(
        self, place: Place, ask: Ask, caller: Caller
    ) -> tuple[Waiting, Lease, Conversation]:
        conversation_id = place.conversation_id or caller.conversation or f"conv_{uuid4().hex}"
        conversation = await self.conversations.conversation(place, conversation_id, ask)
        lease = self.versions.lease(_key(caller, ask, conversation_id))
        turn = OpenTurn(
            turn_id=f"turn_{uuid4().hex}",
            conversation_id=conversation_id,
            user=ask.user,
            request=place.text,
            started_at=datetime.now(UTC),
            position=conversation.turns_taken,
            options=ask.options,
            max_tokens=ask.max_tokens,
            supersedes=place.supersedes,
            exchanged=list(place.exchanged),
        )
        return Waiting(turn, place.parent, dict(lease.names)), lease, conversation

    async def _resumed(
        self, waiting: Waiting, results: tuple[Message, ...], ask: Ask, caller: Caller
    ) -> tuple[Waiting, Lease]:
        """Take up a turn that waited; the same results again are another turn in its place."""
        try:
            check_results(waiting.turn.pending_calls, results)
        except ValueError as problem:
            raise results_refused(ask, str(problem)) from problem
        earlier = await self.conversations.taken_up(waiting.turn)
        turn = replace(
            waiting.turn, options=ask.options, max_tokens=ask.max_tokens,
            exchanged=list(waiting.turn.exchanged), hops=list(waiting.turn.hops),
            response_ids=list(waiting.turn.response_ids),
        )  # fmt: skip
        held = self._held.get(turn.turn_id)
        lease = held.lease if held else self.versions.lease(_key(caller, ask, turn.conversation_id))
        if not lease.alive or lease.names.get(turn.slot) != waiting.names.get(turn.slot):
            raise RequestInvalid(
                f"The version that began this turn, {waiting.names.get(turn.slot)!r}, serves no "
                "longer; send the user's message again.",
                code="turn_expired", status=409,
            )  # fmt: skip
        if earlier is None:
            self._held.pop(turn.turn_id, None)
        else:
            turn.supersedes, turn.turn_id = earlier, f"turn_{uuid4().hex}"
            turn.hops, turn.response_ids = [], []
        self.conversations.note_taken_up(waiting.turn, turn.turn_id)
        return replace(waiting, turn=turn), lease

    async def _close(self, server: Server, turn: OpenTurn, lease: Lease) -> None:
        # A summary is worth less than an answer: it must neither pile up nor be waited for long.
        server = replace(server, hop_timeout_s=min(SUMMARY_HOP_S, self.config.timeouts.hop_s))
        try:
            if len(self._tasks) > MOST_SUMMARIES:
                return
            self.conversations.set_summary(turn.turn_id, await summarise(server, turn))
        finally:
            self._end(turn, lease, "ok")

    def _hold(self, turn: OpenTurn, lease: Lease) -> None:
        self._held[turn.turn_id] = _Held(turn, lease, time.monotonic() + WAIT_FOR_RESULTS_S)
        if len(self._held) > MOST_HELD:
            self._leave(next(iter(self._held)))

    def _finish(self, server: Server, turn: OpenTurn, lease: Lease) -> None:
        task = asyncio.create_task(self._close(server, turn, lease))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.conversations.summarise_later(turn.turn_id, task)

    def _leave(self, turn_id: str) -> None:
        """Give up a turn that waits for tool results; should they come, another one begins."""
        held = self._held.pop(turn_id, None)
        if held is not None:
            self.conversations.note_taken_up(held.turn, turn_id)
            self._end(held.turn, held.lease, "abandoned")

    def _end(
        self, turn: OpenTurn, lease: Lease, status: Literal["ok", "failed", "abandoned"]
    ) -> None:
        lease.release(turn.turn_id)
        self.metrics.turn(turn.decision, status)
        self.recorder.put(lambda: (finished(turn, status),))

    def _server(self, lease: Lease, names: dict[str, str]) -> Server:
        harness = self.harnesses.of(lease)
        return Server(
            engine=self.engine,
            profile=harness.profile,
            names=names,
            router=self.config.router,
            rules=harness.rules,
            head=harness.head,
            embed=self.embed,
            base_name=self.config.base_name,
            canaries=lease.canaries,
            attempts=self.config.attempts,
            hop_timeout_s=self.config.timeouts.hop_s,
            lost=self.versions.lost,
            on_hop=self._record,
        )

    def _record(self, hop: Hop) -> None:
        self.metrics.hop(hop)
        self.recorder.put(hop)


def _key(caller: Caller, ask: Ask, conversation_id: str) -> str:
    """Return what keeps a conversation with one arm of a canary."""
    return caller.session or ask.user or conversation_id


def _reply(ask: Ask, turn: OpenTurn, response_id: str, created_at: datetime) -> Reply:
    answer = next(hop for hop in reversed(turn.hops) if hop.status == "ok")
    message = turn.exchanged[-1]
    reason = answer.finish_reason or "stop"
    return Reply(
        response_id=response_id,
        model=ask.model,
        message=message,
        finish_reason="tool_calls" if message.tool_calls and reason == "stop" else reason,
        created_at=created_at,
        prompt_tokens=answer.prompt_tokens or 0,
        completion_tokens=answer.completion_tokens or 0,
        cached_tokens=answer.cached_tokens,
        reasoning=answer.reasoning or "",
        metadata={
            "mol_conversation_id": turn.conversation_id,
            "mol_turn_id": turn.turn_id,
            "mol_slot": turn.slot,
            "mol_adapter": answer.served_name or answer.model,
            "mol_decision": turn.decision,
        },
    )
