"""Interfaces as JSON components (L3), checked by schema and content."""

import json
import random
from typing import Any

from promotion.suites.task import Partition, Task, assistant, read_phrasings

# fmt: off
_TITLES = ("Login", "Profile", "Shopping", "Weather", "Settings", "Contacts", "Tasks", "Payment",
           "Search", "Support", "Orders", "News", "Travel", "Music", "Photos", "Budget")
# fmt: on
_LABELS = ("Save", "Send", "Cancel", "Next", "Delete", "Refresh", "Share", "Open", "Close", "Print")
_FIELDS = ("Name", "Email", "City", "Phone", "Password", "Amount", "Date", "Street")
_LINES = ("Welcome back", "All done", "No results", "Please wait", "Good morning", "Try again")
_WORDS = ("milk", "bread", "tea", "Oslo", "Lima", "red", "blue", "Anna", "Ben", "one", "two")

_PHRASINGS = read_phrasings("interface")["card"]


def make_interface_task(rng: random.Random, partition: Partition) -> Task:
    """Make one request for a card with one or two components."""
    title = rng.choice(_TITLES)
    kinds = rng.sample(("button", "text", "input", "list"), rng.choice((1, 1, 2)))
    parts = [_component(rng, kind) for kind in kinds]
    wish = " and ".join(words for words, _ in parts)
    template, text = _PHRASINGS.pick(rng, partition, {"title": title, "part": wish})
    components = [component for _, component in parts]
    tree = {"type": "card", "title": title, "children": components}
    wanted = [{"type": "card", "title": title}, *components]
    return Task(
        slot="L3",
        template=f"interface-{'-'.join(sorted(kinds))}-{template}",
        text=text,
        answer=assistant(json.dumps(tree)),
        reference={"verifier": "interface_schema", "wanted": wanted},
        keywords=(title,),
    )


def _component(rng: random.Random, kind: str) -> tuple[str, dict[str, Any]]:
    if kind == "button":
        label = rng.choice(_LABELS)
        return f"a button {label}", {"type": "button", "label": label}
    if kind == "text":
        line = rng.choice(_LINES)
        return f'the text "{line}"', {"type": "text", "value": line}
    if kind == "input":
        label = rng.choice(_FIELDS)
        return f"an input for {label}", {"type": "input", "label": label}
    items = rng.sample(_WORDS, 2)
    return f"a list of {items[0]} and {items[1]}", {"type": "list", "items": items}
