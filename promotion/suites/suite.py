"""Suites: fixed sets of items that the gate scores, built from the task world.

Five kinds: `route` and `chat` (L0), `tools` (L1), `code` (L2), `interface` (L3), and
`handover-Lx`, the summaries of slot Lx that the others depend on. The first suite of a
slot is its primary one.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

from promotion.suites.household import TOOLS, run_tool
from promotion.suites.task import Task
from promotion.suites.world import MAKERS, make_tasks
from serving.errors import MolError
from serving.own_view import Conversation, own_view, route_view, summary_view
from serving.records import Message, content_id
from serving.slots import Profile
from traces.verifiers.check import Check
from traces.verifiers.short_answer import check_short_answer

SKILLS: Mapping[str, str] = {"L0": "chat", "L1": "tools", "L2": "code", "L3": "interface"}
"""Name of the suite of each slot's skill."""


POOL = 300
"""Gate tasks of a slot that suites draw from; no suite can be larger."""


class NoSuite(MolError, LookupError):
    """No suite judges this slot."""


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt with the check of its answer."""

    item_id: str
    cluster: str
    """Template it was made from; items of one cluster are not independent."""
    text: str
    """The user's text, for decontamination."""
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    choices: tuple[str, ...]
    max_tokens: int
    check: Callable[[Message], Check]


@dataclass(frozen=True, slots=True)
class Suite:
    """A named set of items for one slot."""

    name: str
    slot: str
    items: tuple[Item, ...]

    @property
    def digest(self) -> str:
        """Content hash of the suite's prompts and order."""
        return content_id([self.name, self.slot, [item.item_id for item in self.items]])


def build_suites(
    profile: Profile,
    slot: str,
    primary_items: int,
    guard_items: int,
    bystander_items: int,
    seed: int,
) -> list[Suite]:
    """Build the suites for a challenger of `slot`; the first is the primary one.

    `guard_items` is the size of the other suites that the changed slot answers,
    `bystander_items` that of the unchanged slots' suites. The same seed gives the same
    items; a smaller suite is the beginning of a larger one.
    """
    suites = []
    for owner in profile.labels:
        if owner not in MAKERS:
            continue
        for name, make in _makers(profile, owner).items():
            is_primary = owner == slot and name == primary_suite(profile, slot)
            count = (
                primary_items if is_primary else guard_items if owner == slot else bystander_items
            )
            suites.append(Suite(name=name, slot=owner, items=tuple(make(count, seed))))
    return sorted(suites, key=lambda s: (s.name != primary_suite(profile, slot), s.slot != slot))


def has_suite(profile: Profile, slot: str) -> bool:
    """Whether a gate can judge a challenger of this slot."""
    return slot in profile.labels and slot in MAKERS


def primary_suite(profile: Profile, slot: str) -> str:
    """Name the suite that decides about a slot: routing for the router, its skill for another.

    Raises:
        NoSuite: if there is none; such a slot serves, but the loop cannot train it yet.
    """
    if not has_suite(profile, slot):
        raise NoSuite(
            f"There is no suite for slot {slot!r}, only for {', '.join(MAKERS)}: nothing could "
            "say whether a new version is better. Name one of those with '--slot'."
        )
    return "route" if slot == profile.router else SKILLS[slot]


def _makers(profile: Profile, slot: str) -> dict[str, Callable[[int, int], list[Item]]]:
    makers: dict[str, Callable[[int, int], list[Item]]] = {
        SKILLS[slot]: partial(_skill_items, profile, slot),
        f"handover-{slot}": partial(_handover_items, profile, slot),
    }
    if slot == profile.router:
        makers["route"] = partial(_route_items, profile)
    return makers


def _gate_tasks(slot: str, seed: int) -> list[Task]:
    """Return a slot's gate tasks, one of each template in turn: few items, many templates."""
    by_template: dict[str, list[Task]] = defaultdict(list)
    for task in make_tasks(slot, POOL, seed, "gate"):
        by_template[task.template].append(task)
    rounds = zip_longest(*(by_template[template] for template in sorted(by_template)))
    order = random.Random(seed)
    tasks: list[Task] = []
    for turn in rounds:
        once = [task for task in turn if task is not None]
        order.shuffle(once)
        tasks += once
    return tasks


def _skill_items(profile: Profile, slot: str, count: int, seed: int) -> list[Item]:
    return [
        _item(
            task,
            own_view(profile, Conversation("suite"), slot, task.text),
            tools=TOOLS if profile.slot(slot).offers_tools else (),
            max_tokens=profile.max_answer_tokens,
            check=task.check,
        )
        for task in _gate_tasks(slot, seed)[:count]
    ]


def _route_items(profile: Profile, count: int, seed: int) -> list[Item]:
    share = -(-count // len(MAKERS))
    by_slot = [_gate_tasks(slot, seed + 1)[:share] for slot in MAKERS]
    tasks = [task for tasks in zip(*by_slot, strict=True) for task in tasks]
    return [
        _item(
            task,
            route_view(profile, task.text),
            choices=profile.labels,
            max_tokens=24,
            check=partial(_is_label, label=task.slot),
        )
        for task in tasks[:count]
    ]


def _handover_items(profile: Profile, slot: str, count: int, seed: int) -> list[Item]:
    items = []
    for task in _gate_tasks(slot, seed + 2)[:count]:
        exchanged = [task.answer]
        exchanged += [
            Message(role="tool", content=run_tool(call), tool_call_id=call.id)
            for call in task.answer.tool_calls
        ]
        view = own_view(profile, Conversation("suite"), slot, task.text)
        items.append(
            _item(
                task,
                summary_view(profile, view, exchanged),
                max_tokens=profile.max_summary_tokens,
                check=partial(_keeps, keywords=task.keywords),
            )
        )
    return items


def _item(
    task: Task,
    messages: tuple[Message, ...],
    *,
    max_tokens: int,
    check: Callable[[Message], Check],
    tools: tuple[dict[str, Any], ...] = (),
    choices: tuple[str, ...] = (),
) -> Item:
    prompt = [[m.to_openai() for m in messages], list(tools), list(choices), max_tokens]
    return Item(
        item_id=content_id([prompt, task.answer.to_openai()]),
        cluster=task.template,
        text=task.text,
        messages=messages,
        tools=tools,
        choices=choices,
        max_tokens=max_tokens,
        check=check,
    )


def _is_label(answer: Message, *, label: str) -> Check:
    given = answer.content.strip()
    return Check(given == label, f"routed to {given[:20]!r}, expected {label}")


def _keeps(answer: Message, *, keywords: tuple[str, ...]) -> Check:
    for keyword in keywords:
        if check_short_answer(answer.content, (keyword,), max_words=80).passed is False:
            return Check(False, f"the summary lost {keyword!r}")
    return Check(True, "the summary keeps what the next slot needs")
