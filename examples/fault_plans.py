"""Who asks what in the fault set, and which turn gets which fault.

Clean conversations come first; every fault goes to a turn that succeeded among them, in a
conversation of its own. Ids are hashes, users and times are drawn alike for all.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from examples.fault_adapters import summary
from examples.fault_injection import CORRUPTIONS, Fault, Klass
from examples.fault_world import Request, handover, plain, spoken
from serving.records import BASE_SLOT, content_id
from serving.slots import Profile

FIRST_DAY = datetime(2026, 12, 1, tzinfo=UTC)
DAYS, USERS = 12, 48
CLEAN = {"handover": 170, "spoken": 110, "plain": 70}
"""Clean conversations of each kind."""
TRIED: Mapping[Klass, int] = {
    "router": 250, "adapter": 500, "tool": 235, "summary": 260, "user": 310, "fallback": 260,
}  # fmt: skip
"""Turns of each class that are tried; some succeed all the same."""
VAGUE_SUMMARIES = (
    "A question was asked and it was answered.",
    "Asked: Answer:",
    "The user wanted something, it is done.",
    "-",
    "Say in one sentence what was asked.",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """One conversation."""

    conversation_id: str
    user: str
    started_at: datetime
    requests: tuple[Request, ...]
    fault: Fault | None = None
    """Of the last request, or of the hand-over to it."""
    routes: tuple[str, ...] = ()
    """Who answered each request where nothing was wrong."""


@dataclass(frozen=True, slots=True)
class Start:
    """A turn that succeeded, with what came before it."""

    requests: tuple[Request, ...]
    routes: tuple[str, ...]

    @property
    def request(self) -> Request:
        """The request that succeeded."""
        return self.requests[-1]

    @property
    def slot(self) -> str:
        """Who answered it."""
        return self.routes[-1]


def plan_clean(scale: float, seed: int = 3) -> list[Plan]:
    """Return the conversations in which nothing is made to go wrong."""
    plans = []
    for kind, count in CLEAN.items():
        for number in range(max(1, round(count * scale))):
            rng = random.Random(f"clean-{seed}-{kind}-{number}")
            requests: tuple[Request, ...]
            if kind == "handover":
                requests = handover(rng)
            elif kind == "spoken":
                requests = (spoken(rng),)
            else:
                slots = rng.choices(("L0", "L1", "L2", "L3"), (2, 1, 4, 4), k=rng.choice((1, 1, 2)))
                requests = tuple(plain(rng, slot) for slot in slots)
            plans.append(plan_one(rng, [seed, kind, number], requests))
    return plans


def plan_one(
    rng: random.Random, name: list[object], requests: tuple[Request, ...],
    fault: Fault | None = None, routes: tuple[str, ...] = (),
) -> Plan:  # fmt: skip
    """Return a conversation of somebody at some time, named by a hash."""
    seconds = rng.randrange(DAYS * 86_400)
    return Plan(
        conversation_id="c" + content_id(name)[7:23],
        user=f"user-{rng.randrange(USERS):02d}",
        started_at=FIRST_DAY + timedelta(seconds=seconds),
        requests=requests,
        fault=fault,
        routes=routes,
    )


def faults_for(
    clean: Sequence[tuple[Plan, Sequence[tuple[bool, str | None]]]],
    names: Mapping[str, str],
    profile: Profile,
    confidences: Sequence[float],
    scale: float,
    seed: int = 3,
) -> list[Plan]:
    """Return conversations with one fault each.

    Args:
        clean: the clean conversations, with each turn's success and slot.
        names: served name by slot and by `slot/damage`.
        profile: the slots.
        confidences: how sure the router was of its routes.
        scale: size, in sets as shipped.
        seed: which faults.
    """
    starts = [start for plan, ends in clean for start in _starts(plan, ends)]
    plans = []
    for klass, count in TRIED.items():
        rng = random.Random(f"faults-{seed}-{klass}")
        able = [start for start in starts if _can(klass, start)]
        rng.shuffle(able)
        if klass == "tool":
            able = _mostly_spoken(able)
        for number in range(round(count * scale) if able else 0):
            start = able[number % len(able)]
            fault = _fault(rng, klass, start, names, profile, confidences)
            name: list[object] = [seed, klass, number]
            plans.append(plan_one(rng, name, start.requests, fault, start.routes))
    return plans


def _mostly_spoken(starts: Sequence[Start]) -> list[Start]:
    """Return starts of which two in three depend on what the tool returns."""
    aloud = [start for start in starts if start.request.spoken]
    silent = [start for start in starts if not start.request.spoken]
    if not aloud or not silent:
        return list(starts)
    most = max(len(aloud), len(silent))
    turns = [(aloud[2 * n % len(aloud)], silent[n % len(silent)], aloud[(2 * n + 1) % len(aloud)])
             for n in range(most)]  # fmt: skip
    return [start for three in turns for start in three]


def _starts(plan: Plan, ends: Sequence[tuple[bool, str | None]]) -> list[Start]:
    starts = []
    for place, (passed, slot) in enumerate(ends):
        routes = tuple(s for _, s in ends[: place + 1] if s is not None)
        if passed and slot == plan.requests[place].task.slot and len(routes) == place + 1:
            starts.append(Start(plan.requests[: place + 1], routes))
    return starts


def _can(klass: Klass, start: Start) -> bool:
    request = start.request
    if klass == "user":
        return bool(request.vague) and not request.spoken
    if klass == "tool":
        return request.task.slot == "L1"
    if klass == "summary":
        needs = "handover" in request.task.template or "recall" in request.task.template
        return needs and start.routes[-2] == start.requests[-2].task.slot
    return True


def _fault(
    rng: random.Random, klass: Klass, start: Start, names: Mapping[str, str], profile: Profile,
    confidences: Sequence[float],
) -> Fault:  # fmt: skip
    others = [label for label in profile.labels if label != start.slot]
    if klass == "router":
        return Fault(
            klass, "forced", slot=profile.router, to_slot=rng.choice(others),
            confidence=rng.choice(confidences),
        )  # fmt: skip
    if klass == "adapter":
        key = rng.choice(sorted(key for key in names if key.startswith(f"{start.slot}/")))
        return Fault(klass, key.split("/")[1], slot=start.slot, served_name=names[key])
    if klass == "tool":
        kind = rng.choice(CORRUPTIONS) if start.request.spoken else "error"
        return Fault(klass, kind)
    if klass == "user":
        return Fault(klass, "vague", text=rng.choice(start.request.vague))
    if klass == "summary":
        return _summary_fault(rng, start, names)
    stand_in = rng.choice((BASE_SLOT, *others))
    kind = "base" if stand_in == BASE_SLOT else "other_slot"
    return Fault(klass, kind, to_slot=stand_in, confidence=rng.choice(confidences))


def _summary_fault(rng: random.Random, start: Start, names: Mapping[str, str]) -> Fault:
    earlier, slot = start.requests[-2], start.routes[-2]
    kind = rng.choice(("falsified", "falsified", "vague", "truncated", "other", "damaged"))
    if kind == "damaged":
        key = rng.choice(sorted(key for key in names if key.startswith(f"{slot}/")))
        return Fault("summary", kind, slot=slot, served_name=names[key])
    said = summary(earlier)
    if kind == "vague":
        said = rng.choice(VAGUE_SUMMARIES)
    elif kind == "truncated":
        said = " ".join(said.split()[: rng.randint(2, 4)])
    elif kind == "other":
        said = summary(plain(rng, slot))
    else:
        for key in earlier.task.keywords:
            said = said.replace(key, _other_word(rng, earlier, slot, key))
    return Fault("summary", kind, slot=slot, text=said)


def _other_word(rng: random.Random, earlier: Request, slot: str, word: str) -> str:
    """Return the word in its place of another request of the same kind."""
    kind = earlier.task.template.rsplit("-", 1)[0]
    place = earlier.task.keywords.index(word)
    while True:
        task = plain(rng, slot).task
        if task.template.rsplit("-", 1)[0] == kind and task.keywords[place] != word:
            return task.keywords[place]
