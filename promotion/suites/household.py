"""Household assistant (L1): one of eight tools with the right arguments."""

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from promotion.suites.task import Partition, Task, read_phrasings, tool
from serving.records import Message, ToolCall, content_id

_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
TOOLS: tuple[dict[str, Any], ...] = (
    tool("set_light", "Switch a light", room=_TEXT, state=_TEXT),
    tool("set_heating", "Set a room's heating", room=_TEXT, degrees=_NUMBER),
    tool("set_timer", "Start a timer", minutes=_NUMBER),
    tool("add_to_list", "Put an item on the shopping list", item=_TEXT),
    tool("add_event", "Put an event in the calendar", title=_TEXT, day=_TEXT),
    tool("send_message", "Send a message", person=_TEXT, text=_TEXT),
    tool("play_music", "Play music", genre=_TEXT),
    tool("get_weather", "Weather of a city", city=_TEXT),
)

ROOMS = ("kitchen", "bedroom", "hall", "office", "bathroom", "garage", "attic", "cellar")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Iris", "Jonas")
# fmt: off
ITEMS = ("milk", "bread", "eggs", "rice", "apples", "coffee", "soap", "butter", "tea", "salt",
          "flour", "honey", "onions", "cheese", "pasta", "lemons")
TITLES = ("dentist", "yoga", "football", "piano lesson", "haircut", "book club", "dinner",
           "swimming", "meeting", "car service")
# fmt: on
NEWS = (
    "I am late",
    "happy birthday",
    "see you soon",
    "call me back",
    "dinner is ready",
    "the train left",
    "good luck",
    "the door is open",
)
GENRES = ("jazz", "rock", "folk", "soul", "techno", "blues", "opera", "reggae", "disco", "punk")
_CITIES = ("Paris", "Oslo", "Tokyo", "Lima", "Cairo", "Rome", "Madrid", "Berlin", "Quito", "Delhi")

Values = dict[str, Any]
_VALUES: Mapping[str, Callable[[random.Random], Values]] = {
    "set_light": lambda r: {"room": r.choice(ROOMS), "state": r.choice(("on", "off"))},
    "set_heating": lambda r: {"room": r.choice(ROOMS), "degrees": r.randint(15, 26)},
    "set_timer": lambda r: {"minutes": r.randint(2, 90)},
    "add_to_list": lambda r: {"item": r.choice(ITEMS)},
    "add_event": lambda r: {"title": r.choice(TITLES), "day": r.choice(DAYS)},
    "send_message": lambda r: {"person": r.choice(PEOPLE), "text": r.choice(NEWS)},
    "play_music": lambda r: {"genre": r.choice(GENRES)},
    "get_weather": lambda r: {"city": r.choice(_CITIES)},
}
_PHRASINGS = read_phrasings("household")


def make_household_task(rng: random.Random, partition: Partition) -> Task:
    """Make one request for one tool."""
    name = rng.choice(sorted(_VALUES))
    values = _VALUES[name](rng)
    template, text = _PHRASINGS[name].pick(rng, partition, values)
    return tool_task(name, values, f"{name}-{template}", text[0].upper() + text[1:])


def tool_task(name: str, values: Values, template: str, text: str) -> Task:
    """Return the task whose right answer is `name(**values)`."""
    call = ToolCall(
        id="call-" + content_id([name, values, text])[7:19],
        name=name,
        arguments=json.dumps(values, ensure_ascii=False),
    )
    return Task(
        slot="L1",
        template=f"household-{template}",
        text=text,
        answer=Message(role="assistant", tool_calls=(call,)),
        reference={"verifier": "tool_call", "name": name, "arguments": values},
        keywords=tuple(str(value) for value in values.values()),
        tools=TOOLS,
    )


def run_tool(call: ToolCall, broken: bool = False) -> str:
    """Return what the home answers to a call, as JSON text; `broken` devices report an error."""
    if broken:
        return json.dumps({"error": "device unreachable"})
    if call.name == "get_weather":
        return json.dumps({"ok": True, "forecast": "rain, 14 degrees"})
    known = {t["function"]["name"] for t in TOOLS}
    return json.dumps({"ok": True} if call.name in known else {"error": "no such tool"})
