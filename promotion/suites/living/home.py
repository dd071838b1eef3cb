"""A household as a state machine: what is so, and the tools that read and change it.

The whole state is one mapping of facts, `("heating", "office"): 19`, so that what somebody else
does is a few facts more, and what a conversation should leave behind is compared fact by fact.
Facts that count (entries of a list, sent messages) are absent where they count nothing. Tools
can be told to fail; each failure says in words what happened.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from promotion.suites.household import GENRES, ROOMS, TOOLS
from promotion.suites.task import tool
from serving.records import ToolCall
from traces.verifiers.tool_call import call_problem

Fact = tuple[str | int, ...]
Facts = Mapping[Fact, str | int]

_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_OWN = (
    tool("get_light", "Tell whether a light is on", room=_TEXT),
    tool("get_heating", "Tell what a room's heating is set to", room=_TEXT),
    tool("get_timers", "Tell the running timers"),
    tool("cancel_timer", "Stop a timer", minutes=_NUMBER),
    tool("read_list", "Read the shopping list"),
    tool("remove_from_list", "Take an item off the shopping list", item=_TEXT),
    tool("read_calendar", "Read the calendar"),
    tool("remove_event", "Take an event out of the calendar", title=_TEXT, day=_TEXT),
    tool("read_sent", "Read the messages sent"),
    tool("get_music", "Tell what music plays"),
    tool("stop_music", "Stop the music"),
)
_ALL = {made["function"]["name"]: made for made in (*TOOLS, *_OWN)}
DOMAINS: Mapping[str, tuple[str, ...]] = {
    "light": ("set_light", "get_light"),
    "heating": ("set_heating", "get_heating"),
    "timer": ("set_timer", "get_timers", "cancel_timer"),
    "list": ("add_to_list", "read_list", "remove_from_list"),
    "calendar": ("add_event", "read_calendar", "remove_event"),
    "message": ("send_message", "read_sent"),
    "music": ("play_music", "get_music", "stop_music"),
}
"""Tools by what they are about; a conversation is offered those of its domains."""
READERS = frozenset(
    name for names in DOMAINS.values() for name in names if name.startswith(("get_", "read_"))
)
"""Tools that change nothing."""

_COUNTED = frozenset({"timer", "list", "event", "message"})
"""What facts of which there may be several begin with; a setting may be 0."""

Effect = Literal["none", "wait", "claimed", "done", "warned", "noise"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A tool that goes wrong."""

    tool: str
    says: str
    """What it answers: as `status` where the caller is to wait, as `warning` where it warns or
    reads noise, else as `error`."""
    effect: Effect = "none"
    """`none` and `wait`: nothing happens. `claimed`: nothing either, but it says ok.
    `done`: it does what it should, only the answer is lost. `warned`: it does so and says ok
    besides. `noise`: a reading that is wrong."""
    times: int = 1
    """How many calls of the tool it hits."""
    spares: int = 0
    """How many calls of the tool go well before that."""
    about: str | int = ""
    """Only calls with this room, item, person, title or number."""


def tools_of(domains: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Return the tools of some domains, in OpenAI form."""
    return tuple(_ALL[name] for domain in domains for name in DOMAINS[domain])


def furnished(rng: random.Random) -> dict[Fact, str | int]:
    """Return a home as it may stand: lights, heating, music, nothing noted anywhere."""
    home: dict[Fact, str | int] = {("music",): rng.choice(GENRES)}
    for room in ROOMS:
        home["light", room] = rng.choice(("on", "off"))
        home["heating", room] = rng.randint(16, 22)
    return home


def plain_facts(facts: Facts) -> dict[Fact, str | int]:
    """Return facts as a home keeps them; text is compared without case."""
    return {tuple(map(plain, fact)): plain(value) for fact, value in facts.items()}


class Home:
    """A household that tools act on."""

    def __init__(
        self, facts: Facts, faults: Sequence[Fault] = (), tools: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Begin with `facts`; `tools` are those that may be called, `faults` what goes wrong."""
        self.facts: dict[Fact, str | int] = {}
        self.set(facts)
        self._tools = tools
        self._faults = [
            (fault, call >= fault.spares)
            for fault in faults
            for call in range(fault.spares + fault.times)
        ]

    def set(self, facts: Facts) -> None:
        """Make facts so, as another person in the house does; 0 takes a counted one away."""
        self.facts |= plain_facts(facts)
        for fact in [f for f, value in self.facts.items() if f[0] in _COUNTED and value == 0]:
            del self.facts[fact]

    def holds(self, facts: Facts) -> bool:
        """Tell whether all of these are so."""
        return all(self.facts.get(fact, 0) == value for fact, value in plain_facts(facts).items())

    def call(self, call: ToolCall) -> str:
        """Carry a call out and return its result as JSON text; a wrong call changes nothing."""
        problem = call_problem(call, self._tools)
        if problem:
            return _error(problem)
        arguments = {key: plain(value) for key, value in json.loads(call.arguments).items()}
        fault = self._fault(call.name, arguments)
        if fault is None:
            return json.dumps(self._act(call.name, arguments))
        if fault.effect == "noise":
            return json.dumps({"warning": fault.says, **_NOISE[call.name]})
        if fault.effect == "claimed":
            return json.dumps({"ok": True})
        if fault.effect == "wait":
            return json.dumps({"status": fault.says})
        if fault.effect == "warned":
            return json.dumps(self._act(call.name, arguments) | {"warning": fault.says})
        if fault.effect == "done":
            self._act(call.name, arguments)
        return _error(fault.says)

    def _fault(self, name: str, arguments: Mapping[str, Any]) -> Fault | None:
        for number, (fault, hits) in enumerate(self._faults):
            concerned = not fault.about or plain(fault.about) in arguments.values()
            if fault.tool == name and concerned:
                del self._faults[number]
                return fault if hits else None
        return None

    def _act(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        room = arguments.get("room")
        if room is not None and ("light", room) not in self.facts:
            return {"error": f"there is no room {room!r}"}
        if name == "set_light" and arguments["state"] not in ("on", "off"):
            return {"error": f"a light is on or off, not {arguments['state']!r}"}
        return _ACTIONS[name](self, **arguments)

    def _put(self, fact: Fact, value: str | int) -> dict[str, Any]:
        self.set({fact: value})
        return {"ok": True}

    def _count(self, fact: Fact, change: int) -> dict[str, Any]:
        count = int(self.facts.get(fact, 0)) + change
        if count < 0:
            return {"error": f"there is no {' '.join(map(str, fact))}"}
        return self._put(fact, count)

    def _counted(self, kind: str) -> list[Fact]:
        found = sorted((fact for fact in self.facts if fact[0] == kind), key=str)
        return [fact[1:] for fact in found for _ in range(int(self.facts[fact]))]


_ACTIONS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "set_light": lambda home, room, state: home._put(("light", room), state),
    "get_light": lambda home, room: {"state": home.facts["light", room]},
    "set_heating": lambda home, room, degrees: home._put(("heating", room), degrees),
    "get_heating": lambda home, room: {"degrees": home.facts["heating", room]},
    "set_timer": lambda home, minutes: home._count(("timer", minutes), 1),
    "get_timers": lambda home: {"minutes": [m for (m,) in home._counted("timer")]},
    "cancel_timer": lambda home, minutes: home._count(("timer", minutes), -1),
    "add_to_list": lambda home, item: home._count(("list", item), 1),
    "read_list": lambda home: {"items": [item for (item,) in home._counted("list")]},
    "remove_from_list": lambda home, item: home._count(("list", item), -1),
    "add_event": lambda home, title, day: home._count(("event", title, day), 1),
    "read_calendar": lambda home: {
        "events": [{"title": title, "day": day} for title, day in home._counted("event")]
    },
    "remove_event": lambda home, title, day: home._count(("event", title, day), -1),
    "send_message": lambda home, person, text: home._count(("message", person, text), 1),
    "read_sent": lambda home: {
        "sent": [{"person": person, "text": text} for person, text in home._counted("message")]
    },
    "play_music": lambda home, genre: home._put(("music",), genre),
    "get_music": lambda home: {"genre": home.facts["music",]},
    "stop_music": lambda home: home._put(("music",), "none"),
}
_NOISE: Mapping[str, dict[str, Any]] = {
    "get_light": {"state": "o#"},
    "get_heating": {"degrees": 87},
    "get_timers": {"minutes": [999]},
    "read_list": {"items": ["m#lk", "~~~"]},
    "read_calendar": {"events": [{"title": "%%%", "day": "Xday"}]},
    "read_sent": {"sent": [{"person": "#nn#", "text": "~~~"}]},
    "get_music": {"genre": "~~~"},
}


def plain(value: Any) -> Any:
    """Return a value as facts hold it, text without case, outer spaces and a final full stop."""
    return value.strip().rstrip(".!").casefold() if isinstance(value, str) else value


def _error(says: str) -> str:
    return json.dumps({"error": says})
