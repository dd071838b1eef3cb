"""The hop join: engine calls that name no turn, and client requests, become turns.

Pure, over all such calls of one source. Calls are grouped by routing key and cut where a new
request begins; a client request is matched to a group by time and text; a call that carries
tool results belongs to the turn that made the tool call; and turns whose history extends
another's form one conversation. Every call and every request ends in exactly one turn,
whatever is missing.

Texts and histories are numbers here (see `traces.joins.histories`): a million calls fit in memory.
In: `HopFacts` by key and time, `RequestFacts`. Out: `Unit`s, and which form a conversation.
"""

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from traces.joins.histories import NO_NODE, Histories, text_hash

_SLACK_US = 50_000
_CLOSED_WITHIN_US = 600_000_000

Calls = tuple[int, ...]
"""Hashes of the ids of tool calls."""


@dataclass(frozen=True, slots=True)
class HopFacts:
    """What the join needs of a hop."""

    key: int | None
    """Stands for the routing key; None if the caller named none."""
    user: str | None
    role: str
    ok: bool
    started_us: int
    text: int
    """Hash of the last user message."""
    answers: Calls
    """Tool calls whose results end the messages."""
    calls: Calls
    """Tool calls that the completion makes."""
    prior: int
    """Node of the history before this call, up to the last answer."""
    whole: int
    """Node of the history with this call's completion."""


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What the join needs of a client request."""

    number: int
    """Place among all requests by time."""
    started_us: int
    ended_us: int
    user: str | None
    text: int
    text_length: int
    answers: Calls
    prior: int
    whole: int
    """As in `HopFacts`, of what the client sent and got."""
    links: tuple[int, ...]
    """Hashes of the ids that this request shares with others of its conversation."""
    conversation: str | None
    answered: bool
    decision: str | None
    error: str | None
    abandoned: bool
    bare: bool = False
    """Only a note that a client left; its time is that of leaving."""


@dataclass(slots=True)
class Group:
    """Hops of one client request, in order, and what the join needs of all of them."""

    number: int
    """Counts the groups as they came: by key, then by time."""
    key: int | None
    started_us: int
    user: str | None
    routed: bool
    """Whether the first hop is a route."""
    follows: Calls = ()
    """Tool calls whose results the first hop carries, if it is an answer."""
    answers: Calls = ()
    """The same of all answer hops."""
    calls: Calls = ()
    answered: bool = False
    """Whether there is an answer hop."""
    summed_up: bool = False
    prior: int = NO_NODE
    """Of the first answer hop."""
    wholes: tuple[int, ...] = ()
    """Of all answer hops that were completed."""
    texts: tuple[int, ...] = ()
    """Hashes of what these hops may be about; only where there are client requests."""
    route_texts: tuple[str, ...] = ()
    """Texts of route hops within a prompt that is not known; likewise."""

    def asks(self, request: RequestFacts) -> bool:
        """Whether these hops are about what the client asked."""
        if not request.text_length:
            return False
        return request.text in self.texts or any(
            text_hash(text[: request.text_length]) == request.text for text in self.route_texts
        )


@dataclass(slots=True)
class Unit:
    """A turn in the making."""

    groups: list[Group]
    requests: tuple[RequestFacts, ...] = ()

    @property
    def started_us(self) -> int:
        """When the client asked, or the first hop began."""
        times = [r.started_us for r in self.requests if not r.bare]
        return min(times + [g.started_us for g in self.groups], default=0)

    @property
    def user(self) -> str | None:
        """Who asked, where known."""
        users = [*(r.user for r in self.requests), *(g.user for g in self.groups)]
        return next((user for user in users if user), None)


@dataclass(slots=True)
class Groups:
    """All groups of a source."""

    groups: list[Group]
    starts: "array[int]"
    """By group number: how many hops came before it."""


def group(hops: Iterable[HopFacts], *, texts: bool = True) -> Groups:
    """Group hops that come by key and time, cut where a new request begins.

    `texts` keeps what client requests are matched by.
    """
    found = Groups([], array("q"))
    current: Group | None = None
    last: HopFacts | None = None
    failed: HopFacts | None = None
    for place, hop in enumerate(hops):
        if current is None or last is None or _begins(current, last, failed, hop):
            current = Group(len(found.groups), hop.key, hop.started_us, None, hop.role == "route")
            current.follows = hop.answers if hop.role == "answer" else ()
            found.groups.append(current)
            found.starts.append(place)
            failed = None
        _include(current, hop)
        if texts and hop.text not in current.texts:
            current.texts += (hop.text,)
        last = hop
        if hop.role == "answer":
            failed = None if hop.ok else hop
    return found


def _include(current: Group, hop: HopFacts) -> None:
    current.user = current.user or hop.user
    current.calls += hop.calls
    current.summed_up = current.summed_up or hop.role == "summary"
    if hop.role == "answer":
        if not current.answered:
            current.answered, current.prior = True, hop.prior
        current.answers += hop.answers
        if hop.whole != NO_NODE:
            current.wholes += (hop.whole,)


def _begins(current: Group, last: HopFacts, failed: HopFacts | None, hop: HopFacts) -> bool:
    """Whether `hop` opens the next request; `failed` is the last answer hop if it failed."""
    if current.key != hop.key:
        return True
    if hop.role == "route":
        return current.answered or last.text != hop.text
    if hop.role != "answer":
        return False
    if hop.key is None:
        # Calls of many clients: what belongs together is told by histories and tool calls.
        return last.role != "route"
    if hop.answers:
        return False
    if last.role == "summary":
        return True
    if current.routed or not current.answered:
        return False
    # Without a router every answer is a request of its own, unless it repeats one that failed.
    return failed is None or (failed.text, failed.prior) != (hop.text, hop.prior)


def join(
    grouped: Groups, requests: Sequence[RequestFacts], histories: Histories
) -> tuple[list[Unit], "array[int]"]:
    """Return turns in order of time, and for each the index of its conversation's first one."""
    units = [Unit([one]) for one in sorted(grouped.groups, key=lambda g: g.started_us)]
    units = _merge(_assign(units, requests), histories)
    return units, _converse(units, histories)


def _assign(units: list[Unit], requests: Sequence[RequestFacts]) -> list[Unit]:
    """Give each client request its hops: those that began while it ran and share its text."""
    starts = array("q", (unit.groups[0].started_us for unit in units))
    alone: list[Unit] = []
    for request in sorted(requests, key=lambda r: (r.bare, r.number)):
        slack = _CLOSED_WITHIN_US if request.abandoned else _SLACK_US
        low = bisect_left(starts, request.started_us - slack)
        high = bisect_left(starts, request.ended_us + _SLACK_US)
        near = [u for u in units[low:high] if _fits(u, request)]
        if near:
            best = min(near, key=lambda u: abs(u.groups[0].started_us - request.started_us))
            best.requests += (request,)
        else:
            alone.append(Unit([], (request,)))
    return units + alone


def _fits(unit: Unit, request: RequestFacts) -> bool:
    first = unit.groups[0]
    if request.bare:
        # The harness asks for a summary only when the answer reached the client.
        return not unit.requests and not first.summed_up
    if request.answers:
        return not set(request.answers).isdisjoint(first.answers)
    return not unit.requests and first.asks(request)


def _merge(units: list[Unit], histories: Histories) -> list[Unit]:
    """Join what follows a tool result to the turn that made the call.

    Of two that made a call of the same id, the one whose history is this one's is meant.
    """
    makers: dict[int, Unit] = {}
    merged: list[Unit] = []
    for unit in sorted(units, key=lambda u: u.started_us):
        maker = _maker(unit, makers, histories)
        for made in [key for g in unit.groups for key in _made(g)]:
            makers[made] = maker or unit
        if maker is not None:
            maker.groups += unit.groups
            maker.requests += unit.requests
        else:
            merged.append(unit)
    return merged


def _made(group: Group) -> list[int]:
    """Return what a group's tool calls are found by: the call in its history, then the call."""
    return [hash((call, whole)) for call in group.calls for whole in group.wholes] + [*group.calls]


def _maker(unit: Unit, makers: dict[int, Unit], histories: Histories) -> Unit | None:
    calls, prior = _follows(unit)
    for node in histories.prefixes(prior) if calls else ():
        found = next((makers[k] for c in calls if (k := hash((c, node))) in makers), None)
        if found is not None:
            return found
    return next((makers[call] for call in calls if call in makers), None)


def _follows(unit: Unit) -> tuple[list[int], int]:
    """Return the tool calls whose results a turn begins with, and the history before it."""
    if unit.groups:
        return sorted(unit.groups[0].follows), unit.groups[0].prior
    return sorted(unit.requests[0].answers), unit.requests[0].prior


def _converse(units: list[Unit], histories: Histories) -> "array[int]":
    """Link turns that share an id or whose history extends an earlier turn's."""
    parent = array("q", range(len(units)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    linked: dict[int, int] = {}
    finished: dict[str | None, dict[int, int]] = defaultdict(dict)
    for index, unit in enumerate(units):
        known = finished[unit.user]
        for earlier in [linked.setdefault(link, index) for link in _links(unit)]:
            _unite(parent, root(index), root(earlier))
        extended = _extended(unit, known, histories)
        if extended is not None:
            _unite(parent, root(index), root(extended))
        for whole in _wholes(unit):
            known[whole] = index
    return array("q", (root(index) for index in range(len(units))))


def _unite(parent: "array[int]", one: int, other: int) -> None:
    # The earlier one is the root, so that a root is its conversation's first turn.
    parent[max(one, other)] = min(one, other)


def _links(unit: Unit) -> list[int]:
    links = [g.key for g in unit.groups if g.key is not None]
    return [*dict.fromkeys(links), *(link for r in unit.requests for link in r.links)]


def _extended(unit: Unit, finished: dict[int, int], histories: Histories) -> int | None:
    """Return the turn whose whole history is the longest prefix of this one's.

    The whole of this one's own is none: the same question with the same answer is asked in
    many conversations.
    """
    priors = [r.prior for r in unit.requests[:1]]
    priors += [g.prior for g in unit.groups if g.answered][:1]
    for prior in priors:
        for node in histories.prefixes(prior):
            if node in finished:
                return finished[node]
    return None


def _wholes(unit: Unit) -> list[int]:
    """Return the nodes of the finished histories: what a following request begins with."""
    return [
        *(r.whole for r in unit.requests if r.whole != NO_NODE),
        *(whole for g in unit.groups for whole in g.wholes),
    ]
