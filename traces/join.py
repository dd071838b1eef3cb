"""The hop join: engine calls, and client requests where captured, become turns.

Pure. Hops that know their turn keep it. The others are grouped by routing key
and cut at route hops; a client request is matched to a group by time and text; a
call that carries tool results belongs to the turn that made the tool call; and
turns whose history extends another's form one conversation. Every hop and every
request ends in exactly one turn, whatever is missing.
"""

import hashlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from serving.records import NO_KEY, Message, canonical_json

_SLACK = timedelta(milliseconds=50)
_CLOSED_WITHIN = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class HopFacts:
    """What the join needs of a hop."""

    hop_id: str
    source: str
    key: str
    """The hop's `conversation_id`: in a harness capture, its routing key."""
    turn_id: str | None
    user: str | None
    seq: int
    role: str
    slot: str
    digest: str | None
    status: str
    error: str | None
    started_at: datetime
    ended_at: datetime
    text: str
    """Content of the last user message."""
    completion: Message | None
    response_id: str | None
    answers_calls: frozenset[str]
    """Ids of tool calls whose results end the messages."""
    keys: tuple[str, ...]
    """History keys of the messages, then of the messages with the completion."""
    canary: bool


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What the join needs of a client request."""

    request_id: str
    source: str
    started_at: datetime
    ended_at: datetime
    user: str | None
    text: str
    answers_calls: frozenset[str]
    keys: tuple[str, ...]
    """As in `HopFacts`, of what the client sent and got."""
    links: tuple[str, ...]
    """Ids that this request shares with others of its conversation."""
    conversation: str | None
    response_id: str | None
    answer: Message | None
    route: str | None
    decision: str | None
    error: str | None
    abandoned: bool
    bare: bool = False
    """Only a note that a client left; its time is that of leaving."""


@dataclass(slots=True)
class Group:
    """Hops of one client request, in order."""

    hops: list[HopFacts]
    routed_text: str = ""
    """The route hop's text without the prompt around it, as far as known."""

    @property
    def started_at(self) -> datetime:
        """When the first hop began."""
        return self.hops[0].started_at

    @property
    def answers(self) -> list[HopFacts]:
        """The answer hops."""
        return [h for h in self.hops if h.role == "answer"]

    def asks(self, text: str) -> bool:
        """Whether these hops are about this user text."""
        return any(
            h.text == text or (h.role == "route" and h.text.startswith(text)) for h in self.hops
        )


@dataclass(slots=True)
class Unit:
    """A turn in the making."""

    groups: list[Group] = field(default_factory=list)
    requests: list[RequestFacts] = field(default_factory=list)

    @property
    def hops(self) -> list[HopFacts]:
        """All hops, in order."""
        return [h for group in self.groups for h in group.hops]

    @property
    def started_at(self) -> datetime:
        """When the client asked, or the first hop began."""
        times = [r.started_at for r in self.requests if not r.bare]
        return min(times + [g.started_at for g in self.groups])

    @property
    def user(self) -> str | None:
        """Who asked, where known."""
        users = [r.user for r in self.requests] + [h.user for h in self.hops]
        return next((user for user in users if user), None)

    @property
    def text(self) -> str:
        """What was asked."""
        if self.requests and not self.requests[0].bare:
            return self.requests[0].text
        answers = [h.text for h in self.hops if h.role == "answer"]
        return (answers or [g.routed_text for g in self.groups] or [""])[0]


def history_keys(messages: Iterable[Message]) -> list[str]:
    """Return a hash of each prefix of a history that ends in an assistant's or a whole one.

    System messages do not count: harnesses add and change them.
    """
    running = hashlib.sha256()
    keys: list[str] = []
    role = ""
    for message in messages:
        if message.role == "system":
            continue
        calls = [[c.name, c.arguments] for c in message.tool_calls]
        role = message.role
        running.update(canonical_json([role, message.content.strip(), calls]).encode())
        if role == "assistant":
            keys.append(running.hexdigest())
    if role and role != "assistant":
        keys.append(running.hexdigest())
    return keys


def join(hops: Sequence[HopFacts], requests: Sequence[RequestFacts]) -> list[list[Unit]]:
    """Return turns by conversation, each in order; the conversations by their first turn."""
    groups = _group(hops)
    _strip_route_prompts(groups)
    units = _merge(_assign(groups, requests))
    return _converse(units)


def _group(hops: Sequence[HopFacts]) -> list[Group]:
    """Group hops by their turn, or by routing key, cut where a new request begins."""
    known: dict[tuple[str, str, str | None], list[HopFacts]] = defaultdict(list)
    for hop in hops:
        known[(hop.source, hop.key if hop.turn_id is None else "", hop.turn_id)].append(hop)
    groups: list[Group] = []
    for (_, _, turn_id), members in known.items():
        if turn_id is not None:
            groups.append(Group(sorted(members, key=lambda h: (h.seq, h.started_at, h.hop_id))))
            continue
        members.sort(key=lambda h: (h.started_at, h.seq, h.hop_id))
        current = Group([members[0]])
        for hop in members[1:]:
            if _begins(current, hop):
                groups.append(current)
                current = Group([hop])
            else:
                current.hops.append(hop)
        groups.append(current)
    return sorted(groups, key=lambda g: (g.started_at, g.hops[0].seq, g.hops[0].hop_id))


def _strip_route_prompts(groups: list[Group]) -> None:
    """Take the route prompt off route texts; turns with an answer hop show what it is."""
    prompts: set[str] = set()
    for group in groups:
        asked = next((h.text for h in group.answers), None)
        first = group.hops[0]
        if asked and first.role == "route" and first.text.startswith(asked):
            prompts.add(first.text.removeprefix(asked))
    for group in groups:
        text = group.hops[0].text
        endings = [p for p in prompts if p and text.endswith(p)]
        group.routed_text = text.removesuffix(max(endings, key=len)) if endings else text


def _begins(group: Group, hop: HopFacts) -> bool:
    """Whether `hop` opens the next request of the same routing key."""
    if hop.role == "route":
        return bool(group.answers) or group.hops[-1].text != hop.text
    return hop.role == "answer" and not hop.answers_calls and group.hops[-1].role == "summary"


def _assign(groups: list[Group], requests: Sequence[RequestFacts]) -> list[Unit]:
    """Give each client request its hops: those that began while it ran and share its text."""
    units = [Unit([group]) for group in groups]
    starts = [group.started_at for group in groups]
    alone: list[Unit] = []
    for request in sorted(requests, key=lambda r: (r.bare, r.started_at, r.request_id)):
        slack = _CLOSED_WITHIN if request.abandoned else _SLACK
        low = bisect_left(starts, request.started_at - slack)
        high = bisect_left(starts, request.ended_at + _SLACK)
        near = [u for u in units[low:high] if _fits(u, request)]
        if near:
            best = min(near, key=lambda u: abs(u.groups[0].started_at - request.started_at))
            best.requests.append(request)
        else:
            alone.append(Unit([], [request]))
    return units + alone


def _fits(unit: Unit, request: RequestFacts) -> bool:
    group = unit.groups[0]
    if group.hops[0].source != request.source:
        return False
    if request.bare:
        # The harness asks for a summary only when the answer reached the client.
        return not unit.requests and all(h.role != "summary" for h in group.hops)
    if request.answers_calls:
        return any(request.answers_calls & hop.answers_calls for hop in group.answers)
    return not unit.requests and bool(request.text) and group.asks(request.text)


def _merge(units: list[Unit]) -> list[Unit]:
    """Join what follows a tool result to the turn that made the call."""
    makers: dict[tuple[str, str], Unit] = {}
    merged: list[Unit] = []
    for unit in sorted(units, key=lambda u: u.started_at):
        continued = _continued_calls(unit)
        maker = next((makers[k] for k in continued if k in makers), None)
        if maker is not None:
            maker.groups += unit.groups
            maker.requests += unit.requests
        else:
            merged.append(unit)
        for hop in unit.hops:
            for call in hop.completion.tool_calls if hop.completion else ():
                if call.id:
                    makers[(hop.source, call.id)] = maker or unit
    return merged


def _continued_calls(unit: Unit) -> list[tuple[str, str]]:
    calls: list[tuple[str, str]] = []
    if unit.groups and unit.groups[0].hops[0].turn_id is None:
        first = unit.groups[0].hops[0]
        if first.role == "answer":
            calls = [(first.source, call) for call in sorted(first.answers_calls)]
    elif unit.requests:
        first_request = unit.requests[0]
        calls = [(first_request.source, call) for call in sorted(first_request.answers_calls)]
    return calls


def _converse(units: list[Unit]) -> list[list[Unit]]:
    """Link turns that share an id or whose history extends an earlier turn's."""
    parent = list(range(len(units)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    units = sorted(units, key=lambda u: (u.started_at, [h.hop_id for h in u.hops]))
    linked: dict[str, int] = {}
    finished: dict[tuple[str | None, str], int] = {}
    for index, unit in enumerate(units):
        for link in _links(unit):
            parent[root(index)] = root(linked.setdefault(link, index))
        earlier = _extended(unit, finished)
        if earlier is not None:
            parent[root(index)] = root(earlier)
        for whole in _whole_keys(unit):
            finished[(unit.user, whole)] = index
    conversations: dict[int, list[Unit]] = {}
    for index, unit in enumerate(units):
        conversations.setdefault(root(index), []).append(unit)
    return sorted(conversations.values(), key=lambda c: c[0].started_at)


def _links(unit: Unit) -> list[str]:
    keys = [f"{h.source} {h.key}" for h in unit.hops if h.key != NO_KEY]
    return [*dict.fromkeys(keys), *(link for r in unit.requests for link in r.links)]


def _extended(unit: Unit, finished: dict[tuple[str | None, str], int]) -> int | None:
    """Return the turn whose whole history is the longest prefix of this one's.

    The whole of this one's own is none: the same question with the same answer is asked in
    many conversations.
    """
    histories = [r.keys for r in unit.requests[:1]]
    histories += [h.keys for h in unit.hops if h.role == "answer"][:1]
    for keys in histories:
        for key in reversed(keys[:-1]):
            if (unit.user, key) in finished:
                return finished[(unit.user, key)]
    return None


def _whole_keys(unit: Unit) -> list[str]:
    """Return the keys of the finished histories: what a following request begins with."""
    whole = [r.keys[-1] for r in unit.requests if r.keys and r.answer]
    return whole + [h.keys[-1] for h in unit.hops if h.role == "answer" and h.keys and h.completion]
