"""What each hop of a turn sees: the slot's own past verbatim, the others' as summaries.

Views only grow: the view at a later turn starts with the same messages, so that an
engine's prefix cache holds from visit to visit.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from serving.records import BASE_SLOT, Message
from serving.slots import Profile

_PIECES = re.compile(r"[!-~]+|[^\x00- ]")
ANYONE = ""
"""Slot of turns made elsewhere: nobody's own past, so all see them verbatim."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished turn in a conversation's timeline."""

    slot: str
    """Who answered; `ANYONE` for a turn that the client brought along."""
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
    instructions: str = ""
    """The client's own system text; it follows each slot's."""


def own_view(
    profile: Profile, conversation: Conversation, slot: str, text: str
) -> tuple[Message, ...]:
    """Return what `slot` sees: its own past verbatim, the others' turns as summaries."""
    view = _system(profile, slot, conversation.instructions)
    others: list[str] = []
    for entry in conversation.timeline:
        if entry.slot not in (slot, ANYONE):
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


def clipped_summary(profile: Profile, exchanged: Sequence[Message]) -> str:
    """Return the first words of a turn's last answer, for when no adapter sums it up.

    A word counts as a token, a character of another script too, and three characters at least
    make one: on the short side for most texts.
    """
    last = next((m for m in reversed(exchanged) if m.role == "assistant"), None)
    if last is None:
        return ""
    said = last.content or " ".join(f"{call.name} {call.arguments}" for call in last.tool_calls)
    limit = profile.max_summary_tokens
    text = " ".join(said.split())
    ends = [piece.end() for piece in itertools.islice(_PIECES.finditer(text), limit)]
    return text[: ends[-1] if ends else 0][: 3 * limit]


def _system(profile: Profile, slot: str, instructions: str) -> list[Message]:
    own = "" if slot == BASE_SLOT else profile.slot(slot).system
    text = "\n\n".join(part for part in (own, instructions) if part)
    return [Message(role="system", content=text)] if text else []


def _with_handover(profile: Profile, summaries: Sequence[str], text: str) -> Message:
    before = profile.handover_template.format(summaries=" ".join(summaries)) if summaries else ""
    return Message(role="user", content=before + text)
