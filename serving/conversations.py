"""What the server remembers: finished turns, and turns that wait for tool results.

Clients of stateless protocols send their whole history each time. What came before the
newest message is looked up by a digest of the transcript (or by the id of a former
answer) and leads to the turn that ended there; from it the timeline is walked back. So a
client that goes on, asks again, or goes back and takes another path finds its place, and
nothing that is remembered ever changes. A history made elsewhere is taken over verbatim.

All of it is kept in `serving.documents` and is there after a restart, but for what was asked:
that is only known again as long as the process lives.
"""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from cachetools import LRUCache
from pydantic import TypeAdapter

from serving.documents import Documents
from serving.exchange import Ask, RequestInvalid
from serving.hops import OpenTurn
from serving.own_view import ANYONE, Conversation, Entry
from serving.records import Message, Record, canonical_json, content_id
from serving.turn import check_results

_MEMORY_BYTES = 256 << 20
"""Of turns kept as they are used; a turn counts by its texts and a little besides."""
_ASKED_REMEMBERED = 50_000
"""Questions that are known when they are asked again."""


class Node(Record):
    """A finished turn in its place: the turns before it are its parent's.

    Or, with the slot `ANYONE`, all turns that the client brought along there.
    """

    turn_id: str
    parent: str | None
    conversation_id: str
    position: int
    slot: str
    messages: tuple[Message, ...]
    summary: str

    @property
    def entry(self) -> Entry:
        """The turn as the timeline shows it."""
        return Entry(self.slot, self.messages, self.summary)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A turn whose tool calls wait for their results."""

    turn: OpenTurn
    parent: str | None
    names: dict[str, str]
    """Served names that the turn began with."""


_WAITING = TypeAdapter(Waiting)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request stands."""

    parent: str | None
    """Turn it follows; None for the first."""
    conversation_id: str | None
    """None for a new conversation."""
    brought: tuple[Message, ...]
    """History made elsewhere that comes after `parent`."""
    text: str
    """What the user says."""
    results: tuple[Message, ...]
    """Tool results, and what the user says with them, for the turn that waits."""
    exchanged: tuple[Message, ...]
    """What a turn made elsewhere had come to before it ended in tool results."""
    waiting: Waiting | None
    """The turn that waits for tool results, or is left by a user who goes on without."""
    key: str
    """Digest of place and new messages; equal for the same request again."""
    supersedes: str | None
    """Earlier turn with the same key."""


class Conversations:
    """Finds and keeps turns; one a server."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._asked: LRUCache[tuple[str, str], str] = LRUCache(_ASKED_REMEMBERED)
        self._nodes: LRUCache[str, Node] = LRUCache(_MEMORY_BYTES, getsizeof=_size)
        self._fresh: dict[str, Node] = {}
        """Turns that wait for their summary; they are at hand however much memory is used."""
        self._summaries: dict[str, asyncio.Task[None]] = {}

    async def locate(self, ask: Ask, scope: str, named: bool) -> Place:
        """Find where a request stands.

        Args:
            ask: the request.
            scope: what keeps one client's transcripts apart from another's.
            named: whether the scope names one conversation or user, so that the same first
                words twice are the same request again.

        Raises:
            RequestInvalid: if it follows an answer that is not known, or ends with one.
        """
        cut = _after_last_assistant(ask.messages)
        head, tail = ask.messages[:cut], ask.messages[cut:]
        if not tail:
            raise RequestInvalid(
                "The last message is the assistant's; end with a user message or a tool result.",
                param="messages",
            )
        if ask.previous_response_id is not None:
            found = await self._get("response", scope, ask.previous_response_id)
            if found is None:
                raise RequestInvalid(
                    f"No response {ask.previous_response_id[:80]!r} is known to you; send the "
                    "whole conversation as 'input' instead.",
                    param="previous_response_id", code="previous_response_not_found", status=404,
                )  # fmt: skip
            if "open" in found:
                head = ()
        else:
            found = await self._get("transcript", scope, transcript_digest(head)) if head else None
            if found is not None:
                head = ()
        waiting = await self._waiting(found["open"]) if found and "open" in found else None
        parent = waiting.parent if waiting else found.get("turn") if found else None
        key = _place_key(parent, head, tail)
        again = named or parent is not None
        if _has_results(tail) and waiting is None:
            brought, text, exchanged = _replayed(ask, head, tail)
        else:
            brought, text, exchanged = head, _text_of(tail), ()
        return Place(
            parent=parent,
            conversation_id=await self._conversation_id(parent, waiting),
            brought=brought,
            text=text,
            results=tail if waiting and _has_results(tail) else (),
            exchanged=exchanged,
            waiting=waiting,
            key=key,
            supersedes=self._asked.get((scope, key)) if again else None,
        )

    async def conversation(self, place: Place, conversation_id: str, ask: Ask) -> Conversation:
        """Return the conversation up to a place, with the summaries of all its turns."""
        path: list[Node] = []
        turn_id = place.parent
        while turn_id is not None:
            node = await self._node(turn_id)
            if node is None:
                break
            path.append(node)
            turn_id = node.parent
        brought = _entries_of(place.brought)
        return Conversation(
            conversation_id=conversation_id,
            user=ask.user,
            timeline=[*(node.entry for node in reversed(path)), *brought],
            turns_taken=(path[0].position + 1 if path else 0) + len(brought),
            instructions=ask.instructions,
        )

    def keep_waiting(self, ask: Ask, scope: str, waiting: Waiting, response_id: str) -> None:
        """Remember a turn that waits for tool results, as the client left off."""
        turn = waiting.turn
        key = _state(turn)
        self._documents.put(f"open:{key}", _WAITING.dump_json(waiting))
        self._refer(ask, scope, turn.exchanged[-1], {"open": key}, response_id)

    def keep(
        self, ask: Ask, scope: str, place: Place, turn: OpenTurn, summary: str, response_id: str
    ) -> None:
        """Remember a finished turn."""
        parent = place.parent
        if brought := _entries_of(place.brought):
            # Nobody looks at these one by one, so that one node is enough for all.
            made = content_id([turn.turn_id, "brought"])
            self._put(
                Node(
                    turn_id=made, parent=parent, conversation_id=turn.conversation_id,
                    position=turn.position - 1, slot=ANYONE, summary="",
                    messages=tuple(message for entry in brought for message in entry.messages),
                )
            )  # fmt: skip
            parent = made
        user = Message(role="user", content=turn.request)
        node = Node(
            turn_id=turn.turn_id, parent=parent, conversation_id=turn.conversation_id,
            position=turn.position, slot=turn.slot, messages=(user, *turn.exchanged),
            summary=summary,
        )  # fmt: skip
        self._put(node)
        self._fresh[turn.turn_id] = node
        self._refer(ask, scope, turn.exchanged[-1], {"turn": turn.turn_id}, response_id)

    def note_asked(self, scope: str, place: Place, turn_id: str) -> None:
        """Remember that a place's text was asked, to know it again; not over a restart."""
        self._asked[scope, place.key] = turn_id

    async def taken_up(self, turn: OpenTurn) -> str | None:
        """Return the latest turn that went on from where this one waits; None if none did."""
        raw = await self._documents.get(f"taken:{_state(turn)}")
        return None if raw is None else str(json.loads(raw)["turn"])

    def note_taken_up(self, turn: OpenTurn, turn_id: str) -> None:
        """Remember that a turn went on from where this one waits, or never will."""
        self._documents.put(f"taken:{_state(turn)}", _dump({"turn": turn_id}))

    def summarise_later(self, turn_id: str, task: "asyncio.Task[None]") -> None:
        """Let whoever follows this turn wait for its summary."""

        def forget(_: object) -> None:
            self._summaries.pop(turn_id, None)
            self._fresh.pop(turn_id, None)

        self._summaries[turn_id] = task
        task.add_done_callback(forget)

    def set_summary(self, turn_id: str, summary: str) -> None:
        """Replace a turn's first words by its summary."""
        self._put(self._fresh[turn_id].model_copy(update={"summary": summary}))

    def _refer(
        self, ask: Ask, scope: str, said: Message, found: dict[str, str], response_id: str
    ) -> None:
        if ask.previous_response_id is None:
            digest = transcript_digest((*ask.messages, said))
            self._documents.put(f"transcript:{scope}:{digest}", _dump(found))
        if ask.protocol == "responses" and ask.store:
            self._documents.put(f"response:{scope}:{response_id}", _dump(found))

    async def _node(self, turn_id: str, summarised: bool = True) -> Node | None:
        """Return a turn, with its summary; None if it is so old that it was forgotten."""
        summary = self._summaries.get(turn_id) if summarised else None
        if summary is not None:
            await asyncio.wait([summary])
        node = self._nodes.get(turn_id)
        if node is None:
            raw = await self._documents.get(f"node:{turn_id}")
            if raw is None:
                return None
            node = self._nodes[turn_id] = Node.model_validate_json(raw)
        return node

    def _put(self, node: Node) -> None:
        self._nodes[node.turn_id] = node
        self._documents.put(f"node:{node.turn_id}", node.model_dump_json().encode())

    async def _get(self, kind: str, scope: str, key: str) -> dict[str, str] | None:
        raw = await self._documents.get(f"{kind}:{scope}:{key}")
        return None if raw is None else dict(json.loads(raw))

    async def _waiting(self, key: str) -> Waiting | None:
        raw = await self._documents.get(f"open:{key}")
        return None if raw is None else _WAITING.validate_json(raw)

    async def _conversation_id(self, parent: str | None, waiting: Waiting | None) -> str | None:
        if waiting is not None:
            return waiting.turn.conversation_id
        node = await self._node(parent, summarised=False) if parent is not None else None
        return node.conversation_id if node else None


def _size(node: Node) -> int:
    texts = (len(m.content) + sum(len(c.arguments) for c in m.tool_calls) for m in node.messages)
    return 1000 * (1 + len(node.messages)) + sum(texts)


def transcript_digest(messages: Sequence[Message]) -> str:
    """Return a digest of what client and server said: roles, texts and tool calls, no ids.

    Neither space around a text nor the way arguments are written counts, as clients do not
    keep them.
    """
    said = [
        [m.role, m.content.strip(), [[c.name, _meant(c.arguments)] for c in m.tool_calls]]
        for m in messages
    ]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def _meant(arguments: str) -> str:
    """Return a tool call's arguments in one way of writing; text that is no JSON as it is."""
    try:
        return canonical_json(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments


def _entries_of(brought: Sequence[Message]) -> list[Entry]:
    """Cut a history made elsewhere into turns, one a user text."""
    turns: list[list[Message]] = []
    for message in brought:
        if not turns or (message.role == "user" and turns[-1][-1].role != "user"):
            turns.append([])
        turns[-1].append(message)
    entries = []
    for turn in turns:
        users = [m.content for m in turn if m.role == "user"]
        rest = [m for m in turn if m.role != "user"]
        first = Message(role="user", content="\n\n".join(users))
        entries.append(Entry(ANYONE, (first, *rest), ""))
    return entries


def results_refused(ask: Ask, why: str) -> RequestInvalid:
    """Return the error about tool results that do not fit the calls."""
    param = "input" if ask.protocol == "responses" else "messages"
    return RequestInvalid(why, param=param, code="tool_result_without_call")


def _replayed(
    ask: Ask, head: tuple[Message, ...], tail: tuple[Message, ...]
) -> tuple[tuple[Message, ...], str, tuple[Message, ...]]:
    """Return the history brought along, the user's text, and what a turn made elsewhere had.

    Tool results for a turn that is not remembered replay it from its user's text on.

    Raises:
        RequestInvalid: if there is no such text, or they do not answer the calls before them.
    """
    asked = next((n for n in range(len(head), 0, -1) if head[n - 1].role == "user"), 0)
    if asked == 0:
        raise results_refused(
            ask,
            "The tool results answer no call of this conversation; send the messages before "
            "them too.",
        )
    try:
        check_results(head[-1].tool_calls, tail)
    except ValueError as problem:
        raise results_refused(ask, str(problem)) from problem
    begin = asked
    while begin > 1 and head[begin - 2].role == "user":
        begin -= 1
    return head[: begin - 1], _text_of(head[begin - 1 : asked]), (*head[asked:], *tail)


def _state(turn: OpenTurn) -> str:
    return f"{turn.turn_id}:{len(turn.exchanged)}"


def _has_results(messages: Sequence[Message]) -> bool:
    return any(message.role == "tool" for message in messages)


def _text_of(messages: Sequence[Message]) -> str:
    return "\n\n".join(m.content for m in messages if m.role == "user")


def _after_last_assistant(messages: Sequence[Message]) -> int:
    for number in range(len(messages), 0, -1):
        if messages[number - 1].role == "assistant":
            return number
    return 0


def _place_key(parent: str | None, head: Sequence[Message], tail: Sequence[Message]) -> str:
    return hashlib.sha256(f"{parent} {transcript_digest((*head, *tail))}".encode()).hexdigest()


def _dump(value: dict[str, str]) -> bytes:
    return json.dumps(value).encode()
