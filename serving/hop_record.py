"""The record of a hop that was passed through, built from the bytes that went by.

In: an `Attempt`, as the event loop leaves it. Out: a `Hop`. All of it runs in the
recorder's thread, so that nobody waits for it.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from cachetools import LRUCache

from serving.hop_role import role_of_hop
from serving.records import (
    NO_KEY,
    Hop,
    HopStatus,
    Message,
    canonical_json,
    content_id,
)
from serving.sse import Stream

SOURCE = "mol"
_CALLS_REMEMBERED = 10_000
_APART = frozenset({"model", "messages", "tools"})


@dataclass(slots=True)
class Attempt:
    """One try of a call: what was asked, and what came of it so far."""

    request: Mapping[str, Any]
    """The proxy's body, with the slot's name as `model`."""
    name: str
    """Served name that was asked of the engine."""
    canary: bool
    key: str | None
    """Conversation key of the proxy."""
    said_role: str | None
    agent: str | None
    """The proxy's `User-Agent`: its program and version."""
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    began: float = field(default_factory=time.monotonic)
    status: HopStatus = "abandoned"
    error: str | None = "the client left before the answer was whole"
    response: Mapping[str, Any] | None = None
    """The engine's answer, if it came in one piece."""
    pieces: list[bytes] = field(default_factory=list)
    """The engine's answer, if it was streamed."""
    ttft_s: float | None = None
    duration_s: float = 0.0
    earlier: "Attempt | None" = None
    """The try of the same call before this one."""
    hop_id: str | None = None
    """Of its record, once that is built."""

    def ended(self, status: HopStatus, error: str | None = None) -> None:
        """Note how it ended."""
        self.status, self.error = status, error

    def stop(self) -> None:
        """Note the time it took."""
        self.duration_s = time.monotonic() - self.began


class HopBuilder:
    """Builds hops and knows which of them ask the same again; used by one thread."""

    def __init__(self) -> None:
        self._calls: LRUCache[bytes, str] = LRUCache(_CALLS_REMEMBERED)

    def hop(self, attempt: Attempt) -> Hop:
        """Return the record of an attempt; what was no chat has no messages."""
        request = attempt.request
        messages = _messages(request.get("messages"))
        role = role_of_hop(attempt.said_role, request, messages)
        params = {k: v for k, v in request.items() if k not in _APART}
        greedy = role == "route" and params.get("temperature") == 0
        call = self._call(attempt, request)
        hop = Hop(
            source=SOURCE,
            conversation_id=attempt.key or NO_KEY,
            user=_text(request.get("user")),
            seq=int(attempt.started_at.timestamp() * 1_000_000),
            role=role,
            model=attempt.name,
            messages=messages,
            tools=canonical_json(request.get("tools") or []),
            params=canonical_json(params),
            started_at=attempt.started_at,
            duration_s=round(attempt.duration_s, 6),
            ttft_s=None if attempt.ttft_s is None else round(attempt.ttft_s, 6),
            canary=attempt.canary,
            harness_version=attempt.agent,
            harness_digest=_harness_digest(messages, request),
            supersedes=self._superseded(attempt, call),
            propensity=1.0 if greedy and attempt.status == "ok" else None,
            **_answer(attempt),
        )
        attempt.hop_id = hop.hop_id
        if call:
            self._calls[call] = hop.hop_id
        return hop

    def _superseded(self, attempt: Attempt, call: bytes | None) -> str | None:
        if attempt.earlier is not None and attempt.earlier.hop_id is not None:
            return attempt.earlier.hop_id
        return self._calls.get(call) if call else None

    def _call(self, attempt: Attempt, request: Mapping[str, Any]) -> bytes | None:
        """Return what makes two calls the same: key and body; without a key none are."""
        if attempt.key is None:
            return None
        return blake2b(f"{attempt.key} {canonical_json(request)}".encode(), digest_size=16).digest()


def _messages(raw: Any) -> tuple[Message, ...]:
    try:
        return tuple(Message.from_openai(message) for message in raw)
    except (ValueError, LookupError, TypeError, AttributeError):
        return ()


def _harness_digest(messages: Sequence[Message], request: Mapping[str, Any]) -> str:
    """Return the digest of what the proxy's harness gave: its system prompts and the tools."""
    prompts = [message.content for message in messages if message.role == "system"]
    return content_id([prompts, request.get("tools") or []])


def _answer(attempt: Attempt) -> dict[str, Any]:
    fields: dict[str, Any] = {"status": attempt.status, "error": attempt.error}
    if attempt.pieces:
        return fields | _streamed(attempt)
    if attempt.response is None or not attempt.response.get("choices"):
        return fields
    response, choice = attempt.response, attempt.response["choices"][0]
    raw = choice.get("message") or {}
    return fields | {
        "served_name": response.get("model"),
        "response_id": response.get("id"),
        "completion": Message.from_openai(raw),
        "reasoning": raw.get("reasoning") or raw.get("reasoning_content") or None,
        "finish_reason": choice.get("finish_reason"),
        "prompt_token_ids": response.get("prompt_token_ids") or None,
        "completion_token_ids": choice.get("token_ids") or None,
        "confidence": _confidence((choice.get("logprobs") or {}).get("content"), attempt),
        **_usage(response.get("usage") or {}),
    }


def _streamed(attempt: Attempt) -> dict[str, Any]:
    stream = Stream()
    for piece in attempt.pieces:
        stream.feed(piece)
    stream.end()
    said = stream.message()
    fields: dict[str, Any] = {
        "served_name": stream.model,
        "response_id": stream.response_id,
        "completion": Message.from_openai(said) if said else None,
        "reasoning": stream.reasoning or None,
        "finish_reason": stream.finish_reason,
        "prompt_token_ids": stream.prompt_token_ids,
        "completion_token_ids": stream.token_ids or None,
        **_usage(stream.usage),
    }
    if attempt.status == "ok" and stream.broken:
        fields |= {"status": "broken_stream", "error": stream.broken}
    return fields


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    details = usage.get("prompt_tokens_details") or {}
    return {
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "cached_tokens": details.get("cached_tokens"),
    }


def _confidence(logprobs: list[dict[str, Any]] | None, attempt: Attempt) -> float | None:
    """Return the probability of the whole route; other hops' tokens say nothing of interest."""
    if not logprobs or attempt.said_role != "route":
        return None
    return math.exp(sum(token["logprob"] for token in logprobs))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
