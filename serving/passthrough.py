"""Requests for a slot name: one hop of an MoL proxy that stands above.

The name becomes the slot's champion or canary, the same arm for all requests with one
conversation key and the same version for all hops of one turn; everything else goes
through as it is, in both directions. What the
adapter saw and said is recorded as a hop. Asking the engine for token ids and, on route
hops, for log-probabilities is added for the record and taken out of the answer again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.types import Send

from serving.config import ServeConfig
from serving.errors import BrokenAnswer, EngineUnavailable
from serving.exchange import RequestInvalid
from serving.hop_leases import HopLeases
from serving.hop_record import Attempt, HopBuilder
from serving.hop_role import KEY_HEADER, ROLE_HEADER
from serving.loading import VersionRefused
from serving.metrics import Metrics
from serving.recorder import Recorder
from serving.records import Hop, Message, canonical_json
from serving.replicas import Replicas
from serving.sse import EventReader
from serving.upstream import Forwarded
from serving.versions import Versions

PATH = "/v1/chat/completions"
SESSION_HEADER = "x-session-id"
ADAPTER_HEADER = b"x-mol-adapter"
_ANSWERED_BY = {"return_token_ids": "token_ids", "logprobs": "logprobs"}
"""Fields asked for the record, and where in a choice the engine answers them."""


@dataclass(slots=True)
class Passthrough:
    """Passes hops on; one a server."""

    engine: Replicas
    config: ServeConfig
    versions: Versions
    recorder: Recorder
    metrics: Metrics
    builder: HopBuilder = field(default_factory=HopBuilder)
    leases: HopLeases = field(init=False)

    def __post_init__(self) -> None:
        self.leases = HopLeases(self.versions, self.config.timeouts.drain_s)

    async def pass_on(
        self, slot: str, raw: dict[str, Any], headers: Headers, send: Send, request_id: str
    ) -> None:
        """Answer a hop for `slot`.

        Raises:
            EngineUnavailable: if no replica answers and nothing was sent yet.
            BrokenAnswer: if the answer breaks off.
            RequestInvalid: (404) if the slot is gone since the request came.
        """
        key = headers.get(KEY_HEADER) or headers.get(SESSION_HEADER)
        sticky = key or _fallback_key(raw)
        said_role = headers.get(ROLE_HEADER)
        with self.leases.take(sticky, slot, said_role, raw) as lease:
            if slot not in lease.names:
                raise RequestInvalid(
                    f"No model {slot!r} any more.",
                    param="model", code="model_not_found", status=404,
                )  # fmt: skip
            call = _Call(
                raw=raw,
                name=lease.names[slot],
                slot=slot,
                canary=slot in lease.canaries,
                sticky=sticky,
                key=key,
                said_role=said_role,
                agent=headers.get("user-agent"),
                extras=self._extras(raw, headers),
                request_id=request_id,
            )
            last: EngineUnavailable | None = None
            for number in range(self.config.attempts):
                try:
                    answered = await self._try(call, number, send)
                except EngineUnavailable as problem:
                    if call.sent or problem.timed_out:
                        raise
                    last = problem
                    continue
                if answered:
                    self.leases.expect_results(lease, call.tool_calls)
                    return
                # The engine lost the adapter, for example by being started anew.
                last = None
                await self.versions.lost.ensure(call.name, call.mark)
            if last is not None:
                raise last
            await self._try(call, 0, send, whatever=True)

    async def _try(self, call: "_Call", number: int, send: Send, whatever: bool = False) -> bool:
        """Ask one replica; False if it does not know the adapter and nothing was sent."""
        attempt, lost = call.attempt(), self.versions.lost
        try:
            call.mark = await lost.settled(call.name)
            async with self.engine.forward(
                PATH,
                orjson.dumps({**call.raw, **call.extras, "model": call.name}),
                {"content-type": "application/json", "x-request-id": call.request_id},
                affinity=call.sticky,
                attempt=number,
                model=call.name,
                timeout_s=self.config.timeouts.hop_s,
            ) as answer:
                if answer.status == 404 and not whatever:
                    attempt.ended("engine_error", f"404: the engine has no {call.name!r}")
                    await answer.read()
                    return False
                if not lost.trusts(call.name, call.mark):
                    raise EngineUnavailable(f"The engine lost {call.name!r} while it was asked.")
                if answer.headers.get("content-type", "").startswith("text/event-stream"):
                    await self._stream(call, attempt, answer, send)
                else:
                    await self._whole(call, attempt, answer, send)
                return True
        except (EngineUnavailable, VersionRefused) as problem:
            broken = isinstance(problem, BrokenAnswer)
            attempt.ended("broken_stream" if broken else "engine_error", str(problem))
            raise
        finally:
            attempt.stop()
            if not self.recorder.put(lambda: self._record(attempt)):
                self._record(attempt)  # counted all the same

    async def _whole(self, call: "_Call", attempt: Attempt, answer: Forwarded, send: Send) -> None:
        content = await answer.read()
        try:
            response = orjson.loads(content)
        except orjson.JSONDecodeError:
            response = None
        if answer.status == 200 and isinstance(response, dict):
            attempt.response = response
            attempt.ended("ok")
            content = orjson.dumps(call.shown(response, "message"))
        else:
            attempt.ended(
                "engine_error", f"{answer.status} {content[:300].decode(errors='replace')}"
            )
        call.sent = True
        kind = answer.headers.get("content-type", "application/json").encode()
        await send(call.start(answer.status, kind, len(content)))
        await send({"type": "http.response.body", "body": content})

    async def _stream(self, call: "_Call", attempt: Attempt, answer: Forwarded, send: Send) -> None:
        reader = EventReader()
        async for piece in answer.chunks():
            if attempt.ttft_s is None:
                attempt.stop()
                attempt.ttft_s = attempt.duration_s
            attempt.pieces.append(piece)
            chunks = reader.feed(piece)
            if not chunks and not reader.done:
                continue
            if not call.sent:
                call.sent = True
                await send(call.start(answer.status, b"text/event-stream; charset=utf-8", None))
            await _send_events(send, (call.shown(chunk, "delta") for chunk in chunks))
            if reader.done:
                attempt.ended("ok")
                break
        if not reader.done:
            why = reader.error or "the stream ended without [DONE]"
            raise BrokenAnswer(f"The engine broke off its answer for {call.name!r}: {why}.")
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    def _extras(self, raw: dict[str, Any], headers: Headers) -> dict[str, Any]:
        """Return the fields to ask for beside the proxy's own."""
        if not self.config.record.enabled:
            return {}
        extras: dict[str, Any] = {}
        if self.config.record.token_ids:
            extras["return_token_ids"] = True
        if headers.get(ROLE_HEADER) == "route":
            extras["logprobs"] = True
        return {name: value for name, value in extras.items() if raw.get(name) is None}

    def _record(self, attempt: Attempt) -> Iterable[Hop]:
        hop = self.builder.hop(attempt)
        self.metrics.hop(hop)
        return (hop,)


@dataclass(slots=True)
class _Call:
    """A hop on its way."""

    raw: dict[str, Any]
    name: str
    slot: str
    canary: bool
    sticky: str
    """What decides arm and replica: the key, or what stands in for it."""
    key: str | None
    said_role: str | None
    agent: str | None
    extras: dict[str, Any]
    request_id: str
    sent: bool = False
    mark: int = 0
    """What the name was when it was asked; see `serving.lost`."""
    tool_calls: set[str] = field(default_factory=set)
    """Ids of the tool calls in the answer."""
    latest: Attempt | None = None

    def attempt(self) -> Attempt:
        made = Attempt(self.raw, self.name, self.canary, self.key, self.said_role, self.agent)
        made.earlier, self.latest = self.latest, made
        return made

    def start(self, status: int, kind: bytes, length: int | None) -> dict[str, Any]:
        headers = [
            (b"content-type", kind),
            (b"x-request-id", self.request_id.encode()),
            (ADAPTER_HEADER, self.name.encode()),
        ]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        return {"type": "http.response.start", "status": status, "headers": headers}

    def shown(self, answer: dict[str, Any], part: str) -> dict[str, Any]:
        """Return the answer, or a chunk of it, as the proxy would have got it from the engine.

        What was asked for the record is null there, as it is where nobody asked.
        """
        shown = {**answer, "model": self.slot} if "model" in answer else dict(answer)
        hidden = {_ANSWERED_BY[field] for field in self.extras}
        if "token_ids" in hidden and "prompt_token_ids" in shown:
            shown["prompt_token_ids"] = None
        choices = shown.get("choices")
        if isinstance(choices, list):
            shown["choices"] = [self._shown_choice(choice, part, hidden) for choice in choices]
        return shown

    def _shown_choice(self, choice: Any, part: str, hidden: set[str]) -> Any:
        if not isinstance(choice, dict):
            return choice
        said = choice.get(part)
        calls = said.get("tool_calls") if isinstance(said, dict) else None
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict) and call.get("id"):
                self.tool_calls.add(str(call["id"]))
        return {k: None if k in hidden else v for k, v in choice.items()}


async def _send_events(send: Send, chunks: Iterable[dict[str, Any]]) -> None:
    body = b"".join(b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks)
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})


def _fallback_key(raw: dict[str, Any]) -> str:
    """Return what stays the same in a conversation without a key: its user, or how it began.

    `traces.arms` finds the same in the record: its user draws as in a turn of our own, and what is
    recorded as the same messages is one beginning.
    """
    user = raw.get("user")
    if isinstance(user, str) and user:
        return user
    began: list[Any] = []
    messages = raw.get("messages")
    for message in messages if isinstance(messages, list) else ():
        began.append(message)
        if isinstance(message, dict) and message.get("role") == "user":
            break
    return blake2b(_as_recorded(began).encode(errors="replace"), digest_size=16).hexdigest()


def _as_recorded(messages: list[Any]) -> str:
    try:
        return canonical_json([Message.from_openai(m).model_dump(mode="json") for m in messages])
    except (ValueError, LookupError, TypeError, AttributeError):
        return repr(messages)  # no chat: the engine refuses it
