"""What each slot would have seen of a turn: the arms of a counterfactual replay.

In: a turn with its calls and the conversation before it, the profile. Out: per slot the messages
and the tools. The slot that answered sees exactly what it saw. For another slot the conversation
is rebuilt from the records and shown by the rules of `serving.own_view`: its own past verbatim,
the others' turns as summaries. Whether the records suffice is checked on the slot that answered:
its rebuilt view must be the recorded one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from serving.own_view import Conversation, Entry, clipped_summary, own_view
from serving.records import BASE_SLOT, Hop, Message
from serving.routing import CHANGE_MODEL
from serving.slots import Profile
from traces.attribution.form_checks import tools_in
from traces.bundles import TurnBundle
from traces.joins.standing import standing

Tools = tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class ArmView:
    """What one slot is shown."""

    messages: tuple[Message, ...]
    tools: Tools
    view: Literal["recorded", "rebuilt", "borrowed"]
    offered: Literal["recorded", "slot", "none"]
    """Whence the tools are; see `traces.attribution.replayed.ArmConfig`."""


def arm_views(
    profile: Profile,
    bundle: TurnBundle,
    earlier: Sequence[TurnBundle],
    offered: Mapping[str, Tools],
) -> dict[str, ArmView]:
    """Return what each slot of the profile, and the one that answered, would have seen.

    `earlier` are the conversation's turns before this one, in order; `offered` the tools that
    slots were offered elsewhere, for turns whose own record does not tell.
    """
    first = answer_hops(bundle)[0]
    answered = str(bundle.turn.slot)
    rebuilt = _conversation(profile, first, earlier, answered)
    fits = own_view(profile, rebuilt, answered, bundle.turn.request) == first.messages
    tools = tools_of(first) or _tools_before(earlier)
    views = {}
    for slot in dict.fromkeys([*profile.labels, answered]):
        if slot == answered:
            own = _offered(first)
            views[slot] = ArmView(first.messages, own, "recorded", "recorded" if own else "none")
            continue
        shown, whence = _tools_for(profile, slot, tools, offered)
        if fits:
            messages = own_view(profile, rebuilt, slot, bundle.turn.request)
            views[slot] = ArmView(messages, shown, "rebuilt", whence)
        else:
            messages = _borrowed(profile, first.messages, answered, slot)
            views[slot] = ArmView(messages, shown, "borrowed", whence)
    return views


def answer_hops(bundle: TurnBundle) -> list[Hop]:
    """Return the calls that answered, without attempts that a later one replaces."""
    return [h for h in standing(bundle.hops) if h.role == "answer" and h.status == "ok"]


def exchanged_in(bundle: TurnBundle) -> tuple[Message, ...]:
    """Return what a turn made after the user's text: answers and tool results."""
    hops = answer_hops(bundle)
    if not hops:
        return ()
    last = hops[-1]
    said = () if last.completion is None else (last.completion,)
    return (*last.messages[len(hops[0].messages) :], *said, *bundle.turn.tail)


def tools_of(hop: Hop) -> Tools:
    """Return the tools that a call offered, without the one that chooses a slot."""
    return tuple(tool for tool in _offered(hop) if _name(tool) != CHANGE_MODEL)


def _offered(hop: Hop) -> Tools:
    return tuple(dict(tool) for tool in tools_in(hop.tools))


def _name(tool: Mapping[str, Any]) -> Any:
    function = tool.get("function", tool)
    return function.get("name") if isinstance(function, Mapping) else None


def _conversation(
    profile: Profile, first: Hop, earlier: Sequence[TurnBundle], answered: str
) -> Conversation:
    timeline = []
    for bundle in earlier:
        exchanged = exchanged_in(bundle)
        if bundle.turn.status != "ok" or not exchanged:
            continue
        user = Message(role="user", content=bundle.turn.request)
        entry = Entry(str(bundle.turn.slot), (user, *exchanged), _summary(profile, bundle))
        timeline.append(entry)
    said = _instructions(profile, first, answered)
    return Conversation(first.conversation_id, timeline=timeline, instructions=said)


def _summary(profile: Profile, bundle: TurnBundle) -> str:
    """Return the summary as the timeline has it; an answer's first words where none was had."""
    for hop in standing(bundle.hops):
        if hop.role == "summary" and hop.status == "ok" and hop.completion is not None:
            said = " ".join(hop.completion.content.split())
            if said:
                return said
    return clipped_summary(profile, exchanged_in(bundle))


def _instructions(profile: Profile, first: Hop, answered: str) -> str:
    """Return the client's own system text, which follows the slot's."""
    opening = first.messages[0] if first.messages else None
    if opening is None or opening.role != "system":
        return ""
    system = _system(profile, answered)
    if not system:
        return opening.content
    return opening.content.removeprefix(system).removeprefix("\n\n")


def _system(profile: Profile, slot: str) -> str:
    return profile.slot(slot).system if slot in profile.labels else ""


def _borrowed(
    profile: Profile, messages: tuple[Message, ...], answered: str, slot: str
) -> tuple[Message, ...]:
    """Return what the slot that answered saw, under another slot's system prompt.

    A system prompt that is none of the profile's is the client's own, and all slots see it.
    """
    own, other = _system(profile, answered), _system(profile, slot)
    opening = messages[0] if messages else None
    if not own or opening is None or opening.role != "system":
        return messages
    if not opening.content.startswith(own):
        return messages
    rest = opening.content.removeprefix(own).removeprefix("\n\n")
    text = "\n\n".join(part for part in (other, rest) if part)
    system = (Message(role="system", content=text),) if text else ()
    return (*system, *messages[1:])


def _tools_before(earlier: Sequence[TurnBundle]) -> Tools:
    """Return the tools that the conversation's latest call was offered."""
    for bundle in reversed(earlier):
        for hop in reversed(answer_hops(bundle)):
            tools = tools_of(hop)
            if tools:
                return tools
    return ()


def _tools_for(
    profile: Profile, slot: str, tools: Tools, offered: Mapping[str, Tools]
) -> tuple[Tools, Literal["recorded", "slot", "none"]]:
    if slot == BASE_SLOT or not profile.slot(slot).offers_tools:
        return (), "none"
    if tools:
        return tools, "recorded"
    elsewhere = offered.get(slot, ())
    return elsewhere, "slot" if elsewhere else "none"
