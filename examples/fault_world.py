"""The requests of the fault set: what users ask, what is right, and how a request loses its point.

Beside the task world's own requests there are spoken ones, where a tool's result holds what the
user wants to know, and hand-overs, where a slot needs what another slot's turn was about. All
have a reference, so that any answer can be checked again.
"""

import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from promotion.suites.household import TOOLS, tool_task
from promotion.suites.task import Task, assistant
from promotion.suites.world import MAKERS
from serving.records import Message
from traces.verifiers.check import Check
from traces.verifiers.registry import checker

SPOKEN = "spoken_answer"
"""Name of the verifier that reads what the home says aloud; it is the home's own."""
Maker = Callable[[random.Random], "Request"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request with what would be right."""

    task: Task
    result: Mapping[str, Any] | None = None
    """What the tool returns; None where nobody waits for it."""
    told: str = ""
    """How the answer after the tool's result should say it."""
    fact: str = ""
    """What it has to contain."""
    vague: tuple[str, ...] = ()
    """The request without the words that decide."""

    @property
    def spoken(self) -> bool:
        """Whether the tool's result is put in words for the user."""
        return self.result is not None

    @property
    def reference(self) -> dict[str, Any]:
        """What the last answer is checked against."""
        if self.spoken:
            return {"verifier": "short_answer", "accepted": [self.fact], "max_words": 24}
        return dict(self.task.reference)

    @property
    def verifier(self) -> str:
        """Name under which the deployment reports the check."""
        return SPOKEN if self.spoken else self.task.verifier

    def check(self, answer: Message) -> Check:
        """Check the last answer of a turn."""
        check = checker(self.reference, list(TOOLS))
        assert check is not None
        return check(answer)

    @property
    def right_answer(self) -> Message:
        """What the user wanted to get in the end."""
        return (
            assistant(f"{self.told[:1].upper()}{self.told[1:]}.")
            if self.spoken
            else self.task.answer
        )


def plain(rng: random.Random, slot: str) -> Request:
    """Return a request of the task world that its first adapters can meet."""
    while True:
        task = MAKERS[slot](rng, "traffic")
        simple = slot != "L3" or len(task.reference["wanted"]) == 2
        if not simple or task.template.startswith("function-longer"):
            continue
        if task.template.startswith("chat-sum") and rng.random() < 0.5:
            # Some deployments check numbers by value, with a verifier that no slot calls its own.
            value = int(task.keywords[0])
            task = replace(task, reference={"verifier": "numeric", "value": value})
        return Request(task, vague=vague_forms(task))


def vague_forms(task: Task) -> tuple[str, ...]:
    """Return the request without what decides: left out, or only pointed at."""
    values = sorted(_deciding(task), key=len, reverse=True)
    forms = []
    for stand_in, removed in (
        ("", values),
        ("that", values),
        ("something", values),
        ("", values[:1]),
    ):
        text = task.text
        for value in removed:
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", stand_in, text, flags=re.IGNORECASE)
        text = re.sub(r"\s+([.,?!:;])", r"\1", re.sub(r"\s+", " ", text)).strip(" ,:")
        if text and text.casefold() != task.text.casefold():
            forms.append(text[0].upper() + text[1:])
    return tuple(dict.fromkeys(forms))


def _deciding(task: Task) -> list[str]:
    if task.slot == "L1":
        return [str(value) for value in task.reference["arguments"].values()]
    if task.slot == "L2":
        name = task.keywords[0]
        wish = re.search(
            r"(?:It|it|that|which) ((?:returns|tells|counts|removes) .*?)\.?$", task.text
        )
        signature = re.search(rf"{name}\([a-z]*\)", task.text)
        return [found for found in (wish and wish[1], signature and signature[0]) if found]
    if task.slot == "L3":
        wanted = task.reference["wanted"]
        values = [v for part in wanted for k, v in part.items() if k != "type"]
        return [str(v) for value in values for v in (value if isinstance(value, list) else [value])]
    asked = re.findall(r"\b(?:[A-Z][a-z]+|\d+)\b", task.text[1:])
    last = re.search(r"(\w+)(?: called what| is what)?[.?]?$", task.text)
    return asked or ([last[1]] if last else [])


# What each tool tells beside having done it: the result's field, and how to say it.
_FACTS: Mapping[str, tuple[str, str, Callable[[random.Random], Any]]] = {
    "set_heating": ("now", "It is {} degrees now", lambda r: r.randint(9, 14)),
    "set_timer": ("ends", "It ends at {}", lambda r: _clock(r)),
    "add_to_list": ("items", "There are {} items on the list", lambda r: r.randint(12, 40)),
    "set_light": ("lamps", "That were {} lamps", lambda r: r.randint(2, 19)),
    "send_message": ("sent", "Sent at {}", lambda r: _clock(r)),
}
SKIES = ("rain", "sunshine", "snow", "fog", "wind", "clouds")


def _clock(rng: random.Random) -> str:
    return f"{rng.randint(8, 20)}:{rng.randint(10, 59)}"


def _result(
    rng: random.Random, name: str, values: Mapping[str, Any]
) -> tuple[dict[str, Any], str, str]:
    """Return what a tool gives back, how it is told, and what must not be missing."""
    if name == "get_weather":
        sky, degrees = rng.choice(SKIES), rng.randint(2, 33)
        return (
            {**values, "sky": sky, "degrees": degrees},
            f"{sky}, {degrees} degrees",
            f"{degrees} degrees",
        )
    key, words, draw = _FACTS[name]
    value = draw(rng)
    return {"ok": True, **values, key: value}, words.format(value), str(value)


def spoken(rng: random.Random) -> Request:
    """Return a request whose answer depends on what the tool returns."""
    while True:
        request = plain(rng, "L1")
        name = request.task.reference["name"]
        if name == "get_weather" or (name in _FACTS and rng.random() < 0.5):
            result, told, fact = _result(rng, name, request.task.reference["arguments"])
            return replace(request, result=result, told=told, fact=fact, vague=())


def handover(rng: random.Random) -> tuple[Request, Request]:
    """Return two requests of different slots; the second needs what the first was about."""
    first, makers = rng.choice(_PAIRS)
    while True:
        earlier = plain(rng, first)
        if first == "L0" and not earlier.task.template.startswith(("chat-capital", "chat-sum")):
            continue
        later = rng.choice(makers)(rng, earlier.task)
        if later is not None:
            return earlier, Request(later)


def _send(rng: random.Random, earlier: Task) -> Task | None:
    person = rng.choice(("Anna", "Ben", "Clara", "David", "Emma"))
    what = {"L0": "that answer", "L2": "the name of that function", "L3": "the title of that card"}
    wish = rng.choice(("Send {} {}.", "Write {} {}.", "Tell {} {}."))
    values = {"person": person, "text": earlier.keywords[0]}
    text = wish.format(person, what[earlier.slot])
    return tool_task("send_message", values, "handover-send", text)


def _list(rng: random.Random, earlier: Task) -> Task | None:
    what = {"L0": "that answer", "L2": "that function's name", "L3": "that card's title"}
    wish = rng.choice(("Put {} on the shopping list.", "Add {} to my list."))
    return tool_task(
        "add_to_list",
        {"item": earlier.keywords[0]},
        "handover-list",
        wish.format(what[earlier.slot]),
    )


_RECALL = {
    "set_light": ("room", "Which room was that?"),
    "set_heating": ("room", "For which room did I say that?"),
    "set_timer": ("minutes", "How many minutes did I say?"),
    "add_to_list": ("item", "What did I want on the list?"),
    "send_message": ("person", "Who gets my message?"),
    "get_weather": ("city", "Which city did I ask about?"),
    "play_music": ("genre", "Which music did I want?"),
}


def _recall(rng: random.Random, earlier: Task) -> Task | None:
    name = earlier.reference["name"]
    if name not in _RECALL:
        return None
    key, text = _RECALL[name]
    value = str(earlier.reference["arguments"][key])
    return Task(
        slot="L0",
        template=f"chat-recall-{key}",
        text=text,
        answer=assistant(f"{value[0].upper()}{value[1:]}."),
        reference={"verifier": "short_answer", "accepted": [value]},
        keywords=(value,),
    )


def _title(rng: random.Random, earlier: Task) -> Task | None:
    label = rng.choice(("Save", "Next", "Close"))
    value = earlier.keywords[0]
    if earlier.slot == "L1" and earlier.reference["name"] not in ("get_weather", "set_light"):
        return None
    what = {"L0": "that answer", "L1": {"get_weather": "that city", "set_light": "that room"}.get(
        str(earlier.reference.get("name")), "")}[earlier.slot]  # fmt: skip
    button = {"type": "button", "label": label}
    title = value[0].upper() + value[1:]
    tree = {"type": "card", "title": title, "children": [button]}
    return Task(
        slot="L3",
        template="interface-handover",
        text=f"Build a card with {what} as the title and a button {label}.",
        answer=assistant(json.dumps(tree)),
        reference={
            "verifier": "interface_schema",
            "wanted": [{"type": "card", "title": title}, button],
        },
        keywords=(title,),
    )


_PAIRS: tuple[tuple[str, tuple[Callable[[random.Random, Task], Task | None], ...]], ...] = (
    ("L0", (_send, _list, _title)),
    ("L0", (_send, _list, _title)),
    ("L1", (_recall, _recall, _title)),
    ("L1", (_recall, _recall, _title)),
    ("L2", (_send, _list)),
    ("L3", (_send, _list)),
)
