"""The living suite: every template with several seeds, as items that hold a conversation.

`living_suite` is what the gate asks; `make_scenarios` what tests and readers look at.
"""

import random
from collections import Counter
from functools import partial

from promotion.suites.living import faults, moves, wishes
from promotion.suites.living.conversation import hold
from promotion.suites.living.scenario import Scenario
from promotion.suites.suite import Item, Suite
from serving.own_view import Conversation, own_view
from serving.records import Message, content_id
from serving.slots import Profile
from traces.verifiers.check import Check

VARIANTS = 2
"""Scenarios of one template, with other rooms, people, numbers and words."""
TEMPLATES = (*wishes.TEMPLATES, *faults.TEMPLATES, *moves.TEMPLATES)


def make_scenarios(seed: int) -> list[Scenario]:
    """Make all scenarios, no two of which begin with the same line; the same seed gives the same.

    Raises: ValueError where the lines of a subject are too few for that.
    """
    made: dict[str, Scenario] = {}
    for variant in range(VARIANTS):
        numbers: Counter[str] = Counter()
        for template in TEMPLATES:
            rng = random.Random(f"living-{template.label}-{variant}-{seed}")
            for _ in range(_ATTEMPTS):
                scenario = template.make(rng, numbers[template.subject])
                if scenario.lines[0].text not in made:
                    break
            else:
                raise ValueError(f"{template.label!r} begins like others; write more lines for it")
            made[scenario.lines[0].text] = scenario
            numbers[template.subject] += 1
    return list(made.values())


def living_suite(profile: Profile, slot: str, seed: int) -> Suite:
    """Return the suite of conversations with the home, for a slot that is offered tools."""
    items = [_item(profile, slot, scenario) for scenario in make_scenarios(seed)]
    return Suite(f"living-{slot}", slot, tuple(items), "living")


def _item(profile: Profile, slot: str, scenario: Scenario) -> Item:
    first, *further = (line.text for line in scenario.lines)
    return Item(
        item_id=content_id([scenario.scenario_id, profile.digest]),
        cluster=scenario.template,
        text=first,
        messages=own_view(profile, Conversation("suite"), slot, first),
        tools=scenario.tools,
        choices=(),
        max_tokens=profile.max_answer_tokens,
        check=_needs_conversation,
        play=partial(hold, profile, slot, scenario),
        further_texts=tuple(further),
    )


def _needs_conversation(answer: Message) -> Check:
    return Check(None, "one answer of a conversation says nothing")


_ATTEMPTS = 50
