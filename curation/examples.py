"""The training row and its identity.

An `Example` is what an adapter saw and what it should have said. It is named by its
content; `seen_key` and `prompt_id` say when two rows ask the same thing, to a model or to a
reader.
"""

import hashlib
import unicodedata
from collections.abc import Sequence
from typing import Any, Literal, Self

from serving.records import Message, Record, canonical_json, content_id

SCHEMA_VERSION = 1

Duty = Literal["answer", "route", "summary"]
Source = Literal["edit", "verified", "thumb", "route", "replay"]
Split = Literal["train", "holdout"]

VIEW_ENDS = ("user", "tool", "prefill")
"""What a view may end with; see `view_end`."""


class Example(Record):
    """One training row: what the adapter saw and what it should have said."""

    schema_version: int = SCHEMA_VERSION
    example_id: str
    """Content hash of the row without its split, so that a row keeps its name."""
    slot: str
    duty: Duty
    messages: tuple[Message, ...]
    """The adapter's own view, exactly; a last assistant message is a prefill to continue."""
    tools: str
    """JSON text of the tools offered."""
    completion: Message
    source: Source
    weight: float
    user: str | None
    conversation_id: str
    turn_id: str
    hop_id: str
    split: Split

    @classmethod
    def make(cls, split: Split, **fields: Any) -> Self:
        """Build an example with the id of its content."""
        draft = cls(example_id="", split=split, **fields)
        return draft.model_copy(update={"example_id": draft.computed_id})

    @property
    def computed_id(self) -> str:
        """The id this content should have."""
        return content_id(self.model_dump(mode="json", exclude={"example_id", "split"}))


def normalise(text: str) -> str:
    """Return text without case, punctuation and extra space, to compare requests by."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    kept = "".join(" " if unicodedata.category(c).startswith("P") else c for c in folded)
    return " ".join(kept.split())


def prompt_id(text: str) -> str:
    """Return the content id of a request's normalised text; how gate suites seal requests."""
    return content_id(normalise(text))


def seen_key(messages: Sequence[Message], tools: str) -> str:
    """Hash what a model sees; call ids are random per request and no template shows them."""
    seen = [[m.role, m.content, [[c.name, c.arguments] for c in m.tool_calls]] for m in messages]
    return hashlib.sha256(canonical_json([seen, tools]).encode()).hexdigest()


def view_end(messages: tuple[Message, ...]) -> str:
    """Name what a view ends with: the last role, or `prefill` for assistant text to continue."""
    if not messages:
        return "nothing"
    last = messages[-1]
    if last.role == "assistant" and last.content and not last.tool_calls:
        return "prefill"
    return last.role


def text_chars(message: Message) -> int:
    """Count the characters of a message's text and calls."""
    return len(message.content) + sum(len(c.name) + len(c.arguments) for c in message.tool_calls)
