"""The task world: all domains together, as seed demonstrations and as simulated traffic.

Traffic is a list of conversation plans, deterministic by seed: who asks what and when,
which device fails, and how the user reacts to a wrong answer. A simulated user's edit
is the task's right answer.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from promotion.suites.chat import make_chat_task
from promotion.suites.functions import make_function_task
from promotion.suites.household import make_household_task, tool_task
from promotion.suites.interface import make_interface_task
from promotion.suites.task import Partition, Task, TaskMaker

MAKERS: Mapping[str, TaskMaker] = {
    "L0": make_chat_task,
    "L1": make_household_task,
    "L2": make_function_task,
    "L3": make_interface_task,
}
"""Task maker of each slot's skill."""

TRAFFIC_SHARE: Mapping[str, float] = {"L0": 0.16, "L1": 0.54, "L2": 0.17, "L3": 0.13}
"""How often users ask for each skill."""


@dataclass(frozen=True, slots=True)
class Reaction:
    """What a user does after one turn, decided beforehand; applied as the outcome turns out."""

    verified: bool
    """Whether the deployment runs its verifier on this turn."""
    thumbs: bool
    edits: bool
    """On a wrong answer: sends the right one."""
    retries: bool
    """On a wrong answer that is not edited: asks again."""
    delay: timedelta
    """Time from the answer to the feedback."""


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """One request of a plan."""

    task: Task
    reaction: Reaction
    narrated: bool
    """Whether the application sends tool results back for a spoken answer."""
    device_broken: bool


@dataclass(frozen=True, slots=True)
class ConversationPlan:
    """One conversation of one user."""

    conversation_id: str
    user: str
    started_at: datetime
    turns: tuple[PlannedTurn, ...]


def make_tasks(slot: str, count: int, seed: int, partition: Partition) -> list[Task]:
    """Return `count` tasks with distinct texts."""
    rng = random.Random(f"{partition}-{slot}-{seed}")
    tasks: dict[str, Task] = {}
    attempts = 0
    while len(tasks) < count:
        task = MAKERS[slot](rng, partition)
        tasks.setdefault(task.text, task)
        attempts += 1
        if attempts > 200 * count:
            raise ValueError(
                f"Only {len(tasks)} distinct {partition} tasks of {slot}, not {count}."
            )
    return list(tasks.values())


def plan_traffic(
    turns: int, seed: int, first_day: datetime, users: int = 36, days: int = 10
) -> list[ConversationPlan]:
    """Plan at least `turns` turns of `users` users over `days` days, in order of time."""
    rng = random.Random(f"traffic-{seed}")
    plans: list[ConversationPlan] = []
    planned = 0
    while planned < turns:
        number = len(plans)
        started_at = first_day + timedelta(
            days=rng.randrange(days), hours=rng.randint(7, 21), seconds=rng.randrange(3600)
        )
        tasks = _handover_tasks(rng) if rng.random() < 0.12 else _tasks(rng)
        plan = ConversationPlan(
            conversation_id=f"conversation-{seed}-{number:04d}",
            user=f"user-{rng.randrange(users):02d}",
            started_at=started_at,
            turns=tuple(_planned(rng, task) for task in tasks),
        )
        plans.append(plan)
        planned += len(tasks)
    return sorted(plans, key=lambda plan: (plan.started_at, plan.conversation_id))


def _tasks(rng: random.Random) -> Sequence[Task]:
    slots = rng.choices(
        list(TRAFFIC_SHARE), list(TRAFFIC_SHARE.values()), k=rng.choice((1, 1, 2, 3))
    )
    return [MAKERS[slot](rng, "traffic") for slot in slots]


def _handover_tasks(rng: random.Random) -> Sequence[Task]:
    """A question to L0, then a message that needs its answer: the summary must carry it over."""
    question = make_chat_task(rng, "traffic")
    person = rng.choice(("Anna", "Ben", "Clara", "David", "Emma"))
    values = {"person": person, "text": question.keywords[0]}
    wish = rng.choice(("Send {person} that answer.", "Write {person} the answer you gave."))
    return question, tool_task("send_message", values, "handover", wish.format(person=person))


def _planned(rng: random.Random, task: Task) -> PlannedTurn:
    reaction = Reaction(
        verified=rng.random() < 0.8,
        thumbs=rng.random() < 0.35,
        edits=rng.random() < 0.75,
        retries=rng.random() < 0.5,
        delay=timedelta(seconds=rng.choice((20, 90, 600, 7200, 100_000)) * (0.5 + rng.random())),
    )
    return PlannedTurn(
        task=task,
        reaction=reaction,
        narrated=task.slot == "L1" and rng.random() < 0.2,
        device_broken=task.slot == "L1" and rng.random() < 0.04,
    )
