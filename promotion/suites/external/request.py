"""How an outside item is asked: as a deployed slot would see it."""

from collections.abc import Callable, Sequence
from typing import Any

from promotion.suites.suite import Item
from serving.own_view import Conversation, own_view
from serving.records import Message, content_id
from serving.slots import Profile
from traces.verifiers.check import Check


def asked(profile: Profile, slot: str, messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages after the slot's own system prompt; theirs stands behind it."""
    theirs = "\n\n".join(m.content.strip() for m in messages if m.role == "system")
    *system, _ = own_view(profile, Conversation("suite", instructions=theirs), slot, "")
    return (*system, *(m for m in messages if m.role != "system"))


def outside_item(
    *,
    cluster: str,
    messages: tuple[Message, ...],
    reference: Any,
    max_tokens: int,
    check: Callable[[Message], Check],
    tools: tuple[dict[str, Any], ...] = (),
    bare: str | None = None,
) -> Item:
    """Build an item; `reference` is all that decides about an answer, and is part of its id.

    `bare` is the request as its authors published it, where words stand around it here.
    """
    users = [m.content for m in messages if m.role == "user"]
    prompt = [[m.to_openai() for m in messages], list(tools), max_tokens]
    return Item(
        item_id=content_id([prompt, reference]),
        cluster=cluster,
        text=users[-1],
        messages=messages,
        tools=tools,
        choices=(),
        max_tokens=max_tokens,
        check=check,
        further_texts=(*users[:-1], *([] if bare is None else [bare])),
    )
