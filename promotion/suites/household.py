"""Household assistant (L1): one of eight tools with the right arguments."""

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from promotion.suites.task import Partition, Phrasings, Task, tool
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

_ROOMS = ("kitchen", "bedroom", "hall", "office", "bathroom", "garage", "attic", "cellar")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Iris", "Jonas")
# fmt: off
_ITEMS = ("milk", "bread", "eggs", "rice", "apples", "coffee", "soap", "butter", "tea", "salt",
          "flour", "honey", "onions", "cheese", "pasta", "lemons")
_TITLES = ("dentist", "yoga", "football", "piano lesson", "haircut", "book club", "dinner",
           "swimming", "meeting", "car service")
# fmt: on
_NEWS = (
    "I am late",
    "happy birthday",
    "see you soon",
    "call me back",
    "dinner is ready",
    "the train left",
    "good luck",
    "the door is open",
)
_GENRES = ("jazz", "rock", "folk", "soul", "techno", "blues", "opera", "reggae", "disco", "punk")
_CITIES = ("Paris", "Oslo", "Tokyo", "Lima", "Cairo", "Rome", "Madrid", "Berlin", "Quito", "Delhi")

Values = dict[str, Any]
_VALUES: Mapping[str, Callable[[random.Random], Values]] = {
    "set_light": lambda r: {"room": r.choice(_ROOMS), "state": r.choice(("on", "off"))},
    "set_heating": lambda r: {"room": r.choice(_ROOMS), "degrees": r.randint(15, 26)},
    "set_timer": lambda r: {"minutes": r.randint(2, 90)},
    "add_to_list": lambda r: {"item": r.choice(_ITEMS)},
    "add_event": lambda r: {"title": r.choice(_TITLES), "day": r.choice(_DAYS)},
    "send_message": lambda r: {"person": r.choice(_PEOPLE), "text": r.choice(_NEWS)},
    "play_music": lambda r: {"genre": r.choice(_GENRES)},
    "get_weather": lambda r: {"city": r.choice(_CITIES)},
}
# fmt: off
_PHRASINGS: Mapping[str, Phrasings] = {
    "set_light": Phrasings(
        seed=("Turn {state} the {room} light.", "Light {state} in the {room}!"),
        traffic=("Switch the light in the {room} {state}.", "{room} lamp {state}, please.",
                 "I want the light in the {room} {state}.",
                 "Could you turn the {room} light {state}?"),
        gate=("Please get the {room} lights {state}.",
              "Make it so that the {room} light is {state}.",
              "The {room} lamp should be {state} now.",
              "Lights {state} in the {room}, thanks.", "Would you switch {state} the {room} lamp?"),
    ),
    "set_heating": Phrasings(
        seed=("Set the {room} to {degrees} degrees.", "Heat the {room} to {degrees}."),
        traffic=("Make the {room} {degrees} degrees warm.",
                 "Heating in the {room}: {degrees}, please.",
                 "I would like {degrees} degrees in the {room}.",
                 "Bring the {room} to {degrees} degrees."),
        gate=("Can the {room} be at {degrees} degrees?",
              "Change the heating of the {room} to {degrees}.",
              "Let us have {degrees} degrees in the {room}.",
              "{degrees} degrees for the {room}, thanks.",
              "Adjust the {room} to {degrees} degrees."),
    ),
    "set_timer": Phrasings(
        seed=("Set a timer for {minutes} minutes.", "Timer, {minutes} minutes."),
        traffic=("Start a {minutes} minute timer.", "Wake me in {minutes} minutes.",
                 "Count down {minutes} minutes.", "I need a timer of {minutes} minutes."),
        gate=("Please ring in {minutes} minutes.", "Give me a countdown of {minutes} minutes.",
              "Tell me when {minutes} minutes are over.",
              "Timer please: {minutes} minutes.", "Let {minutes} minutes pass and then ring."),
    ),
    "add_to_list": Phrasings(
        seed=("Add {item} to the shopping list.", "Put {item} on my list."),
        traffic=("We need {item}, note it.", "Write {item} on the shopping list.",
                 "Do not let me forget to buy {item}.", "{item} is out, put it on the list."),
        gate=("I have to buy {item}, please remember.", "Get {item} onto the shopping list.",
              "We are running low on {item}, list it.",
              "Shopping list: {item}, please.", "Remember {item} for the shopping."),
    ),
    "add_event": Phrasings(
        seed=("Add {title} on {day} to my calendar.", "Plan {title} for {day}."),
        traffic=("I have {title} on {day}, save it.", "Put {title} in the calendar for {day}.",
                 "On {day} there is {title}, note it.", "Enter {title} for {day}."),
        gate=("Please book {title} into {day}.", "Schedule {title}, {day}.",
              "My calendar needs {title} on {day}.",
              "Keep {day} free for {title}.", "There will be {title} on {day}, mark it."),
    ),
    "send_message": Phrasings(
        seed=("Tell {person}: {text}.", "Message to {person}: {text}."),
        traffic=("Write {person} that {text}.", "Send {person} this: {text}.",
                 "Let {person} know: {text}.", "Text {person}: {text}."),
        gate=("Please message {person}: {text}.", "Drop {person} a line: {text}.",
              "{person} should read this: {text}.",
              "Pass this on to {person}: {text}.", "Inform {person}: {text}."),
    ),
    "play_music": Phrasings(
        seed=("Play some {genre}.", "Put on {genre} music."),
        traffic=("I want to hear {genre}.", "Some {genre} would be nice now.",
                 "Start {genre} music.", "Let us listen to {genre}."),
        gate=("Music please, {genre}.", "I am in the mood for {genre}.",
              "Could we have {genre} on?",
              "Let me hear some {genre}.", "{genre} music, please."),
    ),
    "get_weather": Phrasings(
        seed=("What is the weather in {city}?", "Weather in {city}?"),
        traffic=("Does it rain in {city}?", "How is the weather in {city} today?",
                 "Is it warm in {city}?", "Do I need a coat in {city}?"),
        gate=("Tell me the forecast of {city}.", "What should I expect of the sky over {city}?",
              "Is it sunny in {city} at the moment?",
              "Forecast for {city}, please.", "Will {city} be cold today?"),
    ),
}
# fmt: on


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
