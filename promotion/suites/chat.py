"""Short questions (L0) with one right answer."""

import random
from typing import Any

from promotion.suites.chat_facts import ADDENDS, FACTS, Fact, other_answers, sum_fact
from promotion.suites.task import Partition, Task, assistant, read_phrasings

_PHRASINGS = read_phrasings("chat")
_KNOWN = ("capital", "opposite", "young", "sum")
"""What the first adapters learned and users ask; the gate asks for all topics."""
_SHARES = {topic: len(phrasings.gate) for topic, phrasings in _PHRASINGS.items()}
"""How often the gate asks for each topic: every phrasing alike."""


def make_chat_task(rng: random.Random, partition: Partition) -> Task:
    """Make one short question."""
    if partition == "gate":
        topic = rng.choices(list(_SHARES), list(_SHARES.values()))[0]
    else:
        topic = rng.choice(_KNOWN)
    fact = _draw_fact(rng, topic)
    template, text = _PHRASINGS[topic].pick(rng, partition, fact.values)
    right = fact.accepted[0]
    reference: dict[str, Any] = {"verifier": "short_answer", "accepted": [right]}
    if partition == "gate":
        # Users compare with one answer alone.
        reference["accepted"] = list(fact.accepted)
        reference["rejected"] = list(other_answers(topic, fact, text))
    return Task(
        slot="L0",
        template=f"chat-{topic}-{template}",
        text=text[0].upper() + text[1:],
        answer=assistant(f"{right[0].upper()}{right[1:]}."),
        reference=reference,
        keywords=(right,),
    )


def _draw_fact(rng: random.Random, topic: str) -> Fact:
    if topic == "sum":
        return sum_fact(rng.choice(ADDENDS), rng.choice(ADDENDS))
    return rng.choice(FACTS[topic])
