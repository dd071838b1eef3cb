"""Suites made of the task world: each slot's skill, its summaries, routing, the form of answers.

Tasks of the gate's phrasings, which neither the first adapters nor simulated users know.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from promotion.suites.household import TOOLS, run_tool
from promotion.suites.sets import SEALED_SHARE
from promotion.suites.suite import Item, Suite
from promotion.suites.task import Task
from promotion.suites.world import MAKERS, make_tasks
from serving.own_view import Conversation, own_view, route_view, summary_view
from serving.records import Message, content_id
from serving.slots import Profile
from traces.verifiers.check import Check
from traces.verifiers.form import Form, check_form
from traces.verifiers.interface import COMPONENT_SCHEMA
from traces.verifiers.short_answer import check_words

SKILLS: Mapping[str, str] = {"L0": "chat", "L1": "tools", "L2": "code", "L3": "interface"}
"""Name of the suite of each slot's skill."""

POOL = 1000
"""Tasks of a slot that its suites are made of, at least; all sets come from them.
So many meet nearly all of the phrasings, and are made in a second."""
LARGEST_POOL = 1500
"""More make the functions repeat themselves, of which 169 are asked in 12 phrasings."""

FORMS: Mapping[str, Form] = {"L2": "python", "L3": "json"}
"""Slots whose skill has a form of its own, which is then what their format suite asks for."""


def pool_size(largest: int) -> int:
    """Return how many tasks give a sealed set of `largest` items, with some to spare."""
    return min(LARGEST_POOL, max(POOL, math.ceil(1.5 * largest / SEALED_SHARE)))


@lru_cache(maxsize=len(MAKERS))  # a second each, and commands build them for one slot after another
def task_suites(profile: Profile, slot: str, seed: int, pool: int = POOL) -> tuple[Suite, ...]:
    """Return the suites that a slot answers also where another is challenged."""
    suites = [
        Suite(SKILLS[slot], slot, tuple(_skill_items(profile, slot, seed, pool)), "skill"),
        Suite(
            f"handover-{slot}", slot, tuple(_handover_items(profile, slot, seed, pool)), "handover"
        ),
    ]
    if slot == profile.router:
        suites.append(Suite("route", slot, tuple(_route_items(profile, seed, pool)), "route"))
    return tuple(suites)


def form_suite(profile: Profile, slot: str, seed: int, pool: int = POOL) -> Suite:
    """Return requests for a slot's skill, of which only the form of the answer is checked."""
    form = FORMS[slot]
    schema = COMPONENT_SCHEMA if form == "json" else None
    items = [
        _item(
            task,
            own_view(profile, Conversation("suite"), slot, task.text),
            max_tokens=profile.max_answer_tokens,
            check=partial(check_form, form=form, schema=schema),
        )
        for task in _gate_tasks(slot, seed + 3, pool)
    ]
    return Suite(f"format-{slot}", slot, tuple(items), "format")


def _gate_tasks(slot: str, seed: int, pool: int) -> list[Task]:
    return make_tasks(slot, pool, seed, "gate")


def _skill_items(profile: Profile, slot: str, seed: int, pool: int) -> list[Item]:
    return [
        _item(
            task,
            own_view(profile, Conversation("suite"), slot, task.text),
            tools=TOOLS if profile.slot(slot).offers_tools else (),
            max_tokens=profile.max_answer_tokens,
            check=task.check,
        )
        for task in _gate_tasks(slot, seed, pool)
    ]


def _route_items(profile: Profile, seed: int, pool: int) -> list[Item]:
    by_slot = [_gate_tasks(slot, seed + 1, pool) for slot in MAKERS]
    tasks = [task for tasks in zip(*by_slot, strict=True) for task in tasks]
    return [
        _item(
            task,
            route_view(profile, task.text),
            choices=profile.labels,
            max_tokens=24,
            check=partial(_is_label, label=task.slot),
        )
        for task in tasks
    ]


def _handover_items(profile: Profile, slot: str, seed: int, pool: int) -> list[Item]:
    items = []
    for task in _gate_tasks(slot, seed + 2, pool):
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
        if check_words(answer.content, (keyword,), max_words=80).passed is False:
            return Check(False, f"the summary lost {keyword!r}")
    return Check(True, "the summary keeps what the next slot needs")
