"""Records that every stage shares: messages, hops, turns, feedback, adapter versions.

They are frozen pydantic models because their bytes cross process boundaries
(spool, lake, manifests). A record's id is the SHA-256 of its canonical JSON, so
the same bytes give the same id wherever they are read.
"""

import hashlib
import json
import re
from datetime import UTC, datetime
from typing import Any, Literal, Self

import orjson
from pydantic import AwareDatetime, BaseModel, ConfigDict

from serving.errors import InvalidAdapterName

SCHEMA_VERSION = 1
UNDATED = datetime(1970, 1, 1, tzinfo=UTC)
"""Where records of a source without times begin; their order is kept in microseconds."""
BASE_SLOT = "base"
"""What a turn's `slot` says where the bare base model answered."""
NO_KEY = "no-routing-key"
"""`conversation_id` of a hop whose caller named none."""

Role = Literal["system", "user", "assistant", "tool"]
HopRole = Literal["route", "answer", "summary"]
HopStatus = Literal["ok", "engine_error", "broken_stream", "abandoned"]
Decision = Literal["routed", "sticky", "fallback", "direct", "rule", "unsure", "explored"]
"""How a turn got its slot: by a route hop, by a pending tool call, by an engine
fallback, named by the client, by a rule that overrides the router, given to the base
model because the router was not sure enough, or drawn by logged exploration."""
FeedbackKind = Literal[
    "verifier", "thumb", "edit", "retry", "comment",
    "rephrase", "correction", "abandonment", "thanks",
]  # fmt: skip
"""The last four, and most retries, are derived from the conversation itself."""
TargetKind = Literal["turn", "response", "conversation"]
Annotator = Literal["human", "model", "code"]


def canonical_json(value: Any) -> str:
    """Render a JSON value with sorted keys and no spaces, so that equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def content_id(value: Any) -> str:
    """Return `sha256:<64 hex>` over the canonical JSON of a JSON value."""
    return "sha256:" + hashlib.sha256(canonical_json(value).encode()).hexdigest()


class Record(BaseModel):
    """Base of all records: immutable, unknown keys rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolCall(Record):
    """One function call inside an assistant message."""

    id: str
    name: str
    arguments: str
    """JSON text, as the OpenAI protocol carries it; may be invalid JSON if the model wrote so."""


class Message(Record):
    """One chat message in OpenAI terms."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    @classmethod
    def from_openai(cls, raw: dict[str, Any]) -> Self:
        """Build a message from an OpenAI-protocol dict; content parts are joined to text."""
        content = raw.get("content") or ""
        if isinstance(content, list):
            content = "".join(p.get("text") or "" for p in content if isinstance(p, dict))
        calls = tuple(
            ToolCall(
                id=str(c.get("id") or ""),
                name=str(c["function"].get("name") or ""),
                arguments=_arguments_text(c["function"].get("arguments")),
            )
            for c in raw.get("tool_calls") or ()
        )
        role = raw.get("role") or "assistant"
        return cls(
            role="system" if role == "developer" else role,
            content=str(content),
            tool_calls=calls,
            tool_call_id=raw.get("tool_call_id"),
        )

    def to_openai(self) -> dict[str, Any]:
        """Return the OpenAI-protocol dict of this message."""
        raw: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            raw["tool_calls"] = [
                {
                    "id": c.id,
                    "type": "function",
                    "function": {"name": c.name, "arguments": c.arguments},
                }
                for c in self.tool_calls
            ]
        if self.tool_call_id is not None:
            raw["tool_call_id"] = self.tool_call_id
        return raw


def _arguments_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value or {}, ensure_ascii=False)


_NAME = re.compile(r"^(?P<slot>[A-Za-z][A-Za-z0-9_-]{0,31})@(?P<digest>[0-9a-f]{12})$")
SLOT_PATTERN = r"^[A-Za-z][A-Za-z0-9_-]{0,31}$"


class AdapterVersion(Record):
    """An immutable LoRA artifact of one slot, served under a digest-bearing name."""

    slot: str
    digest: str
    """`sha256:<64 hex>` over the artifact's canonical content."""

    @property
    def name(self) -> str:
        """The name it is served under, `L2@3fa9c1d2e4b5`: slot and the first 12 hex digits."""
        return f"{self.slot}@{short_digest(self.digest)}"


def short_digest(digest: str) -> str:
    """Return the first 12 hex digits of a `sha256:<hex>` digest."""
    return digest.removeprefix("sha256:")[:12]


def parse_adapter_name(name: str) -> tuple[str, str]:
    """Split a served name into slot and 12-digit digest.

    Raises:
        InvalidAdapterName: if `name` is not `<slot>@<12 hex>`.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise InvalidAdapterName(
            f"Adapter name {name!r} is not '<slot>@<12 hex digits>', such as 'L2@3fa9c1d2e4b5'. "
            "Run 'flows adapters list' for the names in use."
        )
    return match["slot"], match["digest"]


class Hop(Record):
    """One engine call: what an adapter saw and what it answered."""

    schema_version: int = SCHEMA_VERSION
    source: str
    """Who recorded it: `mol` for this project's recorder, `mindlab-harness` for its capture."""
    conversation_id: str
    turn_id: str | None = None
    """Known where the recorder knows it; otherwise found by the join."""
    user: str | None = None
    seq: int
    """Order within the source."""
    role: HopRole
    model: str
    """Name asked of the engine."""
    served_name: str | None = None
    """Name the engine says answered (`L2@3fa9c1d2e4b5`, or `L2` below a proxy)."""
    messages: tuple[Message, ...]
    """Exactly what the adapter saw: its own view."""
    tools: str = "[]"
    """JSON text of the tools offered, OpenAI form."""
    params: str = "{}"
    """JSON text of the sampling parameters."""
    completion: Message | None = None
    response_id: str | None = None
    finish_reason: str | None = None
    status: HopStatus
    error: str | None = None
    confidence: float | None = None
    """Route hops: probability the model gave the chosen label, where the engine tells."""
    propensity: float | None = None
    """Route hops: probability with which the router's policy takes this route (1.0 when greedy)."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    completion_token_ids: tuple[int, ...] | None = None
    started_at: AwareDatetime
    duration_s: float
    ttft_s: float | None = None
    harness_digest: str | None = None
    """Digest of prompts, tools and router settings in force."""
    canary: bool = False
    reasoning: str | None = None
    """What the model thought aloud before the completion, where the engine tells it apart."""
    supersedes: str | None = None
    """`hop_id` of the earlier attempt at the same call that this one replaces."""
    harness_version: str | None = None
    """Program and version that made the prompts, such as `mol-loop/0.1.0`."""
    span_id: str | None = None
    """Id of the span or observation that recorded the call; feedback may name it."""
    workload: str | None = None
    """What kind of work the caller said it was for, such as `agent.chat`."""
    task: str | None = None
    """Id of the task it belongs to; several conversations may try the same task."""

    @property
    def hop_id(self) -> str:
        """Content hash of the whole record."""
        raw = self.model_dump(mode="json")
        return hop_id_fast(raw) or hop_id_of(raw)

    @property
    def slot(self) -> str:
        """The slot part of the name that answered."""
        return (self.served_name or self.model).split("@", 1)[0]

    @property
    def digest(self) -> str | None:
        """The 12 hex digits of the version that answered, None where the name bears none."""
        name = self.served_name or self.model
        return name.split("@", 1)[1] if "@" in name else None


class Turn(Record):
    """One user request with all its hops, including those that follow tool results."""

    schema_version: int = SCHEMA_VERSION
    turn_id: str
    source: str
    conversation_id: str
    user: str | None = None
    position: int
    """Order of the turn in its conversation, from 0."""
    request: str
    """The user's text."""
    answer: Message | None = None
    """What the client finally got."""
    slot: str | None = None
    """Slot that answered; None if none did."""
    digest: str | None = None
    """12 hex digits of the version that answered."""
    decision: Decision
    status: Literal["ok", "failed", "abandoned"]
    error: str | None = None
    hop_ids: tuple[str, ...]
    response_ids: tuple[str, ...] = ()
    """Ids under which clients may send feedback."""
    started_at: AwareDatetime
    duration_s: float
    canary: bool = False
    supersedes: str | None = None
    """`turn_id` of the earlier turn that the client asked again."""
    workload: str | None = None
    """As in `Hop`."""
    task: str | None = None
    """As in `Hop`."""
    tail: tuple[Message, ...] = ()
    """Messages after the last engine call, such as tool results that no call saw."""


class Feedback(Record):
    """One signal about a turn; may arrive days later and name a turn not yet seen."""

    schema_version: int = SCHEMA_VERSION
    source: str
    target_kind: TargetKind
    target_id: str
    kind: FeedbackKind
    name: str
    """What produced it: a verifier's name (`tool_call`), `thumb`, `edit`, `retry`."""
    value: float | None = None
    """Score in [0, 1] for a verifier, +1 or -1 for a thumb, None where there is none."""
    correction: Message | None = None
    """For an edit: the answer the user wanted."""
    detail: str | None = None
    user: str | None = None
    created_at: AwareDatetime
    annotator: Annotator | None = None
    """What judged, where the source tells; a model's verdict is an implicit signal."""
    reference: str | None = None
    """JSON text of what a verifier checked against, so that the check can be repeated:
    `{"verifier": "exact", "accepted": [...]}` and the like, see `traces.verifiers.registry`."""

    @property
    def feedback_id(self) -> str:
        """Content hash of the whole record."""
        return content_id(_identifying(self.model_dump(mode="json")))


def hop_id_of(raw: dict[str, Any]) -> str:
    """Return the id of a hop or feedback from its `model_dump(mode="json")`.

    Fields that came later count only where set, so that ids stay as they were.
    """
    return content_id(_identifying(raw))


def _identifying(raw: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in raw.items() if k not in LATER_FIELDS or v is not None}


def hop_id_fast(raw: dict[str, Any]) -> str | None:
    """Return `hop_id_of` ten times as fast; None where it might differ.

    orjson writes what `canonical_json` does but for numbers with an exponent, which in a hop
    stand at the top if anywhere, and refuses what it cannot write. A part may be an
    `orjson.Fragment` of canonical JSON.
    """
    for value in raw.values():
        if type(value) is float and value != 0 and not 1e-4 <= abs(value) < 1e16:
            return None
    try:
        data = orjson.dumps(_identifying(raw), option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return None
    return "sha256:" + hashlib.sha256(data).hexdigest()


LATER_FIELDS = frozenset(
    (
        *("reasoning", "supersedes", "harness_version", "span_id", "workload", "task"),
        *("annotator", "reference"),
    )
)
"""Fields that the first recorders did not write; they count in an id only where set."""


def utc_from_timestamp(seconds: float) -> datetime:
    """Return a timezone-aware UTC datetime of a Unix time in seconds."""
    return datetime.fromtimestamp(seconds, UTC)
