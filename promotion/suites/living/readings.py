"""Wishes that depend on a fact of the home, which has to be read: `READINGS`.

Each comes as it stands (for a noisy reading) or `moved`: then somebody changes the fact, after
the user has asked for it (`query`) and before the user wants something that depends on it (`act`).
Its goal is what is right by the fact as it then is, and differs from what the old one asks for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from promotion.suites.household import DAYS, GENRES, ITEMS, ROOMS, TITLES
from promotion.suites.living.compose import Talk
from promotion.suites.living.deeds import Relation, Value
from promotion.suites.living.home import Facts
from promotion.suites.living.scenario import Step, insist


@dataclass(frozen=True, slots=True)
class Reading:
    """A wish that depends on a fact."""

    fields: Mapping[str, Value]
    """What its lines say."""
    looks: tuple[Callable[[], Step], ...]
    """The readings that answer its query."""
    step: Callable[[], Step]
    """Reads, and does what is right by what it reads."""
    tool: str
    """The tool that it does the last of it with."""
    goal: Facts
    moves: Facts = field(default_factory=dict)

    @property
    def reader(self) -> str:
        """The tool that the fact is read with."""
        return next(self.looks[0]())[0]


def _look(name: str, **arguments: Value) -> Callable[[], Step]:
    return partial(insist, name, **arguments)


def relative(talk: Talk, moved: bool) -> Reading:
    """Raise a heating."""
    room, more = talk.rng.choice(ROOMS), talk.rng.randint(1, 3)
    start = int(talk.start["heating", room])
    now = start + talk.rng.choice((-4, -3, 4, 5)) if moved else start
    look = _look("get_heating", room=room)

    def step() -> Step:
        degrees = (yield from look())["degrees"]
        return (yield from insist("set_heating", room=room, degrees=degrees + more))

    fact = ("heating", room)
    said: dict[str, Value] = {"room": room, "more": more}
    return Reading(said, (look,), step, "set_heating", {fact: now + more}, {fact: now})


def colder(talk: Talk, moved: bool) -> Reading:
    """Warm the colder of two rooms."""
    one, other = talk.rng.sample(ROOMS, 2)
    low, high = talk.rng.randint(14, 18), talk.rng.randint(20, 22)
    degrees = talk.rng.randint(24, 27)
    talk.start |= {("heating", one): low, ("heating", other): high}
    looks = _look("get_heating", room=one), _look("get_heating", room=other)

    def step() -> Step:
        first = (yield from looks[0]())["degrees"]
        second = (yield from looks[1]())["degrees"]
        room = one if first < second else other
        return (yield from insist("set_heating", room=room, degrees=degrees))

    moves: Facts = {("heating", one): high, ("heating", other): low}
    goal: Facts = {("heating", other if moved else one): degrees}
    said: dict[str, Value] = {"room": one, "room2": other, "degrees": degrees}
    return Reading(said, looks, step, "set_heating", goal, moves)


def _copied(kind: str, talk: Talk, moved: bool) -> Reading:
    """Make one room's heating or light like another's."""
    one, other = talk.rng.sample(ROOMS, 2)
    name = "degrees" if kind == "heating" else "state"
    values: Sequence[Value] = range(15, 23) if kind == "heating" else ("on", "off")
    now, then = talk.rng.sample(values, 2)
    # The other room must need a change in the end, whether or not the first one has moved.
    rest = [value for value in values if value not in (now, then)] or [now if moved else then]
    talk.start |= {(kind, one): now, (kind, other): talk.rng.choice(rest)}
    look = _look(f"get_{kind}", room=one)

    def step() -> Step:
        found = (yield from look())[name]
        return (yield from insist(f"set_{kind}", room=other, **{name: found}))

    goal: Facts = {(kind, other): then if moved else now}
    return Reading({"room": one, "room2": other}, (look,), step, f"set_{kind}", goal,
                   {(kind, one): then})  # fmt: skip


def toggled(talk: Talk, moved: bool) -> Reading:
    """Switch a light to the opposite of what it is."""
    room, (now, then) = talk.rng.choice(ROOMS), ("on", "off")
    if moved and talk.rng.random() < 0.5:
        now, then = then, now
    talk.start["light", room] = now
    look = _look("get_light", room=room)

    def step() -> Step:
        lit = (yield from look())["state"] == "on"
        return (yield from insist("set_light", room=room, state="off" if lit else "on"))

    fact = ("light", room)
    return Reading({"room": room}, (look,), step, "set_light", {fact: now if moved else then},
                   {fact: then})  # fmt: skip


def _ensured(subject: str, relation: Relation, may_go: bool, talk: Talk, moved: bool) -> Reading:
    """See that two entries are there once each; somebody makes the first, or takes it away."""
    here, missing = talk.draw(subject, relation, 2)
    goes = moved and may_go and talk.rng.random() < 0.5
    if goes or not moved:
        talk.start |= here.done

    def step() -> Step:
        yield from here.ensure()
        return (yield from missing.ensure())

    said = {**here.arguments, **{f"{name}2": value for name, value in missing.arguments.items()}}
    goal = {**missing.done, **(here.done if goes else {})}
    moves = here.undone if goes else here.done
    return Reading(said, (_look(here.subject.reader),), step, here.subject.tool, goal, moves)


def traded(talk: Talk, moved: bool) -> Reading:
    """Take an item off, or put another on if it has gone."""
    item, other = talk.rng.sample(ITEMS, 2)
    talk.start["list", item] = 1
    look = _look("read_list")

    def step() -> Step:
        if item in (yield from look())["items"]:
            return (yield from insist("remove_from_list", item=item))
        return (yield from insist("add_to_list", item=other))

    goal: Facts = {("list", other): 1} if moved else {("list", item): 0}
    tool = "add_to_list" if moved else "remove_from_list"
    said = {"item": item, "item2": other}
    return Reading(said, (look,), step, tool, goal, {("list", item): 0})


def free(talk: Talk, moved: bool) -> Reading:
    """Book a day unless it is taken."""
    (title, other), (day, later) = talk.rng.sample(TITLES, 2), talk.rng.sample(DAYS, 2)
    taken: Facts = {("event", other, day): 1}
    if not moved:
        talk.start |= taken
    look = _look("read_calendar")

    def step() -> Step:
        events = (yield from look())["events"]
        empty = all(event["day"] != day.casefold() for event in events)
        return (yield from insist("add_event", title=title, day=day if empty else later))

    said = {"title": title, "day": day, "day2": later}
    return Reading(said, (look,), step, "add_event", {("event", title, later): 1}, taken)


def _found(again: bool, talk: Talk, moved: bool) -> Reading:
    """Find an event and take it out, and put it on another day if it is to be there again."""
    title, (day, later, wanted) = talk.rng.choice(TITLES), talk.rng.sample(DAYS, 3)
    talk.start["event", title, day] = 1
    look = _look("read_calendar")

    def step() -> Step:
        events = (yield from look())["events"]
        found = next(event for event in events if event["title"] == title.casefold())
        result = yield from insist("remove_event", **found)
        if again:
            result = yield from insist("add_event", title=title, day=wanted)
        return result

    goal: Facts = {("event", title, later if moved else day): 0}
    if again:
        goal = {**goal, ("event", title, wanted): 1}
    tool = "add_event" if again else "remove_event"
    moves: Facts = {("event", title, day): 0, ("event", title, later): 1}
    return Reading({"title": title, "day": wanted}, (look,), step, tool, goal, moves)


def if_playing(talk: Talk, moved: bool) -> Reading:
    """Change the music if it is what the user thinks, else stop it."""
    playing, other, new = talk.rng.sample(GENRES, 3)
    talk.start["music",] = playing
    look = _look("get_music")

    def step() -> Step:
        if (yield from look())["genre"] == playing:
            return (yield from insist("play_music", genre=other))
        return (yield from insist("stop_music"))

    goal: Facts = {("music",): "none" if moved else other}
    tool = "stop_music" if moved else "play_music"
    said = {"genre": playing, "genre2": other}
    return Reading(said, (look,), step, tool, goal, {("music",): new})


def quiet(talk: Talk, moved: bool) -> Reading:
    """Stop the music if it is what the user thinks, and switch a light on in any case."""
    (playing, new), room = talk.rng.sample(GENRES, 2), talk.rng.choice(ROOMS)
    talk.start |= {("music",): playing, ("light", room): "off"}
    talk.offer("light")
    look = _look("get_music")

    def step() -> Step:
        if (yield from look())["genre"] == playing:
            yield from insist("stop_music")
        return (yield from insist("set_light", room=room, state="on"))

    stopped: Facts = {} if moved else {("music",): "none"}
    said = {"genre": playing, "room": room}
    return Reading(said, (look,), step, "set_light", {("light", room): "on", **stopped},
                   {("music",): new})  # fmt: skip


def shortest(talk: Talk, moved: bool) -> Reading:
    """Replace the shortest timer."""
    shorter, short, long, wanted = sorted(talk.rng.sample(range(3, 60), 4))
    talk.start |= {("timer", shorter): 1, ("timer", long): 1}
    look = _look("get_timers")

    def step() -> Step:
        running = (yield from look())["minutes"]
        yield from insist("cancel_timer", minutes=min(running))
        return (yield from insist("set_timer", minutes=wanted))

    goal: Facts = {("timer", short if moved else shorter): 0, ("timer", wanted): 1}
    moves: Facts = {("timer", shorter): 0, ("timer", short): 1}
    return Reading({"minutes": wanted}, (look,), step, "set_timer", goal, moves)


@dataclass(frozen=True, slots=True)
class Row:
    """What a reading is about."""

    subject: str
    make: Callable[[Talk, bool], Reading]
    undoable: bool = False
    """It changes one fact, and what that was is known from what was read."""


READINGS: Mapping[str, Row] = {
    "relative": Row("heating", relative, undoable=True),
    "colder": Row("heating", colder, undoable=True),
    "copied": Row("heating", partial(_copied, "heating")),
    "toggled": Row("light", toggled, undoable=True),
    "matched": Row("light", partial(_copied, "light")),
    "stocked": Row("list", partial(_ensured, "list", "both", True)),
    "traded": Row("list", traded, undoable=True),
    "free": Row("calendar", free, undoable=True),
    "called_off": Row("calendar", partial(_found, False), undoable=True),
    "moved": Row("calendar", partial(_found, True)),
    "if_playing": Row("music", if_playing, undoable=True),
    "quiet": Row("music", quiet),
    "shortest": Row("timer", shortest),
    "counting": Row("timer", partial(_ensured, "timer", "both", True)),
    "told": Row("message", partial(_ensured, "message", "target", False)),
}
"""By the table of their lines."""


def read(talk: Talk, name: str, moved: bool) -> Reading:
    """Make one of the readings."""
    row = READINGS[name]
    talk.offer(row.subject)
    return row.make(talk, moved)
